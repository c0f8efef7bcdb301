"""What the engines ask of a language model; they never see llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localspec.types.candidates import Rows, TokenRun
from localspec.types.saved_states import SavedState

EFFICIENT_READ = 64
"""Tokens of a conversation from which one call reads each of them faster.

From here on flash attention on the CPU goes through the cache for 64 of them at once (GGML_FA_TILE_Q):
SmolLM2 after 1,500 tokens reads 63 in 1.4 s and 64 in .4 s.
"""


class LanguageModel(Protocol):
    """A model with a KV cache of several sequences of tokens.

    Sequence 0 is the main one, the others are branches. Positions are gap-free from 0, so a sequence's
    length describes it.
    One thread at a time; only `cancel` may be called from another.
    The defaults here are for a cache of every token: it goes back anywhere, at no cost.
    """

    max_draft: int = 2**31 - 1  # tokens of the last call that can be taken back: the longest draft
    rereads: bool = False  # whether tokens of a partly undone call are processed again with the next one
    is_head: bool = False  # whether it drafts from the hidden states of its target, with which it reads along

    @property
    def name(self) -> str:
        """Return the model's name, for the user."""
        return "model"

    @property
    def vocabulary_size(self) -> int:
        """Return the number of token ids."""

    @property
    def context_size(self) -> int:
        """Return the size of a sequence in tokens."""

    @property
    def max_sequences(self) -> int:
        """Return the number of sequences, including sequence 0."""

    @property
    def busy_s(self) -> float:
        """Return the seconds spent in native code since the model was opened."""

    def length(self, sequence: int = 0) -> int:
        """Return the number of tokens in a sequence."""

    def choose(self, count: int | None) -> None:
        """Return only the `count` likeliest tokens of each row from the next call on, if the device can.

        None returns all logits. It takes as long as a call or two if this was otherwise so far.
        """
        return

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to sequence 0 and return the candidates after the last `logits` (0 or more) of them.

        Raises `Cancelled` after `cancel`, with sequence 0 at its old length or a little longer, or at the
        last saved recurrent state; `ContextFullError` when the tokens do not fit.
        """

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append `tokens[i]` to `sequences[i]` in one pass and return the candidates after each."""

    def rewindable(self, length: int) -> int:
        """Return the most of sequence 0's first `length` tokens to which `truncate` can go back now.

        It is all of them for caches of tokens; a running state goes back into the last call, once, and to
        marks and checkpoints.
        """
        return length

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on; a branch may become empty.

        So may sequence 0, if a saved state turns out to be useless: `length()` says what is left.
        Raises `EngineError`, with the sequence as it was, where it cannot go back so far.
        """

    def mark(self) -> None:
        """Keep the end of sequence 0 reachable for `truncate` and for branches, for some rounds."""
        return

    def checkpoint(self, *, pinned: bool = False) -> None:
        """Keep the end of sequence 0 reachable for `truncate`, for long; if `pinned`, until another is."""
        return

    def branchable(self, end: int) -> bool:
        """Return whether a branch can share sequence 0 up to position `end` now."""
        return True

    def share(self, source: int, target: int, end: int) -> None:
        """Share the cells of `source` from `target`'s end up to position `end` (exclusive) with `target`."""

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of sequence 0; None if memory is short or `room(bytes)` is False.

        It may lack the last tokens, which a recurrent state has to process again; branches may become empty.
        """
        return None

    def restore(self, saved: SavedState, text: Sequence[int]) -> None:
        """Restore sequence 0, with its text, from a copy and empty the branches.

        If that fails, everything is empty.
        """
        return

    def follow(self, *, on: bool, kept: int = 0) -> None:
        """Attach a head to the target's hidden states from the next call on, or detach it.

        `kept` of them wait before the head processes them without a draft. The head drops cells of its own
        drafts as soon as the target has processed more, because the target's states are better.
        """
        return

    def cancel(self) -> None:
        """Stop the running or the next call with `Cancelled`; callable from any thread."""

    def resume(self) -> None:
        """Take back a `cancel` that no call has noticed."""


class SeveralSeats(LanguageModel, Protocol):
    """A model with main sequences of several conversations, which share the cells of its cache.

    It goes back anywhere. What is said here of sequence 0 holds for each of them where a call names it.
    """

    @property
    def seats(self) -> int:
        """Return the number of conversations."""

    @property
    def is_unified(self) -> bool:
        """Whether the conversations share the cells; else each has an equal part to itself."""

    @property
    def cells(self) -> int:
        """Return the tokens that the main sequences have room for together; a shared one counts once."""

    @property
    def reads_apart(self) -> bool:
        """Whether long pieces of prompts are read faster in calls of their own."""

    @property
    def max_tokens(self) -> int:
        """Return the most tokens of one call."""

    @property
    def max_rows(self) -> int:
        """Return the most rows of candidates of one call."""

    def seat(self, number: int) -> int:
        """Return the main sequence of a seat; that of seat 0 is sequence 0."""

    def evaluate_in(self, sequence: int, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to a main sequence as `evaluate` does to the first."""

    def evaluate_runs(self, runs: Sequence[TokenRun]) -> list[Rows]:
        """Append tokens to several main sequences in one call; return the candidates that each run asks for.

        Nothing is appended if it raises an error.
        """

    def save_in(self, sequence: int, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of a main sequence as `save` does of the first."""

    def restore_in(self, sequence: int, saved: SavedState) -> None:
        """Restore any main sequence from a copy; if that fails, that one is empty."""
