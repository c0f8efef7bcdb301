"""Which way of decoding should be fastest here, from measured costs; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.decoding.policy import LatencyModel
from localspec.types import Mode

ACCEPTANCE = 0.7  # of a draft token, before anything is known about this pair
HIT_RATE = 0.7  # of prepared outcomes, likewise
BRANCHES = 4  # of a draft call that prepares outcomes
LEAST_GAIN = 1.05  # below it speculation is not worth its memory and its noise
LENGTHS = range(1, 9)
PYTHON_S = 2e-4  # around each native call that the target waits for; it matters with tiny models only
HANDOFF_S = 3e-4  # per round, for two threads to take turns; likewise
_NAMES: dict[Mode, str] = {"off": "plain decoding", "sd": "speculative decoding", "ssd": "drafting ahead"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected speed of one way of decoding, in tokens per second, at its best draft length."""

    mode: Mode
    tokens_per_s: float
    draft_length: int


def rank(
    alone: LatencyModel, together: Callable[[], LatencyModel] | None, acceptance: float | None = None
) -> list[Prediction]:
    """Rank the ways of decoding as `predict` does, and measure both models at once only if it matters.

    At once neither is faster than alone: where drafting ahead would lose even so, nobody waits for that.
    """
    if together is not None and predict(alone, alone, acceptance)[0].mode == "ssd":
        return predict(alone, together(), acceptance)
    return predict(alone, None, acceptance)


def predict(
    alone: LatencyModel, together: LatencyModel | None, acceptance: float | None = None
) -> list[Prediction]:
    """Rank plain, speculative and ahead-of-time decoding, the fastest first.

    `alone` are the costs when one model works at a time, `together` when both do at once
    (Saguaro's Theorem 7, with measured times). `acceptance` is what is known of this draft model; prepared
    outcomes are then thought to hit as often.
    """
    plain = Prediction("off", 1.0 / (alone.verify(1) + PYTHON_S), 0)
    rate = ACCEPTANCE if acceptance is None else acceptance
    found = [plain, max((_waiting(alone, length, rate) for length in LENGTHS), key=_speed)]
    if together is not None:
        hits = HIT_RATE if acceptance is None else acceptance
        found.append(max((_ahead(together, length, rate, hits) for length in LENGTHS), key=_speed))
    found.sort(key=_speed, reverse=True)
    if found[0].tokens_per_s < LEAST_GAIN * plain.tokens_per_s:
        found.remove(plain)
        found.insert(0, plain)
    return found


def explain(ranked: Sequence[Prediction]) -> str:
    """Return why the first prediction was chosen, in a plain sentence."""
    figures = ", ".join(f"{_NAMES[found.mode]} {found.tokens_per_s:.0f}" for found in ranked)
    return f"expected tokens/s from measured costs: {figures}"


def _speed(prediction: Prediction) -> float:
    return prediction.tokens_per_s


def _tokens(length: int, acceptance: float) -> float:
    """Return the tokens of a round: the accepted ones and the target's own."""
    return sum(acceptance**accepted for accepted in range(length + 1))


def _waiting(costs: LatencyModel, length: int, acceptance: float) -> Prediction:
    seconds = costs.verify(length + 1) + length * costs.step(1) + (length + 1) * PYTHON_S
    return Prediction("sd", _tokens(length, acceptance) / seconds, length)


def _ahead(costs: LatencyModel, length: int, acceptance: float, hits: float) -> Prediction:
    verify_s = costs.verify(length + 1) + PYTHON_S + HANDOFF_S
    hit_s = max(verify_s, length * (costs.step(BRANCHES) + PYTHON_S))
    miss_s = verify_s + length * (costs.step(1) + PYTHON_S)
    seconds = hits * hit_s + (1.0 - hits) * miss_s
    return Prediction("ssd", _tokens(length, acceptance) / seconds, length)
