"""Which outcomes of a verification are worth preparing for; pure.

An outcome is "k draft tokens accepted, then bonus token t" (Saguaro, arXiv 2603.03251, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.decoding.drafters.proposer import Proposal
from localspec.types import FanOutShape, VerifyOutcome


@dataclass(frozen=True, slots=True)
class Forecast:
    """An outcome with its estimated chance."""

    outcome: VerifyOutcome
    chance: float


def accepted_exactly(chances: Sequence[float]) -> list[float]:
    """Return the chance that exactly 0, 1, ... all of a draft's tokens are accepted."""
    exactly, reach = [], 1.0
    for chance in chances:
        exactly.append(reach * (1.0 - chance))
        reach *= chance
    return [*exactly, reach]


def guesses_after(proposal: Proposal, excluded: int | None) -> list[tuple[int, float]]:
    """Return the bonus tokens that the draft model expects at a position, with their shares of them all.

    `proposal` is what it thought there; `excluded` is the draft token that was rejected, which cannot be the
    bonus token.
    """
    guesses = [(token, weight) for token, weight in proposal.guesses if token != excluded]
    total = sum(weight for _, weight in guesses)
    return [(token, weight / total) for token, weight in guesses] if total > 0 else []


def forecasts_after(
    accepted: int,
    proposal: Proposal,
    chance: float,
    excluded: int | None,
    odds: Callable[[float], float] = lambda share: share,
) -> list[Forecast]:
    """Return the outcomes that may follow `accepted` draft tokens, with `chance` for exactly that many.

    `odds` is the chance of a guess with a share of all guesses; see `guesses_after` for the rest.
    """
    return [
        Forecast(VerifyOutcome(accepted, token), chance * odds(share))
        for token, share in guesses_after(proposal, excluded)
    ]


def fan_out(
    shape: FanOutShape, budget: int, length: int, acceptance: float, exponent: float = 1.0
) -> list[int]:
    """Allot a budget of prepared outcomes to "k accepted", k = 0..length, by a fixed shape.

    `uniform` gives all the same; `geometric` is Saguaro's Theorem 12 for a mean acceptance rate and a
    miss rate that falls as fan-out ** -exponent, with the capped last term.
    """
    if shape == "uniform":
        weights = [1.0] * (length + 1)
    else:
        rate = min(max(acceptance, 0.01), 0.99)
        power = 1.0 / (1.0 + exponent)
        weights = [rate ** (k * power) for k in range(length)]
        weights.append((rate**length / (1.0 - rate)) ** power)
    return _rounded(weights, budget)


def _rounded(weights: Sequence[float], budget: int) -> list[int]:
    """Share a budget in whole numbers, the largest remainders first."""
    scale = budget / sum(weights)
    counts = [int(weight * scale) for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda k: counts[k] - weights[k] * scale)
    for k in by_remainder[: budget - sum(counts)]:
        counts[k] += 1
    return counts


def best_width(values: Sequence[float], costs: Sequence[float]) -> int:
    """Return how many of the values (best first) to work on in one call, given the cost of each width.

    It is the width with the highest value per second.
    """
    best, best_rate, total = 0, 0.0, 0.0
    for width, (value, cost) in enumerate(zip(values, costs, strict=True), start=1):
        total += value
        if total / cost >= best_rate:
            best, best_rate = width, total / cost
    return best
