"""Calibration on traces whose answer is known, and against real rounds of draft and verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.decoding.measurements import Trace, TraceSegment
from localspec.decoding.sampling import distribution, draft_distribution, draw, probability, top_candidates
from localspec.decoding.verify import verify
from localspec.tuning.calibration import _answers, calibrate, power_law
from localspec.tuning.events import DraftCalibration
from localspec.tuning.simulator.replay import BEST_LOGIT, Shape, drawn_from
from localspec.types import Distribution, Draft, DraftOrigin, EngineSettings, Sampling
from tests.fake_model import FakeModel

FULL = Sampling(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0)
CUT = Sampling(temperature=0.7, top_k=9, top_p=0.9, min_p=0.02)
PENALISED = replace(CUT, repetition_penalty=1.3, frequency_penalty=0.2, penalty_window=12)
GREEDY = replace(FULL, temperature=0.0)
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=8)
VOCABULARY = 16


def calibrated(trace: Trace, settings: EngineSettings = SSD) -> DraftCalibration:
    found = calibrate(trace, settings)
    assert found is not None
    return found


def after_rejections(found: DraftCalibration) -> list[float]:
    """Return the chances that after a rejection the bonus token is the draft model's r-th other choice."""
    *counts, _ = found.ranks.counts
    among = np.array(found.ranks.hits[:-1])
    shares: list[float] = (np.diff(among, prepend=0.0).T @ counts / sum(counts)).tolist()
    return shares


def row_of(p: Distribution, ids: Sequence[int]) -> list[float]:
    return [probability(p, token) for token in ids]


@cache
def traced(sampling: Sampling, length: int = 4000, noise: float = 0.7) -> Trace:
    """An answer of one toy model, with the thoughts of another."""
    target, draft = FakeModel(VOCABULARY), FakeModel(VOCABULARY, noise=noise)
    random, text = np.random.default_rng(1), [1, 2]
    rows = []
    for _ in range(length):
        p = distribution(target.logits_after(text), sampling, text)
        ids, logits = top_candidates(draft.logits_after(text)[None], VOCABULARY)
        token = draw(p, random.random())
        rows.append((token, probability(p, token), ids[0], logits[0] - logits[0, 0], row_of(p, ids[0])))
        text.append(token)
    tokens, of_token, draft_ids, draft_logits, of_draft = zip(*rows, strict=True)
    return Trace(sampling, (segment(tokens, draft_ids, draft_logits, of_token, of_draft),))


def segment(
    tokens: Sequence[int],
    draft_ids: Sequence[NDArray[np.int64]],
    draft_logits: Sequence[NDArray[np.float32]],
    of_token: Sequence[float],
    of_draft: Sequence[Sequence[float]],
) -> TraceSegment:
    nothing = np.empty((len(tokens), 0))
    return TraceSegment(
        (1, 2),
        np.array(tokens, np.int32),
        nothing.astype(np.int32),
        nothing.astype(np.float32),
        np.array(of_token, np.float32),
        np.array(draft_ids, np.int32),
        np.array(draft_logits, np.float32),
        np.array(of_draft, np.float32),
        1.0,
        ended=False,
    )


def by_rounds(sampling: Sampling, settings: EngineSettings) -> tuple[list[float], list[float]]:
    """Acceptance by position, and how often the bonus token after a rejection was the r-th other choice."""
    target, draft = FakeModel(VOCABULARY), FakeModel(VOCABULARY, noise=0.7)
    drawing, judging = np.random.default_rng(3), np.random.default_rng(4)
    text = [1, 2]
    seen, accepted, ranks = np.zeros(settings.draft_length), np.zeros(settings.draft_length), np.zeros(12)
    for _ in range(2000):
        proposed, q, choices = list(text), list[Distribution](), []
        for _ in range(settings.draft_length):
            ids, logits = top_candidates(draft.logits_after(proposed)[None], VOCABULARY)
            q.append(q_of(ids[0], logits[0], sampling, settings, proposed))
            choices.append(ids[0].tolist())
            proposed.append(
                choices[-1][0] if settings.acceptance == "match" else draw(q[-1], drawing.random())
            )
        tokens = proposed[len(text) :]
        told = Draft(tuple(tokens), None if settings.acceptance == "match" else tuple(q), DraftOrigin.FRESH)

        def p_after(count: int, so_far: list[int] = text, drafted: list[int] = tokens) -> Distribution:
            whole = [*so_far, *drafted[:count]]
            return distribution(target.logits_after(whole), sampling, whole)

        outcome = verify(told, p_after, settings.acceptance, judging)
        seen[: outcome.accepted + 1] += 1
        accepted[: outcome.accepted] += 1
        if outcome.accepted < len(tokens):
            others = [token for token in choices[outcome.accepted] if token != tokens[outcome.accepted]]
            ranks[min(others.index(outcome.bonus), 11)] += 1
        text += [*tokens[: outcome.accepted], outcome.bonus]
    return (accepted / seen).tolist(), (ranks / ranks.sum()).tolist()


def q_of(
    ids: NDArray[np.int64],
    logits: NDArray[np.floating],
    sampling: Sampling,
    settings: EngineSettings,
    history: Sequence[int],
) -> Distribution:
    return draft_distribution(
        ids,
        logits,
        sampling,
        draft_temperature=settings.draft_temperature,
        saguaro_c=settings.saguaro_c,
        saguaro_top=max(1, settings.fan_out_budget // (settings.draft_length + 1)) + 1,
        history=history[-sampling.penalty_window :],
    )


@pytest.mark.parametrize("best", [0.5, 1.0, 1.7, 3.0])
def test_the_draft_temperature_that_makes_both_models_agree_is_found(best: float) -> None:
    random = np.random.default_rng(0)
    logits = -np.sort(-random.normal(scale=2.0, size=(800, VOCABULARY)))
    p = np.exp(logits / (FULL.temperature * best))
    p /= p.sum(axis=1, keepdims=True)
    tokens = [int(random.choice(VOCABULARY, p=row)) for row in p]
    of_token = [float(row[token]) for row, token in zip(p, tokens, strict=True)]
    ids = [np.arange(VOCABULARY)] * len(p)
    trace = Trace(FULL, (segment(tokens, ids, list(logits - logits[:, :1]), of_token, p.tolist()),))
    found = calibrated(trace)
    assert found.draft_temperature == pytest.approx(best, rel=0.01)
    nearest, distance = min(found.divergence, key=lambda point: point[1])
    assert nearest == pytest.approx(best, rel=0.1)
    assert distance < 0.02
    assert found.divergence[0][1] > 0.05
    agreeing = replace(SSD, draft_temperature=best)
    assert calibrated(trace, agreeing).acceptance == pytest.approx([1.0] * 8, abs=1e-3)


@pytest.mark.parametrize("sampling", [FULL, CUT, PENALISED], ids=["full", "cut", "penalised"])
@pytest.mark.parametrize("settings", [SSD, replace(SSD, draft_temperature=1.6, saguaro_c=0.4)])
def test_drafts_are_drawn_from_what_the_engine_draws_them_from(
    sampling: Sampling, settings: EngineSettings
) -> None:
    trace = traced(sampling, 120)
    [answer], one = _answers(trace), trace.segments[0]
    q = drawn_from(answer.logits, sampling.temperature, Shape.of(sampling, settings))
    text = [*one.prompt, *one.tokens.tolist()]
    for place in range(len(one.tokens)):
        ids, logits = one.draft_ids[place].astype(np.int64), one.draft_logits[place] + BEST_LOGIT
        expected = q_of(ids, logits, sampling, settings, text[: place + 2])
        assert expected.ids is not None
        assert answer.ids[place, : len(expected.ids)].tolist() == expected.ids.tolist()
        assert q[place, : len(expected.ids)] == pytest.approx(expected.probs, abs=1e-6)
        p = dict(zip(one.draft_ids[place].tolist(), one.target_of_draft[place].tolist(), strict=True))
        assert answer.target[place].tolist() == [p[token] for token in answer.ids[place].tolist()]


@pytest.mark.parametrize(
    ("sampling", "settings"),
    [
        pytest.param(FULL, SSD, id="drawn"),
        pytest.param(CUT, replace(SSD, draft_temperature=1.5, saguaro_c=0.5), id="tempered"),
        pytest.param(CUT, replace(SSD, acceptance="match"), id="match"),
    ],
)
def test_acceptance_and_ranks_are_those_of_real_rounds(sampling: Sampling, settings: EngineSettings) -> None:
    acceptance, ranks = by_rounds(sampling, settings)
    trace = traced(sampling)
    found = calibrated(trace, settings)
    assert found.acceptance[:4] == pytest.approx(acceptance, abs=0.05)
    weights = after_rejections(found)
    assert weights[:5] == pytest.approx(ranks[:5], abs=0.06)
    assert sum(weights) == pytest.approx(1.0, abs=0.05)


def test_a_greedy_target_needs_no_draft_temperature_and_is_replayed_exactly() -> None:
    drawn = traced(FULL).segments[0]
    hits = drawn.draft_ids == drawn.tokens[:, None]
    trace = Trace(GREEDY, (replace(drawn, target_of_draft=hits.astype(np.float32)),))
    seen, accepted, place = np.zeros(4), np.zeros(4), 1
    while place + 4 < len(hits):
        run = [*hits[place : place + 4, 0].tolist(), False].index(False)
        seen[: run + 1] += 1
        accepted[:run] += 1
        place += run + 1
    found = calibrated(trace)
    assert found.draft_temperature == 1.0
    assert found.divergence[0] == pytest.approx((1.0, 1 - hits[:, 0].mean()))
    assert found.acceptance[:4] == pytest.approx(accepted / seen, abs=0.002)  # the end is not replayed here


def ranked(random: np.random.Generator, chances: Sequence[float], count: int = 6000) -> Trace:
    """A greedy trace in which the target's token is the draft model's r-th choice with a known chance."""
    ranks = random.choice(len(chances), p=np.array(chances) / sum(chances), size=count)
    ids = [np.arange(VOCABULARY)] * count
    logits = [np.linspace(0, -5, VOCABULARY).astype(np.float32)] * count
    of_draft = np.eye(VOCABULARY)[ranks]
    return Trace(GREEDY, (segment(ranks.tolist(), ids, logits, [1.0] * count, of_draft.tolist()),))


def test_ranks_follow_a_known_power_law() -> None:
    misses = [0.5 * fan_out**-0.7 for fan_out in range(1, VOCABULARY)]
    others = [1 - misses[0], *(a - b for a, b in pairwise(misses))]
    trace = ranked(np.random.default_rng(2), [0.6, *(0.4 * chance / sum(others) for chance in others)])
    settings = replace(SSD, draft_length=3)
    found = calibrated(trace, settings)
    shares = [chance / sum(others) for chance in others]
    assert after_rejections(found) == pytest.approx(shares[:12], abs=0.02)
    assert found.ranks.hits[0] == pytest.approx(np.cumsum(shares)[:12], abs=0.025)
    assert found.ranks.hits[3][0] == pytest.approx(0.6, abs=0.03)  # all accepted: every choice counts
    rounds = 6000 / (1 + 0.6 + 0.36 + 0.216)
    expected = [rounds * share for share in (0.4, 0.24, 0.144, 0.216)]
    assert found.ranks.counts == pytest.approx(expected, rel=0.1)
    counts = np.array(found.ranks.counts)
    measured = 1 - (np.array(found.ranks.hits) * counts[:, None]).sum(axis=0) / counts.sum()
    fitted = found.ranks.scale * np.arange(1, 13) ** -found.ranks.exponent
    assert fitted[:8] == pytest.approx(measured[:8], rel=0.25)
    assert 0.5 < found.ranks.exponent < 1.5


def test_a_power_law_is_fitted_through_noise_and_without_misses() -> None:
    random, exact = np.random.default_rng(0), np.asarray(0.4 * np.arange(1, 13) ** -0.8, np.float64)
    assert power_law(exact, 1e6) == pytest.approx((0.4, 0.8))
    noisy = np.asarray(random.binomial(2000, exact) / 2000, np.float64)
    assert power_law(noisy, 2000) == pytest.approx((0.4, 0.8), rel=0.1)
    rare = np.array([0.2, 0.02, 0.0, 0.0])
    assert power_law(rare, 100) == pytest.approx((0.2, 3.32), rel=0.01)
    assert power_law(np.zeros(12), 500) == (0.0, 1.0)
    assert power_law(np.ones(12), 0) == (1.0, 0.0)


def test_without_a_draft_model_there_is_nothing_to_calibrate() -> None:
    one = traced(FULL, 20).segments[0]
    bare = replace(one, **{name: getattr(one, name)[:, :0] for name in ("draft_ids", "draft_logits")})
    assert calibrate(Trace(FULL, (bare,)), SSD) is None
    assert calibrate(Trace(FULL, ()), SSD) is None
