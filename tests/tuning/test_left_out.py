"""What ends the models' process, or cannot be run at all, is left out with the reason; the rest continues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import pytest

from localspec.decoding.measurements import CallCosts, CostRequest, Costs, Trace, TraceSegment
from localspec.errors import EngineDied, EngineError
from localspec.tuning.events import StageProgress, TaskResult
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.space import LLAMA_CPP
from localspec.types.events import GenerationEvent
from localspec.types.request import Request
from tests.tuning.fake_models import TRACED, FakeModels
from tests.tuning.test_tune import planned, results, run_of, stopped_at

pytestmark = pytest.mark.slow

DIED = EngineDied("the engine crashed (SIGSEGV)")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))


@dataclass
class Crashing(FakeModels):
    """End at some requests, and do nothing more until they are opened again."""

    crashes: Callable[[Request | CostRequest], bool] = lambda _asked: False
    error: EngineError = DIED
    opened: int = 0
    is_dead: bool = False

    def __enter__(self) -> Self:
        self.opened += 1
        self.is_dead = False
        return super().__enter__()

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self._check(request)
        yield from super().generate(request)

    def measure_costs(self, wish: CostRequest) -> CallCosts:
        self._check(wish)
        return super().measure_costs(wish)

    def trace(self, request: Request) -> TraceSegment:
        self._check(request)
        return super().trace(request)

    def _check(self, asked: Request | CostRequest) -> None:
        self.is_dead = self.is_dead or self.crashes(asked)
        if self.is_dead:
            raise self.error

    def modes(self) -> set[str]:
        """Return the modes that were asked for."""
        return {request.settings.mode for request in self.asked}


def as_llama_cpp_does(asked: Request | CostRequest) -> bool:
    return isinstance(asked, Request) and asked.settings == LLAMA_CPP


def both_at_work(asked: Request | CostRequest) -> bool:
    return asked.together if isinstance(asked, CostRequest) else asked.settings.mode == "ssd"


def drafting(asked: Request | CostRequest) -> bool:
    return isinstance(asked, Request) and asked.settings.mode == "sd"


def left_out(result: TaskResult) -> list[tuple[str, str]]:
    return [(each.name, each.reason) for each in result.dropped]


@pytest.mark.parametrize("error", [DIED, EngineError("there is not enough memory left to go on")])
def test_a_contender_that_ends_the_process_is_dropped_and_the_others_continue(
    tmp_path: Path, error: EngineError
) -> None:
    plan, models = planned(tmp_path), Crashing(crashes=as_llama_cpp_does, error=error)
    (result,) = results(run_of(plan, models).events())
    assert left_out(result) == [("llama.cpp", str(error))]
    assert [each.name for each in result.contenders[:2]] == ["plain", "best"]
    assert "llama.cpp" not in [each.name for each in result.contenders]
    assert result.winner.gain.low > 1
    assert models.opened == 2


def test_models_opened_again_serve_the_next_task(tmp_path: Path) -> None:
    models = Crashing(crashes=as_llama_cpp_does)
    found = results(run_of(planned(tmp_path, "coding", "writing"), models).events())
    assert [left_out(result) for result in found] == [[("llama.cpp", str(DIED))]] * 2
    assert models.opened == 3
    assert not models.is_open


@pytest.mark.parametrize(
    ("crashes", "mode", "others"),
    [(both_at_work, "ssd", {"off", "ngram", "sd"}), (drafting, "sd", {"off", "ngram", "ssd"})],
)
def test_a_mode_that_crashes_while_costs_are_measured_is_not_searched(
    tmp_path: Path, crashes: Callable[[Request | CostRequest], bool], mode: str, others: set[str]
) -> None:
    plan, models = planned(tmp_path), Crashing(crashes=crashes)
    stopped_at("study", run_of(plan, models).events())
    assert models.opened == 2
    again = Crashing(crashes=crashes)
    (result,) = results(run_of(replace(plan, resume=True), again).events())
    assert left_out(result) == [(mode, str(DIED))]
    assert result.settings.mode in others
    assert result.winner.gain.low > 1
    assert models.modes() | again.modes() == others
    assert (again.opened, again.measured) == (1, 0)


def test_the_next_run_measures_again_what_was_left_out(tmp_path: Path) -> None:
    plan, models = planned(tmp_path), FakeModels()
    results(run_of(plan, Crashing(crashes=both_at_work)).events())
    (result,) = results(run_of(plan, models).events())
    assert left_out(result) == []
    assert models.measured > 1


def test_the_line_of_the_costs_says_what_is_left_out(tmp_path: Path) -> None:
    events = run_of(planned(tmp_path), Crashing(crashes=both_at_work)).events()
    told = [each for each in events if isinstance(each, StageProgress) and each.stage == "costs"]
    assert (told[-1].note, told[-1].done, told[-1].steps) == (f"ssd left out: {DIED}", 3, 4)


class OnceTracing(Crashing):
    """Crash at the third trace."""

    def trace(self, request: Request) -> TraceSegment:
        if self.traced == 2:
            self.traced += 1
            raise DIED
        return super().trace(request)


def test_a_prompt_that_crashes_is_left_out_of_the_trace_and_not_tried_again(tmp_path: Path) -> None:
    plan, models, again = planned(tmp_path), OnceTracing(), Crashing()
    stopped_at("traces", run_of(plan, models).events(), steps=5)
    assert (models.traced, models.opened) == (5, 2)
    (result,) = results(run_of(replace(plan, resume=True), again).events())
    assert result.winner.gain.low > 1
    assert models.traced + again.traced == len(plan.profiles[0].tuning_prompts().prompts)


def test_the_simulator_sees_nothing_of_a_prompt_that_crashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[list[int]] = []

    def watched(trace: Trace, costs: Costs) -> Simulator:
        lengths.append([len(segment.tokens) for segment in trace.segments])
        return Simulator(trace, costs)

    monkeypatch.setattr("localspec.tuning.run.Simulator", watched)
    plan = planned(tmp_path)
    stopped_at("study", run_of(plan, OnceTracing()).events())
    results(run_of(replace(plan, resume=True), Crashing()).events())
    answers = len(plan.profiles[0].tuning_prompts().prompts) - 1
    assert lengths == [[TRACED] * answers] * 2


@pytest.mark.parametrize("stage", ["costs", "confirm"])
def test_plain_decoding_that_crashes_ends_the_run(tmp_path: Path, stage: str) -> None:
    def crashes(asked: Request | CostRequest) -> bool:
        of_stage = isinstance(asked, Request) and (asked.max_tokens == 48) == (stage == "costs")
        return of_stage and isinstance(asked, Request) and asked.settings.mode == "off" and traced(stage)

    def traced(stage: str) -> bool:
        return stage == "costs" or models.traced == 10

    models = Crashing(crashes=crashes)
    with pytest.raises(EngineDied):
        results(run_of(planned(tmp_path), models).events())
    assert models.opened == 1
