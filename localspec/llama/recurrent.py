"""The context of a model with recurrent state in all or some of its layers (a hybrid).

Such a state is only that of the last token. There are three ways back. None of them relies on llama.cpp's
report that it went back: after some calls it claims that for states that it has overwritten.

- Snapshots (`n_rs_seq`): of each of the last tokens of the last call; only for targets of some
  architectures, because llama.cpp's results are wrong if several sequences share snapshots.
- Marks: spare sequences that share the state until the main sequence continues (llama_memory_seq_cp, which
  copies nothing). Tokens after a mark are processed again with the next call.
- Checkpoints: copies in the CPU's memory at the beginning and end of texts, for the next turn or an edit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError
from localspec.gguf import CHECKPOINTS, STATE_DRAFT, kept_states
from localspec.llama.context import Context, Rows, SavedSequence, address_of
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.types.models import ModelOptions

TAIL = 16  # tokens at the end of a prompt that the next one may spell otherwise: who speaks, `<think>`
_MERGED = 8  # tokens after a mark that are cheaper to add to another call than to process alone
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the running state without the cache of tokens


def open_context(model: Model, options: ModelOptions, *, sequences: int = 1, rows: int = 128) -> Context:
    """Open the context that a model needs."""
    if not model.recurrent:
        return Context(model, options, sequences=sequences, rows=rows)
    for states in (kept_states(model.header.architecture, sequences), (0, 1)):
        context = RecurrentContext(model, options, sequences, rows, states)
        if context.max_draft:
            break
        context.close()  # llama.cpp does not support snapshots of this architecture
    return context


class RecurrentContext(Context):
    """A context that goes back to saved states, and continues from there."""

    _why_lost = ": it has a recurrent state"

    def __init__(
        self, model: Model, options: ModelOptions, sequences: int, rows: int, states: tuple[int, int]
    ) -> None:
        self._extra_states, marks = states, states[1]
        super().__init__(model, options, sequences=sequences, rows=rows)
        self._snapshots: int = native().llama_n_rs_seq(self.pointer)
        self.max_draft = STATE_DRAFT if marks else self._snapshots
        self.rereads = marks > 0
        self._undoable = 0  # tokens at the end with valid snapshots
        self._texts: list[list[int]] = [[] for _ in range(sequences)]
        self._unread: list[int] = []  # the end of the main sequence, which llama.cpp has to read again
        self._marks: dict[int, int] = {}  # by length of the text: a spare sequence
        self._free_marks = list(range(sequences, sequences + marks))
        self._checkpoints: dict[int, NDArray[np.uint8]] = {}  # by length of the text

    def length(self, sequence: int = 0) -> int:
        """Return the number of tokens in a sequence."""
        return super().length(sequence) + (0 if sequence else len(self._unread))

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to the main sequence and return the logits after the last `logits` of them.

        Raises `Cancelled` with the sequence at the last saved state, `ContextFullError` before anything is
        processed.
        """
        if logits > 1 or len(tokens) < 2 * TAIL:
            return self._read(tokens, logits)
        self._check_room(self.length() + len(tokens), 0)  # a prompt, or a piece of one
        if self.length() - max(self._checkpoints, default=0) > TAIL:
            self.checkpoint()
        self._read(tokens[:-TAIL], 0)
        self.checkpoint()
        return self._read(tokens[-TAIL:], logits)

    def _read(self, tokens: Sequence[int], logits: int) -> Rows:
        unread, self._unread, self._undoable = self._unread, [], 0
        text = self._texts[0]
        text += tokens
        try:
            rows = super().evaluate([*unread, *tokens] if unread else tokens, logits)
        finally:
            del text[self._lengths[0] :]
        self._undoable = min(self._snapshots, self._width - 1)  # there is none before the call's first token
        return rows

    def _read_along(self) -> None:
        """Read again what follows a mark."""
        if self._unread:
            self._read((), 0)

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append `tokens[i]` to `sequences[i]` in one pass and return one row of logits for each."""
        self._read_along()
        self._undoable = 0
        rows = super().step(tokens, sequences)
        for token, sequence in zip(tokens, sequences, strict=True):
            self._texts[sequence].append(token)
        return rows

    def rewindable(self, length: int) -> int:
        """Return the most of the main sequence's first `length` tokens to which `truncate` can go back."""
        if length >= self._lengths[0] - self._undoable or any(mark <= length for mark in self._marks):
            return length
        return max((kept for kept in self._checkpoints if kept <= length), default=0)

    def _shorten(self, length: int, sequence: int) -> bool:
        """Go back into the last call, or to a saved state; a branch is emptied."""
        if sequence:
            self._remove(self._memory, sequence, -1, -1)
            self._lengths[sequence], self._texts[sequence] = 0, []
            return True
        if 0 < self._lengths[0] - length <= self._undoable:
            self._remove(self._memory, 0, length, -1)
            self._lengths[0], self._undoable = length, 0  # once: the next needs another call
        elif length < self._lengths[0]:
            self._go_back(length)
        self._unread = self._texts[0][self._lengths[0] : length]
        self._cut(length)
        return True

    def _go_back(self, length: int) -> None:
        """Restore the last saved state of at most `length` tokens."""
        kept = [at for at in (*self._marks, *self._checkpoints) if at <= length]
        at = max(kept, default=0)
        self._lengths[0], self._undoable = at, 0
        if at in self._marks:
            self._remove(self._memory, 0, -1, -1)
            self._copy(self._memory, self._marks[at], 0, -1, -1)
            return
        if at:
            state, api = self._checkpoints[at], native()
            if api.llama_state_seq_set_data_ext(self._pointer, address_of(state), state.size, 0, _PARTIAL):
                self._remove(self._memory, 0, at, -1)  # of the cache of tokens; the state ends there
                return
            self._checkpoints.clear()
        self._remove(self._memory, 0, -1, -1)
        self._lengths[0] = 0

    def _cut(self, length: int) -> None:
        """Drop saved states of a longer text."""
        del self._texts[0][length:]
        for at in [at for at in self._marks if at > length]:
            self._drop_mark(at)
        for at in [at for at in self._checkpoints if at > length]:
            del self._checkpoints[at]
        if self.reader is not None:  # it has to see the processed tokens again
            self.reader.cut(self._lengths[0])

    def _restore(self, sequence: int) -> None:
        """Go back to a saved state: llama.cpp undoes a failed call wrongly."""
        if sequence:
            self._shorten(0, sequence)
            return
        if self.max_sequences > 1:  # the call may have moved the states of others, half-way
            for at in list(self._marks):
                self._drop_mark(at)
        self._go_back(self._lengths[0])
        self._cut(self._lengths[0])

    def mark(self) -> None:
        """Keep this position reachable for `truncate`, until later marks replace it."""
        if len(self._unread) > _MERGED:
            self._read_along()
        at = self._lengths[0]
        if self._unread or at in self._marks or not at or self._snapshots:
            return
        if not self._free_marks:
            self._drop_mark(min(self._marks))
        self._marks[at] = self._free_marks.pop()
        self._copy(self._memory, 0, self._marks[at], -1, -1)

    def _drop_mark(self, at: int) -> None:
        mark = self._marks.pop(at)
        self._remove(self._memory, mark, -1, -1)
        self._free_marks.append(mark)

    def checkpoint(self) -> None:
        """Keep this position reachable for `truncate` for long; if there are too many, drop the cheapest."""
        self._read_along()
        at, api = self._lengths[0], native()
        if not at or at in self._checkpoints:
            return
        if len(self._checkpoints) == CHECKPOINTS:
            ends = sorted(self._checkpoints)
            gaps = {end: end - before for before, end in pairwise([0, *ends])}
            del self._checkpoints[min(gaps, key=gaps.__getitem__)]
        started = perf_counter()
        state = np.empty(api.llama_state_seq_get_size_ext(self.pointer, 0, _PARTIAL), np.uint8)
        if api.llama_state_seq_get_data_ext(self.pointer, address_of(state), state.size, 0, _PARTIAL):
            self._checkpoints[at] = state
        self.busy_s += perf_counter() - started

    def save(self, room: Callable[[int], bool]) -> SavedSequence | None:
        """Return a copy of the main sequence, its checkpoints among it; it lacks what is to be read again."""
        text, kept = self._texts[0][: self._lengths[0]], self._checkpoints.copy()
        more = sum(state.nbytes for state in kept.values())
        saved = None if self._slides else super().save(lambda size: room(size + more))
        if saved is None:
            return None

        def restore() -> None:
            saved.restore()
            if self._lengths[0]:
                self._texts[0], self._checkpoints = text.copy(), kept.copy()

        return replace(saved, size=saved.size + more, restore=restore)

    def branchable(self, end: int) -> bool:
        """Return whether a branch can share the main sequence up to position `end`."""
        return end in self._marks or (end == self._lengths[0] and not self._unread)

    def _lengthen(self, target: int, source: int, end: int) -> None:
        if end == self._lengths[source] and not (source == 0 and self._unread):
            origin = source
        elif source == 0 and end in self._marks:
            origin = self._marks[end]
        else:
            raise EngineError(
                f"{self.model.name} cannot branch at token {end} of {self.length(source)}{self._why_lost}"
            )
        self._remove(self._memory, target, -1, -1)
        self._copy(self._memory, origin, target, -1, -1)
        self._lengths[target], self._texts[target] = end, self._texts[source][:end]
        if target == 0:
            self._unread, self._undoable = [], 0
