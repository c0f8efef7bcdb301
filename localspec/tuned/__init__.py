"""Tuned settings, kept for each machine, pair of models and task, and how their going stale is noticed."""

from localspec.tuned.identity import Identity, MachineFacts, ModelFacts, changes, identify
from localspec.tuned.model_files import fingerprint
from localspec.tuned.store import (
    Kept,
    Recalled,
    TunedTask,
    TunedWorkplace,
    everything,
    forget,
    keep,
    keep_workplace,
    recall,
    recall_workplace,
)

__all__ = [
    "Identity",
    "Kept",
    "MachineFacts",
    "ModelFacts",
    "Recalled",
    "TunedTask",
    "TunedWorkplace",
    "changes",
    "everything",
    "fingerprint",
    "forget",
    "identify",
    "keep",
    "keep_workplace",
    "recall",
    "recall_workplace",
]
