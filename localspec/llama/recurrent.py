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
from contextlib import suppress

from localspec.errors import EngineError, UserError
from localspec.gguf import STATE_DRAFT, kept_states
from localspec.llama.checkpoints import TAIL, CheckpointedContext
from localspec.llama.context import Context
from localspec.llama.library import native
from localspec.llama.model import Model
from localspec.llama.windowed import WindowedContext
from localspec.types.candidates import Rows
from localspec.types.models import ModelOptions
from localspec.types.saved_states import SavedState

_MERGED = 8  # tokens after a mark that are cheaper to add to another call than to process alone


def slides(model: Model) -> bool:
    """Return whether a model has layers that look back no further than a window."""
    return bool(native().llama_model_n_swa(model.pointer) > 0)


def open_context(
    model: Model, options: ModelOptions, *, sequences: int = 1, seats: int = 1, rows: int = 128
) -> Context:
    """Open the context that a model needs; several seats are for models that remember every token."""
    if not model.recurrent:
        if slides(model) and sequences == seats == 1:
            return WindowedContext(model, options, rows=rows)
        return Context(model, options, sequences=sequences, seats=seats, rows=rows)
    return RecurrentContext(model, options, sequences=sequences, rows=rows)


class RecurrentContext(CheckpointedContext):
    """A context that goes back to saved states, and continues from there."""

    _why_lost = ": it has a recurrent state"

    def __init__(self, model: Model, options: ModelOptions, *, sequences: int = 1, rows: int = 128) -> None:
        self._extra_states = kept_states(model.header.architecture, sequences, options.longest_draft)
        super().__init__(model, options, sequences=sequences, rows=rows)

    def _open_native(self) -> None:
        super()._open_native()
        self._snapshots: int = native().llama_n_rs_seq(self.pointer)
        if self._snapshots < self._extra_states[0]:  # llama.cpp does not support them for this architecture
            self.close()
            self._extra_states = (0, 1)
            super()._open_native()
        marks = self._extra_states[1]
        sequences = self.max_sequences
        self.max_draft = STATE_DRAFT if marks else self._snapshots
        self.rereads = marks > 0 or kept_states(self.model.header.architecture, sequences)[1] > 0
        self._undoable = 0  # tokens at the end with valid snapshots
        self._texts: list[list[int]] = [[] for _ in range(sequences)]
        self._unread: list[int] = []  # the end of the main sequence, which llama.cpp has to read again
        self._marks: dict[int, int] = {}  # by length of the text: a spare sequence
        self._free_marks = list(range(sequences, sequences + marks))

    def allow_drafts(self, longest: int) -> None:
        """Take back drafts of up to `longest` tokens from now on; if memory is short, of half as many.

        llama.cpp fixes the number of states when it makes a context, so another one takes over the text. What
        `save` leaves out of it is lost, and branches become empty. Raises `UserError` or `EngineError`, with
        this context closed, if there is no memory even for the states so far.
        """
        architecture = self.model.header.architecture
        to_try = []
        longest = min(longest, STATE_DRAFT)
        while longest > self.max_draft:
            to_try.append(kept_states(architecture, self.max_sequences, longest))
            longest //= 2
        if not to_try:
            return
        text = [*self._texts[0]]
        saved = self.save(lambda _size: True)
        self.close()
        self._open_one_of((*to_try, self._extra_states))
        if saved is not None:
            self.restore(saved, text)
        if self.reader is not None:
            self.reader.reopen()

    def _open_one_of(self, to_try: Sequence[tuple[int, int]]) -> None:
        """Open with the first numbers of states for which there is memory."""
        *larger, last = dict.fromkeys(to_try)
        for states in larger:
            self._extra_states = states
            with suppress(UserError, EngineError):
                self._open_native()
                return
        self._extra_states = last
        self._open_native()

    def length(self, sequence: int = 0) -> int:
        """Return the number of tokens in a sequence."""
        return super().length(sequence) + (0 if sequence else len(self._unread))

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to the main sequence and return the candidates after the last `logits` of them.

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
        unread = self._unread
        self._unread = []
        self._undoable = 0
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
        """Append `tokens[i]` to `sequences[i]` in one pass and return the candidates after each."""
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
        return self._last_checkpoint(length)

    def _shorten(self, length: int, sequence: int) -> bool:
        """Go back into the last call, or to a saved state; a branch is emptied."""
        if sequence:
            self._remove(self._memory, sequence, -1, -1)
            self._lengths[sequence] = 0
            self._texts[sequence] = []
            return True
        if 0 < self._lengths[0] - length <= self._undoable:
            self._remove(self._memory, 0, length, -1)
            self._lengths[0] = length
            self._undoable = 0  # once: the next needs another call
        elif length < self._lengths[0]:
            self._go_back(length)
        self._unread = self._texts[0][self._lengths[0] : length]
        self._cut(length)
        return True

    def _go_back(self, length: int) -> None:
        """Restore the last saved state of at most `length` tokens."""
        mark = max((at for at in self._marks if at <= length), default=0)
        at = self._last_checkpoint(length)
        self._undoable = 0
        if not mark or mark < at:
            self._load_checkpoint(at)
            return
        self._lengths[0] = mark
        self._remove(self._memory, 0, -1, -1)
        self._copy(self._memory, self._marks[mark], 0, -1, -1)

    def _cut(self, length: int) -> None:
        """Drop saved states of a longer text."""
        del self._texts[0][length:]
        for at in [at for at in self._marks if at > length]:
            self._drop_mark(at)
        self._drop_checkpoints(length)
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

    def checkpoint(self, *, pinned: bool = False) -> None:
        """Keep this position reachable for `truncate` for long; if there are too many, drop the cheapest."""
        self._read_along()
        super().checkpoint(pinned=pinned)

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of the main sequence, its checkpoints among it; it lacks what is to be read again."""
        return None if self._window else super().save(room)

    def restore(self, saved: SavedState, text: Sequence[int]) -> None:
        """Restore the main sequence, with its text, from a copy and empty the branches."""
        super().restore(saved, text)
        if self._lengths[0]:
            self._texts[0] = [*text[: self._lengths[0]]]

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
        self._lengths[target] = end
        self._texts[target] = self._texts[source][:end]
        if target == 0:
            self._unread = []
            self._undoable = 0
