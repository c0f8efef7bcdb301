"""A draft model that writes something else after its own mistakes, in the real engine and simulated alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from localspec.decoding.drafters.proposer import Proposal
from localspec.tuning.simulator.replay import Replay
from localspec.types.candidates import columns
from tests.tuning.virtual import VOCABULARY, PlacedModel, Stage, Toy

ASTRAY = 4 * columns(VOCABULARY)  # to the ids of tokens that stand in the same columns


class StrayingModel(PlacedModel):
    """A placed model that writes other tokens once it has led itself astray, and is as sure of them.

    It has not where a wrong token surprises it: then it continues as after the right one, for one token.
    """

    def __init__(self, toy: Toy, stage: Stage, actor: int) -> None:
        super().__init__(toy.draft, stage, actor, toy.step)
        self._text = toy.prompt + toy.tokens
        self._right = [0] * len(self._lengths)

    def _follow(self, token: int, sequence: int) -> NDArray[np.float32]:
        place = self._lengths[sequence]
        row = super()._follow(token, sequence)
        if self._right[sequence] < place:
            return np.roll(row, ASTRAY)
        if place >= len(self._text) or token != self._text[place]:
            return np.roll(row, ASTRAY) if place and token == self._row(place - 1).argmax() else row
        self._right[sequence] += 1
        return row

    def truncate(self, length: int, sequence: int = 0) -> None:
        super().truncate(length, sequence)
        self._right[sequence] = min(self._right[sequence], length)

    def share(self, source: int, target: int, end: int) -> None:
        super().share(source, target, end)
        self._right[target] = min(self._right[source], end)


@contextmanager
def straying_alike() -> Iterator[None]:
    """Let a simulated draft model write the same as a `StrayingModel` when it has led itself astray."""

    def astray(_: Replay, judged: Sequence[Proposal]) -> tuple[Proposal, ...]:
        return tuple(
            proposal._replace(
                token=(proposal.token + ASTRAY) % VOCABULARY,
                guesses=tuple(((token + ASTRAY) % VOCABULARY, chance) for token, chance in proposal.guesses),
            )
            for proposal in judged
        )

    with patch.object(Replay, "_astray", astray):
        yield
