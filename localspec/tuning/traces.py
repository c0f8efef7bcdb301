"""Record traces, and keep them in files that grow answer by answer.

A file is a line that says what was traced, and a block for each answer: a mark, length, checksum, and the
arrays in NumPy's compressed format, about 230 bytes for each token. A block that the end of the process cut
off, or that was damaged since, is left out.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from localspec.decoding.measurements import TraceRequest, TraceSegment
from localspec.errors import ContextFullError, EngineError, StoreError
from localspec.storage.paths import write_atomically
from localspec.tuning.plan import ReopenedModels
from localspec.types import Request

SCHEMA = 1
_MARK = b"\x89LST"
_HEAD = struct.Struct("<4sII")  # the mark, and the length and checksum of what follows


def record(models: ReopenedModels, requests: Iterable[Request]) -> Iterator[TraceSegment]:
    """Yield a trace of each answer, without tokens where there is none: kept, it says that it was tried.

    That happens to a prompt that the context cannot hold, and to one at which the models failed; they are
    opened again then. A second failure in a row raises its `EngineError`.
    """
    has_failed = False
    for request in requests:
        try:
            segment = models.now.trace(TraceRequest(request))
            has_failed = False
        except ContextFullError:
            segment = _untraced()
        except EngineError:
            if has_failed:
                raise
            has_failed, segment = True, _untraced()
            models.again()
        yield segment


def with_tokens(segments: Iterable[TraceSegment]) -> tuple[TraceSegment, ...]:
    """Return the answers that could be traced."""
    return tuple(segment for segment in segments if len(segment.tokens))


def append(path: Path, key: str, segment: TraceSegment) -> None:
    """Add an answer to a file; what it holds under another key is thrown away. Raises `StoreError`.

    `key` names everything that the traces depend on: files, prompts, sampling.
    """
    data = _content(path)
    end = len(_title(key))
    if data.startswith(_title(key)):
        end = max((after for after, _ in _blocks(data, end)), default=end)
    else:
        write_atomically(path, _title(key).decode("ascii"))
    payload = _packed(segment)
    try:
        with path.open("r+b") as file:
            file.seek(end)
            file.write(_HEAD.pack(_MARK, len(payload), zlib.crc32(payload)) + payload)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"cannot write `{path}`: {error.strerror or error}") from error


def load(path: Path, key: str) -> tuple[TraceSegment, ...]:
    """Return the answers that were kept under this key, none if there is no such file."""
    data, title = _content(path), _title(key)
    if not data.startswith(title):
        return ()
    segments = []
    for _, payload in _blocks(data, len(title)):
        with suppress(ValueError, KeyError, EOFError, BadZipFile):
            segments.append(_unpacked(payload))
    return tuple(segments)


def _untraced() -> TraceSegment:
    import numpy as np  # 0.1 s that `--help` should not cost

    tokens, of_tokens = np.zeros(0, np.int32), np.zeros(0, np.float32)
    ids, values = tokens.reshape(0, 0), of_tokens.reshape(0, 0)
    return TraceSegment((), tokens, ids, values, of_tokens, ids, values, values, 0.0, ended=False)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _title(key: str) -> bytes:
    """Return the first line of a file."""
    return json.dumps({"traces": SCHEMA, "key": key}).encode("ascii") + b"\n"


def _blocks(data: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield what every whole block holds, with the place behind it."""
    while (start := data.find(_MARK, start)) >= 0:
        begin = start + _HEAD.size
        if begin > len(data):
            return
        _, length, checksum = _HEAD.unpack_from(data, start)
        payload = data[begin : begin + length]
        if len(payload) == length and zlib.crc32(payload) == checksum:
            start = begin + length
            yield start, payload
        else:
            start += 1


def _packed(segment: TraceSegment) -> bytes:
    import numpy as np  # 0.1 s that `--help` should not cost

    file = BytesIO()
    arrays = {each.name: getattr(segment, each.name) for each in fields(segment)}
    np.savez_compressed(file, **arrays | {"prompt": np.array(segment.prompt, np.int32)})
    return file.getvalue()


def _unpacked(payload: bytes) -> TraceSegment:
    import numpy as np

    with np.load(BytesIO(payload)) as found:
        values: dict[str, Any] = {each.name: found[each.name] for each in fields(TraceSegment)}
    plain = {name: values[name].tolist() for name in ("prompt", "decode_s", "ended")}
    return TraceSegment(**values | plain | {"prompt": tuple(plain["prompt"])})
