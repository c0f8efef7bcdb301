"""Copies of models' caches: bytes that a model with the same weights and options can continue from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

StateBytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """A copy of a main sequence in this machine's memory, freed when it is dropped.

    `checkpoints` are copies of the part that the model overwrites, by the number of tokens before them.
    """

    length: int  # tokens
    state: StateBytes
    checkpoints: tuple[tuple[int, StateBytes], ...] = ()

    @property
    def size(self) -> int:
        """Return its bytes."""
        return self.state.nbytes + sum(checkpoint.nbytes for _, checkpoint in self.checkpoints)


@dataclass(frozen=True, slots=True, eq=False)
class CachedText:
    """The copy of one model's cache, with its text."""

    tokens: tuple[int, ...]
    saved: SavedState


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ConversationCopy:
    """The copies of a conversation's caches: the target's, and the draft model's unless that was not saved.

    `kept_as` is as in `Request`; `adapters` are the scales with which the target read the text.
    """

    target: CachedText
    draft: CachedText | None = None
    kept_as: str | None = ""
    adapters: tuple[float, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the text in the target's cache."""
        return self.target.tokens

    @property
    def size(self) -> int:
        """Return its bytes."""
        return self.target.saved.size + (0 if self.draft is None else self.draft.saved.size)
