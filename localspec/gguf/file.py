"""Read the header of a GGUF file, on disk or from any source of byte ranges."""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf.header import TOKENS, BrokenHeaderError, Header, check_magic, parse, texts

Ranges = Callable[[int, int], bytes]
"""Read some bytes of a file: from an offset, so many of them."""

_FIRST_READ, _GROWTH = 1 << 20, 4  # most headers are 1 to 16 MB, nearly all of it the vocabulary
_LARGEST_HEADER = 256 << 20


def read_header(path: Path) -> Header:
    """Read a GGUF file's header; raise `ModelFileError` if it is not one."""
    with _plain_errors(path):
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{path} is a folder", "name the .gguf file in it")
        if not stat.S_ISREG(status.st_mode):  # whoever opens a pipe waits for its other end
            raise ModelFileError(f"{path} is a pipe or a device", "save the model as a file")
        return _read(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=4)  # a plan reads the files that are opened then: 50 ms for a large vocabulary
def _read(path: Path, _inode: int, _bytes: int, _modified: int) -> Header:
    with path.open("rb") as file:
        check_magic(path, file.read(512))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse(path, data, len(data))


def header_of(read: Ranges, file_bytes: int, path: Path) -> Header:
    """Read a header through byte ranges, few and growing; `path` is what messages call the file."""
    held, wanted = b"", _FIRST_READ
    with _plain_errors(path):
        while True:
            wanted = min(wanted, file_bytes, _LARGEST_HEADER)
            piece = read(len(held), wanted - len(held)) if wanted > len(held) else b""
            held += piece
            check_magic(path, held[:512])
            try:
                return parse(path, held, file_bytes)
            except struct.error:
                if not piece or wanted == file_bytes:
                    raise
            wanted *= _GROWTH


def read_tokens(header: Header) -> tuple[bytes, ...]:
    """Return the texts of the vocabulary from the file of a header, as they are stored there."""
    with _plain_errors(header.path), header.path.open("rb") as file:
        file.seek(header.tokens_at)
        # texts of a vocabulary are short: where a file's are not, the rest is read as well
        count = header.counts.get(TOKENS, 0)
        data = file.read(32 * count)
        while True:
            try:
                return texts(data, count)
            except struct.error:
                more = file.read(len(data) + _FIRST_READ)
                if not more:
                    raise
                data += more


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        if path.is_symlink():
            raise ModelFileError(f"{path} links to a file that is gone", "download it again") from None
        raise ModelFileError(f"there is no file {path}", "check the spelling of the path") from None
    except OSError as error:
        raise ModelFileError(
            f"{path} cannot be read: {error.strerror or error}", "check the file's permissions"
        ) from error
    except struct.error:
        raise ModelFileError(
            f"{path} ends inside its header", "the file is incomplete: download it again"
        ) from None
    except (BrokenHeaderError, KeyError, MemoryError, OverflowError, ValueError):
        raise ModelFileError(f"{path} has a broken GGUF header", "download the file again") from None


_MOST_PARTS = 10_000


def read_parts(header: Header) -> tuple[Header, ...]:
    """Return the headers of all files of a model, complete ones; a split model is opened by its first."""
    parts = (header, *(read_header(path) for path in _paths(header)[1:]))
    for part in parts:
        _check_complete(part)
    return parts


def total(parts: Sequence[Header]) -> Header:
    """Return the first part's header with the tensors and totals of all."""
    return replace(
        parts[0],
        tensors=sum(part.tensors for part in parts),
        parameters=sum(part.parameters for part in parts),
        weight_bytes=sum(part.weight_bytes for part in parts),
        file_bytes=sum(part.file_bytes for part in parts),
        tensor_list=tuple(tensor for part in parts for tensor in part.tensor_list),
    )


def _paths(header: Header) -> list[Path]:
    count = header.integer("split.count")
    if count <= 1:
        return [header.path]
    if count > _MOST_PARTS:
        raise ModelFileError(f"{header.path} speaks of {count:,} parts", "download the file again")
    suffix = f"-{header.integer('split.no') + 1:05d}-of-{count:05d}.gguf"
    if not header.path.name.endswith(suffix):
        raise ModelFileError(f"{header.path} is part of a split model, but its name does not end in {suffix}",
                             "give the parts their original names")  # fmt: skip
    paths = [
        header.path.with_name(header.path.name.removesuffix(suffix) + f"-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]
    if header.path != paths[0]:
        raise ModelFileError(f"{header.path} is not the first part of its model", f"name {paths[0].name}")
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ModelFileError(
            f"parts of {header.path} are missing: {', '.join(missing)}", "download all parts"
        )
    return paths


def _check_complete(header: Header) -> None:
    if header.file_bytes < header.end:
        raise ModelFileError(
            f"{header.path} is incomplete: it has {header.file_bytes:,} bytes of {header.end:,}",
            "resume or repeat the download",
        )
