"""The context of a model with sliding windows, whose layers need only the tokens that a window can reach.

llama.cpp gives a cell away only if it is masked for the next token, so the end of a micro-batch can always
be taken back. Further back llama.cpp claims to go and is wrong; `Context.rewindable` asks for the first
position that is left. Earlier texts come back from checkpoints. Branches need full caches: shared cells stay
for good. Full caches need checkpoints too, because a saved copy lacks what the windows have left behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.llama.checkpoints import TAIL, CheckpointedContext
from localspec.llama.model import Model
from localspec.types.candidates import Rows
from localspec.types.models import ModelOptions


class WindowedContext(CheckpointedContext):
    """A context of one sequence, with window-sized caches unless full ones are asked for."""

    _why_lost = ": its windows are past that"

    def __init__(self, model: Model, options: ModelOptions, *, sequences: int = 1, rows: int = 128) -> None:
        self.is_windowed = not options.swa_full
        super().__init__(model, options, sequences=sequences, rows=rows)
        if self.is_windowed:
            # a later micro-batch of a call may take cells of the first
            self.max_draft = self._micro_batch - 1

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to the main sequence and return the candidates after the last `logits` of them.

        The end of a prompt gets a checkpoint: the next one may leave out what the model thinks after it.
        """
        if logits != 1 or len(tokens) < 2 * TAIL:
            return super().evaluate(tokens, logits)
        self._check_room(self.length() + len(tokens), 0)
        super().evaluate(tokens[:-TAIL], 0)
        self.checkpoint()
        return super().evaluate(tokens[-TAIL:], logits)

    def rewindable(self, length: int) -> int:
        """Return the most of the main sequence's first `length` tokens to which `truncate` can go back."""
        reached = super().rewindable(length)
        return reached if reached == length else self._last_checkpoint(length)

    def _shorten(self, length: int, sequence: int) -> bool:
        if super().rewindable(length) == length:
            is_shorter = super()._shorten(length, sequence)
        else:
            is_shorter = True  # more so if the checkpoint cannot be restored
            self._load_checkpoint(length)
            if self.reader is not None:
                self.reader.cut(self._lengths[0])
        self._drop_checkpoints(self._lengths[0])
        return is_shorter
