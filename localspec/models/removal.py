"""Delete models from the caches, and nothing that anybody else uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import StoreError, UserError, in_words
from localspec.models.caches import Place, known_places, repository_of
from localspec.models.local import LocalModel


@dataclass(frozen=True, slots=True)
class Removal:
    """What is to be deleted: links and files, and the bytes that this frees. `kept` says why files stay."""

    model: LocalModel
    paths: tuple[Path, ...]
    freed: int
    kept: tuple[str, ...] = ()


def plan_removal(model: LocalModel) -> Removal:
    """Return what deleting a model would delete; raises UserError where it is not in a cache."""
    caches = [place for place in known_places() if place.is_cache]
    root = next((place.path for place in caches if model.path.is_relative_to(place.path)), None)
    if root is None:
        raise UserError(
            f"{model.name} is not in a cache: it is never deleted from here",
            f"delete {model.path} yourself if you want to",
        )
    repository = _repository(model.path, root)
    if repository is None:
        return _plan_loose(model, caches)
    if model.path.parent.name == "blobs":  # an unfinished download
        return _removal(model, model.files)
    return _plan_links(model, repository, caches)


def remove(removal: Removal) -> None:
    """Delete what was planned, and the folders that it leaves empty; raises StoreError."""
    for path in removal.paths:
        with in_words(f"cannot delete {path}", StoreError):
            path.unlink(missing_ok=True)
    roots = [place.path for place in known_places()]
    for path in removal.paths:
        _prune(path.parent, roots)


def _plan_loose(model: LocalModel, caches: Sequence[Place]) -> Removal:
    linked = _linked_elsewhere([place.path for place in caches], model.files)
    staying = [file for file in model.files if not file.is_symlink() and _real(file) in linked]
    kept = [f"{file} stays: another model's link leads to it" for file in staying]
    if any(file.is_symlink() for file in model.files):
        kept.append("what it links to stays")
    return _removal(model, [file for file in model.files if file not in staying], kept)


def _plan_links(model: LocalModel, repository: Path, caches: Sequence[Place]) -> Removal:
    """Plan for the hub's layout: a file's links in all commits, and its blob if no other link needs it."""
    names = {_inside_commit(file, repository) for file in model.files}
    blobs = {_real(file) for file in model.files}
    snapshots = (path for path in (repository / "snapshots").rglob("*") if not path.is_dir())
    links = [path for path in snapshots if _inside_commit(path, repository) in names and _real(path) in blobs]
    others = _linked_elsewhere([repository, *(place.path for place in caches)], links)
    paths, kept = list(links), []
    for blob in sorted(blobs.difference(links)):  # without links the file itself stands in the snapshot
        if blob in others:
            kept.append(f"{blob} stays: another model uses it")
        elif not blob.is_relative_to(_real(repository)):
            kept.append(f"{blob} stays: it lies outside the cache")
        else:
            paths.append(blob)
    return _removal(model, paths, kept)


def _removal(model: LocalModel, paths: Sequence[Path], kept: Sequence[str] = ()) -> Removal:
    return Removal(model, tuple(paths), sum(map(_own_bytes, paths)), tuple(kept))


def _linked_elsewhere(roots: Sequence[Path], own: Sequence[Path]) -> set[Path]:
    """Return what symbolic links below some folders lead to, but for one's own; links may lead to folders."""
    ours = {_real(path.parent) / path.name for path in own}
    return {
        _real(link)
        for root in {_real(root) for root in roots}
        for folder, _, names in os.walk(root)
        for name in names
        if (link := Path(folder, name)).is_symlink() and link not in ours
    }


def _repository(path: Path, root: Path) -> Path | None:
    """Return the folder of the hub's layout that a file lies in."""
    return next(
        (
            parent
            for parent in path.parents
            if parent.is_relative_to(root) and repository_of(parent.name) and (parent / "blobs").is_dir()
        ),
        None,
    )


def _inside_commit(path: Path, repository: Path) -> str:
    steps = path.relative_to(repository).parts  # snapshots, the commit, and what the repository calls it
    return "/".join(steps[2:])


def _own_bytes(path: Path) -> int:
    """Return what deleting a file frees: nothing for a link, or while another name keeps it."""
    with suppress(OSError):
        status = path.lstat()
        if not path.is_symlink() and status.st_nlink == 1:
            return status.st_size
    return 0


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _prune(folder: Path, roots: Sequence[Path]) -> None:
    """Delete folders that are empty now, below a cache's own, and the rest of a repository without files."""
    inside = [root for root in roots if folder != root and folder.is_relative_to(root)]
    while inside and folder not in roots:
        if repository_of(folder.name) and not any(
            path.is_file() or path.is_symlink()
            for part in ("blobs", "snapshots")
            for path in (folder / part).rglob("*")
        ):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            with suppress(OSError):
                folder.rmdir()
        folder = folder.parent
