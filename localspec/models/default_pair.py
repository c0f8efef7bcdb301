"""The default models.

SmolLM2 with LocalSpec's own draft where the package that carries it is installed, else the bundled pair of
tiny models.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import smollm2
from localspec.demo import bundled_pair
from localspec.errors import UserError
from localspec.types.models import ModelInfo

if TYPE_CHECKING:
    from localspec.models.local import LocalModel

_SMOLLM2 = "SmolLM2 135M Instruct"
_SMOLLM2_DRAFT = "smollm2-draft"


def default_pair() -> tuple[Path, Path]:
    """Return the default target and draft model."""
    target = smollm2.target()
    return bundled_pair() if target is None else (target, smollm2.draft())


def nameable(target: Path | None, draft: Path | None) -> tuple[Path | None, Path | None]:
    """Return the models as config.toml can name them: none for the default pair, and no file of a package.

    Such a path ends with the next Python or virtual environment. Raises UserError for a target that only a
    path could name; a draft model of that kind is left out.
    """
    usual, _draft = default_pair()
    packaged = {_real(path) for path in _packaged()}
    if target is None or (_real(target) == _real(usual) and (draft is None or _real(draft) in packaged)):
        return None, None
    if _real(target) in packaged:
        raise UserError(
            f"config.toml cannot name {target.name}: it is a file of an installed package, which may move",
            f"open it with -m {target.stem}, or copy the file and name the copy",
        )
    return target, None if draft is None or _real(draft) in packaged else draft


def moved(path: Path | None) -> Path | None:
    """Return the current path of a file from another installation of a package; else the same path."""
    if path is None or path.exists():
        return path
    return next((own for own in _packaged() if own.parts[-2:] == path.parts[-2:]), path)


def _packaged() -> tuple[Path, ...]:
    """Return the model files of installed packages."""
    target = smollm2.target()
    return (*bundled_pair(), smollm2.draft(), *(() if target is None else (target,)))


def _real(path: Path) -> str:
    return os.path.realpath(path)


def on_this_computer(folders: Sequence[Path] = ()) -> tuple[LocalModel, ...]:
    """Return the models in the caches, in given folders or files, and those that come with LocalSpec."""
    from localspec.models.local import find_models  # 20 ms that the default pair does without

    bundled = (*bundled_pair(), smollm2.draft())
    return find_models([folder for folder in folders if folder not in bundled], bundled=bundled)


def name_of(model: ModelInfo) -> str:
    """Return the usual name of an open model; the header of SmolLM2 has another one."""
    if smollm2.is_target(model.path):
        return _SMOLLM2
    return _SMOLLM2_DRAFT if model.path == smollm2.draft() else model.name


def introduction(target: ModelInfo) -> str:
    """Return a sentence about a target that came with LocalSpec; empty for others."""
    if target.path == bundled_pair()[0]:
        return "the bundled pair. It shows how everything works; it knows very little."
    if smollm2.is_target(target.path):
        return "a small assistant. It is often wrong: check what it says."
    return ""
