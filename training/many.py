"""Many conversations of one model side by side, each with cells of its own: throughput, not latency."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError
from localspec.llama.context import Batch
from localspec.llama.library import native
from localspec.llama.model import Model

LONGEST_RUN = 512  # tokens of one call


class ManySequences:
    """A context whose sequences share nothing; a context manager that frees it."""

    def __init__(self, model: Model, sequences: int, context: int, threads: int) -> None:
        api = native()
        parameters = api.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = context * sequences, sequences
        parameters.n_batch = parameters.n_ubatch = max(LONGEST_RUN, sequences)
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.kv_unified, parameters.no_perf = False, True
        pointer = api.llama_init_from_model(model.pointer, parameters)
        if not pointer:
            raise EngineError(f"no room for {sequences} sequences of {context} tokens")
        self._pointer, self._memory = pointer, api.llama_get_memory(pointer)
        self._vocabulary = model.vocabulary.size
        self._batch = Batch(parameters.n_batch, sequences, context)
        self._lengths = [0] * sequences

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        native().llama_free(self._pointer)

    def begin(self, sequence: int, tokens: Sequence[int]) -> None:
        """Forget a sequence, and read the start of another text into it."""
        native().llama_memory_seq_rm(self._memory, sequence, -1, -1)
        for start in range(0, len(tokens), LONGEST_RUN):
            part = tokens[start : start + LONGEST_RUN]
            self._batch.fill_fan(part, [sequence] * len(part), range(start, start + len(part)))
            for index in range(len(part) - 1):  # the last row is computed and ignored
                self._batch.native.logits[index] = 0
            self._run()
        self._lengths[sequence] = len(tokens)

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append a token to every sequence; return a view of one row of logits for each."""
        self._batch.fill_fan(tokens, range(len(tokens)), self._lengths)
        self._run()
        self._lengths = [length + 1 for length in self._lengths]
        address = ctypes.cast(native().llama_get_logits(self._pointer), ctypes.c_void_p).value
        count = len(tokens) * self._vocabulary
        floats = (ctypes.c_float * count).from_address(address or 0)
        return np.ctypeslib.as_array(floats).reshape(len(tokens), self._vocabulary)

    def _run(self) -> None:
        code = native().llama_decode(self._pointer, self._batch.native)
        if code:
            raise EngineError(f"llama.cpp failed to decode (code {code})")
        native().llama_synchronize(self._pointer)
