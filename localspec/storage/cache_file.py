"""The copy of a conversation's KV caches in a file.

It begins with a header, which has the sizes and checksums of everything else: the text of each model, and its
states. No write waits for the disk, so after a power cut a file may be damaged; the checksums tell.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import IO, Annotated

from localspec.storage.kept_caches import UNFINISHED
from localspec.types.saved_states import CachedText, ConversationCopy, SavedState, StateBytes
from localspec.values import InvalidValueError, Range, plain, read

_HEAD = struct.Struct("<16sII")  # the format, and the header's length and checksum
_FORMAT = b"LocalSpec KV 1\n\0"
_LONGEST_HEADER = 64 * 1024
_PIECE = 4 * 2**20

Allocate = Callable[[int], StateBytes | None]
"""Returns memory of a size, None if too little would be left."""
_Count = Annotated[int, Range(0, 2**48)]


class DamagedFileError(Exception):
    """A file is not what was written; the text says in which way."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Some bytes of a file: a text, or a state after a number of tokens."""

    tokens: _Count
    bytes: _Count
    checksum: _Count


@dataclass(frozen=True, slots=True)
class _CacheHeader:
    model: str
    text: _Part
    states: tuple[_Part, ...]  # that of the whole text, and checkpoints


@dataclass(frozen=True, slots=True)
class _Header:
    caches: tuple[_CacheHeader, ...]  # the target's, and perhaps the draft model's


def write_copy(
    file: IO[bytes], copy: ConversationCopy, models: Sequence[str], is_wanted: Callable[[], bool]
) -> bool:
    """Write a copy with the names of its models; return False where it was no longer wanted meanwhile."""
    parts = list[memoryview]()
    caches = list[_CacheHeader]()

    def part(tokens: int, data: memoryview) -> _Part:
        parts.append(data)
        return _Part(tokens, data.nbytes, zlib.crc32(data))

    for model, cache in zip(models, (copy.target, copy.draft), strict=False):
        if cache is not None:
            text = part(len(cache.tokens), memoryview(array("i", cache.tokens)).cast("B"))
            states = ((cache.saved.length, cache.saved.state), *cache.saved.checkpoints)
            caches.append(_CacheHeader(model, text, tuple(part(at, state.data) for at, state in states)))
    header = json.dumps(plain(_Header(tuple(caches)))).encode()
    file.write(_HEAD.pack(_FORMAT, len(header), zlib.crc32(header)) + header)
    for data in parts:
        for start in range(0, data.nbytes, _PIECE):
            if not is_wanted():
                return False
            file.write(data[start : start + _PIECE])
    return True


def save_copy(
    path: Path, copy: ConversationCopy, models: Sequence[str], is_wanted: Callable[[], bool] = lambda: True
) -> bool:
    """Write a copy to a file that only this user can read; return False where it was no longer wanted.

    The file gets its name when it is complete: nothing unfinished stays. Raises OSError.
    """
    descriptor, unfinished = mkstemp(suffix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            is_whole = write_copy(file, copy, models, is_wanted) and is_wanted()
        if is_whole:
            Path(unfinished).replace(path)
        return is_whole
    finally:
        Path(unfinished).unlink(missing_ok=True)


def read_text(path: Path, model: str) -> array[int]:
    """Return the text of the target's cache in a file; raises OSError and `DamagedFileError`."""
    with path.open("rb") as file:
        target = _header(file, path).caches[0]
        if target.model != model:
            raise DamagedFileError(f"{path} is of another model")
        return _text(file, target.text, path)


def read_copy(
    path: Path, models: Sequence[str], name: str, allocate: Allocate, is_wanted: Callable[[], bool]
) -> ConversationCopy | None:
    """Return the copy in a file, which was kept under a name.

    None if there is no memory for it, or it is no longer wanted meanwhile. The draft model's cache is left
    out if it is of another one. Raises OSError and `DamagedFileError`.
    """
    caches = list[CachedText]()
    with path.open("rb") as file:
        for cache, model in zip(_header(file, path).caches, models, strict=False):
            if cache.model != model:
                break
            text = _text(file, cache.text, path)
            states = list[StateBytes]()
            for part in cache.states:
                state = allocate(part.bytes)
                if state is None or not _read_into(file, state.data, part, path, is_wanted):
                    return None
                states.append(state)
            at = [part.tokens for part in cache.states]
            checkpoints = tuple(zip(at[1:], states[1:], strict=True))
            caches.append(CachedText(tuple(text), SavedState(at[0], states[0], checkpoints)))
    if not caches:
        raise DamagedFileError(f"{path} is of another model")
    return ConversationCopy(caches[0], caches[1] if len(caches) > 1 else None, name)


def _header(file: IO[bytes], path: Path) -> _Header:
    """Read the header of a file, which has to be as long as that says."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        raise DamagedFileError(f"{path} has {len(head)} bytes")
    written_as, length, checksum = _HEAD.unpack(head)
    if written_as != _FORMAT or length > _LONGEST_HEADER:
        raise DamagedFileError(f"{path} is of another kind")
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise DamagedFileError(f"{path} has a damaged header")
    try:
        header = read(_Header, json.loads(text))
    except (InvalidValueError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} has a wrong header: {error}") from None
    parts = [part for cache in header.caches for part in (cache.text, *cache.states)]
    is_sound = header.caches and all(cache.states and _is_sound(cache) for cache in header.caches)
    if not is_sound or os.fstat(file.fileno()).st_size != file.tell() + sum(part.bytes for part in parts):
        raise DamagedFileError(f"{path} is not as long as it should be")
    return header


def _is_sound(cache: _CacheHeader) -> bool:
    text = cache.text
    is_text = text.bytes == 4 * text.tokens
    return is_text and all(0 < part.tokens <= text.tokens and part.bytes > 0 for part in cache.states)


def _text(file: IO[bytes], part: _Part, path: Path) -> array[int]:
    text = array("i", bytes(part.bytes))
    _read_into(file, memoryview(text).cast("B"), part, path)
    return text


def _read_into(
    file: IO[bytes], memory: memoryview, part: _Part, path: Path, is_wanted: Callable[[], bool] = lambda: True
) -> bool:
    """Fill memory from a file; return False where that was no longer wanted meanwhile."""
    checksum = 0
    for start in range(0, part.bytes, _PIECE):
        if not is_wanted():
            return False
        piece = memory[start : start + _PIECE]
        if file.readinto(piece) != piece.nbytes:  # type: ignore[attr-defined]
            raise DamagedFileError(f"{path} ends early")
        checksum = zlib.crc32(piece, checksum)
    if checksum != part.checksum:
        raise DamagedFileError(f"{path} has other bytes than were written")
    return True
