"""Heads (an MTP block, EAGLE-3): they draft from hidden states of their target, in a separate cache.

Sources: llama.cpp's common/speculative.cpp (`draft_mtp`, `draft_eagle3`) and src/llama-ext.h.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError
from localspec.llama.backends import function
from localspec.llama.context import ABORTED, Batch, Context, HeadLink
from localspec.llama.library import Native, native
from localspec.llama.model import Model
from localspec.types.candidates import Rows
from localspec.types.models import ModelOptions

EAGLE3 = "eagle3"
WIDEST = 128  # tokens of a call: an encoder sets a row of logits aside for each
KEPT = 64  # tokens of the target, before the head processes them without a draft

States = NDArray[np.float32]
"""Hidden states, float32 (n, width)."""

_P = ctypes.c_void_p
_U32 = ctypes.c_uint32
_FLAG = ctypes.c_bool


_MANGLED = {  # the functions of llama-ext.h, which are C++: the ends of their names on POSIX and on Windows
    "llama_set_embeddings_nextn": ("P13llama_contextbb", "YAXPEAUllama_context@@_N1@Z"),
    "llama_get_embeddings_nextn": ("P13llama_context", "YAPEAMPEAUllama_context@@@Z"),
    "llama_set_embeddings_layer_inp": ("P13llama_contextjb", "YAXPEAUllama_context@@I_N@Z"),
    "llama_get_embeddings_layer_inp": ("P13llama_contextj", "YAPEAMPEAUllama_context@@I@Z"),
}


def _extension(name: str, result: Native, *arguments: Native) -> Native:
    posix, windows = _MANGLED[name]
    mangled = f"?{name}@@{windows}" if sys.platform == "win32" else f"_Z{len(name)}{name}{posix}"
    return function(mangled, result, *arguments)


class HiddenStates:
    """Extra outputs of a context: the inputs of some layers, or the output of the last one."""

    def __init__(self, context: Context, layers: Sequence[int]) -> None:
        """Take the numbers of layers; the number of layers itself means the output of the last one."""
        model = context.model
        api = native()
        self._context = context
        self._layers = [layer for layer in layers if layer < model.layers]
        self._leaving = len(self._layers) < len(layers)
        width = api.llama_model_n_embd_out if self._leaving else api.llama_model_n_embd
        self._width: int = width(model.pointer)
        self.width = len(layers) * self._width
        self._set = _extension("llama_set_embeddings_nextn", None, _P, _FLAG, _FLAG)
        self._get = _extension("llama_get_embeddings_nextn", _P, _P)
        self._set_input = _extension("llama_set_embeddings_layer_inp", None, _P, _U32, _FLAG)
        self._get_input = _extension("llama_get_embeddings_layer_inp", _P, _P, _U32)

    def switch(self, *, on: bool) -> None:
        """Compute them from the next call on, or no longer."""
        pointer = self._context.pointer
        if self._leaving:
            # masked rows would be wrong if a graph keeps all rows
            self._set(pointer, on, False)
        for layer in self._layers:
            self._set_input(pointer, layer, on)

    def last(self, count: int) -> States:
        """Return the rows of the last call of `count` tokens; valid until the next call."""
        pointer = self._context.pointer
        found = [self._get_input(pointer, layer) for layer in self._layers]
        found += [self._get(pointer)] * self._leaving
        if not all(found):
            raise EngineError("llama.cpp gave no hidden states")
        kind = ctypes.c_float * (count * self._width)
        parts = [np.ctypeslib.as_array(kind.from_address(each)).reshape(count, -1) for each in found]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


class HeadContext(Context):
    """The cache of a head: a `LanguageModel` whose sequence 0 follows its target's, without branches.

    A token's cell is computed from the token and the target's hidden state before it. While the head drafts,
    it uses its own state instead; such cells are dropped as soon as the target has processed more.
    """

    is_head = True

    def __init__(self, model: Model, options: ModelOptions, target: Context) -> None:
        """Open the cache; raises as `Context` does, and whether head and target fit must be known."""
        listed = model.header.numbers.get(f"{EAGLE3}.target_layers")
        self._encodes = listed is not None  # EAGLE-3 makes its input of several states
        layers = [int(layer) for layer in listed or (target.model.layers,)]
        self._states = HiddenStates(target, layers)
        narrow = replace(
            options, batch=min(options.batch, WIDEST), micro_batch=min(options.micro_batch, WIDEST)
        )
        width = native().llama_model_n_embd_out(model.pointer)
        super().__init__(model, narrow, link=HeadLink(target, width, not self._encodes))
        target.model.close_before(self.close)
        self._encoder = Batch(self._micro_batch, 1, self.context_size, self._states.width)
        self._encode = native().llama_encode
        self._target = target.model
        self._failure: EngineError | None = None  # of reading along, for who wants a draft
        target.reader = self

    def _open_native(self) -> None:
        super()._open_native()
        self._own = HiddenStates(self, (self.model.layers,))
        self._own.switch(on=True)
        self._follows = False
        self._kept = KEPT
        self._true = 0  # leading tokens with cells from the target's states
        self._tokens: list[int] = []  # of the target, from position `_start` on, with the states after them
        self._start = 0
        self._after: States = np.empty((0, self._batch.hidden.shape[1]), np.float32)
        self._state: States | None = None  # the head's own after its last token, until its next call

    def reopen(self) -> None:
        """Forget everything, and refer to the context that llama.cpp has now: EAGLE-3 borrows its tensors."""
        self.close()
        self._open_native()

    @property
    def name(self) -> str:
        """Return the head's name, which that of a target is not that has it in its file."""
        is_own = self.model.pointer == self._target.pointer
        return f"{self.model.name}, its MTP head" if is_own else self.model.name

    def follow(self, *, on: bool, kept: int = KEPT) -> None:
        """Take the target's hidden states from its next call on, or no longer."""
        if on != self._follows:
            self._states.switch(on=on)
        self._follows = on
        self._kept = kept

    def read(self, start: int, tokens: Sequence[int]) -> None:
        """Take the target's hidden states of its last call, from a position on.

        A failure does not stop the target: the head reports it when it has to draft.
        """
        if self._failure is not None:
            return
        try:
            self._read(start, tokens)
        except EngineError as error:
            self._failure = error

    def _read(self, start: int, tokens: Sequence[int]) -> None:
        self.cut(start)
        if not self._follows:
            self.cut(0)
            return
        states = self._states.last(len(tokens))
        states = self._through_encoder(states) if self._encodes else states
        if self._tokens and self._start + len(self._tokens) == start:
            self._tokens += tokens
            self._after = np.concatenate([self._after, states])
        else:
            self._start = start
            self._tokens = [*tokens]
            self._after = states.copy()
        if self._lengths[0] < self._start:  # the head lacks the tokens between: it starts again
            self.truncate(0)
            self._lengths[0] = self._true = self._start
        if len(self._tokens) >= self._kept:
            self._catch_up()

    def cut(self, length: int) -> None:
        """Drop cells that depend on the target's tokens from position `length` on, and all drafted ones."""
        if self._follows:
            self.truncate(min(self._lengths[0], self._true, length + 1))
            self._state = None
        kept = max(0, length - self._start)
        del self._tokens[kept:]
        self._after = self._after[:kept]

    def evaluate(self, tokens: Sequence[int], logits: int = 1) -> Rows:
        """Append tokens to the main sequence and return the candidates after the last `logits` of them."""
        if self._failure is not None:
            raise self._failure
        total = len(tokens)
        done = 0
        self._check_call(total, logits)
        rows: Rows = self._no_rows
        while done < total:
            count = self._chunk(total - done, logits)
            rows = self._extend(tokens[done : done + count], logits if done + count == total else 0)
            done += count
        return rows

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        """Append tokens to sequence 0, the only one, and return the candidates after each."""
        if any(sequences):
            raise ValueError("a head has no branches")
        return self.evaluate(tokens, len(tokens))

    def rewindable(self, length: int) -> int:
        """Return `length`: a head has no window, even if it may lack the beginning of the text."""
        return length

    def _shorten(self, length: int, sequence: int) -> bool:
        self._state = None
        self._true = min(self._true, length)
        return super()._shorten(length, sequence)  # it has attention alone: that always works

    def save(self, room: Callable[[int], bool]) -> None:
        """Drop all cells: it continues with the target's next tokens as if they were the first."""

    def _catch_up(self) -> None:
        """Process all tokens with known states; the last state waits for the token after it."""
        unread = self._tokens[self._lengths[0] - self._start :]
        if unread:
            self.evaluate(unread, 0)
        self._start += len(self._tokens) - 1
        self._tokens = self._tokens[-1:]
        self._after = self._after[-1:].copy()

    def _extend(self, tokens: Sequence[int], logits: int) -> Rows:
        """Read tokens in one call."""
        start = self._lengths[0]
        count = len(tokens)
        self._put_states(start, self._batch.hidden[:count])
        lost = int(self._encodes and not start)  # EAGLE-3: nothing precedes the first token
        read = tokens[lost:]
        if lost:
            self._batch.hidden[: count - 1] = self._batch.hidden[1:count]
        if read:
            # of EAGLE-3 all rows are wanted or none: its graph gives the first rows for any others
            wanted = len(read) if logits and self._encodes else logits
            self._batch.fill_run(read, start + lost, wanted)
            self._run((0,), wanted, len(read))
        self._lengths[0] += count
        if not logits:
            self._state = None
            return self._no_rows
        if len(read) < logits:
            raise EngineError(f"{self.model.name} cannot tell what follows the first token alone")
        self._state = self._own.last(len(read))[-1]
        return self._rows(wanted).last(logits)

    def _put_states(self, start: int, hidden: States) -> None:
        """Fill in the states before tokens from a position on, the target's where they are known."""
        count = len(hidden)
        first = self._start + 1 - start  # the token that the first known state precedes
        known = self._after[max(0, -first) : max(0, count - first)]
        place = max(0, first)
        hidden[:] = 0.0
        hidden[place : place + len(known)] = known
        if self._state is not None and not (len(known) and place == 0):
            hidden[0] = self._state
        elif self._true == start and (len(known) or (self._tokens and start == self._start)):
            self._true = start + min(count, place + len(known))

    def _through_encoder(self, states: States) -> States:
        """Return EAGLE-3's projection of the target's states, a row for each."""
        made = []
        most = self._micro_batch  # with more tokens in such a call llama.cpp ends the process
        for part in (states[at : at + most] for at in range(0, len(states), most)):
            count = len(part)
            self._encoder.native.token = None
            self._encoder.hidden[:count] = part
            self._encoder.fill_run([0] * count, self._lengths[0], count)  # as if they followed
            started = perf_counter()
            code = self._encode(self.pointer, self._encoder.native)
            if code == ABORTED:
                self._notice_cancel()
            if code:
                raise EngineError(f"llama.cpp failed to encode (code {code}); its log says why")
            made.append(self._own.last(count).copy())
            self.busy_s += perf_counter() - started
        return np.concatenate(made)
