"""A context that goes back to copies of the part of its state that llama.cpp overwrites.

Recurrent layers have only the state of the last token, layers with a window only the latest tokens. A copy
(LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) is in the CPU's memory, for the next turn or an edit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

from localspec.gguf import CHECKPOINT_BYTES, CHECKPOINTS
from localspec.llama.context import Context, address_of, state_memory
from localspec.llama.library import native
from localspec.types.saved_states import SavedState, StateBytes

TAIL = 16  # tokens at the end of a prompt that the next one may spell otherwise: who speaks, `<think>`
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: without the cache that keeps all tokens


class CheckpointedContext(Context):
    """A context with copies of a part of its main sequence's state, by length of the text."""

    def _open_native(self) -> None:
        super()._open_native()
        self._checkpoints: dict[int, StateBytes] = {}
        self._pinned = 0  # the position of the one that goes last

    def checkpoint(self, *, pinned: bool = False) -> None:
        """Keep this position reachable for `truncate` for long; if there are too many, drop the cheapest."""
        at = self._lengths[0]
        api = native()
        if pinned:
            self._pinned = at
        if not at or at in self._checkpoints:
            return
        started = perf_counter()
        size = api.llama_state_seq_get_size_ext(self.pointer, 0, _PARTIAL)
        while self._checkpoints and not self._has_space(size):
            del self._checkpoints[self._cheapest()]
        state = state_memory(size)
        if state is not None and api.llama_state_seq_get_data_ext(
            self.pointer, address_of(state), state.size, 0, _PARTIAL
        ):
            self._checkpoints[at] = state
        self.busy_s += perf_counter() - started

    def _cheapest(self) -> int:
        """Return the position of the checkpoint from which the fewest tokens are to be read again without."""
        gaps = {end: end - before for before, end in pairwise([0, *sorted(self._checkpoints)])}
        if len(gaps) > 1:
            gaps.pop(self._pinned, None)
        return min(gaps, key=gaps.__getitem__)

    def _has_space(self, size: int) -> bool:
        taken = sum(state.nbytes for state in self._checkpoints.values())
        return len(self._checkpoints) < CHECKPOINTS and taken + size <= CHECKPOINT_BYTES

    def _last_checkpoint(self, length: int) -> int:
        """Return the position of the last checkpoint of at most `length` tokens, 0 without one."""
        return max((at for at in self._checkpoints if at <= length), default=0)

    def _load_checkpoint(self, at: int) -> None:
        """Restore a checkpoint, or an empty sequence if `at` is 0 or llama.cpp cannot."""
        if at:
            state = self._checkpoints[at]
            api = native()
            if api.llama_state_seq_set_data_ext(self._pointer, address_of(state), state.size, 0, _PARTIAL):
                self._remove(self._memory, 0, at, -1)  # of the cache of all tokens; the state ends there
                self._lengths[0] = at
                return
            self._checkpoints.clear()
        self._remove(self._memory, 0, -1, -1)
        self._lengths[0] = 0

    def _drop_checkpoints(self, length: int) -> None:
        """Drop the checkpoints of a longer text."""
        for at in [at for at in self._checkpoints if at > length]:
            del self._checkpoints[at]

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of the main sequence with its checkpoints."""
        kept = tuple(self._checkpoints.items())
        more = sum(state.nbytes for _, state in kept)
        saved = super().save(lambda size: room(size + more))
        return None if saved is None else replace(saved, checkpoints=kept)

    def restore_in(self, sequence: int, saved: SavedState) -> None:
        """Restore the main sequence from a copy with its checkpoints."""
        super().restore_in(sequence, saved)
        self._checkpoints = dict(saved.checkpoints) if self._lengths[0] else {}
