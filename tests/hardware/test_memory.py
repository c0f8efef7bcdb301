from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.gguf import CHECKPOINTS
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


def test_a_gpu_that_holds_everything_leaves_the_table_to_the_cpu(dense: ModelShape) -> None:
    needs = by_device(dense, MemoryRequest(LayerSplit(("CUDA0",), (6,)), 2048))
    assert needs["CPU"].weights == dense.input_bytes
    assert needs["CPU"].cache == 0
    assert needs["CPU"].compute > logits_bytes(dense.vocabulary, 1)
    assert needs["CUDA0"].weights == dense.weight_bytes - dense.input_bytes


def test_embeddings_of_each_layer_stay_with_the_cpu(dense: ModelShape, tied: ModelShape) -> None:
    for shape in (dense, tied):
        more = replace(shape, layer_table_bytes=1_000_000)
        for split in (LayerSplit(), LayerSplit(("CUDA0",), (6,))):
            before, after = (by_device(each, MemoryRequest(split, 2048)) for each in (shape, more))
            assert after["CPU"].weights == before["CPU"].weights + 1_000_000
            if split.devices:
                assert after["CUDA0"] == before["CUDA0"]


def test_the_first_layers_stay_with_the_cpu(dense: ModelShape) -> None:
    alone = by_device(dense, MemoryRequest(LayerSplit(), 2048))["CPU"]
    needs = by_device(dense, MemoryRequest(LayerSplit(("CUDA0", "CUDA1"), (1, 2)), 2048))
    layer = dense.layers[0].weight_bytes
    assert needs["CPU"].weights == dense.input_bytes + 3 * layer
    assert needs["CUDA0"].weights == layer
    assert needs["CUDA1"].weights == dense.output_bytes + 2 * layer
    assert sum(need.cache for need in needs.values()) == alone.cache
    assert sum(need.weights for need in needs.values()) == alone.weights


def test_a_table_that_is_also_the_output_is_on_the_gpu_once_more(tied: ModelShape) -> None:
    alone = by_device(tied, MemoryRequest(LayerSplit(), 2048))["CPU"]
    needs = by_device(tied, MemoryRequest(LayerSplit(("CUDA0",), (6,)), 2048))
    assert sum(need.weights for need in needs.values()) == alone.weights + tied.input_bytes


def test_the_output_alone_with_the_cpu(dense: ModelShape, tied: ModelShape) -> None:
    for shape in (dense, tied):
        there = by_device(shape, MemoryRequest(LayerSplit(("RPC0",), (6,)), 2048))
        needs = by_device(shape, MemoryRequest(LayerSplit(("RPC0",), (6,), output_at_home=True), 2048))
        assert needs["RPC0"].weights == there["RPC0"].weights - shape.output_bytes
        more = 0 if shape is tied else shape.output_bytes  # its table is here anyway
        assert needs["CPU"].weights == pytest.approx(there["CPU"].weights + more, rel=0.01)
        assert needs["RPC0"].compute <= there["RPC0"].compute
        assert needs["CPU"].compute > there["CPU"].compute


def test_the_output_alone_on_a_gpu(dense: ModelShape) -> None:
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


def test_windows_keep_what_they_reach_and_a_micro_batch_with_copies_for_the_way_back(
    windows: ModelShape,
) -> None:
    per_cell = 2 * (windows.layers[0].key_values + windows.layers[0].value_values)
    sliding = sum(layer.window is not None for layer in windows.layers)
    [small] = estimate(windows, MemoryRequest(LayerSplit(), 16384))
    copies = CHECKPOINTS * 512 * sliding
    assert small.cache == per_cell * (16384 * (8 - sliding) + (512 + 512) * sliding + copies)
    [whole] = estimate(windows, MemoryRequest(LayerSplit(), 16384, swa_full=True))
    assert whole.cache == per_cell * (16384 * 8 + copies)  # a saved text has only what windows reach
    [branching] = estimate(windows, MemoryRequest(LayerSplit(), 16384, sequences=2))
    assert branching.cache > per_cell * 16384 * 8  # shared cells are never given away


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


MIB = 2**20
# What llama.cpp gave two of Vulkan's devices, the first layers to the one and the rest to the other; MiB.
ON_TWO_CARDS = [
    ("demo", (3, 3), 8192, 512, {"CPU": 40.9, "A": 57.8, "B": 63.1}),
    ("demo", (3, 3), 32768, 512, {"CPU": 136.9, "A": 207.8, "B": 213.1}),
    ("demo", (3, 3), 32768, 128, {"CPU": 39.5, "A": 107.9, "B": 114.4}),
    ("demo", (3, 3), 131072, 512, {"CPU": 520.9, "A": 807.8, "B": 813.1}),
    ("demo", (1, 5), 32768, 512, {"CPU": 136.9, "A": 158.1, "B": 262.8}),
    ("demo", (2, 2), 32768, 512, {"CPU": 89.8, "A": 107.3, "B": 88.5}),
    ("demo", (3,), 32768, 512, {"CPU": 114.7, "A": 135.1}),
    ("dense", (3, 3), 16384, 512, {"CPU": 70.5, "A": 124.4, "B": 128.4}),
    ("sliding window", (4, 4), 16384, 512, {"CPU": 134.6, "A": 109.6, "B": 177.6}),
    ("sliding window", (7, 1), 16384, 512, {"CPU": 134.6, "A": 202.1, "B": 82.4}),
    ("mixture of experts", (2, 2), 16384, 512, {"CPU": 70.5, "A": 84.7, "B": 88.7}),
    ("tied output", (3, 3), 16384, 512, {"CPU": 74.5, "A": 87.9, "B": 93.9}),
]


@pytest.mark.parametrize(("name", "layers", "context", "micro_batch", "taken"), ON_TWO_CARDS)
def test_a_model_split_over_gpus_takes_what_llama_cpp_took(
    name: str,
    layers: tuple[int, ...],
    context: int,
    micro_batch: int,
    taken: dict[str, float],
    tmp_path: Path,
    demo_target: Path,
) -> None:
    path = demo_target if name == "demo" else make(tmp_path / "a.gguf", replace(SHAPES[name], bare=True))
    split = LayerSplit(("A", "B")[: len(layers)], layers)
    needs = by_device(read_shape(path), MemoryRequest(split, context, micro_batch=micro_batch, swa_full=True))
    found = {device: need.total / MIB for device, need in needs.items()}
    assert found == {device: pytest.approx(size, rel=0.05) for device, size in taken.items()}
