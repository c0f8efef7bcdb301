"""Open a model, use all of its context, and print by how many bytes the process has grown."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.types.models import ModelOptions


def main(path: str, small: str, size: int) -> None:
    used(small, 256)  # llama.cpp itself and its threads are no part of what a model takes
    before = psutil.Process().memory_info().rss
    kept = used(path, size)
    after = psutil.Process().memory_info().rss
    kept.model.close()
    sys.stdout.write(f"{after - before}\n")


def used(path: str, size: int) -> Context:
    options = ModelOptions(path=Path(path), context=size, devices=(), mmap=False, micro_batch=64)
    context = Context(Model.open(options), options)
    context.evaluate([5] * (size - 1), min(100, size - 1))
    return context


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
