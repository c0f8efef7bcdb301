"""What the engines ask of a language model; they never see llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
"""Logits, float32 (n, vocabulary); a view that is valid until the model's next call."""


class LanguageModel(Protocol):
    """A model with a KV cache that holds several sequences of tokens.

    Sequence 0 is the main one, the others are branches. Positions are gap-free from 0, so a sequence is
    known by its length.
    One thread at a time; only `cancel` may be called from another.
    """

    @property
    def vocabulary_size(self) -> int:
        """Return the number of token ids."""

    @property
    def context_size(self) -> int:
        """Return how many tokens one sequence can hold."""

    @property
    def max_sequences(self) -> int:
        """Return how many sequences there are, sequence 0 included."""

    @property
    def busy_s(self) -> float:
        """Return the seconds spent in native code since the model was opened."""

    def length(self, sequence: int = 0) -> int:
        """Return how many tokens a sequence holds."""

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to sequence 0 and return the logits after the last `logits` (0 or more) of them.

        Raises `Cancelled` after `cancel`, with sequence 0 at the length it had or a little longer;
        `ContextFullError` when the tokens do not fit.
        """

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append `tokens[i]` to `sequences[i]` in one pass and return one row of logits for each."""

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on."""

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` share what `source` holds from `target`'s own end up to position `end` (exclusive)."""

    def cancel(self) -> None:
        """Stop the running or the next call with `Cancelled`; callable from any thread."""

    def resume(self) -> None:
        """Take back a `cancel` that no call has noticed."""
