from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.hardware.memory.needs import (
    CacheTypes,
    DeviceNeed,
    LayerSplit,
    MemoryRequest,
    cells,
    estimate,
    logits_bytes,
)
from localspec.models.shape import ModelShape, read_shape
from tests.hardware.shapes import SHAPES, make


@pytest.fixture
def dense(tmp_path: Path) -> ModelShape:
    return read_shape(make(tmp_path / "a.gguf", replace(SHAPES["dense"], bare=True)))


@pytest.fixture
def tied(tmp_path: Path) -> ModelShape:
    return read_shape(make(tmp_path / "a.gguf", replace(SHAPES["tied output"], bare=True)))


@pytest.fixture
def windows(tmp_path: Path) -> ModelShape:
    return read_shape(make(tmp_path / "a.gguf", replace(SHAPES["sliding window"], bare=True)))


def by_device(shape: ModelShape, request: MemoryRequest) -> dict[str, DeviceNeed]:
    return {need.device: need for need in estimate(shape, request)}


def test_a_card_that_holds_everything_leaves_the_table_to_the_processor(dense: ModelShape) -> None:
    needs = by_device(dense, MemoryRequest(LayerSplit(("CUDA0",), (6,)), 2048))
    assert needs["CPU"].weights == dense.input_bytes
    assert needs["CPU"].cache == 0
    assert needs["CPU"].compute > logits_bytes(dense.vocabulary, 1)
    assert needs["CUDA0"].weights == dense.weight_bytes - dense.input_bytes


def test_the_first_layers_stay_with_the_processor(dense: ModelShape) -> None:
    alone = by_device(dense, MemoryRequest(LayerSplit(), 2048))["CPU"]
    needs = by_device(dense, MemoryRequest(LayerSplit(("CUDA0", "CUDA1"), (1, 2)), 2048))
    layer = dense.layers[0].weight_bytes
    assert needs["CPU"].weights == dense.input_bytes + 3 * layer
    assert needs["CUDA0"].weights == layer
    assert needs["CUDA1"].weights == dense.output_bytes + 2 * layer
    assert sum(need.cache for need in needs.values()) == alone.cache
    assert sum(need.weights for need in needs.values()) == alone.weights


def test_a_table_that_is_also_the_output_is_on_the_card_once_more(tied: ModelShape) -> None:
    alone = by_device(tied, MemoryRequest(LayerSplit(), 2048))["CPU"]
    needs = by_device(tied, MemoryRequest(LayerSplit(("CUDA0",), (6,)), 2048))
    assert sum(need.weights for need in needs.values()) == alone.weights + tied.input_bytes


def test_the_output_alone_on_a_card(dense: ModelShape) -> None:
    needs = by_device(dense, MemoryRequest(LayerSplit(("CUDA0",), (0,)), 2048))
    assert needs["CUDA0"].weights == dense.output_bytes
    assert needs["CUDA0"].cache == 0


def test_cells() -> None:
    assert cells(MemoryRequest(LayerSplit(), 1)) == 256
    assert cells(MemoryRequest(LayerSplit(), 2048)) == 2048
    assert cells(MemoryRequest(LayerSplit(), 2048, sequences=17)) == 2048 + 16 * 32


def test_types_of_the_cache(dense: ModelShape) -> None:
    [half] = estimate(dense, MemoryRequest(LayerSplit(), 2048))
    [small] = estimate(dense, MemoryRequest(LayerSplit(), 2048, CacheTypes("q8_0", "q4_0")))
    assert small.cache == half.cache * (34 + 18) // 128


def test_windows_that_forget_take_less(windows: ModelShape) -> None:
    request = MemoryRequest(LayerSplit(), 16384)
    [whole] = estimate(windows, request)
    [short] = estimate(windows, request, whole_windows=False)
    per_cell = 2 * (windows.layers[0].key_values + windows.layers[0].value_values)
    assert whole.cache == per_cell * 16384 * 8
    assert short.cache == per_cell * (16384 + 7 * (512 + 512))
    [tiny] = estimate(windows, MemoryRequest(LayerSplit(), 256), whole_windows=False)
    assert tiny.cache == per_cell * 256 * 8


def test_no_vocabulary_is_too_large_to_count(dense: ModelShape) -> None:
    [small] = estimate(dense, MemoryRequest(LayerSplit(), 2048))
    [large] = estimate(replace(dense, vocabulary=1_000_000), MemoryRequest(LayerSplit(), 2048))
    assert large.compute - small.compute > logits_bytes(900_000, 1)


def test_without_flash_attention_every_layer_has_values_as_wide_as_the_widest(dense: ModelShape) -> None:
    narrow = replace(dense.layers[0], value_values=dense.layers[0].value_values // 2)
    mixed = replace(dense, layers=(narrow, *dense.layers[1:]))
    request = MemoryRequest(LayerSplit(), 2048)
    [flash], [plain] = estimate(mixed, request), estimate(mixed, replace(request, flash_attention=False))
    assert flash.cache < plain.cache == estimate(dense, request)[0].cache
