"""Delete models from the caches, and nothing that other programs use.

Real paths count: nothing is deleted through a link to a folder, and nothing outside the real folder of its
cache.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from localspec.errors import StoreError, UserError, os_errors_as
from localspec.models.caches import ModelFolder, known_places, repository_of
from localspec.models.local import LocalModel, find_models
from localspec.models.verified import is_checksum

_MAX_NOTE = 64  # bytes: the name of a commit


@dataclass(frozen=True, slots=True)
class Removal:
    """A deletion: links and files, and the bytes that this frees. `kept` says why files stay."""

    model: LocalModel
    paths: tuple[Path, ...]
    freed: int
    kept: tuple[str, ...] = ()


def plan_removal(model: LocalModel) -> Removal:
    """Plan the deletion of a model; raises UserError if it is not in a cache."""
    if model.source == "ollama":
        raise UserError(
            f"{model.name} is in Ollama's store, where LocalSpec deletes nothing",
            f"`ollama rm {model.name}` deletes it",
        )
    caches = [place for place in known_places() if place.is_cache]
    root = next((place.path for place in caches if place.path in model.path.parents), None)
    if root is None:
        raise UserError(
            f"{model.name} is not in a cache, and LocalSpec deletes nothing else",
            f"delete {model.path} yourself if you want to",
        )
    link = next(filter(None, (_linked_folder(file, caches) for file in model.files)), None)
    if link is not None:
        return _plan_linked_folder(model, link, caches)
    repository = _repository(model.path, root)
    if repository is None:
        return _plan_loose(model)
    if model.path.parent.name == "blobs":  # an unfinished download
        return _removal(model, model.files)
    return _plan_links(model, repository, caches)


def remove(removal: Removal) -> None:
    """Delete what was planned, and the folders that it leaves empty; raises StoreError."""
    caches = [place for place in known_places() if place.is_cache]
    for path in removal.paths:
        if not _is_own(path, caches):
            raise StoreError(f"cannot delete {path}: it is no longer in a cache")
        with os_errors_as(f"cannot delete {path}", StoreError):
            path.unlink(missing_ok=True)
    for path in removal.paths:
        _prune(path.parent, caches)


def _plan_linked_folder(model: LocalModel, link: Path, caches: Sequence[ModelFolder]) -> Removal:
    """Plan for a model in a folder that a link in a cache leads to: at most the link goes.

    Raises UserError where other models need the link, too.
    """
    files = [_real(file) for file in model.files]
    own = set(map(_real_entry, model.files))
    there = find_models(places=[ModelFolder(link, "folder")])
    paths = [name.path for found in there for name in (found, *found.others)]
    others = [path for path in paths if _real_entry(path) not in own and path.parent.name != "blobs"]
    if others or link.name == "blobs":
        raise UserError(
            f"{model.name} is not in the cache: {link} leads to {_real(link)}, where nothing is deleted",
            f"delete {files[0]} yourself if you want to; other models need the link, too",
        )
    return _removal(model, [link], [f"{file} stays: {_place_of(file, caches)}" for file in files])


def _place_of(file: Path, caches: Sequence[ModelFolder]) -> str:
    """Return the reason to keep a file."""
    is_in_cache = any(file.is_relative_to(_real(place.path)) for place in caches)
    return "it belongs to another folder of the cache" if is_in_cache else "it is outside the cache"


def _plan_loose(model: LocalModel) -> Removal:
    linked = _linked_elsewhere(model.files)
    staying = [file for file in model.files if _real_entry(file) in linked]
    kept = [f"{file} stays: another model's link leads to it" for file in staying]
    paths = [file for file in model.files if file not in staying]
    if any(file.is_symlink() for file in paths):
        kept.append("what it links to stays")
    return _removal(model, paths, kept)


def _plan_links(model: LocalModel, repository: Path, caches: Sequence[ModelFolder]) -> Removal:
    """Plan for the Hub's layout: a file's links in all commits, and its blob if no other link needs it.

    A blob may be a link into a store that all repositories of the cache share.
    """
    names = {_inside_commit(file, repository) for file in model.files}
    files = {_real(file) for file in model.files}
    snapshots = _files_below(repository / "snapshots")
    links = [path for path in snapshots if _inside_commit(path, repository) in names and _real(path) in files]
    own = {_real_entry(link) for link in links}
    own_blobs = _real(repository) / "blobs"
    shared = _real(repository).parent / "blobs"
    blobs = {blob for link in links for blob in _led_to(link)} - own
    others = _linked_elsewhere([*links, *(blob for blob in blobs if blob.parent == own_blobs)], repository)
    paths = list(links)
    kept = []
    for blob in sorted(blobs):
        if blob in others:
            kept.append(f"{blob} stays: another model uses it")
        elif blob.parent == own_blobs:
            paths.append(repository / "blobs" / blob.name)
        elif blob.parent.parent == shared and is_checksum(blob.name):
            folder = repository.parent / "blobs" / blob.parent.name
            paths += [folder / blob.name, folder / f"{blob.name}.refs"]
        else:
            kept.append(f"{blob} stays: {_place_of(blob, caches)}")
    return _removal(model, [path for path in paths if os.path.lexists(path)], kept)


def _removal(model: LocalModel, paths: Sequence[Path], kept: Sequence[str] = ()) -> Removal:
    return Removal(model, tuple(paths), sum(map(_own_bytes, paths)), tuple(kept))


def _linked_folder(file: Path, caches: Iterable[ModelFolder]) -> Path | None:
    """Return the first link to a folder on the way from a cache to a file; None where there is none."""
    ways = [_below(place.path, file) for place in caches if file.is_relative_to(place.path)]
    links = [next((folder for folder in way[:-1] if _is_link(folder)), None) for way in ways]
    return None if None in links else next(iter(links), None)


def _is_own(path: Path, caches: Iterable[ModelFolder]) -> bool:
    """Return whether a path really is in a cache, with no link to a folder on the way."""
    return any(
        path.is_relative_to(place.path) and not any(map(_is_link, _below(place.path, path)[:-1]))
        for place in caches
    )


def _below(root: Path, path: Path) -> list[Path]:
    """Return the paths on the way from a folder to one below it, and that one."""
    return [root.joinpath(*steps) for steps in accumulate((step,) for step in path.relative_to(root).parts)]


def _is_link(path: Path) -> bool:
    """Return whether a path is a link, or a junction of Windows."""
    return os.path.normcase(_real(path)) != os.path.normcase(_real_entry(path))


def _real_entry(path: Path) -> Path:
    """Return the real path of an entry, without following it if it is a link itself."""
    return _real(path.parent) / path.name


def _files_below(root: Path) -> Iterator[Path]:
    """Yield the files and the links to files below a folder; links to folders are not followed."""
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names)


def _linked_elsewhere(own: Sequence[Path], *more: Path) -> set[Path]:
    """Return the targets of links to files in all model folders and in `more`, except the deletion's own."""
    ours = {_real_entry(path) for path in own}
    return {
        path
        for root in {_real(root) for root in (*more, *(place.path for place in known_places()))}
        for link in _files_below(root)
        if link.is_symlink() and link not in ours
        for path in _led_to(link)
    }


def _led_to(link: Path) -> Iterator[Path]:
    """Yield what a link leads to, step by step: further links, and at last a file."""
    path = _real_entry(link)
    seen = set[Path]()
    with suppress(OSError):  # a name that is too long
        while path.is_symlink() and path not in seen:
            seen.add(path)
            path = _real_entry(path.parent / path.readlink())
            yield path


def _repository(path: Path, root: Path) -> Path | None:
    """Return the Hub cache folder of a file."""
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


def _holds_notes_alone(repository: Path) -> bool:
    """Return whether a repository's folder has only names of commits and of missing files."""
    for folder, folders, names in os.walk(repository):
        is_of_notes = Path(folder).relative_to(repository).parts[:1] in (("refs",), (".no_exist",))
        for path in (Path(folder, name) for name in (*folders, *names)):
            status = path.lstat()
            is_note = is_of_notes and stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_NOTE
            if not (is_note or stat.S_ISDIR(status.st_mode)):
                return False
    return True


def _own_bytes(path: Path) -> int:
    """Return the bytes that deleting a file frees: 0 for a link, or if it has another hard link."""
    with suppress(OSError):
        status = path.lstat()
        if not path.is_symlink() and status.st_nlink == 1:
            return status.st_size
    return 0


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _prune(folder: Path, caches: Sequence[ModelFolder]) -> None:
    """Delete empty folders below a cache's root, and repositories that have only notes."""
    roots = [place.path for place in known_places()]
    while folder not in roots and _is_own(folder / "any", caches):
        if repository_of(folder.name) and _holds_notes_alone(folder):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            with suppress(OSError):
                folder.rmdir()
        folder = folder.parent
