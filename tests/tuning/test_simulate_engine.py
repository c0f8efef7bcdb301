"""The simulator against the real engine in virtual time: round by round the same, to the last second."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import get_args
from unittest.mock import patch

import pytest

from localspec.decoding.measurements import Overhead
from localspec.decoding.tally import Tally
from localspec.tuning.simulator import simulator
from localspec.tuning.simulator.simulator import Simulator
from localspec.types.drafts import DraftOrigin
from localspec.types.events import RoundStats, Summary
from localspec.types.request import EngineSettings, Fallback, Mode
from tests.tuning.straying import StrayingModel, straying_alike
from tests.tuning.virtual import Happened, Linear, Toy, decode, toy

AUTO = EngineSettings(mode="sd")
FIXED = EngineSettings(mode="sd", draft_length=5, min_confidence=0.0)


def drawn(seed: int) -> EngineSettings:
    """Return random settings of a mode that drafts ahead."""
    chance = random.Random(seed)
    return EngineSettings(
        mode="ssd",
        draft_length=chance.randint(1, 9),
        fan_out_budget=chance.choice((0, 1, 3, 6, 12, 24)),
        fan_out_shape=chance.choice(("best-first", "uniform", "geometric")),
        min_confidence=chance.choice((None, None, 0.0)),
        fallback=chance.choice(("just-in-time", "ngram")),
    )


@pytest.fixture
def rounds() -> Iterator[list[RoundStats]]:
    """Collect what every simulated round does."""
    told: list[RoundStats] = []

    class Listening(Tally):
        def add(self, stats: RoundStats, tokens: int, now_s: float) -> None:
            told.append(stats)
            super().add(stats, tokens, now_s)

    with patch.object(simulator, "Tally", Listening):
        yield told


def assert_alike(real: Happened, summary: Summary, rounds: list[RoundStats]) -> None:
    """Compare round by round all but the time of drafting ahead, which no simulation asks for."""
    for found, expected in zip(rounds, real.rounds, strict=True):
        assert_same(found, replace(expected, ahead_s=0.0))
    assert_same(summary, real.summary)


def assert_same(found: RoundStats | Summary, expected: RoundStats | Summary) -> None:
    for field in fields(expected):
        value, wanted = getattr(found, field.name), getattr(expected, field.name)
        assert value == (pytest.approx(wanted, abs=1e-9) if field.name.endswith("_s") else wanted), field.name


@pytest.mark.parametrize("mode", ["off", "ngram"])
def test_a_mode_without_a_draft_model(mode: str, rounds: list[RoundStats]) -> None:
    one = repeating()
    settings = replace(FIXED, mode=mode)  # type: ignore[arg-type]
    summary = Simulator(one.trace(), one.costs())(settings)
    assert_alike(decode(one, settings), summary, rounds)
    assert (summary.accepted > 50) == (mode == "ngram")


def repeating() -> Toy:
    """Return an answer that says the same again and again, with exceptions."""
    one = toy(150, seed=3)
    for place in range(60, 150):
        one.tokens[place] = one.tokens[place - 20] if place % 17 else one.tokens[place]
        one.target[place + len(one.prompt) - 1] = 0.0
        one.target[place + len(one.prompt) - 1, one.tokens[place]] = 5.0
    return one


@pytest.mark.parametrize(
    "settings", [AUTO, FIXED, replace(AUTO, draft_length=2), replace(AUTO, draft_length=12)]
)
@pytest.mark.parametrize("agreement", [0.2, 0.6, 0.9])
def test_drafting_while_the_target_waits(
    settings: EngineSettings, agreement: float, rounds: list[RoundStats]
) -> None:
    one = toy(120, agreement)
    summary = Simulator(one.trace(), one.costs())(settings)
    assert_alike(decode(one, settings), summary, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_drafting_ahead(seed: int, rounds: list[RoundStats]) -> None:
    settings = drawn(seed)
    ratio = (0.03, 0.1, 0.3, 0.6)[seed % 4]
    one = replace(toy(80, (0.5, 0.8)[seed % 2], seed=seed), step=Linear(ratio, ratio / 20))
    summary = Simulator(one.trace(), one.costs())(settings)
    assert_alike(decode(one, settings), summary, rounds)
    assert summary.hits + summary.misses == summary.rounds


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("agreement", [0.8, 1.0])
def test_an_answer_that_ends_by_itself_counts_no_draft_token_after_its_end(
    mode: Mode, agreement: float, rounds: list[RoundStats]
) -> None:
    one = replace(toy(61, agreement, seed=5), ended=True)
    assert one.tokens.count(one.tokens[-1]) == 1
    settings = replace(FIXED, mode=mode, draft_length=7)
    summary = Simulator(one.trace(), one.costs())(settings)
    real = decode(one, settings)
    assert_alike(real, summary, rounds)
    if agreement == 1.0 and mode in {"sd", "ssd"}:
        assert rounds[-1].drafted < 7


def test_drafting_ahead_where_texts_repeat(rounds: list[RoundStats]) -> None:
    """Random settings hardly ever need the fallback."""
    one = repeating()
    settings = EngineSettings(mode="ssd", fan_out_budget=2, fallback="ngram")
    with straying_alike():
        summary = Simulator(one.trace(), one.costs())(settings)
    assert_alike(decode(one, settings, StrayingModel), summary, rounds)
    assert DraftOrigin.NGRAM in {each.origin for each in rounds}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_draft_model_that_is_not_always_as_sure(mode: str) -> None:
    """What it thinks after its own mistakes is not in a trace; that must hardly matter."""
    one = toy(400, 0.7, varied=True)
    settings = replace(AUTO, mode=mode)  # type: ignore[arg-type]
    summary = Simulator(one.trace(), one.costs())(settings)
    real = decode(one, settings)
    assert summary.decode_s == pytest.approx(real.summary.decode_s, rel=0.05)
    assert summary.hits == pytest.approx(real.summary.hits, abs=0.05 * summary.rounds)


def test_a_round_and_a_token_of_python_take_their_time() -> None:
    one = toy(100)
    free = Simulator(one.trace(), one.costs())(FIXED)
    overhead = Overhead("sd", round_s=0.5, token_s=0.01, verify=2.0, step=3.0)
    costs = replace(one.costs(), overheads=(overhead,))
    paid = Simulator(one.trace(), costs)(FIXED)
    assert paid.rounds == free.rounds
    assert paid.verify_s == pytest.approx(2 * free.verify_s)
    assert paid.draft_s == pytest.approx(3 * free.draft_s)
    assert paid.python_s == pytest.approx(0.5 * paid.rounds + 0.01 * paid.drafted)


def test_a_handed_over_draft_takes_two_messages() -> None:
    """Without branches every draft is asked for; the drafter, with nothing to do, sleeps."""
    one = toy(100)
    settings = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=0, min_confidence=0.0)
    summaries = []
    for handoff_s in (0.0, 0.05):
        costs = replace(one.costs(), overheads=(Overhead("ssd", 0.0, handoff_s=handoff_s),))
        summaries.append(Simulator(one.trace(), costs)(settings))
    free, paid = summaries
    assert paid.rounds == free.rounds
    assert paid.misses == free.misses > 10
    slow = Overhead("ssd", 0.0, step=2.0)  # of the calls that the target waits for
    slowed = Simulator(one.trace(), replace(one.costs(), overheads=(slow,)))(settings)
    assert slowed.draft_s == pytest.approx(2 * free.draft_s)
    assert paid.wait_s - free.wait_s == pytest.approx(2 * 0.05 * paid.misses, rel=0.1)


def test_the_python_of_a_draft_step_is_paid_by_who_waits_for_it() -> None:
    """Python between the steps is in no call: it delays drafts that are asked for, and prepares fewer."""
    one = toy(200)
    settings = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=6, min_confidence=0.0)
    free = Simulator(one.trace(), one.costs())(settings)
    paid = Simulator(one.trace(), replace(one.costs(), overheads=(Overhead("sd", 0.0, 0.2),)))(settings)
    assert paid.python_s == pytest.approx(0.0)
    assert paid.rounds == free.rounds
    assert paid.decode_s > free.decode_s
    assert paid.hits < free.hits


def test_an_unsteady_target_takes_its_time_on_average_and_surprises_the_drafter() -> None:
    one = replace(toy(400, agreement=0.5), step=Linear(0.3, 0.01))
    steady = one.costs()
    unsteady = replace(steady, calls=tuple(replace(calls, spread=0.1) for calls in steady.calls))
    settings = EngineSettings(mode="ssd", draft_length=6, fan_out_budget=8, min_confidence=0.0)
    expected, found = (Simulator(one.trace(), costs)(settings) for costs in (steady, unsteady))
    assert found.verify_s / found.rounds == pytest.approx(expected.verify_s / expected.rounds, rel=0.01)
    assert found.wait_s > 1.5 * expected.wait_s > 0


def echoing(agreement: float, seed: int = 0, step: float = 0.1) -> Toy:
    """Return an answer that repeats itself with exceptions; the draft model is as right there as before."""
    one = replace(toy(160, agreement, seed), step=Linear(step, step / 20))
    begin = len(one.prompt) - 1
    for place in range(50, 160):
        if place % 19 > 1:
            one.tokens[place] = one.tokens[place - 30]
            if place % 4:
                one.draft[begin + place] = one.draft[begin + place - 30]
        one.target[begin + place] = 0.0
        one.target[begin + place, one.tokens[place]] = 5.0
    return one


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize("seed", range(8))
def test_a_model_and_repetitions_together(mode: Mode, seed: int, rounds: list[RoundStats]) -> None:
    one = echoing((0.6, 0.9, 0.3)[seed % 3], seed, (0.05, 0.2, 0.5)[seed // 3])
    settings = replace(drawn(seed), mode=mode, fallback="ngram")
    with straying_alike():
        summary = Simulator(one.trace(), one.costs())(settings)
    assert_alike(decode(one, settings, StrayingModel), summary, rounds)


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_together_they_are_faster_than_either_and_each_continues_for_the_other(
    mode: Mode, rounds: list[RoundStats]
) -> None:
    one = echoing(0.8, seed=1)
    simulator = Simulator(one.trace(), one.costs())
    settings = EngineSettings(mode=mode, draft_length=4, fallback="ngram")
    together = simulator.rate(settings)
    whose = {(each.origin, each.drafted > 4) for each in rounds}
    model = DraftOrigin.FRESH if mode == "sd" else DraftOrigin.AHEAD
    assert {(DraftOrigin.NGRAM, True), (model, True), (model, False)} <= whose
    assert together > 1.2 * simulator.rate(replace(settings, fallback="just-in-time"))
    assert together > 1.2 * simulator.rate(replace(settings, mode="ngram"))


@pytest.mark.parametrize(("mode", "share"), [("ngram", 1.0), ("sd", 0.0)])
def test_tokens_that_a_repetition_brings_next_to_a_model_take_no_python_each(
    mode: Mode, share: float
) -> None:
    """The draft model is so dear that nearly all drafts are repetitions."""
    one = replace(echoing(0.0, seed=1), step=Linear(50.0, 0.0))
    costs = replace(one.costs(), overheads=(Overhead(mode, 0.0, token_s=0.01),))
    found = Simulator(one.trace(), costs)(EngineSettings(mode=mode, draft_length=8, fallback="ngram"))
    assert found.drafted > 20
    assert found.python_s == pytest.approx(share * 0.01 * found.drafted, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize("agreement", [0.3, 0.8])
def test_where_nothing_repeats_the_model_does_as_well_as_alone(mode: Mode, agreement: float) -> None:
    one = toy(400, agreement)
    simulator = Simulator(one.trace(), one.costs())
    alone, together = (
        simulator.rate(EngineSettings(mode=mode, fallback=fallback)) for fallback in get_args(Fallback)
    )
    assert together == pytest.approx(alone, rel=0.01)
