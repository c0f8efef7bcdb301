from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from localspec.app import opening as app_opening
from localspec.cli.shared import opening
from localspec.demo import bundled_pair
from localspec.errors import Cancelled, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime


@dataclass(frozen=True)
class Device:
    name: str
    kind: str
    description: str = "a device"
    memory_total: int = 2**34
    memory_free: int = 2**33


Load = Callable[..., None]
Loads = Callable[[Load], FakeRuntime]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """Let the worker, which comes back, load models by the given function."""

    def install(load: Load) -> FakeRuntime:
        class Loading(FakeRuntime):
            def load(self, *models: object, **options: object) -> None:
                load(*models, **options)

        worker = Loading()
        monkeypatch.setattr(opening, "start_worker", lambda **_how: worker)
        monkeypatch.setattr(app_opening, "computes_on_cpu", lambda _via: True)
        return worker

    return install


def test_models_open_with_what_was_asked(invoke: Invoke, loads: Loads) -> None:
    seen: list[object] = []

    def load(plan: OpenPlan, **_options: object) -> None:
        assert plan.draft is not None
        seen.extend([plan.target.path.name, plan.draft.path.name, plan.draft.threads, plan.max_fan_out])

    loads(load)
    target, draft = bundled_pair()
    assert invoke("run", "Hi", "-m", f"{target}", "-md", f"{draft}", "-td", "2", "--no-fit").out == "Hello\n"
    assert seen == [target.name, draft.name, 2, 16]


def test_ctrl_c_while_loading_cancels_the_load(invoke: Invoke, loads: Loads) -> None:
    progress: list[bool] = []

    def load(*_models: object, on_progress: Callable[[float], bool], **_options: object) -> None:
        progress.append(on_progress(0.1))
        os.kill(os.getpid(), signal.SIGINT)
        progress.append(on_progress(0.2))
        raise Cancelled

    loads(load)
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "")
    assert progress == [True, False]


def test_ctrl_c_at_the_end_of_a_load_closes_the_models(invoke: Invoke, loads: Loads) -> None:
    def load(*_models: object, **_options: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    worker = loads(load)
    assert invoke("run", "Hi").code == 130
    assert worker.closed
    assert worker.requests == []


def test_an_error_while_loading(invoke: Invoke, loads: Loads) -> None:
    def load(*_models: object, **_options: object) -> None:
        raise UserError("no device is called 'CUDA9'", "devices: CUDA0")

    worker = loads(load)
    outcome = invoke("run", "Hi", "-dev", "CUDA9", "--no-fit")
    assert (outcome.code, outcome.err) == (2, "error: no device is called 'CUDA9'\n  hint: devices: CUDA0\n")
    assert worker.closed


@pytest.mark.parametrize(
    ("kind", "layers", "noted"),
    [("cpu", "9", True), ("cpu", "0", False), ("cpu", "auto", False), ("gpu", "9", False)],
)
def test_layers_on_a_gpu_that_is_not_there_are_a_note(
    fake: FakeRuntime,
    invoke: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    layers: str,
    noted: bool,
) -> None:
    fake.notes = ("speculation is off",)
    monkeypatch.setattr(app_opening, "computes_on_cpu", lambda _via: kind == "cpu")
    outcome = invoke("run", "Hi", "-ngl", layers)
    assert (outcome.code, outcome.out) == (0, "Hello\n")
    assert "note: speculation is off\n" in outcome.err
    assert ("-ngl has no effect" in outcome.err) == noted


def test_list_devices_is_llama_cpp_s_word_for_the_verb(invoke: Invoke) -> None:
    listed, verb = invoke("--list-devices"), invoke("devices", "--no-measure")
    apart = [
        [line for line in outcome.out.splitlines() if "memory" not in line] for outcome in (listed, verb)
    ]
    assert (listed.code, apart[0]) == (0, apart[1])
    assert listed.out.startswith("CPU: ")


def test_models_of_the_configuration_open_where_no_flag_names_any(
    invoke: Invoke, fake: FakeRuntime, empty_home: Path
) -> None:
    folder = empty_home / "config" / "localspec"
    text = '[models]\ntarget = "large.gguf"\ndraft = "small.gguf"\ncontext = 2048\n'
    (folder / "config.toml").write_text(text, encoding="utf-8")
    for name in ("large.gguf", "small.gguf"):
        (folder / name).touch()
    assert invoke("run", "Hi").code == 0
    assert invoke("run", "Hi", "-m", "other.gguf", "-c", "512").code == 0
    assert "no target" in invoke("run", "Hi", "-md", "other.gguf").err
    configured, named = fake.opened
    assert (configured.target.path.name, configured.target.context) == ("large.gguf", 2048)
    assert configured.draft is not None
    assert configured.draft.path.name == "small.gguf"
    assert (named.target.path.name, named.target.context, named.draft) == ("other.gguf", 512, None)
