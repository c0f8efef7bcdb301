"""What a model file is, told from samples of it: reading all of 40 GB would take minutes.

Samples find every exchange of a model for another; they are no protection against an attacker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec.errors import ModelFileError, StoreError, UserError
from localspec.storage.json_file import checked
from localspec.storage.paths import data_dir, write_atomically

SCHEMA = 1
HEAD_BYTES = 256 * 1024  # names, sizes and the first words of the vocabulary
BLOCKS, BLOCK_BYTES = 64, 16 * 1024
MOST_FILES = 200  # that are remembered
LARGEST_FILE = 1024 * 1024
_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class _Known:
    """A file as it was when it was read; `modified` is in nanoseconds, too many for a number in JSON."""

    path: str
    bytes: int
    modified: str


@dataclass(frozen=True, slots=True)
class _Remembered:
    files: tuple[_Known, ...]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Memory:
    schema: int = SCHEMA
    models: tuple[_Remembered, ...] = ()


def fingerprint(path: Path) -> str:
    """Return what tells a model's files from all others; remembered until they change.

    Of a model in several files, `path` is the first. Raises `ModelFileError`.
    """
    try:
        files = tuple(_known(part) for part in _parts(path))
        memory = _recall()
        for known in memory:
            if known.files == files:
                return known.fingerprint
        found = _read(files)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    names = {each.path for each in files}
    others = [known for known in memory if names.isdisjoint(each.path for each in known.files)]
    _remember((_Remembered(files, found), *others[: MOST_FILES - 1]))
    return found


def _parts(path: Path) -> Iterator[Path]:
    match = _PART.search(path.name)
    if match is None:
        yield path
        return
    for number in range(1, int(match[1]) + 1):
        yield path.with_name(f"{path.name[: match.start()]}-{number:05d}-of-{match[1]}.gguf")


def _known(path: Path) -> _Known:
    real = path.resolve(strict=True)
    status = real.stat()
    return _Known(str(real), status.st_size, str(status.st_mtime_ns))


def _read(files: tuple[_Known, ...]) -> str:
    digest = hashlib.sha256()
    for known in files:
        digest.update(known.bytes.to_bytes(8, "little"))
        with Path(known.path).open("rb") as file:
            digest.update(file.read(HEAD_BYTES))
            for number in range(1, BLOCKS + 1):
                file.seek(max(0, known.bytes * number // BLOCKS - BLOCK_BYTES), os.SEEK_SET)
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()[:32]


def _file() -> Path:
    return data_dir() / "fingerprints.json"


def _recall() -> tuple[_Remembered, ...]:
    with suppress(OSError, ValueError, RecursionError, UserError):
        path = _file()
        if path.stat().st_size <= LARGEST_FILE:
            memory = checked(_Memory, json.loads(path.read_text(encoding="utf-8")), "the file")
            return memory.models if memory.schema == SCHEMA else ()
    return ()


def _remember(models: tuple[_Remembered, ...]) -> None:
    with suppress(StoreError, UserError):  # a full disk costs the reading next time, nothing else
        write_atomically(_file(), json.dumps(asdict(_Memory(models=models)), indent=1) + "\n")
