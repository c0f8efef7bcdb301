from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localspec.errors import Cancelled, EngineError, ModelFileError, UserError
from localspec.llama import backends
from localspec.llama.backends import BackendDevice, devices, memory_of
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.types.models import DeviceMemory, ModelOptions
from tests.llama import tiny
from tests.llama.conftest import OpenContext


def test_the_bundled_target_describes_itself(target_model: Model, demo_target: Path) -> None:
    info = target_model.info(context=512)
    assert (info.name, info.architecture) == ("LocalSpec demo target", "llama")
    assert (info.context, info.training_context, info.vocabulary) == (512, 1024, 8192)
    assert info.devices == ("CPU",)
    assert info.file_bytes == demo_target.stat().st_size
    assert target_model.info().context == 1024
    assert target_model.vocabulary.end_tokens == {0, 2}
    assert target_model.end_tokens == {0, 1, 2}  # with <|im_start|>, which only ever begins a turn


def test_loading_reports_growing_fractions_and_writes_nothing(
    tiny_llama: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fractions: list[float] = []

    def note(fraction: float) -> bool:
        fractions.append(fraction)
        return True

    with caplog.at_level(logging.DEBUG, logger="localspec.llama.cpp"):
        model = Model.open(ModelOptions(path=tiny_llama), note)
        Context(model, model.options).close()
        model.close()
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert capfd.readouterr() == ("", "")
    lines = [record.getMessage() for record in caplog.records if record.name == "localspec.llama.cpp"]
    assert any("llama_model_loader" in line for line in lines)
    assert not any("\n" in line for line in lines)


def test_loading_can_be_cancelled(tiny_llama: Path) -> None:
    calls: list[float] = []

    def refuse(fraction: float) -> bool:
        calls.append(fraction)
        return False

    with pytest.raises(Cancelled):
        Model.open(ModelOptions(path=tiny_llama), refuse)
    assert len(calls) == 1


def test_an_exception_of_the_listener_comes_through(tiny_llama: Path) -> None:
    def fail(_fraction: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model.open(ModelOptions(path=tiny_llama), fail)


def test_loading_without_mmap(tiny_llama: Path) -> None:
    model = Model.open(ModelOptions(path=tiny_llama, mmap=False, devices=()))
    assert Context(model, model.options).evaluate([1]).logits.shape == (1, model.vocabulary.size)
    model.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": ("CUDA7",)}, "no device is called 'CUDA7'"),
        ({"gpu_layers": -1}, "-1 layers"),
        ({"tensor_split": (1.0,) * 99}, "not up to"),
        ({"tensor_split": (-1.0,)}, "not up to"),
        ({"tensor_split": (float("nan"),)}, "not up to"),
    ],
)
def test_options_that_cannot_be_met(tiny_llama: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Model.open(ModelOptions(path=tiny_llama, **options))  # type: ignore[arg-type]


def test_the_cpu_is_always_a_device(tiny_llama: Path) -> None:
    processors = [device for device in devices() if device.kind == "cpu"]
    assert len(processors) == 1
    assert 0 < processors[0].memory_free <= processors[0].memory_total
    model = Model.open(ModelOptions(path=tiny_llama, devices=("CPU",)))
    assert model.info().devices == ("CPU",)
    model.close()


def test_weights_that_fit_nowhere_are_rejected_with_numbers(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = psutil.virtual_memory()._replace(available=1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: small)
    with pytest.raises(UserError, match=r"needs \d+ MiB; 0 MiB of memory are free"):
        Model.open(ModelOptions(path=tiny_llama, devices=()))


def test_llama_cpps_own_reason_is_quoted(tmp_path: Path) -> None:
    recipe = tiny.Recipe(tmp_path / "thin.gguf", "llama")
    recipe.vocabulary()
    recipe.ones("output_norm")
    with pytest.raises(ModelFileError, match="key not found in model: llama"):
        Model.open(ModelOptions(path=recipe.write()))


def test_closing_twice_and_use_after_closing(tiny_llama: Path, open_context: OpenContext) -> None:
    model = Model.open(ModelOptions(path=tiny_llama))
    context = open_context(model)
    context.evaluate([1, 2, 3])
    model.close()
    for use in (
        lambda: context.evaluate([1]),
        lambda: context.step([1], [0]),
        lambda: context.truncate(1),
        lambda: context.set_threads(1),
        lambda: model.vocabulary.tokenize("a"),
        lambda: Context(model, model.options),
    ):
        with pytest.raises(EngineError, match="closed"):
            use()
    context.close()


def card(name: str, free: int = 90) -> BackendDevice:
    return BackendDevice(name, "a card", "gpu", memory_total=100, memory_free=free)


def test_memory_is_that_of_the_named_devices_and_of_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = BackendDevice("CPU", "a processor", "cpu", memory_total=100, memory_free=50)
    monkeypatch.setattr(backends, "devices", lambda: (card("CUDA0", 30), card("CUDA1"), processor))
    found, own = memory_of({"CUDA0", "CPU"})
    assert found == DeviceMemory("CUDA0", 70, 100)
    assert own.device == "CPU"
    assert 0 < own.used < own.total == psutil.virtual_memory().total


def test_rows_that_a_backend_cannot_split_are_rejected_before_anything_is_loaded(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "graphics", lambda: (replace(card("CUDA0"), splits_rows=True), card("B")))
    with pytest.raises(UserError, match="-sm row: the backend of B cannot") as refused:
        Model.open(ModelOptions(tiny_llama, split_mode="row"))
    assert refused.value.hint == "use -sm layer"
    Model.open(ModelOptions(tiny_llama, split_mode="row", gpu_layers=0)).close()


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, ["CUDA0", "CUDA1"]),
        ({"split_mode": "none", "main_gpu": 1}, ["CUDA1"]),
        ({"gpu_layers": 1}, ["CUDA0", "CUDA1", "CPU"]),
        ({"gpu_layers": tiny.LAYERS}, ["CUDA0", "CUDA1", "CPU"]),
        ({"gpu_layers": tiny.LAYERS + 1}, ["CUDA0", "CUDA1"]),  # what follows the layers counts as one
        ({"gpu_layers": 0}, ["CPU"]),
    ],
)
def test_the_devices_that_hold_a_model_are_named(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], held: list[str]
) -> None:
    monkeypatch.setattr(backends, "graphics", lambda: (card("CUDA0"), card("CUDA1")))
    model = Model.open(ModelOptions(path=tiny_llama, **changes))  # type: ignore[arg-type]
    assert list(model.cards) == [name for name in held if name != "CPU"]
    assert list(model.info().devices) == [name if name == "CPU" else f"a card ({name})" for name in held]
    model.close()
