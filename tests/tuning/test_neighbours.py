"""Passes of a mixture of experts are timed on neighbours in recorded answers, and compared with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

import pytest

from localspec.decoding.measure import compare_passes, time_calls
from localspec.decoding.measurements import CallCosts, ComparedPass, CostRequest, Costs
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.costs import call_costs, compared_passes, costs_of, steps_of
from localspec.tuning.events import PassesCompared, StageBegan, TuneEvent
from localspec.tuning.load_options import MachineLimits
from localspec.tuning.plan import TunePlan
from localspec.tuning.run import TuningRun
from localspec.tuning.simulator.call_times import Timing
from localspec.tuning.trace import trace
from localspec.types.candidates import Rows
from localspec.types.models import ModelOptions
from localspec.types.request import Message, Request
from tests.fake_model import FakeModel
from tests.inference.runtimes import greedy
from tests.llama import tiny
from tests.tuning.fake_models import TRACED, FakeModels, open_once
from tests.tuning.test_tune import identity, planned

T = TypeVar("T")
EXPERTS, OF_ONE = 40, 10  # tokens of an expert
READ_S = 0.01
STORY = [token for start in range(0, 400, 20) for token in range(start, start + OF_ONE)]  # expert by expert


class Mixture(FakeModel):
    """A model of which a call takes the time of its experts; a token has one expert."""

    def __init__(self) -> None:
        super().__init__(EXPERTS * OF_ONE)
        self.read: list[list[int]] = []
        self._experts_s = 0.0

    @property
    def busy_s(self) -> float:
        """Return a time that grows by what experts take to read."""
        return self._experts_s

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Note what is read, each expert once."""
        self.read.append(list(tokens))
        self._experts_s += READ_S * len({token // OF_ONE for token in tokens})
        return super().evaluate(tokens, logits)


def test_neighbours_that_share_experts_take_less_than_unrelated_tokens() -> None:
    target = Mixture()
    found = compare_passes(target, STORY, 0.0)
    assert [each.tokens for each in found] == [1, 2, 3, 5]
    one, *several = found
    assert one.neighbours_s == one.unrelated_s == pytest.approx(READ_S)
    for each in several:
        assert each.neighbours_s < 2.5 * READ_S
        assert each.unrelated_s > (each.tokens - 1.5) * READ_S
    assert several[-1].ratio < 0.5
    assert target.length() == 0


def test_neighbours_without_a_common_expert_take_as_long() -> None:
    apart = [7 * OF_ONE * number % (EXPERTS * OF_ONE) for number in range(EXPERTS)]
    assert all(each.ratio >= 1.0 for each in compare_passes(Mixture(), apart, 0.0))


def test_passes_of_a_text_read_pieces_of_it_after_its_beginning() -> None:
    target = Mixture()
    text = tuple(range(100, 160))
    wish = CostRequest(80, together=False, verify_sizes=(1, 2, 5), step_widths=(), budget_s=0.0)
    time_calls(target, None, replace(wish, text=text))
    beginning, *passes = target.read
    assert beginning == [*text, *text[:20]]
    pieces = [tokens for tokens in passes if len(tokens) > 1]
    places = [text.index(tokens[0]) for tokens in pieces]
    assert pieces == [
        [*text, *text][place : place + len(tokens)] for place, tokens in zip(places, pieces, strict=True)
    ]
    assert len(set(places)) > len(places) // 2  # each from another place


def test_without_a_text_tokens_are_unrelated_as_ever() -> None:
    target = Mixture()
    wish = CostRequest(3, together=False, verify_sizes=(1, 2, 3), step_widths=(), budget_s=0.0)
    time_calls(target, None, wish)
    assert {tuple(tokens) for tokens in target.read} == {(1,), (1, 320), (1, 320, 239)}


def test_a_real_mixture_is_compared_and_nothing_stays_in_its_cache(tmp_path: Path) -> None:
    path = tiny.mixture(tmp_path / "mixture.gguf", experts=8)
    with Runtime.open(OpenPlan(ModelOptions(path, context=256, threads=1))) as opened:
        segment = trace(opened, greedy(prompt="abcdefgh", max_tokens=20))
        text = tuple(segment.tokens.tolist())
        found = compared_passes(opened, text, 0.0)
        assert [each.tokens for each in found] == [1, 2, 3, 5]
        assert all(each.ratio > 0 for each in found)
        wish = CostRequest(40, together=False, budget_s=0.0, text=text)
        assert {1, 2, 5} <= dict(call_costs(opened, wish).verify).keys()
        assert opened._contexts.target.length() == 0


@dataclass
class Sharing(FakeModels):
    """Models whose passes over neighbours take half of others."""

    compared: list[tuple[int, ...]] = field(default_factory=list)
    wishes: list[CostRequest] = field(default_factory=list)

    def perform(self, task: Callable[..., T], *arguments: object) -> T:
        if task is not compared_passes:
            return super().perform(task, *arguments)
        text, _ = arguments
        self.compared.append(cast("tuple[int, ...]", text))
        return cast("T", tuple(ComparedPass(size, 0.01 * size, 0.02 * size) for size in (1, 2, 3, 5)))

    def measure_costs(self, wish: CostRequest) -> CallCosts:
        self.wishes.append(wish)
        found, share = super().measure_costs(wish), 0.5 if wish.text else 1.0
        return replace(found, verify=tuple((size, share * seconds) for size, seconds in found.verify))


REQUESTS = (Request((Message("user", "Write a word."),), max_tokens=8),)


def measured(models: Sharing, text: tuple[int, ...]) -> Costs:
    *steps, costs = costs_of(open_once(models), REQUESTS, 1.0, text)
    assert isinstance(costs, Costs)
    most = steps_of(models, has_experts=bool(text))
    assert [total for _, total in steps] == [most] * most  # type: ignore[misc]
    return costs


def test_the_simulator_goes_by_neighbours() -> None:
    models = Sharing()
    costs = measured(models, (1, 2, 3))
    assert {wish.text for wish in models.wishes} == {(1, 2, 3)}
    assert models.compared == [(1, 2, 3)]
    assert [each.ratio for each in costs.compared] == [0.5] * 4
    usual = measured(plain := Sharing(), ())
    assert (usual.compared, plain.compared) == ((), [])
    of_neighbours, of_others = (Timing(Costs(each.calls), "off").at(64).verify for each in (costs, usual))
    assert of_neighbours(5) == pytest.approx(0.5 * of_others(5))


def test_costs_without_experts_are_named_as_ever() -> None:
    assert repr(Costs(())) == "Costs(calls=(), overheads=(), left_out=())"


def events_of(plan: TunePlan, models: Sharing) -> list[TuneEvent]:
    """Return the events of a run up to the first task's."""

    def open_models(_options: LoadOptions) -> Sharing:
        return models

    events, found = TuningRun(plan, open_models, identity(plan), MachineLimits(4)).events(), list[TuneEvent]()
    for event in events:
        if isinstance(event, StageBegan) and event.task is not None:
            break
        found.append(event)
    events.close()  # type: ignore[attr-defined]
    return found


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))


def test_a_run_on_a_mixture_reads_its_own_answers_and_says_what_they_share(tmp_path: Path) -> None:
    tiny.mixture(tmp_path / "target.gguf")
    plan, models = planned(tmp_path), Sharing()
    assert plan.has_experts
    events = events_of(plan, models)
    (told,) = (event for event in events if isinstance(event, PassesCompared))
    assert [each.tokens for each in told.passes] == [1, 2, 3, 5]
    (text,) = models.compared
    assert len(text) == 4 * TRACED
    assert {wish.text for wish in models.wishes} == {text}
    (began,) = (event for event in events if isinstance(event, StageBegan))
    assert began.steps == steps_of(models, has_experts=True)
    again = Sharing()
    assert told in events_of(replace(plan, resume=True), again)
    assert again.compared == []


def test_a_run_on_a_dense_model_is_as_ever(tmp_path: Path) -> None:
    tiny.llama(tmp_path / "target.gguf")
    plan, models = planned(tmp_path), Sharing()
    assert not plan.has_experts
    events = events_of(plan, models)
    assert not any(isinstance(event, PassesCompared) for event in events)
    assert (models.compared, models.traced) == ([], 0)
    assert {wish.text for wish in models.wishes} == {()}
