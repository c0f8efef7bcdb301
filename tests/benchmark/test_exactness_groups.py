"""How tokens are judged, one by one and together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.benchmark.exactness import MIN_TOKENS, Judged, judge, surprise, transforms, verdict
from localspec.benchmark.statistics import ks_uniform_p_value
from localspec.errors import Cancelled
from localspec.types.drafts import Provenance
from localspec.types.request import Request
from tests.benchmark.test_exactness import EFFORT, HAS_DRAFT, MarkovRuntime, check

ROW = np.random.default_rng(1).normal(0, 2, 40).astype(np.float32)


def group(random: np.random.Generator, tokens: int) -> list[Judged]:
    """Return tokens that were drawn as they should be."""
    probs = np.exp(ROW, dtype=np.float64)
    drawn = random.choice(len(ROW), size=tokens, p=probs / probs.sum())
    return [judge(ROW, int(token), float(random.random()), drafted=False) for token in drawn]


@pytest.mark.slow
def test_three_ways_to_look_are_not_three_chances_of_a_false_alarm() -> None:
    random = np.random.default_rng(7)
    values = [verdict("sd", "all", group(random, 60)).p_value for _ in range(300)]
    assert 0 < sum(value is not None and value < 0.1 for value in values) < 1.3 * 0.1 * len(values)


def test_a_few_tokens_say_nothing() -> None:
    random = np.random.default_rng(7)
    assert verdict("sd", "all", group(random, MIN_TOKENS - 1)).p_value is None
    assert verdict("sd", "all", group(random, MIN_TOKENS)).p_value is not None


def test_surprise_is_as_expected_of_the_right_distribution_and_not_of_a_flatter_one() -> None:
    row = np.random.default_rng(1).normal(0, 2, 40).astype(np.float32)
    random = np.random.default_rng(5)

    def z(chosen_by: NDArray[np.float32]) -> float:
        probs = np.exp(chosen_by, dtype=np.float64)
        found = [surprise(row, int(token)) for token in random.choice(40, size=500, p=probs / probs.sum())]
        return sum(excess for excess, _ in found) / math.sqrt(sum(variance for _, variance in found))

    assert abs(z(row)) < 2.5
    assert z(row * np.float32(0.7)) > 4


def test_transforms_are_uniform_also_with_equal_probabilities() -> None:
    row = np.array([2, 1, 1, 1, 0, -1], dtype=np.float32)
    probs = np.exp(row, dtype=np.float64)
    random = np.random.default_rng(5)
    tokens = random.choice(len(row), size=4000, p=probs / probs.sum())
    pairs = [transforms(row, int(token), float(random.random())) for token in tokens]
    for values in zip(*pairs, strict=True):
        assert ks_uniform_p_value(values) > 0.01
        assert 0 <= min(values) <= max(values) <= 1
    assert transforms(row, 0, 0.0) == (0, 0)
    assert transforms(row, 5, 1.0) == pytest.approx((1, 1))


class Silent(MarkovRuntime):
    """Ends every answer at once."""

    def generate_tokens(self, request: Request) -> Iterator[tuple[int, Provenance, bool]]:
        return iter(())


def test_models_that_say_nothing_end_the_test_all_the_same() -> None:
    def patient(_words: str, _done: float) -> None:
        if next(left, None) is None:
            raise Cancelled("it goes on for ever")

    left = iter(range(10_000))
    report = check(Silent(), HAS_DRAFT, replace(EFFORT, sampled_tokens=60), patient)
    assert (report.complete, report.sampled) == (True, ())
