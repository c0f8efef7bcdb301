"""A model whose file recommends how it is sampled."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

_KINDS = {bool: (7, "?"), int: (5, "i"), float: (6, "f")}  # GGUF's numbers for types, and struct's letters
_COUNT_AT, _KEYS_AT, _ALIGNMENT = 16, 24, 32


def recommending(source: Path, path: Path, values: Mapping[str, bool | int | float | str]) -> Path:
    """Copy a GGUF file with more keys under `general.sampling.`; return the copy."""
    data = source.read_bytes()
    added = b"".join(_entry(f"general.sampling.{name}", value) for name, value in values.items())
    filler = -(len(added) + len(_entry("filler", ""))) % _ALIGNMENT  # or the weights would shift
    added += _entry("filler", " " * filler)
    (count,) = struct.unpack_from("<Q", data, _COUNT_AT)
    new_count = struct.pack("<Q", count + len(values) + 1)
    path.write_bytes(data[:_COUNT_AT] + new_count + added + data[_KEYS_AT:])
    return path


def _entry(key: str, value: bool | float | str) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", 8) + _text(value)
    kind, letter = _KINDS[type(value)]
    return _text(key) + struct.pack(f"<I{letter}", kind, value)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
