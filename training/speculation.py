"""What a target and a draft would do together, computed from their distributions; pure numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FAN_OUTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
Floats = NDArray[np.float64]


def softmax(logits: NDArray[np.floating], temperature: float = 1.0) -> Floats:
    """Return probabilities (n, vocabulary) of logits (n, vocabulary)."""
    scaled = logits.astype(np.float64) / temperature
    scaled = np.exp(scaled - scaled.max(-1, keepdims=True))
    normalised: Floats = scaled / scaled.sum(-1, keepdims=True)
    return normalised


@dataclass(frozen=True, slots=True)
class GreedyRuns:
    """Greedy speculation with one draft length."""

    accepted: int
    proposed: int
    passes: int

    def __add__(self, other: GreedyRuns) -> GreedyRuns:
        return GreedyRuns(
            self.accepted + other.accepted, self.proposed + other.proposed, self.passes + other.passes
        )


def greedy_runs(match: Sequence[bool], length: int) -> GreedyRuns:
    """Walk over the target's own text; `match[i]` says whether the draft would have guessed token i."""
    position = accepted = passes = proposed = 0
    while position < len(match):
        room = min(length, len(match) - position)
        run = 0
        while run < room and match[position + run]:
            run += 1
        accepted += run
        proposed += room
        passes += 1
        position += run + 1
    return GreedyRuns(accepted, proposed, passes)


def sampled_tokens_per_pass(acceptance: Floats, length: int) -> float:
    """Return the expected tokens of a pass, from the chance of acceptance at each position."""
    starts = range(len(acceptance))
    total = sum(1 + float(np.cumprod(acceptance[start : start + length]).sum()) for start in starts)
    return total / max(1, len(acceptance))


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """A fit of miss = c * F ** -r."""

    r: float
    c: float


def power_law(misses: Sequence[float]) -> PowerLaw | None:
    """Fit log(miss) over log(F) by least squares; None with fewer than three points."""
    pairs = zip(FAN_OUTS, misses, strict=True)
    points = [(math.log(fan_out), math.log(miss)) for fan_out, miss in pairs if miss > 1e-4]
    if len(points) < 3:
        return None
    x, y = np.array(points).T
    slope, offset = np.polyfit(x, y, 1)
    return PowerLaw(r=round(-float(slope), 3), c=round(math.exp(float(offset)), 3))


@dataclass(frozen=True, slots=True)
class FanOut:
    """How often the target's token is among the draft's F next best ones, where a draft token was rejected.

    `ranks` are the places of the target's greedy choice in the draft; `weight` is the expected number of
    rejections when sampling, `hits` float64 (len(FAN_OUTS),) the expected hits among them.
    """

    ranks: tuple[int, ...] = ()
    hits: Floats = field(default_factory=lambda: np.zeros(len(FAN_OUTS)))
    weight: float = 0.0

    def __add__(self, other: FanOut) -> FanOut:
        return FanOut(self.ranks + other.ranks, self.hits + other.hits, self.weight + other.weight)

    def greedy_misses(self) -> list[float]:
        """Return the share of misses for each F; the rejected token itself is no guess."""
        if not self.ranks:
            return [0.0] * len(FAN_OUTS)
        return [float(np.mean([rank > fan_out + 1 for rank in self.ranks])) for fan_out in FAN_OUTS]

    def sampled_misses(self) -> list[float]:
        """Return the expected share of misses for each F."""
        misses: list[float] = (1 - self.hits / self.weight).tolist()
        return misses

    def rank_shares(self, highest: int) -> dict[int, float]:
        """Return how often the target's choice had which rank, from 2 to `highest`."""
        count = max(1, len(self.ranks))
        return {rank: round(self.ranks.count(rank) / count, 3) for rank in range(2, highest + 1)}


def greedy_fan_out(draft_logits: NDArray[np.float32], text: Sequence[int]) -> FanOut:
    """Rank the target's tokens where the draft's first guess is another one."""
    rows = zip(draft_logits, text, strict=True)
    ranks = [int((row > row[token]).sum()) + 1 for row, token in rows if row.argmax() != token]
    return FanOut(ranks=tuple(ranks))


def sampled_fan_out(p: Floats, q: Floats) -> FanOut:
    """Return the expected hits on positions with target p and draft q, both (n, vocabulary).

    After a rejection the target draws from max(p - q, 0), and the rejected token came from max(q - p, 0);
    the guesses are the draft's F best tokens without the rejected one.
    """
    rejection = 1 - np.minimum(p, q).sum(-1)
    order = np.argsort(-q, -1)[:, : FAN_OUTS[-1] + 1]
    residual = np.cumsum(np.take_along_axis(np.maximum(p - q, 0), order, -1), -1)
    rejected = np.cumsum(np.take_along_axis(np.maximum(q - p, 0), order, -1), -1)
    hits = np.zeros(len(FAN_OUTS))
    for place, fan_out in enumerate(FAN_OUTS):
        among_best = rejected[:, fan_out] / np.maximum(rejection, 1e-9)
        hits[place] = (among_best * residual[:, fan_out] + (1 - among_best) * residual[:, fan_out - 1]).sum()
    return FanOut(hits=hits, weight=float(rejection.sum()))
