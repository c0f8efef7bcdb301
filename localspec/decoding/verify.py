"""Judge a draft: how many of its tokens stand, and which token the target puts after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.sampling import best_token, draw, probability, residual
from localspec.types import Acceptance, Distribution, Draft, VerifyOutcome

UNIFORMS = 64  # drawn at once

Target = Callable[[int], Distribution]
"""The target's distribution after so many accepted draft tokens."""


class Uniforms(Protocol):
    """A stream of random numbers, such as `numpy.random.Generator`."""

    def random(self) -> float:
        """Return a number from [0, 1)."""


class BufferedUniforms:
    """The numbers from [0, 1) that a generator gives in turn, but asked for many at once: it is as fast."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._ready: list[float] = []

    def random(self) -> float:
        """Return the next one."""
        if not self._ready:
            self._ready = self._generator.random(UNIFORMS)[::-1].tolist()
        return self._ready.pop()


def verify(draft: Draft, target: Target, acceptance: Acceptance, rng: Uniforms) -> VerifyOutcome:
    """Accept the longest part of the draft that leaves the target's distribution as it is.

    `match` accepts what the target draws itself; `rejection` a token with probability min(1, p / q), and else
    draws from the residual max(p - q, 0).
    `target` is asked for one position after another, up to the first rejection and not beyond.
    `rng` must be independent of the stream that the draft was drawn from.
    """
    for accepted, token in enumerate(draft.tokens):
        p = target(accepted)
        if acceptance == "match":
            replacement = draw(p, rng.random())
            if replacement != token:
                return VerifyOutcome(accepted, replacement)
            continue
        q = draft.q[accepted] if draft.q is not None else token
        chance = probability(q, token) if isinstance(q, Distribution) else 1.0
        # Strictly less: a token that the target never writes is not accepted, even by a uniform of 0.
        if not rng.random() * chance < probability(p, token):
            return VerifyOutcome(accepted, draw(residual(p, q), rng.random()))
    accepted = len(draft.tokens)
    return VerifyOutcome(accepted, draw(target(accepted), rng.random()))


def verify_greedily(draft: Draft, rows: NDArray[np.float32]) -> VerifyOutcome:
    """Judge a draft by the best token of each row of logits: what `verify` does at temperature 0."""
    for accepted, token in enumerate(draft.tokens):
        best = best_token(rows[accepted])  # a row is as long as the vocabulary: none is read in vain
        if token != best:
            return VerifyOutcome(accepted, best)
    return VerifyOutcome(len(draft.tokens), best_token(rows[len(draft.tokens)]))
