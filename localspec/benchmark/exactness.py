"""Tokens sampled at temperature 1 follow the target's own distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import erfc, sqrt
from typing import Literal

import numpy as np

from localspec.benchmark.statistics import ks_uniform_p_value, randomised_pit
from localspec.benchmark.subject import (
    DRAFTED,
    PROMPTS,
    Course,
    Effort,
    Logits,
    TokenRuntime,
    Variant,
    question,
    rows,
)
from localspec.decoding.sampling import distribution
from localspec.types import Distribution, Request, Sampling

Rounds = Literal["all", "hit", "other"]

SUSPICION = 0.02  # a p-value below it asks for four times as many tokens
FALSE_ALARM = 0.001  # a p-value of those below it is a failure
FEWEST_TOKENS = 50  # below it a test says nothing

FULL = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)


@dataclass(frozen=True, slots=True)
class DistributionResult:
    """Whether sampled tokens follow the target's distribution; `p_value` None: too few to tell."""

    variant: str
    rounds: Rounds
    tokens: int
    drafted: int  # of the tokens, accepted from drafts
    p_value: float | None

    @property
    def passed(self) -> bool:
        """Tell whether nothing speaks against exactness."""
        return self.p_value is None or self.p_value >= FALSE_ALARM


@dataclass(slots=True)
class _Group:
    """The transforms of the tokens of some rounds, and how many of the tokens were drafted."""

    pairs: list[tuple[float, float]] = field(default_factory=list)
    drafted: int = 0
    excess: float = 0.0  # of surprise: what the tokens' was above what the target's distributions let expect
    variance: float = 0.0  # of that

    @property
    def tokens(self) -> int:
        """Return how many tokens there are."""
        return len(self.pairs)

    def with_those_of(self, other: _Group) -> _Group:
        """Return the tokens of both."""
        excess, variance = self.excess + other.excess, self.variance + other.variance
        return _Group(self.pairs + other.pairs, self.drafted + other.drafted, excess, variance)

    def result(self, variant: str, rounds: Rounds) -> DistributionResult:
        """Test the transforms."""
        return DistributionResult(variant, rounds, self.tokens, self.drafted, self._p_value())

    def _p_value(self) -> float | None:
        if self.tokens < FEWEST_TOKENS:
            return None
        shapes = [ks_uniform_p_value(values) for values in zip(*self.pairs, strict=True)]
        surprised = erfc(abs(self.excess) / sqrt(2 * self.variance)) if self.variance > 0 else 1.0
        return min(1.0, 3 * min(*shapes, surprised))


class _Sample:
    """Tokens of one variant at temperature 1; those of rounds whose draft was prepared are kept apart."""

    def __init__(self, variant: Variant, effort: Effort, stream: int) -> None:
        self.variant = variant
        self.wanted = effort.sampled_tokens
        self._limit = effort.greedy_tokens
        self._stream = stream
        self._random = np.random.default_rng(stream)
        self._answers = 0
        self._hits, self._others = _Group(), _Group()

    @property
    def tokens(self) -> int:
        """Return how many tokens there are, of those that are wanted."""
        return min(self.wanted, self._hits.tokens + self._others.tokens)

    @property
    def is_done(self) -> bool:
        """Tell whether that is enough."""
        return self.wanted in (self.tokens, self._answers)

    @property
    def is_doubtful(self) -> bool:
        """Tell whether more tokens should decide."""
        return any(each.p_value is not None and each.p_value < SUSPICION for each in self.results())

    def extend(self, runtime: TokenRuntime, course: Course) -> None:
        """Add an answer."""
        before = self.tokens
        course.begin(f"tokens at temperature 1: {before} of {self.wanted}, {self.variant.name}")
        prompt, seed = PROMPTS[self._answers % len(PROMPTS)][1], self._stream * 1_000_003 + self._answers
        settings = self.variant.settings_for(self._answers)
        request = Request(question(prompt), FULL, settings, self._limit, seed=seed)
        answer = list(runtime.generate_tokens(request))
        for place, row in rows(runtime, prompt, [token for token, *_ in answer]):
            token, provenance, is_hit = answer[place]
            group = self._hits if is_hit else self._others
            group.pairs.append(transforms(row, token, float(self._random.random())))
            excess, variance = surprise(row, token)
            group.excess, group.variance = group.excess + excess, group.variance + variance
            group.drafted += provenance in DRAFTED
        self._answers += 1
        course.done += self.tokens - before

    def results(self) -> tuple[DistributionResult, ...]:
        """Test hit rounds and other rounds apart, where there are enough tokens of both."""
        name = self.variant.name
        if min(self._hits.tokens, self._others.tokens) < FEWEST_TOKENS:
            every = self._hits.with_those_of(self._others)
            return (every.result(name, "all"),) if every.tokens else ()
        return self._hits.result(name, "hit"), self._others.result(name, "other")


class SampledTest:
    """Tokens of each variant at temperature 1, an answer of each in turn."""

    def __init__(self, runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort) -> None:
        self._runtime = runtime
        self._effort = effort
        self._samples = [_Sample(variant, effort, number) for number, variant in enumerate(tested)]

    @property
    def tokens(self) -> int:
        """Return how many tokens there will be, unless more are needed to decide."""
        return len(self._samples) * self._effort.sampled_tokens

    @property
    def results(self) -> tuple[DistributionResult, ...]:
        """Return what the tokens so far tell."""
        return tuple(result for sample in self._samples for result in sample.results())

    def run(self, course: Course) -> None:
        """Sample all tokens, and more of them where chance may have played a trick."""
        self._complete(self._samples, course)
        doubtful = [number for number, sample in enumerate(self._samples) if sample.is_doubtful]
        # fresh answers, so that the doubt that led here does not count twice
        more = replace(self._effort, sampled_tokens=4 * self._effort.sampled_tokens)
        streams = {number: number + len(self._samples) for number in doubtful}
        fresh = {number: _Sample(self._samples[number].variant, more, streams[number]) for number in doubtful}
        course.total += more.sampled_tokens * len(fresh)
        self._complete(list(fresh.values()), course)
        for number, sample in fresh.items():
            self._samples[number] = sample

    def _complete(self, samples: Sequence[_Sample], course: Course) -> None:
        while left := [sample for sample in samples if not sample.is_done]:
            for sample in left:
                sample.extend(self._runtime, course)


def transforms(row: Logits, token: int, uniform: float) -> tuple[float, float]:
    """Return the randomised PIT of a token, likelier tokens first, and in the order of the vocabulary.

    The first shows a wrong temperature or truncation best, the second a draft that is believed too much.
    """
    p = distribution(row, FULL, ())
    own = p.probs[token]
    likelier, equal = float(p.probs[p.probs > own].sum()), float(p.probs[p.probs == own].sum())
    ranks = Distribution(np.arange(3), np.array([likelier, equal, max(0.0, 1 - likelier - equal)]))
    return randomised_pit(ranks, 1, uniform), randomised_pit(p, token, uniform)


def surprise(row: Logits, token: int) -> tuple[float, float]:
    """Return how much more a token surprises than is to be expected, in nats, and the variance of that.

    Their sums show a draft that is believed too much sooner than the transforms: it writes what is rare.
    """
    probs = distribution(row, FULL, ()).probs
    surprises = -np.log(np.maximum(probs, np.finfo(np.float64).tiny))
    mean = float(probs @ surprises)
    return float(surprises[token]) - mean, float(probs @ (surprises - mean) ** 2)
