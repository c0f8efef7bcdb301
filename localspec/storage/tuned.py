"""Tuned settings, kept for each machine, pair of models and task, and how their going stale is noticed."""

from localspec.storage.call_costs import (
    KeptCall,
    KeptCosts,
    costs_file,
    forget_costs,
    keep_costs,
    recall_costs,
)
from localspec.storage.model_files import fingerprint
from localspec.storage.pair_identity import Identity, MachineFacts, ModelFacts, changes, identify
from localspec.storage.tuned_settings import (
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
    "KeptCall",
    "KeptCosts",
    "MachineFacts",
    "ModelFacts",
    "Recalled",
    "TunedTask",
    "TunedWorkplace",
    "changes",
    "costs_file",
    "everything",
    "fingerprint",
    "forget",
    "forget_costs",
    "identify",
    "keep",
    "keep_costs",
    "keep_workplace",
    "recall",
    "recall_costs",
    "recall_workplace",
]
