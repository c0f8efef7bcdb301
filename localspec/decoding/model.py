"""What the engines ask of a language model; they never see llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
"""Logits, float32 (n, vocabulary); a view that is valid until the model's next call."""


class SavedState(Protocol):
    """A copy of what sequence 0 held, in this machine's memory, which it gives back when it is dropped."""

    @property
    def length(self) -> int:
        """Return how many tokens that is."""

    @property
    def size(self) -> int:
        """Return its bytes."""

    @property
    def restore(self) -> Callable[[], None]:
        """Return what lets sequence 0 hold them again, and branches nothing; if it fails, both are empty."""


class LanguageModel(Protocol):
    """A model with a KV cache that holds several sequences of tokens.

    Sequence 0 is the main one, the others are branches. Positions are gap-free from 0, so a sequence is
    known by its length.
    One thread at a time; only `cancel` may be called from another.
    What is answered here is so of a cache that holds every token: it goes back anywhere, at no cost.
    """

    max_draft: int = 2**31 - 1  # tokens of the last call that can be taken back: the longest draft
    rereads: bool = False  # whether what is kept of a call taken back in part is read again with the next
    is_head: bool = False  # whether it drafts from the hidden states of its target, with which it reads along

    @property
    def name(self) -> str:
        """Return the model's name, for a person."""
        return "model"

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

        Raises `Cancelled` after `cancel`, with sequence 0 at the length it had or a little longer, or where
        a running state was kept last; `ContextFullError` when the tokens do not fit.
        """

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append `tokens[i]` to `sequences[i]` in one pass and return one row of logits for each."""

    def rewindable(self, length: int) -> int:
        """Return the most of sequence 0's first `length` tokens to which `truncate` can go back now.

        It is all of them for caches of tokens; a running state goes back into the last call, once, and to
        marks and checkpoints.
        """
        return length

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on; a branch may become empty.

        Raises `EngineError`, with the sequence as it was, where it cannot go back so far.
        """

    def mark(self) -> None:
        """Let `truncate` come back to the end of sequence 0, and branches begin there, for some rounds."""
        return

    def checkpoint(self) -> None:
        """Let `truncate` come back to the end of sequence 0 for long."""
        return

    def branchable(self, end: int) -> bool:
        """Tell whether a branch can share sequence 0 up to position `end` now."""
        return True

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` share what `source` holds from `target`'s own end up to position `end` (exclusive)."""

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of sequence 0; None if there is no memory for it, or no `room(bytes)`.

        It may lack the last tokens, which a running state has to read again; branches may become empty.
        """
        return None

    def follow(self, *, on: bool, kept: int = 0) -> None:
        """Let a head take its target's hidden states from the next call on, or no longer.

        So many of them are kept before the head reads them without being asked. It drops what it has read of
        its own drafts as soon as the target has read on, whose states for the accepted tokens are better.
        """
        return

    def cancel(self) -> None:
        """Stop the running or the next call with `Cancelled`; callable from any thread."""

    def resume(self) -> None:
        """Take back a `cancel` that no call has noticed."""
