"""Verify a draft: how many of its tokens are accepted, and which token the target adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from localspec.decoding.rounds import DecodeParams
from localspec.decoding.sampling import distribution, draw, penalises, probability, residual
from localspec.types.candidates import Candidates, Rows, largest
from localspec.types.drafts import Distribution, Draft, VerifyOutcome
from localspec.types.request import Acceptance

UNIFORMS = 64  # drawn at once
PER_TOKEN = 2  # uniforms that each token takes: one judges a draft token, one picks a token

Target = Callable[[int], Distribution]
"""The target's distribution after a number of accepted draft tokens."""


class Uniforms(Protocol):
    """A stream of random numbers, such as `numpy.random.Generator`."""

    def random(self) -> float:
        """Return a number from [0, 1)."""


Judge = Callable[[Draft, Rows, list[int], DecodeParams, Uniforms], VerifyOutcome]
"""Judges a draft that follows a text by the target's candidates, one row more than the draft has tokens."""


class BufferedUniforms:
    """A generator's numbers from [0, 1), drawn in batches, which is faster."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._ready: list[float] = []

    def random(self) -> float:
        """Return the next one."""
        if not self._ready:
            self._ready = self._generator.random(UNIFORMS)[::-1].tolist()
        return self._ready.pop()


def random_streams(
    seed: int | None, place: int, segment: int
) -> tuple[np.random.Generator, np.random.Generator]:
    """Return the random streams of the target and the draft, for an answer that continues at a position.

    The target's stream has `PER_TOKEN` numbers for each position, however the text before was written; the
    draft's belongs to a segment. They are independent. A negative seed counts as 64-bit two's complement.
    """
    root = np.random.SeedSequence(None if seed is None else seed % 2**64)
    for_target, *_, for_draft = root.spawn(segment + 2)
    bits = np.random.PCG64(for_target)
    bits.advance(PER_TOKEN * place)
    return np.random.Generator(bits), np.random.default_rng(for_draft)


def judge(draft: Draft, rows: Rows, text: list[int], params: DecodeParams, random: Uniforms) -> VerifyOutcome:
    """Judge a draft that follows a text by the target's candidates, as the answer chooses its tokens."""
    sampling = params.sampling
    rules = params.rules
    start = max(params.answer_start, len(text) - sampling.penalty_window)
    history = text[start:] if penalises(sampling) else None
    if sampling.is_greedy and history is None and (rules is None or rules.constraint is None):
        return verify_greedily(draft, rows if rules is None else map(rules.biased, rows))

    def target(accepted: int) -> Distribution:
        seen = () if history is None else [*history, *draft.tokens[:accepted]]
        if rules is None:
            return distribution(rows[accepted], sampling, seen)
        mask = rules.mask([*text, *draft.tokens[:accepted]])
        if mask is not None:
            largest(rows[accepted].logits)  # a mask may hide what is none
        return distribution(rules.biased(rows[accepted]), sampling, seen, mask)

    return verify(draft, target, params.acceptance, random)


def verify(draft: Draft, target: Target, acceptance: Acceptance, rng: Uniforms) -> VerifyOutcome:
    """Accept the longest prefix of the draft that leaves the target's distribution unchanged.

    `match` accepts what the target draws itself; `rejection` a token with probability min(1, p / q), and
    else draws from the residual max(p - q, 0). For a deterministic token q is 1: there `match` accepts as
    often, and emits what plain decoding would. `target` is asked for one position after another, up to the
    first rejection and not beyond. `rng` must be independent of the draft's stream. Every emitted token
    uses `PER_TOKEN` of its numbers, needed or not, so they belong to positions of the text.
    """
    for accepted, token in enumerate(draft.tokens):
        p = target(accepted)
        judging = rng.random()
        picking = rng.random()
        q = draft.q[accepted] if draft.q is not None else None
        if acceptance == "match" or q is None or len(q.probs) == 1:
            own = draw(p, picking)
            if own != token:
                return VerifyOutcome(accepted, own)
        # Strictly less: a token that the target never writes is not accepted, even by a uniform of 0.
        elif not judging * probability(q, token) < probability(p, token):
            return VerifyOutcome(accepted, draw(residual(p, q), picking))
    accepted = len(draft.tokens)
    p = target(accepted)
    rng.random()
    return VerifyOutcome(accepted, draw(p, rng.random()))


def verify_greedily(draft: Draft, rows: Iterable[Candidates]) -> VerifyOutcome:
    """Judge a draft by the best token of each row: what `verify` does at temperature 0."""
    each = iter(rows)
    for accepted, token in enumerate(draft.tokens):
        best = next(each).best()  # a row may be as long as the vocabulary: none is read in vain
        if token != best:
            return VerifyOutcome(accepted, best)
    return VerifyOutcome(len(draft.tokens), next(each).best())
