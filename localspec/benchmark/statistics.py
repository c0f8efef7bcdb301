"""Tests of whether samples follow a distribution, and intervals of ratios."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, nan, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from localspec.types.drafts import Distribution


@dataclass(frozen=True, slots=True)
class Interval:
    """A measured figure with its 95% interval, whose ends are NaN for a single sample."""

    value: float
    low: float
    high: float


_T_STEPS = 20001
_RESAMPLES = 2000

Floats = NDArray[np.float64]
Paces = Mapping[tuple[int, int], float]
"""Seconds per token by prompt and repetition."""


def randomised_pit(p: Distribution, token: int, uniform: float) -> float:
    """Return a value that is uniform on [0, 1] if `token` was drawn from `p`.

    It is the probability of what precedes the token in the support, plus `uniform` times its own.
    A token outside the support gives 1.
    """
    if p.ids is None:
        place = token
    else:
        places = np.flatnonzero(p.ids == token)
        if not len(places):
            return 1.0
        place = int(places[0])
    return min(1.0, float(p.probs[:place].sum() + uniform * p.probs[place]))


def ks_uniform_p_value(values: Sequence[float]) -> float:
    """Return the p-value of the Kolmogorov-Smirnov test that `values` are uniform on [0, 1].

    Kolmogorov's limit with Stephens' correction for finite samples.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    if count == 0:
        return 1.0
    steps = np.arange(count + 1) / count
    distance = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    root = sqrt(count)
    return _kolmogorov_survival(distance * (root + 0.12 + 0.11 / root))


def _kolmogorov_survival(t: float) -> float:
    """Return the chance that Kolmogorov's statistic exceeds t."""
    t = max(t, 0.1)  # below it is 1, and the series converges slowly
    return min(1.0, max(0.0, 2 * sum((1 if k % 2 else -1) * exp(-2 * k**2 * t * t) for k in range(1, 50))))


@lru_cache(64)
def student_t_quantile(chance: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution with `freedom` degrees of freedom.

    With x = sqrt(freedom) * tan(a), the density is that of cos(a) ** (freedom - 1).
    """
    angles = np.linspace(-pi / 2, pi / 2, _T_STEPS)
    density = np.cos(angles[1:-1]) ** (freedom - 1)  # without the ends, where the tangent is infinite
    below = density.cumsum() - density / 2
    return float(sqrt(freedom) * np.tan(np.interp(chance, below / density.sum(), angles[1:-1])))


def ratio_of_sums(above: ArrayLike, below: ArrayLike, one_sided: float = 0.025) -> tuple[float, float, float]:
    """Return the ratio of two sums over pairs, and its interval; there are two pairs at least, all positive.

    The truth is beyond either end with a chance of `one_sided`. Pairs are what chance picks from (the
    bootstrap draws them again), and few of them widen the interval (Student's t).
    """
    over = np.asarray(above, dtype=np.float64)
    under = np.asarray(below, dtype=np.float64)
    count = len(over)
    picks = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
    drawn = np.log(over[picks].sum(axis=1) / under[picks].sum(axis=1))
    spread = float(drawn.std()) * sqrt(count / (count - 1))
    value = float(over.sum() / under.sum())
    factor = exp(spread * student_t_quantile(1.0 - one_sided, count - 1))
    return value, value / factor, value * factor


def rate(paces: Paces) -> Interval:
    """Return the tokens per second; every prompt weighs alike, however often it was answered."""
    _, mine = _paired(paces, paces)
    return _interval(np.ones_like(mine), mine, 0.025)


def speedup(
    paces: Paces, others: Paces, one_sided: float = 0.025, fewest_prompts: int = 1
) -> Interval | None:
    """Return the speed of a contender in that of another, over the prompts that both have answered.

    None where those are too few.
    """
    theirs, mine = _paired(others, paces)
    return _interval(theirs, mine, one_sided) if len(mine) >= fewest_prompts else None


def _paired(paces: Paces, others: Paces) -> tuple[Floats, Floats]:
    """Return the mean paces of two contenders for each prompt that both have answered."""
    by_prompt: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for place in sorted(paces.keys() & others.keys()):
        by_prompt[place[0]].append((paces[place], others[place]))
    means = np.array([np.mean(pairs, axis=0) for pairs in by_prompt.values()]).reshape(-1, 2)
    return means[:, 0], means[:, 1]


def _interval(above: Floats, below: Floats, one_sided: float) -> Interval:
    if len(above) == 1:
        return Interval(float(above[0] / below[0]), nan, nan)
    return Interval(*ratio_of_sums(above, below, one_sided))
