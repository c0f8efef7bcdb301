"""The structure of a GGUF header."""

from __future__ import annotations

import hashlib
import mmap
import struct
from math import prod
from pathlib import Path

from localspec.gguf.header_m import BLOCKS, TOKENS, Header, Scalar, Tensor

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 4  # ggml.h, GGML_MAX_DIMS
_ARRAY_HEAD = 12  # the kind of its members and their number
_NUMBERS_KEPT = 1024  # short arrays of numbers are per-layer settings; longer ones belong to the vocabulary


class BrokenHeaderError(Exception):
    """The bytes say something impossible."""


class _Reader:
    """A cursor over the first bytes of a file of `size` bytes; running over them raises struct.error."""

    def __init__(self, data: mmap.mmap | bytes, size: int) -> None:
        self.data = data
        self.size = size
        self.at = 0

    def number(self, kind: str) -> int | float | bool:
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value  # type: ignore[no-any-return]

    def count(self) -> int:
        value = int(self.number("Q"))
        if value > self.size:  # nothing in a file can be more numerous than its bytes
            raise BrokenHeaderError
        return value

    def string(self) -> str:
        size = self.count()
        raw = self.data[self.at : self.at + size]
        if len(raw) < size:
            raise struct.error("text beyond the end")
        self.at += size
        return raw.decode("utf-8", "replace")

    def skip_strings(self, count: int) -> None:
        # this loop reads vocabularies of 300,000 texts: nothing in it but what must be
        data, at, size_of = self.data, self.at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + size_of(data, at)[0]
        self.at = at
        if at > len(data):
            raise struct.error("text beyond the end")

    def array(self) -> tuple[int, tuple[float, ...] | None]:
        kind, count = int(self.number("I")), self.count()
        if kind == _STRING:
            self.skip_strings(count)
            return count, None
        if kind not in _FORMATS:
            raise BrokenHeaderError
        layout = struct.Struct(f"<{count}{_FORMATS[kind]}")
        kept = layout.unpack_from(self.data, self.at) if count <= _NUMBERS_KEPT else None
        self.at += layout.size
        return count, kept


def parse(path: Path, data: mmap.mmap | bytes, file_bytes: int) -> Header:
    """Return the header in `data`, the start of a file; raises struct.error where the data ends too soon."""
    reader = _Reader(data, file_bytes)
    reader.at = 8
    tensors, entries = reader.count(), reader.count()
    values: dict[str, Scalar] = {}
    numbers: dict[str, tuple[float, ...]] = {}
    counts: dict[str, int] = {}
    tokens_at, digest = 0, ""
    for _ in range(entries):
        key, kind = reader.string(), int(reader.number("I"))
        if kind == _STRING:
            values[key] = reader.string()
        elif kind == _ARRAY:
            start = reader.at + _ARRAY_HEAD
            counts[key], kept = reader.array()
            if kept is not None:
                numbers[key] = kept
            if key == TOKENS:
                tokens_at = start
                digest = hashlib.blake2b(data[start : reader.at], digest_size=8).hexdigest()
        else:
            if kind not in _FORMATS:
                raise BrokenHeaderError
            values[key] = reader.number(_FORMATS[kind])
    listed, last = _tensors(reader, tensors)
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise BrokenHeaderError
    return Header(
        path=path,
        architecture=str(values.get("general.architecture", "")),
        values=values,
        numbers=numbers,
        counts=counts,
        tensors=tensors,
        parameters=sum(tensor.elements for tensor in listed),
        weight_bytes=sum(tensor.bytes for tensor in listed),
        end=-(-reader.at // alignment) * alignment + last if tensors else reader.at,
        file_bytes=file_bytes,
        tensor_list=listed,
        tokens_at=tokens_at,
        tokens_digest=digest,
    )


def texts(data: bytes, count: int) -> tuple[bytes, ...]:
    """Return the first `count` texts that are stored in data."""
    found, at, size_of = [], 0, struct.Struct("<Q").unpack_from
    for _ in range(count):
        end = at + 8 + size_of(data, at)[0]
        found.append(data[at + 8 : end])
        at = end
    if at > len(data):
        raise struct.error("text beyond the end")
    return tuple(found)


def _tensors(reader: _Reader, count: int) -> tuple[tuple[Tensor, ...], int]:
    """Return the tensors, and where the last one ends, counted from the first."""
    listed, last = [], 0
    for _ in range(count):
        name, dimensions = reader.string(), int(reader.number("I"))
        if dimensions > _DIMENSIONS:
            raise BrokenHeaderError
        sizes = tuple(int(reader.number("Q")) for _ in range(dimensions))
        kind, offset = int(reader.number("I")), int(reader.number("Q"))
        per_block, block_bytes = BLOCKS.get(kind, (1, 0))  # a type from the future: only its start is checked
        elements = prod(sizes)
        size = elements // per_block * block_bytes
        listed.append(Tensor(name, kind, sizes, elements, size))
        last = max(last, offset + size)
    return tuple(listed), last
