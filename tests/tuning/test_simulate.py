"""Simulations against the theory, and what must hold for any settings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from unittest.mock import patch

import pytest

from localspec.decoding.drafters.prompt_lookup import longest_draft
from localspec.decoding.drafters.speculation_cache import SpeculationCache
from localspec.decoding.measurements import CallCosts, Costs, Overhead, Trace
from localspec.tuning.simulator.replayed_model import ReplayedModel
from localspec.tuning.simulator.simulator import Simulator
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import EngineSettings, Mode, Sampling
from tests.tuning.virtual import Linear, toy
from tests.tuning.written import Written

GREEDY = Sampling(temperature=0.0)
USUAL = Sampling()
PLAIN = Sampling(1.0, 0, 1.0, 0.0)
MODES: tuple[Mode, ...] = ("off", "ngram", "sd", "ssd")


def costs_of(pass_s: float = 0.03, ratio: float = 0.1, overheads: Sequence[Overhead] = ()) -> Costs:
    verify, step = Linear(pass_s, 0.02 * pass_s), Linear(ratio * pass_s, 0.01 * ratio * pass_s)
    sizes, widths = range(1, 17), (1, 2, 4, 8, 16, 32)
    calls = [
        CallCosts(64, together, tuple((m, verify(m)) for m in sizes), tuple((n, step(n)) for n in widths))
        for together in (False, True)
    ]
    return Costs(tuple(calls), tuple(overheads))


@lru_cache
def trace_of(sampling: Sampling, answers: int = 3, tokens: int = 60, *, ended: bool = False) -> Trace:
    written = [Written(sampling, tokens, seed, ended=ended).segment() for seed in range(answers)]
    return Trace(sampling, tuple(written))


def drawn(chance: random.Random, mode: Mode) -> EngineSettings:
    return EngineSettings(
        mode=mode,
        draft_length=chance.randint(1, 14),
        fan_out_budget=chance.randint(0, 24),
        fan_out_shape=chance.choice(("best-first", "uniform", "geometric")),
        draft_temperature=chance.uniform(0.2, 2.0),
        saguaro_c=chance.choice((1.0, chance.uniform(0.05, 1.0))),
        acceptance=chance.choice(("match", "rejection")),
        min_confidence=chance.choice((None, chance.random())),
        fallback=chance.choice(("just-in-time", "ngram")),
    )


@pytest.mark.parametrize("sampling", [GREEDY, USUAL], ids=["greedy", "usual"])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("seed", range(24))
def test_whatever_the_settings_the_sums_are_right(sampling: Sampling, ended: bool, seed: int) -> None:
    settings = drawn(random.Random(seed), MODES[seed % 4])
    trace = trace_of(sampling, ended=ended)
    overheads = [Overhead(settings.mode, 2e-4, 1e-4, 1.1, 1.2, 3e-4)]
    summary = Simulator(trace, costs_of(overheads=overheads))(settings)
    answers = len(trace.segments)
    assert summary.tokens == trace.tokens
    own = summary.tokens - answers - summary.accepted  # tokens of the target after the first ones
    assert summary.rounds - (answers if ended else 0) <= own <= summary.rounds
    assert sum(summary.accepted_at) == summary.accepted <= summary.drafted
    assert sum(summary.drafted_at) - summary.accepted <= summary.rounds
    assert list(summary.drafted_at) == sorted(summary.drafted_at, reverse=True)
    assert len(summary.drafted_at) <= longest_draft(settings)
    parts = summary.verify_s + summary.draft_s + summary.wait_s + summary.python_s
    assert parts == pytest.approx(summary.decode_s)
    assert min(summary.draft_s, summary.wait_s, summary.python_s) > -1e-9
    assert (summary.hits + summary.misses == summary.rounds) == (settings.mode == "ssd")
    if settings.mode == "off":
        assert summary.drafted == 0
        assert summary.decode_s == pytest.approx((0.03 * 1.1 + 2e-4) * summary.rounds)


@pytest.mark.slow
def test_a_simulation_is_repeatable_and_leaves_nothing_after() -> None:
    simulator = Simulator(trace_of(USUAL), costs_of())
    chance = random.Random(1)
    settings = [drawn(chance, mode) for mode in MODES for _ in range(3)]
    first = [simulator(each) for each in settings]
    assert [simulator(each) for each in reversed(settings)] == first[::-1]
    assert [Simulator(trace_of(USUAL), costs_of())(each) for each in settings] == first


@pytest.mark.slow
def test_emitted_tokens_do_not_bias_later_ones() -> None:
    """Not even where the bonus token is a tail that was drawn again after the model had read the old one."""
    beyond: list[int] = []
    settle = SpeculationCache.apply_result

    def settled(self: SpeculationCache, outcome: VerifyOutcome) -> bool:
        found, state = settle(self, outcome), self.state
        assert isinstance(state.model, ReplayedModel)
        beyond.append(min(state.model.length(), len(state.text)) - state.model._right[0])
        return found

    settings = EngineSettings(mode="ssd", fan_out_budget=4, draft_temperature=1.5)
    trace = trace_of(PLAIN, 8, 100)
    with patch.object(SpeculationCache, "apply_result", settled):
        for seed in range(8):
            Simulator(trace, costs_of(ratio=0.05), seed)(settings)
    assert len(beyond) > 1000
    assert max(beyond) <= 0


def test_answers_can_be_chosen() -> None:
    simulator = Simulator(trace_of(GREEDY), costs_of())
    off = EngineSettings(mode="off")
    assert simulator(off, [0]).tokens == 60
    assert simulator(off, [0, 2]).tokens == 120
    assert simulator(off, [0, 1, 2]) == simulator(off)
    with pytest.raises(IndexError):
        simulator(off, [3])


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_acceptance_statistics_outlive_an_answer(mode: Mode) -> None:
    """A draft model that is always wrong is soon asked for less."""
    one = toy(150, agreement=0.0)
    segment = one.trace().segments[0]
    simulator = Simulator(Trace(GREEDY, (segment, segment)), one.costs())
    settings = EngineSettings(mode=mode)
    first, both = simulator(settings, [0]).drafted, simulator(settings).drafted
    assert both - first < 0.8 * first


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 3, 7])
@pytest.mark.parametrize("agreement", [0.5, 0.85])
def test_tokens_of_a_round_are_those_of_the_formula(length: int, agreement: float) -> None:
    one = toy(4000, agreement, seed=length)
    settings = EngineSettings(mode="sd", draft_length=length, min_confidence=0.0)
    summary = Simulator(one.trace(), one.costs())(settings)
    expected = (1 - agreement ** (length + 1)) / (1 - agreement)
    assert (summary.tokens - 1) / summary.rounds == pytest.approx(expected, rel=0.04)
    seconds = one.verify(length + 1) + length * one.step(1)
    assert summary.decode_s == pytest.approx(seconds * summary.rounds, rel=0.01)


def test_a_perfect_draft_model_is_hidden_after_the_target() -> None:
    one = toy(400, agreement=1.0)
    settings = EngineSettings(mode="ssd", draft_length=5, fan_out_budget=2, min_confidence=0.0)
    summary = Simulator(one.trace(), one.costs())(settings)
    assert summary.misses == 0
    assert summary.decode_s == pytest.approx(one.verify(6) * summary.rounds, rel=0.01)
    waiting = Simulator(one.trace(), one.costs())(replace(settings, mode="sd"))
    assert waiting.decode_s == pytest.approx((one.verify(6) + 5 * one.step(1)) * waiting.rounds, rel=0.01)


def test_a_perfect_draft_model_that_is_slow_sets_the_pace_itself() -> None:
    one = replace(toy(400, agreement=1.0), step=Linear(0.5, 0.0))
    settings = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=0, min_confidence=0.0)
    summary = Simulator(one.trace(), one.costs())(settings)
    per_token = summary.decode_s / (summary.tokens - 1)
    assert per_token == pytest.approx(0.5, rel=0.05)  # every token takes one of its steps


def test_slower_calls_make_slower_decoding() -> None:
    for mode in MODES:
        settings = EngineSettings(mode=mode, draft_length=4, min_confidence=0.0)
        rates = [
            Simulator(trace_of(USUAL), costs_of(pass_s, ratio)).rate(settings)
            for pass_s, ratio in [(0.02, 0.05), (0.03, 0.05), (0.03, 0.2), (0.03, 0.6)]
        ]
        assert rates == sorted(rates, reverse=True)
        assert rates[0] > rates[1]
        assert (rates[1] > rates[3]) == (mode in {"sd", "ssd"})


@pytest.mark.slow
def test_more_branches_hit_more_often() -> None:
    hits = []
    for budget in (0, 1, 4, 12, 24):
        settings = EngineSettings(mode="ssd", draft_length=3, fan_out_budget=budget, min_confidence=0.0)
        hits.append(Simulator(trace_of(USUAL, 4, 150), costs_of())(settings).hits)
    assert hits == sorted(hits)
    assert hits[-1] > 1.5 * hits[1]


def test_a_draft_model_that_agrees_is_always_accepted_and_one_with_other_thoughts_less() -> None:
    acceptance = []
    for noise in (0.0, 0.4, 1.5):
        written = Written(PLAIN, 400, noise=noise, vocabulary=16)
        settings = EngineSettings(mode="sd", draft_length=3, min_confidence=0.0)
        summary = Simulator(Trace(PLAIN, (written.segment(),)), costs_of())(settings)
        acceptance.append(summary.accepted / sum(summary.drafted_at))
    assert acceptance[0] == 1.0
    assert 1.0 > acceptance[1] > acceptance[2] > 0.2


def test_costs_at_two_depths_are_those_of_the_answer_between_them() -> None:
    shallow, deep = costs_of(0.02).calls, costs_of(0.04).calls
    segment = trace_of(GREEDY).segments[0]
    middle = len(segment.prompt) + 30
    calls = [replace(each, depth=middle - 10) for each in shallow]
    calls += [replace(each, depth=middle + 10) for each in deep]
    simulator = Simulator(Trace(GREEDY, (segment,)), Costs(tuple(calls)))
    assert simulator.rate(EngineSettings(mode="off")) == pytest.approx(1 / 0.03)


def test_drafting_ahead_takes_the_costs_of_working_together() -> None:
    alone, together = costs_of(0.02).calls[0], costs_of(0.04).calls[1]
    simulator = Simulator(trace_of(GREEDY), Costs((alone, together)))
    settings = EngineSettings(draft_length=1, min_confidence=0.0)
    for mode, pass_s in (("sd", 0.02), ("ssd", 0.04)):
        summary = simulator(replace(settings, mode=mode))  # type: ignore[arg-type]
        assert summary.verify_s == pytest.approx(1.02 * pass_s * summary.rounds, rel=0.01)


def test_a_draft_model_that_agrees_still_cannot_foresee_what_is_drawn() -> None:
    """After a full draft the bonus token is drawn from p, and the only branch represents a draw from q."""
    written = Written(PLAIN, 600, noise=0.0, vocabulary=16)
    settings = EngineSettings(mode="ssd", draft_length=1, fan_out_budget=0, min_confidence=0.0)
    summary = Simulator(Trace(PLAIN, (written.segment(),)), costs_of())(settings)
    assert summary.accepted == summary.drafted
    expected = sum(float((p.probs**2).sum()) for p in written.p) / len(written.p)
    assert 0.1 < expected < 0.7
    assert summary.hits / summary.rounds == pytest.approx(expected, abs=0.07)
