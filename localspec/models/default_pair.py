"""The models that open where nobody names any.

SmolLM2 with LocalSpec's own draft where the package that carries it is installed, else the bundled pair of
tiny models.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.types import ModelInfo

if TYPE_CHECKING:
    from localspec.models.local import LocalModel

_SMOLLM2 = "SmolLM2 135M Instruct"
_SMOLLM2_DRAFT = "smollm2-draft"


def default_pair() -> tuple[Path, Path]:
    """Return the target and the draft model that open where nobody names any."""
    target = smollm2.target()
    return bundled_pair() if target is None else (target, smollm2.draft())


def on_this_computer(folders: Sequence[Path] = ()) -> tuple[LocalModel, ...]:
    """Return the models in the caches, in given folders, and those that come with LocalSpec."""
    from localspec.models.local import find_models  # 20 ms that the default pair does without

    return find_models(folders, bundled=(*bundled_pair(), smollm2.draft()))


def name_of(model: ModelInfo) -> str:
    """Return what people call an open model: the header of SmolLM2 says something else."""
    if smollm2.is_target(model.path):
        return _SMOLLM2
    return _SMOLLM2_DRAFT if model.path == smollm2.draft() else model.name


def introduction(target: ModelInfo) -> str:
    """Return what to expect of a target that came with LocalSpec, in a sentence; nothing of others."""
    if target.path == bundled_pair()[0]:
        return "the bundled pair. It shows how everything works; it knows very little."
    if smollm2.is_target(target.path):
        return "a small assistant. It is often wrong: check what it says."
    return ""
