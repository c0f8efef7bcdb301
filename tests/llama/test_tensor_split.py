"""Splits by tensor: what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.gguf import read_model
from localspec.llama import backends
from localspec.llama.backends import BackendDevice
from localspec.llama.model import Model
from localspec.llama.tensor_split import MOST_DEVICES, check_tensor_split
from localspec.types.models import ModelOptions
from tests import made_models

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
    tiny_llama: Path, tiny_recurrent: Path, made_hybrid: Path, tmp_path: Path
) -> None:
    one_kv_head = made_models.windowed(tmp_path / "windowed.gguf")
    check_tensor_split(read_model(tiny_llama), CARDS, None)
    with pytest.raises(UserError, match="cannot divide models of the architecture `mamba`"):
        check_tensor_split(read_model(tiny_recurrent), CARDS, None)
    with pytest.raises(UserError, match="has layers with one KV head"):
        check_tensor_split(read_model(one_kv_head), CARDS, None)
    with pytest.raises(UserError, match="RPC1 is an RPC server"):
        check_tensor_split(read_model(made_hybrid), ("CUDA0", "RPC1"), None)


def test_a_split_that_is_impossible_is_rejected_before_anything_is_loaded(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = BackendDevice("CUDA0", "a card", "gpu", memory_total=100, memory_free=90)
    monkeypatch.setattr(backends, "graphics", lambda: (only,))
    for layers in (None, 0):
        with pytest.raises(UserError, match="-sm tensor divides a model between GPUs") as refused:
            Model.open(ModelOptions(tiny_llama, gpu_layers=layers, split_mode="tensor"))
        assert refused.value.hint == "use -sm layer"
