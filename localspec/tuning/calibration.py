"""How good a guesser of the target the draft model is, from traces; pure.

A trace holds tokens x that the target drew from p. Had the draft model proposed a token drawn from q there,
then, given that x was emitted, it had proposed x and been accepted with probability min(1, q(x) / p(x));
otherwise its token was drawn from normalise(max(q - p, 0)). A draft that is chosen without chance is accepted
where it equals x. All figures are expectations over that chance, none of it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, repeat
from math import exp, log, sqrt

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.drafters.proposer import GUESSES
from localspec.decoding.measurements import Trace, TraceSegment
from localspec.decoding.sampling import Floats, Ids
from localspec.tuning.events import DraftCalibration, RankCurve
from localspec.tuning.simulator.replay import Shape, candidates, drawn_from, target_of, truncated
from localspec.types import EngineSettings, Sampling

POSITIONS = 8  # of a draft, whose acceptance is told
LONGEST = 16  # draft tokens after which ranks are told
COOLEST, HOTTEST, STEPS = 0.25, 4.0, 33  # draft temperatures that are tried
NARROWINGS = 24
GOLDEN = (sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """A traced answer: what the draft model thought before each of its n tokens, w candidates each.

    Logits that sampling cuts off are -inf; `ids` are in the order of the draft model's preference.
    """

    tokens: Ids  # (n,)
    ids: Ids  # (n, w)
    logits: Floats  # (n, w)
    target: Floats  # (n, w), the target's chances of the candidates
    target_of_token: Floats  # (n,)


@dataclass(frozen=True, slots=True)
class _Judged:
    """How an answer's places would be judged: chances, given the emitted token (`stands`) or not (`mean`)."""

    starts: Floats  # (n,), that a round begins here
    stands: Floats  # (n,)
    mean: Floats  # (n,)
    other: Floats  # (n, GUESSES): after a rejection, the token is the draft model's r-th other choice
    first: Floats  # (n, GUESSES): the token is its r-th choice of all


def calibrate(trace: Trace, settings: EngineSettings) -> DraftCalibration | None:
    """Return what a trace says of the draft model as these settings use it, None without one."""
    answers = _answers(trace)
    if not answers:
        return None
    judged = [_judged(answer, trace.sampling, settings) for answer in answers]
    temperature, curve = _calibrated(answers, trace.sampling, settings)
    return DraftCalibration(temperature, curve, _acceptance(judged), _ranks(judged, settings.draft_length))


def _answers(trace: Trace) -> list[_Answer]:
    segments = [segment for segment in trace.segments if len(segment.tokens) and segment.draft_ids.shape[1]]
    return [_answer(segment, trace.sampling) for segment in segments]


def _answer(segment: TraceSegment, sampling: Sampling) -> _Answer:
    ids, logits = candidates(segment, sampling)
    return _Answer(
        segment.tokens.astype(np.int64),
        ids,
        truncated(logits, sampling),
        target_of(segment, ids),
        segment.target_of_token.astype(np.float64),
    )


def _calibrated(
    answers: Sequence[_Answer], sampling: Sampling, settings: EngineSettings
) -> tuple[float, tuple[tuple[float, float], ...]]:
    """Return the draft temperature that brings q closest to p, and the distance for every one tried."""
    logits = np.concatenate([answer.logits for answer in answers])
    target = np.concatenate([answer.target for answer in answers])
    if sampling.is_greedy:
        return 1.0, ((1.0, float(1.0 - target[:, 0].mean())),)

    shape = Shape.of(sampling, settings)

    def distance(logarithm: float) -> float:
        q = drawn_from(logits, sampling.temperature, replace(shape, draft_temperature=exp(logarithm)))
        return float(1.0 - np.minimum(q, target).sum(axis=1).mean())

    tried = np.linspace(log(COOLEST), log(HOTTEST), STEPS).tolist()
    found = [distance(each) for each in tried]
    best = int(np.argmin(found))
    low, high = tried[max(best - 1, 0)], tried[min(best + 1, STEPS - 1)]
    for _ in range(NARROWINGS):
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        low, high = (low, right) if distance(left) <= distance(right) else (left, high)
    return exp((low + high) / 2), tuple((exp(each), value) for each, value in zip(tried, found, strict=True))


def _judged(answer: _Answer, sampling: Sampling, settings: EngineSettings) -> _Judged:
    is_token = answer.ids == answer.tokens[:, None]
    first = is_token[:, :GUESSES].astype(np.float64)
    if sampling.is_greedy or settings.acceptance == "match":
        other = is_token[:, 1 : GUESSES + 1].astype(np.float64)
        stands, mean = is_token[:, 0].astype(np.float64), answer.target[:, 0]
    else:
        q = drawn_from(answer.logits, sampling.temperature, Shape.of(sampling, settings))
        stands = np.minimum((q * is_token).sum(axis=1) / answer.target_of_token, 1.0)
        mean = np.minimum(q, answer.target).sum(axis=1)
        other = _others(is_token, q, answer.target)
    starts = _starts(stands, settings.draft_length)
    return _Judged(starts, stands, mean, _wide(other), _wide(first))


def _starts(stands: Floats, draft_length: int) -> Floats:
    """Return the chance of every place that a round begins there, drafts being of full length.

    Rounds begin where the last one ended: more often after words that are hard to guess. The first token
    of an answer is decoded without a draft.
    """
    starts = np.zeros(len(stands) + draft_length + 2)
    starts[1] = 1.0
    for place in np.arange(1, len(stands)):
        if starts[place] > 0:
            drafted = stands[place : place + draft_length]
            reach = np.concatenate(([1.0], drafted.cumprod()))
            ends = reach * np.concatenate((1.0 - drafted, [1.0]))
            starts[place + 1 : place + 1 + len(ends)] += starts[place] * ends
    return starts[: len(stands)]


def _others(is_token: NDArray[np.bool_], q: Floats, target: Floats) -> Floats:
    """Return the chances that the token is the r-th choice beside the rejected one, which is not known."""
    rest = np.maximum(q - target, 0.0)
    mass = rest.sum(axis=1, keepdims=True)
    shares = np.divide(rest, mass, out=np.zeros_like(rest), where=mass > 0)
    before = shares.cumsum(axis=1) - shares  # the rejected token stood before this one
    moved = (is_token * before)[:, 1:]
    other = is_token * (1.0 - before)
    other[:, :-1] += moved
    return np.asarray(other[:, :GUESSES])


def _wide(chances: Floats) -> Floats:
    return np.pad(chances, ((0, 0), (0, GUESSES - chances.shape[1])))


def _reaches(judged: _Judged, count: int) -> Iterable[Floats]:
    """Yield the chances that a round began 0, 1, ... places before and its draft was accepted so far."""

    def longer(reach: Floats, _: None) -> Floats:
        return np.concatenate(([0.0], (reach * judged.stands)[:-1]))

    return accumulate(repeat(None, max(count - 1, 0)), longer, initial=judged.starts)


def _acceptance(judged: Sequence[_Judged]) -> tuple[float, ...]:
    """Return how often tokens at each position of a draft are accepted, of those that are judged."""
    accepted, seen = np.zeros(POSITIONS), np.zeros(POSITIONS)
    for each in judged:
        for position, reach in enumerate(_reaches(each, POSITIONS)):
            seen[position] += reach.sum()
            accepted[position] += reach @ each.mean
    return tuple((accepted[seen > 0] / seen[seen > 0]).tolist())


def _ranks(judged: Sequence[_Judged], draft_length: int) -> RankCurve:
    """Count at which rank bonus tokens are, after every number of accepted tokens."""
    length = min(draft_length, LONGEST)
    hits, counts = np.zeros((length + 1, GUESSES)), np.zeros(length + 1)
    for each in judged:
        for accepted, reach in enumerate(_reaches(each, length + 1)):
            is_whole = accepted == length
            weight = reach if is_whole else reach * (1.0 - each.stands)
            hits[accepted] += weight @ (each.first if is_whole else each.other)
            counts[accepted] += weight.sum()
    among = hits.cumsum(axis=1)
    shares = np.divide(among, counts[:, None], out=np.zeros_like(among), where=counts[:, None] > 0)
    total = float(counts.sum())
    misses = 1.0 - among.sum(axis=0) / total if total > 0 else np.ones(GUESSES)
    scale, exponent = power_law(misses, total)
    told = tuple(tuple(row) for row in np.minimum(shares, 1.0).tolist())
    return RankCurve(told, tuple(round(count) for count in counts.tolist()), scale, exponent)


def power_law(misses: Floats, count: float) -> tuple[float, float]:
    """Fit `scale * F ** -exponent` to the miss rates of F = 1, 2, ... choices, each seen `count` times.

    The points weigh as much as their logarithms are certain; those with hardly a miss say nothing.
    """
    known = (misses * count >= 1.0) & (misses < 1.0)
    if known.sum() < 2:
        return float(misses[0]), 1.0 if misses[0] < 1 else 0.0
    x, y = np.log(np.arange(1, len(misses) + 1))[known], np.log(misses[known])
    weights = misses[known] / (1.0 - misses[known])
    slope, offset = np.polyfit(x, y, 1, w=np.sqrt(weights))
    return float(exp(offset)), float(-slope)
