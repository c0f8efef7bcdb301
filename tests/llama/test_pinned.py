"""Weights in RAM that a GPU copies from, where there is no memory for that."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import OutOfMemoryError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama import library
from localspec.llama import model as model_module
from localspec.llama.model import Model
from localspec.types.models import ModelOptions

Load = Callable[..., Any]
_load: Load = model_module._load


def options(path: Path) -> ModelOptions:
    return ModelOptions(path, 512, devices=(), mmap=False)


def short_of_memory(wanted: ModelOptions, **more: object) -> object:
    """Load as llama.cpp does where memory is short: only what is mapped."""
    if not wanted.mmap:
        raise OutOfMemoryError("not enough memory", "close other programs")
    return _load(wanted, **more)


def test_a_file_that_cannot_be_read_is_mapped(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "_load", short_of_memory)
    with Runtime.open(OpenPlan(options(tiny_llama))) as models:
        [note, *_] = models.notes
    assert "too little memory" in note
    assert "mapped" in note


def test_a_file_that_cannot_be_mapped_either_is_reported(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object, **_more: object) -> object:
        raise OutOfMemoryError("not enough memory", "close other programs")

    monkeypatch.setattr(model_module, "_load", fails)
    with pytest.raises(OutOfMemoryError):
        Model.open(options(tiny_llama))


@pytest.mark.parametrize("level", [1, 3])  # CUDA's, and SYCL's
def test_memory_that_could_not_be_pinned_is_reported(
    level: int, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: object, **more: object) -> object:
        api = library.native()
        load_file = api.llama_model_load_from_file

        def logged(*given: object) -> object:
            library.receive(
                level, b"ggml_cuda_host_malloc: failed to allocate 9.0 MiB of pinned memory: no\n"
            )
            return load_file(*given)

        monkeypatch.setattr(api, "llama_model_load_from_file", logged)
        return _load(*arguments, **more)

    monkeypatch.setattr(model_module, "_load", load)
    with closing(Model.open(options(tiny_llama))) as model:
        [note] = model.notes
    assert "copies from directly" in note


def test_usual_models_have_no_notes(tiny_llama: Path) -> None:
    for mmap in (True, False):
        with closing(Model.open(replace(options(tiny_llama), mmap=mmap))) as model:
            assert model.notes == ()
