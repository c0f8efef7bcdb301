"""Splits by tensor: what is refused before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.gguf import read_model
from localspec.llama import backends
from localspec.llama.backends import BackendDevice
from localspec.llama.model import Model
from localspec.llama.tensor_split import MOST_DEVICES, check_tensor_split
from localspec.models.shape import read_shape
from localspec.types.models import ModelOptions
from tests import made_models
from tests.hardware.shapes import SHAPES, Build, make

CARDS = ("CUDA0", "CUDA1")


@pytest.mark.parametrize(
    ("devices", "flash", "told"),
    [
        ((), None, "-sm tensor divides a model between GPUs, and there are none"),
        (("CUDA0",), None, "and there is one: CUDA0"),
        (tuple(f"CUDA{number}" for number in range(MOST_DEVICES + 1)), None, "at most 16 devices"),
        (CARDS, False, "-sm tensor needs flash attention, which -fa off forbids"),
    ],
)
def test_devices_and_options_that_cannot_divide_a_model_are_rejected(
    tiny_llama: Path, devices: tuple[str, ...], flash: bool | None, told: str
) -> None:
    with pytest.raises(UserError, match=told) as refused:
        check_tensor_split(read_model(tiny_llama), devices, flash)
    assert refused.value.hint


def test_models_that_llama_cpp_cannot_divide_are_rejected(
    demo_target: Path, tiny_recurrent: Path, made_hybrid: Path, tmp_path: Path
) -> None:
    one_kv_head = made_models.windowed(tmp_path / "windowed.gguf")
    check_tensor_split(read_model(demo_target), CARDS, None)
    with pytest.raises(UserError, match="cannot divide models of the architecture `mamba`"):
        check_tensor_split(read_model(tiny_recurrent), CARDS, None)
    with pytest.raises(UserError, match=r"too few heads or experts too narrow .* 2 devices \(1:1\)"):
        check_tensor_split(read_model(one_kv_head), CARDS, None)
    with pytest.raises(UserError, match="RPC1 is an RPC server"):
        check_tensor_split(read_model(made_hybrid), ("CUDA0", "RPC1"), None)


@pytest.mark.parametrize(
    ("build", "shares", "divides"),
    [
        (Build(kv_heads=2), (1, 1), True),
        (Build(kv_heads=2), (1, 1, 1), False),
        (Build(kv_heads=2), (3, 1), False),  # half a head is rounded down to none
        (Build(kv_heads=8), (3, 1), True),
        (Build(kv_heads=8), (1, 0), False),
        (Build(kv_heads=8, feed_forward=128), (1, 1), False),
        (replace(SHAPES["mixture of experts"], feed_forward=128), (1, 1), False),
        (replace(SHAPES["mixture of experts"], feed_forward=256), (1, 1), True),
    ],
)
def test_a_device_without_a_part_of_a_layer_is_rejected(
    build: Build, shares: tuple[float, ...], divides: bool, tmp_path: Path
) -> None:
    """llama.cpp sums up what such a device has in its memory, times zero: that may be no number."""
    path = make(tmp_path / "a.gguf", build)
    cards = tuple(f"CUDA{number}" for number in range(len(shares)))
    assert read_shape(path).is_divisible(shares) is divides
    if divides:
        check_tensor_split(read_model(path), cards, None, shares)
        return
    with pytest.raises(UserError, match="too few heads or experts too narrow") as refused:
        check_tensor_split(read_model(path), cards, None, shares)
    assert "(-dev)" in refused.value.hint


def test_a_split_that_is_impossible_is_rejected_before_anything_is_loaded(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = BackendDevice("CUDA0", "a card", "gpu", memory_total=100, memory_free=90)
    monkeypatch.setattr(backends, "graphics", lambda: (only,))
    for layers in (None, 0):
        with pytest.raises(UserError, match="-sm tensor divides a model between GPUs") as refused:
            Model.open(ModelOptions(tiny_llama, gpu_layers=layers, split_mode="tensor"))
        assert refused.value.hint == "use -sm layer"
