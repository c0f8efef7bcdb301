"""Which files of conversations' KV caches there are, and how they are forgotten; `cache_folder` fills them.

A file is named after the model that it is for, its text and its chat.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from localspec.errors import StoreError
from localspec.storage.paths import state_dir
from localspec.types.models import CachesOnDisk

ENDING = ".kv"
UNFINISHED = ".tmp"


def caches_dir() -> Path:
    """Return the folder; it may be missing."""
    return state_dir() / "caches"


def chat_name(chat: int) -> str:
    """Return the name under which the caches of a chat are kept."""
    return f"chat{chat}"


def name_of(path: Path) -> str:
    """Return the name under which a file was kept, "" without one."""
    return path.stem.partition(".")[2]


def forget_named(name: str) -> None:
    """Delete the files that were kept under a name; raises StoreError."""
    delete(path for path, _ in entries() if name and name_of(path) == name)


def forget_all() -> CachesOnDisk:
    """Delete all files, unfinished ones included; return what they were. Raises StoreError."""
    every = [*entries(), *entries(UNFINISHED)]
    delete(path for path, _ in every)
    return CachesOnDisk(len(every), sum(status.st_size for _, status in every))


def figures(limit: int = 0) -> CachesOnDisk:
    """Return the number and the size of the files."""
    found = [status.st_size for _, status in entries()]
    return CachesOnDisk(len(found), sum(found), limit)


def entries(ending: str = ENDING) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files; nothing where the folder is missing or cannot be read."""
    with suppress(OSError), os.scandir(caches_dir()) as found:
        for entry in found:
            if entry.name.endswith(ending) and entry.is_file(follow_symlinks=False):
                with suppress(OSError):  # another program has removed it
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def delete(paths: Iterable[Path]) -> None:
    """Delete files, if they are there; raises StoreError."""
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot delete `{path}`: {error.strerror or error}") from error
