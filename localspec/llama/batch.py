"""The one batch that a context submits: llama.cpp's arrays as numpy views, filled in microseconds."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.llama.library import Native, native


class Batch:
    """A `llama_batch` of up to `capacity` tokens, each in exactly one sequence."""

    def __init__(self, capacity: int, sequences: int, positions: int) -> None:
        api = native()
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._first = self._tokens.data, self._positions.data, self._wanted.data
        self._ids = np.arange(sequences, dtype=np.int32)
        self._id_addresses = self._ids.ctypes.data + np.arange(sequences, dtype=np.uintp) * self._ids.itemsize
        self._pointers = np.full(capacity, self._id_addresses[0], np.uintp)
        self._fanned = 0  # so many tokens at the front may be of other sequences than the trunk
        self._counting = np.arange(positions, dtype=np.int32)
        self.native: Native = api.llama_batch(
            n_tokens=0,
            token=_pointer(self._tokens, ctypes.c_int32),
            embd=None,
            pos=_pointer(self._positions, ctypes.c_int32),
            n_seq_id=_pointer(self._counts, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._wanted, ctypes.c_int8),
        )

    def fill_run(self, tokens: Sequence[int] | NDArray[np.int32], start: int, rows: int) -> None:
        """Put a run of the trunk's tokens from position `start`; the last `rows` get logits."""
        count = len(tokens)
        if count == 1:  # most calls: single numbers are stored ten times as fast as slices
            token, position, wanted = self._first
            token[0], position[0], wanted[0] = tokens[0], start, rows
        else:
            self._tokens[:count] = tokens
            self._positions[:count] = self._counting[start : start + count]
            self._wanted[: count - rows] = 0
            self._wanted[count - rows : count] = 1
        if self._fanned:
            self._pointers[: self._fanned] = self._id_addresses[0]
            self._fanned = 0
        self.native.n_tokens = count

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
