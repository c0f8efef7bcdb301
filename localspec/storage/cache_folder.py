"""Copies of conversations' KV caches in the files of one folder: what fits the models, what makes room.

A file gets its name when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.storage.cache_file import Allocate, DamagedFileError, read_copy, read_text, save_copy
from localspec.storage.kept_caches import ENDING, UNFINISHED, caches_dir, delete, entries, name_of
from localspec.storage.paths import PRIVATE_FOLDER, make_private_folder
from localspec.types.saved_states import ConversationCopy

MOST_FILES = 1000
KEPT_S = 30 * 24 * 3600.0  # without use: as long as deleted messages
SPARE = 2**30  # bytes of the disk that stay free
_ABANDONED_S = 600.0  # without a change, so no program is writing it
_SHARE = 16  # of a text, by which it may end otherwise and be continued all the same
_TOO_LITTLE = 32  # of a text that is not yet in a file: not worth writing it again
_NAME = re.compile(r"[a-z0-9-]{1,40}")


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file, and the text that it is for."""

    path: Path
    tokens: array[int]
    size: int


def digest(data: bytes) -> str:
    """Return a short name for some bytes."""
    return hashlib.sha256(data).hexdigest()[:24]


class CacheFolder:
    """The files for one pair of models; the limit is for the bytes of all in the folder."""

    def __init__(self, limit: int, models: Sequence[str]) -> None:
        """Take the limit, and digests of what a file has to fit: the target, and the draft model."""
        self.limit = limit
        self._path = caches_dir()
        self._models = models
        self._known: dict[tuple[Path, int], KeptFile] = {}  # by the time of change

    def files(self) -> tuple[list[KeptFile], list[DamagedFileError]]:
        """Return the files of the target, and what was wrong with damaged ones, which are deleted."""
        known = dict[tuple[Path, int], KeptFile]()
        damaged = list[DamagedFileError]()
        for path, status in entries():
            key = (path, status.st_mtime_ns)
            if not path.name.startswith(f"{self._models[0]}-"):
                continue
            try:
                known[key] = self._known.get(key) or KeptFile(
                    path, read_text(path, self._models[0]), status.st_size
                )
            except DamagedFileError as error:
                damaged.append(error)
                delete([path])
            except OSError:  # another program has removed it
                continue
        self._known = known
        return list(known.values()), damaged

    def read(
        self, found: KeptFile, allocate: Allocate, is_wanted: Callable[[], bool]
    ) -> ConversationCopy | None:
        """Read a file, which counts as a use, and return the copy in it.

        None if there is no memory for it, or it is no longer wanted.

        Raises OSError, and `DamagedFileError` for a file that is deleted then.
        """
        try:
            copy = read_copy(found.path, self._models, name_of(found.path), allocate, is_wanted)
        except DamagedFileError:
            delete([found.path])
            raise
        with suppress(OSError):
            os.utime(found.path)
        return copy

    def write(self, copy: ConversationCopy, is_wanted: Callable[[], bool]) -> None:
        """Write a copy while it `is_wanted`, unless nearly all of it is there.

        It takes the place of those that it continues, and the least recently used of all make room.
        Raises OSError and StoreError; nothing unfinished stays.
        """
        text = array("i", copy.tokens)
        name = copy.kept_as or ""
        ending = f".{name}{ENDING}" if _NAME.fullmatch(name) else ENDING
        path = self._path / f"{self._models[0]}-{digest(text.tobytes())}{ending}"
        make_private_folder(self._path)
        self._path.chmod(PRIVATE_FOLDER)
        self._sweep()
        there, _ = self.files()
        for each in there:
            if len(text) - shared(each.tokens, text) <= len(text) // _TOO_LITTLE:
                os.utime(each.path)
                return
        earlier = [each.path for each in there if is_continued(each.tokens, text)]
        if not self._make_room(copy.size, earlier):
            return
        if save_copy(path, copy, self._models, is_wanted):
            delete(each for each in earlier if each != path)

    def erase(self, tokens: Sequence[int]) -> None:
        """Delete the files of a text, of its beginning and of what continues it; raises StoreError."""
        text = array("i", tokens)
        files, _ = self.files()
        same = (each for each in files if is_continued(each.tokens, text) or is_continued(text, each.tokens))
        delete(each.path for each in same)

    def _make_room(self, size: int, earlier: Sequence[Path]) -> bool:
        """Delete the least recently used, but `earlier` ones first, until a file of that size fits.

        Return whether it does.
        """
        from shutil import disk_usage

        if size > self.limit:
            return False
        kept = sorted(entries(), key=lambda each: (each[0] not in earlier, each[1].st_mtime))
        taken = sum(status.st_size for _, status in kept)
        free = disk_usage(self._path).free
        while kept and (taken + size > self.limit or free < size + SPARE or len(kept) >= MOST_FILES):
            path, status = kept.pop(0)
            delete([path])
            taken = taken - status.st_size
            free = free + status.st_size
        return free >= size + SPARE

    def _sweep(self) -> None:
        """Delete files that were not used for long, and unfinished ones of killed programs."""
        now = time.time()
        for ending, longest_s in ((ENDING, KEPT_S), (UNFINISHED, _ABANDONED_S)):
            every = entries(ending)
            delete(path for path, status in every if abs(now - status.st_mtime) > longest_s)


def shared(text: array[int], other: array[int]) -> int:
    """Return the length of the common prefix of two texts."""
    low = 0
    high = min(len(text), len(other))
    while low < high:  # slices are compared much faster than tokens
        middle = (low + high + 1) // 2
        if text[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def is_continued(text: array[int], other: array[int]) -> bool:
    """Return whether another text continues this one, but perhaps for its end."""
    return len(text) - shared(text, other) <= len(text) // _SHARE
