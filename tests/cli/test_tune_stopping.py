"""The tuner can be stopped at any moment; what a cancelled call brought is not taken for a result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from localspec.app.tuning import StopSignal, opener
from localspec.decoding.measurements import CostRequest
from localspec.errors import Cancelled, EngineError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import TunableModels
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.costs import call_costs
from localspec.tuning.plan import ReopenedModels
from localspec.types.models import ModelOptions
from localspec.types.request import Request
from tests.scripted import ScriptedModels, says


class Slow(ScriptedModels):
    """Models whose measurement continues until they are closed."""

    def __init__(self) -> None:
        super().__init__(says("hello ", "world"))
        self.begun, self.ended = threading.Event(), threading.Event()

    def perform(self, task: object, *arguments: object) -> object:
        self.begun.set()
        assert self.ended.wait(20), "nobody closed them"
        raise EngineError("the models are closed")

    def close(self) -> None:
        super().close()
        self.ended.set()


def openers(models: ScriptedModels) -> Callable[[LoadOptions], AbstractContextManager[TunableModels]]:
    @contextmanager
    def open_models(_load_options: LoadOptions) -> Iterator[TunableModels]:
        try:
            yield cast(TunableModels, models)
        finally:
            models.close()

    return open_models


def asks_when(moment: threading.Event, stop: StopSignal) -> threading.Thread:
    def ask() -> None:
        assert moment.wait(20)
        stop.ask()

    asker = threading.Thread(target=ask)
    asker.start()
    return asker


def test_a_stop_closes_the_models_and_that_is_not_a_failure_of_theirs() -> None:
    models, stop = Slow(), StopSignal()
    asker = asks_when(models.begun, stop)
    with pytest.raises(Cancelled), stop.at(openers(models))(LoadOptions()) as opened:
        opened.perform(call_costs, CostRequest(0, together=False))
    asker.join()
    assert models.closed


def test_what_was_closed_to_stop_is_not_opened_again_whatever_becomes_of_the_error() -> None:
    models, stop = Slow(), StopSignal()
    asker = asks_when(models.begun, stop)
    with ReopenedModels(lambda: stop.at(openers(models))(LoadOptions())) as opened:
        with pytest.raises(EngineError) as ended:
            opened.now.perform(call_costs, CostRequest(0, together=False))
        with pytest.raises(Cancelled):
            opened.leave_out("ssd", ended.value)
    asker.join()


def test_an_error_that_no_one_asked_for_passes() -> None:
    models, stop = Slow(), StopSignal()
    models.ended.set()
    with stop.at(openers(models))(LoadOptions()) as opened, pytest.raises(EngineError, match="closed"):
        opened.perform(call_costs, CostRequest(0, together=False))


def test_nothing_is_opened_after_a_stop() -> None:
    models, stop = ScriptedModels(says("hello")), StopSignal()
    stop.ask()
    with pytest.raises(Cancelled), stop.at(openers(models))(LoadOptions()):
        raise AssertionError("it was opened")
    assert not models.closed


def test_models_that_no_one_stops_answer_as_ever() -> None:
    models = ScriptedModels(says("hello ", "world"))
    with StopSignal().at(openers(models))(LoadOptions()) as stopping:
        assert [type(event) for event in stopping.generate(Request("Hi"))] == [
            type(event) for event in ScriptedModels(says("hello ", "world")).generate(Request("Hi"))
        ]
        assert (stopping.target, stopping.draft, stopping.notes) == (models.target, models.draft, ())
        assert stopping.choose_settings()[0].mode == "ssd"


PAIR = OpenPlan(
    ModelOptions(Path("large.gguf"), threads=4, batch=512, micro_batch=256),
    ModelOptions(Path("small.gguf"), devices=("CUDA1",), gpu_layers=9, threads=3),
    max_fan_out=24,
)


def test_load_options_say_how_models_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Worker:
        @staticmethod
        def open(plan: OpenPlan, **how: Any) -> None:  # noqa: ANN401
            asked.append((plan, how))

    monkeypatch.setattr("localspec.inference.worker.client.Worker", Worker)
    stop = StopSignal()
    opener(PAIR, stop)(LoadOptions(2, 1, 1024, True, "q8_0", True))
    opener(PAIR, stop)(LoadOptions())
    (plan, how), (usual, _) = asked
    target, draft = plan.target, plan.draft
    assert (target.threads, target.micro_batch, target.batch) == (2, 1024, 1024)
    assert (target.flash_attention, draft.flash_attention) == (None, True)
    assert (target.kv_type_k, target.kv_type_v) == ("f16", "f16")
    assert (draft.kv_type_k, draft.kv_type_v, draft.devices, draft.gpu_layers) == ("q8_0", "q8_0", (), 0)
    assert (draft.threads, plan.max_fan_out) == (1, 24)
    assert usual == PAIR
    assert how["on_progress"](0.5)
    stop.ask()
    assert not how["on_progress"](0.5)


def test_a_target_alone_has_load_options_too() -> None:
    assert OpenPlan(PAIR.target).opened_with(LoadOptions(threads=1)).draft is None
