"""A model's KV cache and the calls that fill it: the engines' `LanguageModel` on llama.cpp."""

from __future__ import annotations

import ctypes
import mmap
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.errors import Cancelled, ContextFullError, EngineError, UserError
from localspec.gguf import kv_types
from localspec.llama import backends, choosing, library
from localspec.llama.adapters import use_adapters
from localspec.llama.backends import function
from localspec.llama.choosing import SIZES, Chains
from localspec.llama.cores import physical_cores
from localspec.llama.library import MAX_SEQUENCES, Native, abort_flag, native
from localspec.llama.memory import free_memory
from localspec.llama.model import Model
from localspec.types.candidates import ChosenRows, FullRows, Rows, TokenRun
from localspec.types.models import FLOAT_TYPES, ModelOptions
from localspec.types.saved_states import SavedState, StateBytes

_OK = 0
_NO_CELL = 1
ABORTED = 2
_SET = b"\1"
_CLEAR = b"\0"
STOPPABLE_S = 0.1  # of a call that reads a prompt on a GPU, and cannot be stopped
# tokens of a prompt that a GPU reads in one call
_FIRST_PIECE = 64
_MIN_PIECE = 32
# of a call: in seconds, and times the fastest of other sizes
_LONG_S = 2.0
_MUCH_LONGER = 8


class SequenceListener(Protocol):
    """Who hears what sequence 0 of a context reads and forgets."""

    def read(self, start: int, tokens: Sequence[int]) -> None:
        """Take the tokens of a native call from position `start` on, right after it."""

    def cut(self, length: int) -> None:
        """Forget what depends on tokens from position `length` on."""

    def reopen(self) -> None:
        """Forget everything, and refer to the context that llama.cpp has now."""


@dataclass(frozen=True, slots=True)
class HeadLink:
    """More options of a head's context: its target's context, and the width of hidden states."""

    target: Context
    width: int
    is_mtp: bool


class Context:
    """The state of one model: sequence 0 is the main sequence, the others are branches.

    With several `seats`, the last sequences are main sequences of other conversations, which share the cells:
    `seat` says which. Unless the options say `kv_unified`, each has an equal part of the context to itself,
    and there are no branches. Calls that name no sequence are about the first.
    One thread at a time; only `cancel` and `first_call_s` may be called from another.
    On the CPU a cancel stops native code within one graph node, elsewhere between calls: a prompt is read
    in calls that a GPU ends within `STOPPABLE_S`, or what `stop_within` says.
    `rows` limits the rows of logits of one call, for which memory is allocated.
    """

    is_head = False
    _extra_states = (0, 0)  # snapshots and spare sequences: see `kept_states`
    is_windowed = False  # whether layers with a window keep only the tokens that it can reach
    _why_lost = ""  # what it cannot go back to

    def __init__(
        self,
        model: Model,
        options: ModelOptions,
        *,
        sequences: int = 1,
        seats: int = 1,
        rows: int = 128,
        link: HeadLink | None = None,
    ) -> None:
        api = native()
        self.model = model
        self.vocabulary_size = model.vocabulary.size
        self.is_unified = options.kv_unified or seats == 1
        # On the CPU 64 rows attend at once, to all cells that any of them may see: one row of another
        # conversation beside a long piece costs as much as 64. A call for it alone reads the weights again.
        self.reads_apart = not model.cards
        context = options.context or model.training_context
        self.context_size = context if self.is_unified else context // seats  # of one sequence in tokens
        self.max_sequences = sequences  # the main sequence and its branches
        self.seats = seats
        self.max_draft = self.context_size  # tokens of the last call that can be taken back
        self.rereads = False
        self.busy_s = 0.0  # in native code since the context was opened
        self.reader: SequenceListener | None = None
        self.options = options
        self.adapters = tuple(adapter.scale for adapter in options.adapters)
        """The scales of the model's LoRA adapters."""
        self._most_rows = rows
        self._link = link
        self._few = 1  # tokens of a call for which the first of these numbers counts
        self._threads = (options.threads or physical_cores(),) * 2
        self._window: int = api.llama_model_n_swa(model.pointer)  # tokens, 0 without one
        self._flag, self._abort = abort_flag(api)
        self._decode = api.llama_decode
        self._remove = api.llama_memory_seq_rm
        self._copy = api.llama_memory_seq_cp
        # their addresses alone
        self._logits = function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)
        of_row = (ctypes.c_void_p, ctypes.c_int32)
        self._chosen_ids = function("llama_get_sampled_candidates_ith", ctypes.c_void_p, *of_row)
        self._chosen_logits = function("llama_get_sampled_logits_ith", ctypes.c_void_p, *of_row)
        self._can_choose = choosing.output_on_card(model)
        self._no_rows = FullRows(np.empty((0, self.vocabulary_size), np.float32))
        self._sizes: dict[int, float] = {}  # of calls so far, with the seconds of the last but for the first
        self._since: float | None = None  # a call is in progress,
        self._is_new = False  # of a size that is not among them
        self._open_native()
        self._card_alone = bool(model.cards) and "CPU" not in model.info().devices
        self._stoppable_s = STOPPABLE_S
        self._pieces: dict[float, int] = {}  # tokens that a GPU reads in one call, by how long that may take
        model.close_before(self.close)

    def _open_native(self) -> None:
        """Make llama.cpp's context, with empty sequences; raises `UserError` or `EngineError`."""
        api = native()
        model = self.model
        options = self.options
        link = self._link
        snapshots, spare = self._extra_states
        used = self.max_sequences + self.seats - 1
        sequences = used + spare
        _check_options(options, sequences)
        cells = self._cells_of(used)
        chains = None
        rows = self._most_rows
        if self._can_choose:  # they copy the rows once more: half as many take as much memory
            chains = Chains(SIZES[0], self.vocabulary_size, used)
            rows = min(rows, _MIN_ROWS)
        parameters = context_parameters(options, cells, sequences, rows)
        if chains is not None:
            parameters.samplers = chains.configuration
            parameters.n_samplers = used
            parameters.n_outputs_max_per_seq = parameters.n_outputs_max
        parameters.kv_unified = self.is_unified
        parameters.n_rs_seq = snapshots
        parameters.swa_full = not self.is_windowed
        if link is not None:
            parameters.ctx_other = link.target.pointer
            parameters.ctx_type = int(link.is_mtp)
        parameters.abort_callback = self._abort
        parameters.abort_callback_data = ctypes.addressof(self._flag)
        with library.problems_of_this_thread() as problems:
            pointer: int | None = api.llama_init_from_model(model.pointer, parameters)
        if not pointer:
            raise _creation_error(model, options, self.context_size, problems)
        self._pointer: int | None = pointer
        self._chains = chains
        self._held_chains = [chains]
        self._free = weakref.finalize(self, _free, pointer, model, self._flag, self._held_chains)
        if chains is not None and not chains.work:
            self._can_choose = False
            self.choose(None)
        self._memory = api.llama_get_memory(pointer)
        self._settle = backends.waiting_for(pointer, model.cards)
        self.max_rows: int = parameters.n_outputs_max  # of logits that one call can give
        self._micro_batch: int = parameters.n_ubatch
        width = link.width if link else 0
        self.max_tokens: int = parameters.n_batch  # of one call
        self.cells = self._cells_of(self.seats)
        self._batch = Batch(parameters.n_batch, used, self.context_size, width)
        self._lengths = [0] * used
        self._threads_now: int = parameters.n_threads
        self._begin()

    def _cells_of(self, sequences: int) -> int:
        """Return the cells of some of the sequences together."""
        if not self.is_unified:
            return self.context_size * sequences
        return self.context_size + (sequences - 1) * _CELLS_PER_BRANCH

    def _begin(self) -> None:
        """Use the adapters that are chosen, and forget calls of an earlier context."""
        if self.adapters:
            use_adapters(self._pointer or 0, self.model.adapters, self.adapters)
        self._width = 0  # tokens of the last call that read a run
        self._addresses: tuple[int | None, ...] = ()  # of the last call's logits, after those of their ids
        self._views: dict[tuple[int, type], NDArray[Any]] = {}  # of rows at an address

    @property
    def name(self) -> str:
        """Return the model's name."""
        return self.model.name

    @property
    def pointer(self) -> int:
        """Return the native context; raise `EngineError` once it is closed."""
        self._check_open()
        return self._pointer or 0

    def length(self, sequence: int = 0) -> int:
        """Return the number of tokens in a sequence."""
        return self._lengths[self._checked(sequence)]

    def choose(self, count: int | None) -> None:
        """Return only the `count` likeliest tokens of each row from the next call on, if the GPU can.

        None returns all logits. A change takes some milliseconds, because llama.cpp makes its graph again.
        """
        size = choosing.fitting(count) if self._can_choose else 0
        known = self._chains
        if known is not None and not size:
            known.unset(self.pointer)
            self._chains = None
        elif size and (known is None or known.limit < size):
            self._chains = Chains(size, self.vocabulary_size, len(self._lengths))
            self._chains.set(self.pointer)
        self._held_chains[:] = [self._chains]

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to the main sequence and return the candidates after the last `logits` of them.

        Raises `Cancelled` with the whole micro-batches so far in place, `ContextFullError` before anything
        is read.
        """
        return self.evaluate_in(0, tokens, logits)

    def seat(self, number: int) -> int:
        """Return the main sequence of a seat."""
        return self.max_sequences + number - 1 if number else 0

    def evaluate_in(self, sequence: int, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to a seat's main sequence, as `evaluate` does to the first."""
        total = len(tokens)
        self._check_call(total, logits, sequence)
        done = 0
        while done < total:
            count = self._chunk(total - done, logits)
            rows = logits if done + count == total else 0
            part = tokens[done : done + count]
            start = self._lengths[sequence]
            self._batch.fill_run(part, start, rows, sequence)
            self._run((sequence,), rows, count)
            self._lengths[sequence] += count
            self._width = count
            done += count
            if self.reader is not None:
                started = perf_counter()
                self.reader.read(start, part)
                self.busy_s += perf_counter() - started
        return self._rows(logits)

    def evaluate_runs(self, runs: Sequence[TokenRun]) -> list[Rows]:
        """Append tokens to several seats' main sequences in one call; return the candidates for each run.

        They are valid until the next call. `max_tokens` and `max_rows` limit the sums. Nothing is appended if
        it raises `Cancelled`, `ContextFullError` or `EngineError`.
        """
        total = sum(len(run.tokens) for run in runs)
        rows = sum(run.rows for run in runs)
        if not 0 < total <= self.max_tokens or rows > self.max_rows:
            most = f"{self.max_tokens} tokens and {self.max_rows} rows"
            raise ValueError(f"{total} tokens with {rows} rows in one call; the most is {most}")
        starts = [self._lengths[self._checked(run.sequence)] for run in runs]
        for run, start in zip(runs, starts, strict=True):
            self._check_room(start + len(run.tokens), run.sequence)
        self._batch.fill_runs(runs, starts)
        self._run([run.sequence for run in runs], rows, total)
        for run in runs:
            self._lengths[run.sequence] += len(run.tokens)
        found = self._rows(rows)
        ends = accumulate(run.rows for run in runs)
        return [found.part(end - run.rows, run.rows) for run, end in zip(runs, ends, strict=True)]

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append `tokens[i]` to `sequences[i]` in one pass and return the candidates after each.

        A sequence may be named more than once: its tokens then follow each other.
        """
        count = len(tokens)
        if count != len(sequences) or not 0 < count <= self.max_rows:
            raise ValueError(f"{count} tokens for {len(sequences)} sequences; the most is {self.max_rows}")
        grown: dict[int, int] = {}
        positions = []
        for sequence in sequences:
            position = grown.get(sequence)
            if position is None:
                position = self._lengths[self._checked(sequence)]
            positions.append(position)
            grown[sequence] = position + 1
        for sequence, length in grown.items():
            self._check_room(length, sequence)
        self._batch.fill_fan(tokens, sequences, positions)
        self._run(grown, count, count)
        for sequence, length in grown.items():
            self._lengths[sequence] = length
        return self._rows(count)

    def rewindable(self, length: int) -> int:
        """Return the most of the main sequence's first `length` tokens to which `truncate` can go back."""
        if not self._window or not 0 < length < self._lengths[0]:
            return length
        # the token after that looks back this far; llama.cpp would not say that cells are gone
        first: int = native().llama_memory_seq_pos_min(self._memory, 0)
        return length if 0 <= first <= max(0, length - self._window + 1) else 0

    def mark(self) -> None:
        """Keep this position reachable for `truncate` for some rounds; here it always is."""

    def checkpoint(self, *, pinned: bool = False) -> None:
        """Keep this position reachable for `truncate` for long; here it always is."""

    def branchable(self, end: int) -> bool:
        """Return whether a branch can share the main sequence up to position `end`."""
        return end <= self._lengths[0]

    def follow(self, *, on: bool, kept: int = 0) -> None:
        """Do nothing: this is not a head."""

    def truncate(self, length: int, sequence: int = 0) -> None:
        """Forget everything of a sequence from position `length` on.

        Nothing is left where a checkpoint turns out to be useless. Raises `EngineError`, with the sequence as
        it was, for less than `rewindable` says.
        """
        held = self.length(sequence)
        if not 0 <= length <= held:
            raise ValueError(f"sequence {sequence} holds {held} tokens and cannot be cut to {length}")
        if length < held:
            self._check_open()
            is_lost = not sequence and self.rewindable(length) != length
            if is_lost or not self._shorten(length, sequence):
                raise EngineError(
                    f"{self.model.name} cannot go back to token {length} of {held}{self._why_lost}"
                )

    def _shorten(self, length: int, sequence: int) -> bool:
        """Forget the end of a sequence; return whether llama.cpp did."""
        if not self._remove(self._memory, sequence, length or -1, -1):
            return False
        self._lengths[sequence] = length
        if self.reader is not None and not sequence:
            self.reader.cut(length)
        return True

    def share(self, source: int, target: int, end: int) -> None:
        """Share the cells of `source` from `target`'s end up to position `end` (exclusive) with `target`."""
        held = self.length(source)
        start = self.length(target)
        if not start <= end <= held:
            raise ValueError(f"{end} is outside {start} to {held}, the ends of {target} and {source}")
        if start < end and source != target:
            self._check_open()
            self._lengthen(target, source, end)

    def _lengthen(self, target: int, source: int, end: int) -> None:
        """Extend `target` up to position `end` with the cells of `source`."""
        self._copy(self._memory, source, target, self._lengths[target], end)
        self._lengths[target] = end

    def save(self, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of the main sequence; None if memory is short or `room(bytes)` is False."""
        for branch in range(1, self.max_sequences):
            self.truncate(0, branch)
        return self.save_in(0, room)

    def save_in(self, sequence: int, room: Callable[[int], bool]) -> SavedState | None:
        """Return a copy of a seat's main sequence, as `save` does of the first."""
        length = self._lengths[sequence]
        api = native()
        size = api.llama_state_seq_get_size(self.pointer, sequence)
        state = state_memory(size) if length and room(size) else None
        if state is None:
            return None
        if not api.llama_state_seq_get_data(self._pointer, address_of(state), size, sequence):
            return None
        return SavedState(length, state)

    def restore(self, saved: SavedState, text: Sequence[int]) -> None:
        """Restore the main sequence, with its text, from a copy and empty the branches.

        All is empty if that fails.
        """
        self.restore_in(0, saved)

    def restore_in(self, sequence: int, saved: SavedState) -> None:
        """Restore a seat's main sequence from a copy; leave it empty if llama.cpp cannot."""
        self._check_open()
        state = saved.state
        for branch in range(1, self.max_sequences):
            self.truncate(0, branch)
        self.truncate(0, sequence)
        if native().llama_state_seq_set_data(self._pointer, address_of(state), state.size, sequence):
            self._lengths[sequence] = saved.length

    def first_call_s(self) -> float | None:
        """Return for how long a GPU has been at a call unlike any before, if longer than calls take.

        Backends like Vulkan, Metal and SYCL compile programs at their first use, for up to minutes.
        """
        since = self._since
        if since is None or not self._is_new or not self.model.cards:
            return None
        taken = perf_counter() - since
        usual_s = min((seconds for seconds in self._sizes.copy().values() if seconds), default=0.0)
        return taken if taken > max(_LONG_S, _MUCH_LONGER * usual_s) else None

    def call_s(self) -> float:
        """Return for how long a native call has been in progress, 0 without one; from any thread."""
        since = self._since
        return 0.0 if since is None else perf_counter() - since

    def longest_call_s(self) -> float:
        """Return the last duration of the slowest call size; from any thread."""
        return max(self._sizes.copy().values(), default=0.0)

    def adapt(self, scales: tuple[float, ...]) -> None:
        """Use the model's LoRA adapters with other scales from the next call on; what was read stays."""
        if scales != self.adapters:
            use_adapters(self.pointer, self.model.adapters, scales)
            self.adapters = scales

    def cancel(self) -> None:
        """Stop the running or the next call with `Cancelled`; callable from any thread."""
        self._flag[0] = _SET

    def resume(self) -> None:
        """Take back a `cancel` that no call has noticed."""
        self._flag[0] = _CLEAR

    def stop_within(self, seconds: float = STOPPABLE_S) -> None:
        """Set the time within which a GPU is to end each call that reads a prompt."""
        self._stoppable_s = seconds

    def set_threads(self, threads: int, several: int | None = None, few: int = 1) -> None:
        """Set the number of CPU threads for calls of up to `few` tokens, and `several` for larger ones."""
        if threads < 1:
            raise ValueError(f"{threads} threads cannot compute")
        self._check_open()
        self._few = few
        self._threads = threads, several or threads

    def close(self) -> None:
        """Free the KV cache; a second call does nothing."""
        self._pointer = None
        self._views = {}
        self._free()

    def _check_call(self, total: int, logits: int, sequence: int = 0) -> None:
        if not total:
            raise ValueError("there are no tokens to evaluate")
        if not 0 <= logits <= min(total, self.max_rows):
            raise ValueError(f"{logits} rows of logits from {total} tokens; the most is {self.max_rows}")
        self._check_room(self._lengths[self._checked(sequence)] + total, sequence)

    def _check_open(self) -> None:
        if self._pointer is None:
            raise EngineError(f"the context of {self.model.name} is closed")

    def _checked(self, sequence: int) -> int:
        if not 0 <= sequence < len(self._lengths):
            raise ValueError(f"there is no sequence {sequence} among {len(self._lengths)}")
        return sequence

    def _check_room(self, length: int, sequence: int) -> None:
        if length > self.context_size:
            is_branch = 0 < sequence < self.max_sequences
            place = f"branch {sequence}" if is_branch else "the conversation"
            larger = " or open the model with a larger context"
            raise ContextFullError(
                f"{place} would be {length:,} tokens long; {self.model.name} holds {self.context_size:,}",
                "shorten the text" + larger * (self.context_size < self.model.training_context),
            )

    def _piece(self) -> int:
        """Return the number of tokens of a prompt to read in one call."""
        if not self._card_alone:
            return self._micro_batch
        return self._pieces.get(self._stoppable_s, min(_FIRST_PIECE, self._micro_batch))

    def _chunk(self, left: int, rows: int) -> int:
        """Return the number of tokens for the next call: a piece, but all rows come from the last call."""
        piece = self._piece()
        return left if left <= max(piece, rows) else min(piece, left - max(rows, 1))

    def _fit_piece(self, seconds: float) -> None:
        """Read larger or smaller pieces after one that took so long; a slow first call is made up for."""
        piece = self._piece()
        most_s = self._stoppable_s
        if seconds > most_s:
            self._pieces[most_s] = max(_MIN_PIECE, piece // 2)
        elif seconds < most_s / 3:
            self._pieces[most_s] = min(self._micro_batch, piece * 2)

    def _run(self, touched: Iterable[int], rows: int, count: int) -> None:
        self._check_open()
        if self._flag[0] != _CLEAR:
            self._notice_cancel()
        if (threads := self._threads[count > self._few]) != self._threads_now:
            self._threads_now = threads
            native().llama_set_n_threads(self._pointer, threads, threads)
        self._is_new = is_new = count not in self._sizes
        self._since = start = perf_counter()
        code = self._decode(self._pointer, self._batch.native)
        if code == _OK and rows:
            self._addresses = self._results(rows)  # which waits until all is computed
        elif code == _OK:
            self._settle()
        seconds = perf_counter() - start
        self.busy_s += seconds
        self._sizes[count] = 0.0 if is_new else seconds
        self._since = None
        if self._card_alone and count == self._piece():
            self._fit_piece(seconds)
        if code != _OK:
            self._recover(code, touched)

    def _recover(self, code: int, touched: Iterable[int]) -> None:
        """Undo a failed call, and raise its error."""
        if code == _NO_CELL:  # llama.cpp has changed nothing
            raise ContextFullError(
                f"the KV cache of {self.model.name} has no space for another token",
                "open the model with a larger context",
            )
        if code != -1:  # -1 refuses the whole batch; other codes leave cells that were never computed
            for sequence in touched:
                self._restore(sequence)
        if code == ABORTED:
            self._notice_cancel()
        raise EngineError(f"llama.cpp failed to decode (code {code}); its log says why")

    def _restore(self, sequence: int) -> None:
        self._remove(self._memory, sequence, self._lengths[sequence] or -1, -1)

    def _notice_cancel(self) -> None:
        self._flag[0] = _CLEAR
        raise Cancelled("the computation was stopped")

    def _results(self, rows: int) -> tuple[int | None, ...]:
        if self._chains is None:
            return (self._logits(self._pointer),)
        return self._chosen_ids(self._pointer, -rows), self._chosen_logits(self._pointer, -rows)

    def _rows(self, count: int) -> Rows:
        if not count:
            return self._no_rows
        if self._chains is None:
            (logits,) = self._addresses
            return FullRows(self._view(logits, ctypes.c_float)[:count])
        size = self._chains.size
        (ids, logits) = self._addresses
        return ChosenRows(
            self._view(ids, ctypes.c_int32)[:count, :size], self._view(logits, ctypes.c_float)[:count, :size]
        )

    def _view(self, address: int | None, kind: type[Native]) -> NDArray[Any]:
        """Return rows as wide as the vocabulary at an address; llama.cpp moves them with their number."""
        if not address:
            raise EngineError("llama.cpp gave no logits")
        view = self._views.get((address, kind))
        if view is None:
            numbers = (kind * (self.max_rows * self.vocabulary_size)).from_address(address)
            view = np.ctypeslib.as_array(numbers).reshape(-1, self.vocabulary_size)
            self._views[address, kind] = view
        return view


def state_memory(size: int) -> StateBytes | None:
    """Return memory for a saved state; None if too little would be left.

    It goes back to the system with its array.
    """
    if not 0 < size < free_memory() // 2:
        return None
    try:
        if sys.platform != "linux":
            return np.frombuffer(mmap.mmap(-1, size), np.uint8)
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    with suppress(OSError):  # without large pages; touching small ones takes most of a copy
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def address_of(state: StateBytes) -> ctypes.Array[ctypes.c_uint8]:
    """Return bytes as llama.cpp takes them."""
    return (ctypes.c_uint8 * state.size).from_address(state.ctypes.data)


def _free(pointer: int, _model: Model, _flag: Native, _chains: list[Chains | None]) -> None:
    """Free a context; its model, the flag that it polls and its chains live as long as it does."""
    native().llama_free(pointer)


class Batch:
    """A `llama_batch` of up to `capacity` tokens, each in one sequence, with `hidden` numbers for each."""

    def __init__(self, capacity: int, sequences: int, positions: int, hidden: int = 0) -> None:
        api = native()
        self.hidden = np.zeros((capacity, hidden), np.float32)
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._first = self._tokens.data, self._positions.data, self._wanted.data
        self._ids = np.arange(sequences, dtype=np.int32)
        self._id_addresses = self._ids.ctypes.data + np.arange(sequences, dtype=np.uintp) * self._ids.itemsize
        self._pointers = np.full(capacity, self._id_addresses[0], np.uintp)
        self._fanned = 0  # number of tokens at the front that may belong to other sequences than this one
        self._sequence = 0
        self._counting = np.arange(positions, dtype=np.int32)
        self.native: Native = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32),
            embd=_pointer(self.hidden, ctypes.c_float) if hidden else None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    def fill_run(
        self, tokens: Sequence[int] | NDArray[np.int32], start: int, rows: int, sequence: int = 0
    ) -> None:
        """Put a run of a sequence's tokens from position `start`; the last `rows` get logits."""
        count = len(tokens)
        if sequence != self._sequence:
            self._pointers[:] = self._id_addresses[sequence]
            self._sequence = sequence
            self._fanned = 0
        if count == 1:  # most calls: single numbers are stored ten times as fast as slices
            token, position, wanted = self._first
            token[0] = tokens[0]
            position[0] = start
            wanted[0] = rows
        else:
            self._tokens[:count] = tokens
            self._positions[:count] = self._counting[start : start + count]
            self._wanted[: count - rows] = 0
            self._wanted[count - rows : count] = 1
        if self._fanned:
            self._pointers[: self._fanned] = self._id_addresses[sequence]
            self._fanned = 0
        self.native.n_tokens = count

    def fill_runs(self, runs: Sequence[TokenRun], starts: Sequence[int]) -> None:
        """Put one run after another, each from its position on."""
        begin = 0
        for (sequence, tokens, rows), start in zip(runs, starts, strict=True):
            count = len(tokens)
            end = begin + count
            self._tokens[begin:end] = tokens
            self._positions[begin:end] = self._counting[start : start + count]
            self._pointers[begin:end] = self._id_addresses[sequence]
            self._wanted[begin:end] = 0
            self._wanted[end - rows : end] = 1
            begin = end
        self._fanned = max(self._fanned, begin)
        self.native.n_tokens = begin

    def fill_fan(self, tokens: Sequence[int], sequences: Sequence[int], positions: Sequence[int]) -> None:
        """Put one token for each entry of `sequences`; every one gets logits."""
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._pointers[:count] = self._id_addresses[list(sequences)]
        self._wanted[:count] = 1
        self._fanned = max(self._fanned, count)
        self.native.n_tokens = count


def _pointer(array: NDArray[Any], kind: Native) -> Native:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


_FLASH = {None: -1, False: 0, True: 1}
_MIN_ROWS = 64  # of one call: drafts are judged, calls timed and texts scored in runs of up to this
_CELLS_PER_BRANCH = 32  # besides the main sequence's, for drafts after the shared text


def _check_options(options: ModelOptions, sequences: int) -> None:
    """Refuse sizes that cannot work: llama.cpp would end the process."""
    if options.context < 0:
        raise UserError(f"a context of {options.context} tokens is impossible", "0 takes the model's own")
    if options.batch < 1 or options.micro_batch < 1:
        raise UserError(
            f"batches of {options.batch} and {options.micro_batch} tokens are too small", "give 1 or more"
        )
    if options.threads < 0:
        raise UserError(f"{options.threads} threads cannot compute", "0 takes every physical core")
    if not 1 <= sequences <= MAX_SEQUENCES:
        raise UserError(f"{sequences} sequences are impossible", f"llama.cpp supports 1 to {MAX_SEQUENCES}")
    if options.kv_type_v not in FLOAT_TYPES and options.flash_attention is False:
        raise UserError(
            f"values of type {options.kv_type_v} need flash attention", "turn it on, or use f16 for values"
        )


def context_parameters(options: ModelOptions, cells: int, sequences: int, rows: int) -> Native:
    """Return llama.cpp's parameters for a context; `cells` are those of all sequences."""
    parameters = native().llama_context_default_params()
    # llama.cpp aborts the process where one call's rows or tokens exceed these
    batch = max(options.batch, sequences, _MIN_ROWS)
    parameters.n_ctx = cells
    parameters.n_batch = batch
    parameters.n_ubatch = min(options.micro_batch, max(options.batch, sequences))
    parameters.n_seq_max = sequences
    parameters.n_outputs_max = min(batch, max(rows, sequences))  # a row is a whole vocabulary
    parameters.n_threads = parameters.n_threads_batch = options.threads or physical_cores()
    parameters.flash_attn_type = _FLASH[options.flash_attention]
    parameters.type_k = kv_types()[options.kv_type_k][0]
    parameters.type_v = kv_types()[options.kv_type_v][0]
    parameters.kv_unified = True  # else branches cannot share cells, nor conversations
    parameters.no_perf = True
    return parameters


def _creation_error(model: Model, options: ModelOptions, context: int, problems: list[str]) -> Exception:
    reason = library.last_problem(problems)
    if "alloc" in reason or "out of memory" in reason:
        return UserError(
            f"not enough memory for {context:,} tokens of context: {reason}",
            "choose a smaller context or a smaller type for the KV cache",
        )
    if (options.kv_type_k, options.kv_type_v) != ("f16", "f16"):
        return UserError(
            f"{model.name} cannot use keys as {options.kv_type_k}, values as {options.kv_type_v}: {reason}",
            "use f16 for both",
        )
    return EngineError(f"llama.cpp cannot create a context for {model.name}: {reason}")
