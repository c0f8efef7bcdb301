"""Contexts are refused before llama.cpp takes memory that is not there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localspec.errors import EngineError, OutOfMemoryError, UserError
from localspec.hardware.memory.needs import cache_bytes, request_of
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.contexts import Contexts
from localspec.inference.runtime import Runtime
from localspec.llama.model import Model
from localspec.models.shape import read_shape
from localspec.types.models import ModelOptions
from tests import made_models
from tests.llama import tiny

PER_CELL = 2 * 2 * 64 * 2  # layers, keys and values, width, bytes


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    memory = psutil.virtual_memory()

    def set_available(size: int) -> None:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory._replace(available=size))

    return set_available


def test_a_cache_that_does_not_fit_is_refused_with_numbers(
    tmp_path: Path, available: Callable[[int], None]
) -> None:
    path, size = tiny.llama(tmp_path / "tiny.gguf"), 512 * PER_CELL
    with closing(Model.open(ModelOptions(path, 512, devices=()))) as model:
        available(size - 1)
        with pytest.raises(UserError, match="512 tokens of context need"):
            Contexts(model, None, OpenPlan(model.options))
        available(size)
        assert Contexts(model, None, OpenPlan(model.options)).target.context_size == 512


def test_a_window_sized_cache_needs_less(tmp_path: Path, available: Callable[[int], None]) -> None:
    short = ModelOptions(made_models.windowed(tmp_path / "windowed.gguf"), 4096, devices=(), micro_batch=32)
    full = replace(short, swa_full=True)
    needed_short, needed_full = map(needed, (short, full))
    assert needed_full > 4 * needed_short
    with closing(Model.open(short)) as model:
        available(needed_full - 1)
        Contexts(model, None, OpenPlan(short))
        model.options = full
        with pytest.raises(UserError, match="4,096 tokens of context need"):
            Contexts(model, None, OpenPlan(full))


def needed(options: ModelOptions) -> int:
    """Return the bytes of a model's caches."""
    shape = read_shape(options.path)
    return sum(cache_bytes(shape, request_of(options), layer) for layer in shape.layers)


def test_nothing_stays_open_where_memory_shrinks_while_models_load(
    demo_target: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Model] = []

    def open_model(options: ModelOptions, *arguments: object, **more: object) -> Model:
        if opened:
            raise OutOfMemoryError(f"not enough memory for {options.path}", "offload fewer layers")
        opened.append(usual(options, *arguments, **more))  # type: ignore[arg-type]
        return opened[0]

    usual = Model.open
    monkeypatch.setattr(Model, "open", open_model)
    plan = OpenPlan(ModelOptions(demo_target, 512, devices=()), ModelOptions(demo_draft, 512, devices=()))
    with pytest.raises(OutOfMemoryError, match="not enough memory for"):
        Runtime.open(plan)
    with pytest.raises(EngineError, match="is closed"):
        opened[0].pointer  # noqa: B018 - a property that raises
