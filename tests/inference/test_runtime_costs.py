"""What the calls of a pair cost is measured once, and known the next time that it is opened so."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localspec.decoding.measure import measure, time_calls
from localspec.decoding.measurements import CostRequest
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import contexts
from localspec.inference.contexts import COMPARED, Contexts
from localspec.inference.runtime import Runtime
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.storage.call_costs import Points, recall_costs
from localspec.storage.paths import data_dir
from localspec.tuning.costs import call_costs
from localspec.types.candidates import Rows
from localspec.types.events import RoundDone
from localspec.types.models import ModelOptions
from tests.fake_model import Pacing
from tests.inference.runtimes import FORCED, answer, greedy, measuring

SLOW_S, FAST_S = 50.0, 1e-7  # of a call, as no machine takes here
Open = Callable[..., AbstractContextManager[Runtime]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note for each measuring whether both models were at work at once; calls take very long."""
    times: list[bool] = []

    def measure(
        _target: LanguageModel,
        _draft: LanguageModel | None,
        _budget_s: float,
        *,
        together: bool,
        on_card: bool,
    ) -> LatencyModel:
        assert not on_card
        times.append(together)
        return LatencyModel(CostCurve({1: SLOW_S, 9: 1.1 * SLOW_S}), CostCurve({1: 0.001 * SLOW_S}))

    monkeypatch.setattr(contexts, "measure", measure)
    return times


@pytest.fixture
def open_pair(demo_target: Path, demo_draft: Path) -> Open:
    target = ModelOptions(demo_target, context=256, threads=1)
    draft = replace(target, path=demo_draft)
    return partial(Runtime.open, OpenPlan(target, draft, max_fan_out=4, remembers_costs=True))


def test_costs_are_measured_by_the_first_program_alone(open_pair: Open, measured: list[bool]) -> None:
    with open_pair() as runtime:
        chosen, reason = runtime.choose_settings()
        assert "earlier" not in reason
    assert measured == [False, True]
    with open_pair() as runtime:
        again, why = runtime.choose_settings()
        answer(runtime, measuring(greedy(FORCED, max_tokens=4)))
    assert measured == [False, True]
    assert (again, why) == (chosen, f"{reason}, measured earlier")


@pytest.mark.slow
def test_another_way_of_opening_the_pair_is_measured_again(
    open_pair: Open, measured: list[bool], demo_target: Path, demo_draft: Path
) -> None:
    one = ModelOptions(demo_target, context=256, threads=1)
    two, draft = replace(one, threads=2), ModelOptions(demo_draft, flash_attention=False)
    ways = (
        OpenPlan(one, replace(one, path=demo_draft), max_fan_out=2),
        OpenPlan(two, replace(draft, threads=2)),
        OpenPlan(two, draft),
        OpenPlan(two, replace(draft, flash_attention=True)),
    )
    with open_pair() as runtime:
        answer(runtime, measuring(greedy(FORCED, max_tokens=2)))
    for plan in ways:
        with Runtime.open(replace(plan, remembers_costs=True)) as runtime:
            answer(runtime, measuring(greedy(FORCED, max_tokens=2)))
    assert len(measured) == 1 + len(ways)


def test_nothing_is_kept_or_looked_up_unless_that_is_asked_for(
    measured: list[bool], demo_target: Path, demo_draft: Path
) -> None:
    options = ModelOptions(demo_target, context=256, threads=1)
    for _ in range(2):
        with Runtime.open(OpenPlan(options, replace(options, path=demo_draft), max_fan_out=4)) as runtime:
            runtime.choose_settings()
    assert measured == [False, True] * 2
    assert not (data_dir() / "costs").exists()


@pytest.mark.slow
def test_costs_of_a_busy_machine_are_found_out(open_pair: Open, measured: list[bool]) -> None:
    with open_pair() as runtime:
        answer(runtime, measuring(greedy(FORCED, max_tokens=2)))
    with open_pair() as runtime:
        answer(runtime, measuring(greedy(FORCED, max_tokens=10 * COMPARED)))
        promised = runtime._engine.plain.at(0)
    assert promised is not None
    assert promised < 0.1 * SLOW_S
    with open_pair() as runtime:
        answer(runtime, measuring(greedy(FORCED, max_tokens=2)))
    assert measured == [False, False]


def test_costs_of_a_machine_that_was_faster_are_what_speculation_has_to_beat(
    open_pair: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = LatencyModel(CostCurve({1: FAST_S, 9: 2 * FAST_S}), CostCurve({1: FAST_S}))
    monkeypatch.setattr(contexts, "measure", lambda *_, **__: fast)
    for _ in range(2):
        with open_pair() as runtime:
            answer(runtime, measuring(greedy(FORCED, max_tokens=10 * COMPARED)))
            assert runtime._engine.plain.at(0) == pytest.approx(FAST_S)


COMPILE_S = 30.0


class Card(Context):
    """A context on a GPU that is not here: its calls take virtual time, the first of every kind more."""

    pacing = Pacing(0.02, 0.02)
    compile_s = 0.0

    def __init__(self, model: Model, options: ModelOptions, *, sequences: int) -> None:
        super().__init__(model, options, sequences=sequences)
        self._compiled = set[tuple[str, int]]()
        self._virtual_s = 0.0

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        return self._paced(super().evaluate(tokens, logits), "evaluate", len(tokens))

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        return self._paced(super().step(tokens, sequences), "step", len(tokens))

    def _paced(self, rows: Rows, kind: str, size: int) -> Rows:
        self._virtual_s += self.pacing(size) + ((kind, size) not in self._compiled) * self.compile_s
        self._compiled.add((kind, size))
        self.busy_s = self._virtual_s
        return rows


class DraftCard(Card):
    pacing = Pacing(0.002, 0.01)


class Cards(Contexts):
    """Contexts of a pair on two such GPUs."""

    def _open(self, model: Model, options: ModelOptions, sequences: int = 1) -> Context:
        return (Card if sequences == 1 else DraftCard)(model, options, sequences=sequences)

    @property
    def on_card(self) -> bool:
        return True


@pytest.fixture
def open_cards(open_pair: Open, monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.setattr("localspec.decoding.measure.PASSES", 1)
    monkeypatch.setattr(contexts, "MEASURE_S", 1e9)
    return partial(open_pair, contexts=Cards)


def kept_files() -> list[Path]:
    return sorted((data_dir() / "costs").glob("*.json"))


def kept_costs() -> list[tuple[Points, Points]]:
    found = [recall_costs(file, time.time()) for file in kept_files()]
    return [costs for costs in found if costs is not None]


@pytest.mark.slow
def test_a_gpu_that_compiles_at_every_first_call_is_chosen_for_as_one_that_does_not(
    open_cards: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cards() as runtime:
        expected, before = runtime.choose_settings(), kept_costs()
    assert len(before) == 2
    assert expected[0].mode == "ssd"
    for file in kept_files():
        file.unlink()
    monkeypatch.setattr(Card, "compile_s", COMPILE_S)
    with open_cards() as runtime:
        assert runtime.choose_settings() == expected
        for now, then in zip(kept_costs(), before, strict=True):
            for points, known in zip(now, then, strict=True):
                assert points == pytest.approx(known)
    with open_cards() as runtime:
        assert runtime.choose_settings()[1] == f"{expected[1]}, measured earlier"
        for wish in (CostRequest(40, together, (1, 3), (1, 2), 0.0) for together in (False, True)):
            found = call_costs(runtime, wish)
            assert dict(found.verify) == pytest.approx({size: Card.pacing(size) for size in (1, 3)})
            assert dict(found.step) == pytest.approx({width: DraftCard.pacing(width) for width in (1, 2)})


@pytest.mark.slow
def test_with_costs_kept_earlier_no_round_counts_what_programs_take(
    open_cards: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cards() as runtime:
        runtime.choose_settings()
    monkeypatch.setattr(Card, "compile_s", COMPILE_S)
    with open_cards() as runtime:
        request = measuring(greedy(FORCED, max_tokens=24))
        rounds = [event.stats for event in runtime.generate(request) if isinstance(event, RoundDone)]
    assert any(stats.drafted > 1 for stats in rounds)
    assert max(stats.verify_s for stats in rounds[1:]) < COMPILE_S  # the first read the prompt


@pytest.mark.slow
def test_programs_are_made_before_answers_and_not_beside_them(
    open_cards: Open, demo_target: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_cards() as runtime:
        runtime.choose_settings()
    made: list[object] = []
    monkeypatch.setattr(contexts, "make_programs", lambda *models: made.append(models))
    monkeypatch.setattr(Contexts, "on_card", property(lambda _self: True))
    target = ModelOptions(demo_target, context=256, threads=1)
    plan = OpenPlan(target, replace(target, path=demo_draft), max_fan_out=4, remembers_costs=True, seats=2)
    with Runtime.open(plan) as runtime:
        answer(runtime, greedy(FORCED, max_tokens=4))
        assert not made
    with Runtime.open(plan) as runtime:
        runtime.known_settings()
        assert made
        answer(runtime, greedy(FORCED, max_tokens=4))


@pytest.mark.slow
def test_costs_that_older_versions_kept_are_measured_again(open_cards: Open) -> None:
    with open_cards() as runtime:
        expected, before = runtime.choose_settings(), kept_costs()
    for file in kept_files():
        text = json.loads(file.read_text(encoding="utf-8")) | {"schema": 1}
        text["verify"][0]["seconds"] = 187.2
        file.write_text(json.dumps(text), encoding="utf-8")
    with open_cards() as runtime:
        assert runtime.choose_settings() == expected
    assert len(kept_costs()) == len(before)


@pytest.mark.slow
def test_curves_that_make_no_sense_are_used_but_not_kept(
    open_cards: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Card, "pacing", lambda _self, size: 50.0 if size == 5 else 0.02)
    with open_cards() as runtime:
        runtime.choose_settings()
    assert kept_files() == []


def test_both_measurements_are_reported_of_gpus(open_cards: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    def noting(works: Callable[..., object]) -> Callable[..., object]:
        def measured(*models: object, on_card: bool, **ways: object) -> object:
            told.append(on_card)
            return works(*models, on_card=on_card, **ways)

        return measured

    monkeypatch.setattr(contexts, "measure", noting(measure))
    monkeypatch.setattr("localspec.tuning.costs.time_calls", noting(time_calls))
    with open_cards() as runtime:
        runtime.choose_settings()
        call_costs(runtime, CostRequest(40, together=False, budget_s=0.0))
    assert told == [True, True, True]
