"""Models that are split over several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.gguf.file import read_header
from localspec.gguf.header_m import Header

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
