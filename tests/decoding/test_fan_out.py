from __future__ import annotations

import random

import pytest

from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.drafters.speculation_cache import (
    accepted_exactly,
    best_width,
    fan_out,
    forecasts_after,
    guesses_after,
)
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import FanOutShape

GUESSES = Proposal(7, 0.5, ((7, 0.5), (3, 0.3), (9, 0.2)), None)


def test_accepted_exactly_covers_every_case_once() -> None:
    rng = random.Random(1)
    for length in range(9):
        exactly = accepted_exactly([rng.random() for _ in range(length)])
        assert len(exactly) == length + 1
        assert sum(exactly) == pytest.approx(1.0)
        assert min(exactly) >= 0
    assert accepted_exactly([0.5, 0.8]) == pytest.approx([0.5, 0.1, 0.4])
    assert accepted_exactly([]) == [1.0]


def test_a_rejected_token_cannot_be_the_bonus_token() -> None:
    ranked = forecasts_after(2, GUESSES, 0.4, excluded=7)
    assert [found.outcome for found in ranked] == [VerifyOutcome(2, 3), VerifyOutcome(2, 9)]
    assert [found.chance for found in ranked] == pytest.approx([0.24, 0.16])


def test_without_a_rejection_every_draft_may_follow() -> None:
    ranked = forecasts_after(0, GUESSES, 1.0, excluded=None)
    assert [found.outcome.bonus for found in ranked] == [7, 3, 9]
    assert sum(found.chance for found in ranked) == pytest.approx(1.0)


def test_a_certain_draft_that_was_rejected_leaves_nothing_to_expect() -> None:
    assert forecasts_after(0, Proposal(7, 1.0, ((7, 1.0), (3, 0.0)), None), 0.5, excluded=7) == []


def test_odds_correct_each_share() -> None:
    ranked = forecasts_after(2, GUESSES, 0.5, 7, {0.6: 0.8, 0.4: 0.1}.__getitem__)
    assert [found.chance for found in ranked] == pytest.approx([0.4, 0.05])


def test_shares_are_those_of_the_tokens_that_are_possible() -> None:
    assert guesses_after(GUESSES, None) == [(7, 0.5), (3, 0.3), (9, 0.2)]
    assert dict(guesses_after(GUESSES, 3)) == pytest.approx({7: 5 / 7, 9: 2 / 7})
    assert guesses_after(Proposal(7, 0.0, (), None), None) == []


# Computed by hand from Saguaro's Theorem 12: acceptance, exponent, draft length, budget, real fan-outs.
TABLE = [
    (0.6, 1.0, 5, 18, [4.9, 3.8, 3.0, 2.3, 1.8, 2.2]),
    (0.7, 1.0, 5, 18, [4.1, 3.5, 2.9, 2.4, 2.0, 3.1]),
    (0.8, 1.0, 7, 24, [3.9, 3.5, 3.1, 2.8, 2.5, 2.2, 2.0, 4.0]),
    (0.9, 1.0, 7, 24, [2.9, 2.8, 2.6, 2.5, 2.4, 2.2, 2.1, 6.4]),
    (0.9, 1.5, 4, 15, [2.6, 2.4, 2.3, 2.2, 5.4]),
]


@pytest.mark.parametrize(("acceptance", "exponent", "length", "budget", "real"), TABLE)
def test_geometric_fan_out_is_the_theorem_in_whole_numbers(
    acceptance: float, exponent: float, length: int, budget: int, real: list[float]
) -> None:
    counts = fan_out("geometric", budget, length, acceptance, exponent)
    assert sum(counts) == budget
    assert all(abs(count - value) < 1.05 for count, value in zip(counts, real, strict=True))
    large = fan_out("geometric", 1000 * budget, length, acceptance, exponent)
    assert [count / 1000 for count in large] == pytest.approx(real, abs=0.06)


@pytest.mark.parametrize("shape", ["uniform", "geometric"])
def test_a_budget_is_spent_exactly(shape: FanOutShape) -> None:
    for budget in (0, 1, 2, 7, 16, 24, 64):
        for length in (0, 1, 3, 12):
            for acceptance in (0.0, 0.33, 0.8, 1.0):
                counts = fan_out(shape, budget, length, acceptance)
                assert len(counts) == length + 1
                assert sum(counts) == budget
                assert min(counts) >= 0


def test_uniform_fan_out_gives_every_place_the_same() -> None:
    assert fan_out("uniform", 18, 5, 0.9) == [3] * 6
    uneven = fan_out("uniform", 20, 5, 0.9)
    assert max(uneven) - min(uneven) == 1


def test_the_best_width_earns_most_per_second() -> None:
    assert best_width([1.0, 0.5, 0.1], [1.0, 1.2, 2.0]) == 2
    assert best_width([1.0, 0.5, 0.1], [1.0, 2.0, 3.0]) == 1
    assert best_width([0.5, 0.4, 0.01], [1.0, 1.0, 1.0]) == 3
    assert best_width([0.0, 0.0], [1.0, 1.0]) == 2
    assert best_width([], []) == 0
