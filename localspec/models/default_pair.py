"""The models that open where nobody names any, and how they are best sampled.

SmolLM2 with LocalSpec's own draft where the package that carries it is installed, else the bundled pair of
tiny models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.storage.profiles import Profile
from localspec.types import ModelInfo, Sampling, TaskType

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


def recommended_sampling(target: Path, task: TaskType) -> Sampling | None:
    """Return the sampling that a target's card recommends; None where that is not known."""
    return smollm2.sampling(task) if _is(target, smollm2.target()) else None


def suited(profile: Profile, target: Path) -> Profile:
    """Return a profile as it fits a target.

    What the target's card recommends goes before the sampling of a shipped profile, which was made for
    larger models, and stands in where a user's own profile settles none.
    """
    recommended = recommended_sampling(target, profile.task)
    if recommended is None or profile.own_sampling:
        return profile
    return replace(profile, sampling=recommended)


def name_of(model: ModelInfo) -> str:
    """Return what people call an open model: the header of SmolLM2 says something else."""
    if _is(model.path, smollm2.target()):
        return _SMOLLM2
    return _SMOLLM2_DRAFT if model.path == smollm2.draft() else model.name


def introduction(target: ModelInfo) -> str:
    """Return what to expect of a target that came with LocalSpec, in a sentence; nothing of others."""
    if target.path == bundled_pair()[0]:
        return "the bundled pair. It shows how everything works; it knows very little."
    if _is(target.path, smollm2.target()):
        return "a small assistant. It is often wrong: check what it says."
    return ""


def _is(path: Path, known: Path | None) -> bool:
    """Tell whether two paths lead to one file; a path in a configuration may be another to it."""
    if known is None:
        return False
    try:
        return path == known or path.samefile(known)
    except OSError:  # whoever opens it has more to say
        return False
