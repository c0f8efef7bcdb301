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
    def max_draft(self) -> int:
        """Return how many tokens of the last call can be taken back: the longest draft."""

    @property
    def rereads(self) -> bool:
        """Tell whether what is kept of a call that was taken back in part is read again with the next."""

    @property
    def is_head(self) -> bool:
        """Tell whether it drafts from the hidden states of its target, with which it reads along."""

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

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on; a branch may become empty.

        Raises `EngineError`, with the sequence as it was, where it cannot go back so far.
        """

    def mark(self) -> None:
        """Let `truncate` come back to the end of sequence 0, and branches begin there, for some rounds."""

    def checkpoint(self) -> None:
        """Let `truncate` come back to the end of sequence 0 for long."""

    def branchable(self, end: int) -> bool:
        """Tell whether a branch can share sequence 0 up to position `end` now."""

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target` share what `source` holds from `target`'s own end up to position `end` (exclusive)."""

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of sequence 0; None if there is no memory for it, or no `room(bytes)`.

        It may lack the last tokens, which a running state has to read again; branches may become empty.
        """

    def follow(self, *, on: bool, kept: int = ...) -> None:
        """Let a head take its target's hidden states from the next call on, or no longer.

        So many of them are kept before the head reads them without being asked. It drops what it has read of
        its own drafts as soon as the target has read on, whose states for the accepted tokens are better.
        """

    def cancel(self) -> None:
        """Stop the running or the next call with `Cancelled`; callable from any thread."""

    def resume(self) -> None:
        """Take back a `cancel` that no call has noticed."""


class TokenCache:
    """What a `LanguageModel` says of going back whose cache holds every token: anywhere, at no cost."""

    rereads = is_head = False
    max_draft = 2**31 - 1

    def rewindable(self, length: int) -> int:
        """Return `length`."""
        return length

    def mark(self) -> None:
        """Do nothing: `truncate` can come back to here anyway."""

    def checkpoint(self) -> None:
        """Do nothing: `truncate` can come back to here anyway."""

    def branchable(self, end: int) -> bool:
        """Say yes."""
        return True

    def follow(self, *, on: bool, kept: int = 0) -> None:
        """Do nothing: it is no head."""

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Say that there is no memory for it."""
        return None
