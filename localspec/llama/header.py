"""The header of a GGUF file, read without llama.cpp: what a file is, before anything native sees it."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ModelFileError

Scalar = bool | int | float | str

# ggml.h, enum ggml_type: (elements, bytes) of one block
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18),
}  # fmt: skip

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DIMENSIONS = 4  # ggml.h, GGML_MAX_DIMS
_NUMBERS_KEPT = 1024  # short arrays of numbers are per-layer settings; longer ones belong to the vocabulary

_LIKENESSES = (  # how other files start, in lower case
    ((b"<!doctype", b"<html", b"<?xml"), "it is a web page, perhaps the error page of a download"),
    ((b"version https://git-lfs",), "it is a Git LFS pointer, not the file itself"),
    (
        (b"pk\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf"),
        "it is an archive or a PyTorch checkpoint",
    ),
    ((b"lmgg", b"tjgg", b"fmgg"), "it is in llama.cpp's format from before GGUF"),
)


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says of itself.

    `values` holds the scalars, `numbers` the short numeric arrays, `counts` every array's length;
    `weight_bytes` and `end` (where the last tensor ends in the file) are in bytes.
    """

    path: Path
    architecture: str
    values: dict[str, Scalar]
    numbers: dict[str, tuple[float, ...]]
    counts: dict[str, int]
    tensors: int
    parameters: int
    weight_bytes: int
    end: int
    file_bytes: int

    def text(self, key: str) -> str:
        """Return a text value; empty where there is none."""
        value = self.values.get(key, "")
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int = 0) -> int:
        """Return an integer value; `{arch}` in the key stands for the architecture."""
        value = self.values.get(key.replace("{arch}", self.architecture), default)
        return int(value) if isinstance(value, int | float) else default

    def per_layer(self, key: str, layers: int, default: int = 0) -> tuple[int, ...]:
        """Return an integer for each layer, whether the file gives one for all or one for each."""
        numbers = self.numbers.get(key.replace("{arch}", self.architecture))
        if numbers is None:
            return (self.integer(key, default),) * layers
        return tuple(int(number) for number in numbers[:layers])


class _BrokenHeaderError(Exception):
    pass


class _Reader:
    """A cursor over the mapped file; running over its end raises struct.error."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def number(self, kind: str) -> int | float | bool:
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value  # type: ignore[no-any-return]

    def count(self) -> int:
        value = int(self.number("Q"))
        if value > len(self.data):  # nothing in a file can be more numerous than its bytes
            raise _BrokenHeaderError
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
            raise _BrokenHeaderError
        layout = struct.Struct(f"<{count}{_FORMATS[kind]}")
        kept = layout.unpack_from(self.data, self.at) if count <= _NUMBERS_KEPT else None
        self.at += layout.size
        return count, kept


def read_header(path: Path) -> Header:
    """Read a GGUF file's header; raise `ModelFileError` if it is not one."""
    try:
        if path.is_dir():
            raise ModelFileError(f"{path} is a folder", "name the .gguf file in it")
        with path.open("rb") as file:
            _check_magic(path, file.read(512))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except FileNotFoundError:
        raise ModelFileError(f"there is no file {path}", "check the spelling of the path") from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror}", "check the file's permissions"
        ) from error
    except struct.error:
        raise ModelFileError(
            f"{path} ends inside its header", "the file is incomplete: download it again"
        ) from None
    except (_BrokenHeaderError, KeyError, MemoryError, OverflowError, ValueError):
        raise ModelFileError(f"{path} has a broken GGUF header", "download the file again") from None


def _check_magic(path: Path, start: bytes) -> None:
    if not start:
        raise ModelFileError(f"{path} is empty", "download the file again")
    if not start.startswith(b"GGUF"):
        raise ModelFileError(
            f"{path} is not a GGUF file: {_resemblance(start)}", "LocalSpec runs GGUF models"
        )
    version = start[4:8]
    if len(version) == 4 and int.from_bytes(version, "little") not in (2, 3):
        order = "big-endian" if int.from_bytes(version, "big") in (2, 3) else "of another version"
        raise ModelFileError(
            f"{path} is a GGUF file {order}", "look for a current, little-endian GGUF of the model"
        )


def _resemblance(start: bytes) -> str:
    text = start.lstrip().lower()
    for prefixes, likeness in _LIKENESSES:
        if text.startswith(prefixes):
            return likeness
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**32:
        return "it looks like safetensors"
    if not start.strip(b"\0"):
        return "it starts with zeros, like a download that was only begun"
    return f"it starts with {start[:8]!r}"


def _parse(path: Path, data: mmap.mmap) -> Header:
    reader = _Reader(data)
    reader.at = 8
    tensors, entries = reader.count(), reader.count()
    values: dict[str, Scalar] = {}
    numbers: dict[str, tuple[float, ...]] = {}
    counts: dict[str, int] = {}
    for _ in range(entries):
        key, kind = reader.string(), int(reader.number("I"))
        if kind == _STRING:
            values[key] = reader.string()
        elif kind == _ARRAY:
            counts[key], kept = reader.array()
            if kept is not None:
                numbers[key] = kept
        else:
            values[key] = reader.number(_FORMATS[kind])
    parameters, weight_bytes, last = _tensors(reader, tensors)
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise _BrokenHeaderError
    start = -(-reader.at // alignment) * alignment
    return Header(
        path=path,
        architecture=str(values.get("general.architecture", "")),
        values=values,
        numbers=numbers,
        counts=counts,
        tensors=tensors,
        parameters=parameters,
        weight_bytes=weight_bytes,
        end=start + last if tensors else reader.at,
        file_bytes=len(data),
    )


def _tensors(reader: _Reader, count: int) -> tuple[int, int, int]:
    """Return the parameters, their bytes, and where the last tensor ends, counted from the first."""
    parameters = weight_bytes = last = 0
    for _ in range(count):
        reader.skip_strings(1)
        elements, dimensions = 1, int(reader.number("I"))
        if dimensions > _DIMENSIONS:
            raise _BrokenHeaderError
        for _ in range(dimensions):
            elements *= int(reader.number("Q"))
        kind, offset = int(reader.number("I")), int(reader.number("Q"))
        per_block, block_bytes = BLOCKS.get(kind, (1, 0))  # a type from the future: only its start is checked
        size = elements // per_block * block_bytes
        parameters += elements
        weight_bytes += size
        last = max(last, offset + size)
    return parameters, weight_bytes, last
