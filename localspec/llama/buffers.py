"""Bytes in the memory of a device, and what it costs to read them: the measuring of rates.

Everything here is native and may end the process: use it in a child.
"""

from __future__ import annotations

import ctypes
import time
from contextlib import ExitStack

from localspec.errors import EngineError, UserError
from localspec.llama.backends import device_handles, devices, function
from localspec.llama.cores import physical_cores

# ggml.h, enum ggml_type
_F32 = 0
_Q4_K = 12
_ROW = 4096
"""Numbers in a row of the matrix: as wide as a model of 8 billion parameters."""
_ROW_BYTES = {_F32: 4 * _ROW, _Q4_K: _ROW // 256 * 144}
SEVERAL = 5
"""Tokens of a pass that judges a draft."""
_SUMS = 16
_META = 2**20  # bytes for descriptions of tensors and graphs
_FILLING = 0x3C  # 0.0115 when read as a number: no denormal, and no zeros that a GPU might leave out
_P = ctypes.c_void_p


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


class _Device(ExitStack):
    """One device, with tensors in its memory; close it."""

    def __init__(self, device: str) -> None:
        """Start it; raises EngineError where that fails, UserError where there is none."""
        super().__init__()
        self.device = device
        handles = device_handles()
        if device not in handles:
            raise UserError(f"no device is called {device!r}", f"devices: {', '.join(handles)}")
        self._handle = handles[device]
        self.backend: int = function("ggml_backend_dev_init", _P, _P, ctypes.c_char_p)(self._handle, None)
        if not self.backend:
            raise EngineError(f"{device} cannot be started")
        self._freed_by("ggml_backend_free", self.backend)
        _use_all_cores(self.backend, self._handle)
        self._context = function("ggml_init", _P, _InitParams)(_InitParams(_META, None, True))
        self._freed_by("ggml_free", self._context)

    def _matrix(self, kind: int, row: int, rows: int) -> int:
        """Describe a matrix; it has memory once all are described."""
        new = function("ggml_new_tensor_2d", _P, _P, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        made: int = new(self._context, kind, row, rows)
        return made

    def _graph(self, operation: str, first: int, second: int, times: int = 1) -> int:
        """Describe a graph that does one thing with two matrices, over and over: starting it costs time."""
        graph: int = function("ggml_new_graph", _P, _P)(self._context)
        node = function(operation, _P, _P, _P, _P)
        expand = function("ggml_build_forward_expand", None, _P, _P)
        for _ in range(times):
            expand(graph, node(self._context, first, second))
        return graph

    def _take_memory(self, size: int) -> None:
        allocate = function("ggml_backend_alloc_ctx_tensors", _P, _P, _P)
        buffer = allocate(self._context, self.backend)
        if not buffer:
            raise EngineError(f"{self.device} has no space for {size / 2**20:.0f} MiB")
        self._freed_by("ggml_backend_buffer_free", buffer)
        function("ggml_backend_buffer_clear", None, _P, ctypes.c_uint8)(buffer, _FILLING)

    def _freed_by(self, name: str, pointer: int) -> None:
        self.callback(function(name, None, _P), pointer)


class Buffers(_Device):
    """A block on one device, with the graph that reads it; close it. `bytes` is its size."""

    def __init__(self, device: str, size: int, passes: int = 1, *, quantised: bool = False) -> None:
        """Take the memory; raises EngineError where the device refuses, UserError where there is none."""
        super().__init__(device)
        self._kind = _Q4_K if quantised else _F32
        self._row = _ROW_BYTES[self._kind]
        self.bytes = max(1, size // self._row) * self._row
        try:
            self._open(passes)
        except BaseException:
            self.close()
            raise

    def read_s(self, tokens: int = 1) -> float:
        """Return the seconds in which the device reads a block: multiplies it with 1 or SEVERAL vectors."""
        return self._compute_s(self._reading[tokens]) / self._passes

    def fetch_s(self, size: int) -> float:
        """Return the seconds to copy `size` bytes of the block to this machine."""
        into = ctypes.create_string_buffer(size)
        fetch = function("ggml_backend_tensor_get", None, _P, _P, ctypes.c_size_t, ctypes.c_size_t)
        started = time.perf_counter()
        fetch(self.matrix, into, 0, size)
        return time.perf_counter() - started

    def _open(self, passes: int) -> None:
        largest = function("ggml_backend_get_max_size", ctypes.c_size_t, _P)(self.backend)
        self.bytes = min(self.bytes, largest // self._row * self._row)
        self.matrix = self._matrix(self._kind, _ROW, self.bytes // self._row)
        self._passes = passes
        self._is_remote = any(found.name == self.device and found.round_trip_s for found in devices())
        self._reading = {
            tokens: self._graph("ggml_mul_mat", self.matrix, self._matrix(_F32, _ROW, tokens), passes)
            for tokens in ((1, SEVERAL) if self._kind == _Q4_K else (1,))
        }
        self._take_memory(self.bytes)

    def _compute_s(self, graph: int) -> float:
        compute = function("ggml_backend_graph_compute", ctypes.c_int, _P, _P)
        started = time.perf_counter()
        status = compute(self.backend, graph)
        if self._is_remote:  # fetching a result waits for the computation there
            self.fetch_s(4)
        seconds = time.perf_counter() - started
        if status != 0:
            raise EngineError(f"{self.device} failed to compute (status {status})")
        return seconds


class _Part(_Device):
    """What one device has computed, and room for what another one has."""

    def __init__(self, device: str, size: int) -> None:
        """Take the memory; raises as `Buffers` does."""
        super().__init__(device)
        rows = max(1, size // _ROW_BYTES[_F32])
        try:
            self.own, self.received = (self._matrix(_F32, _ROW, rows) for _ in range(2))
            self._adding = self._graph("ggml_add", self.own, self.received)
            self._take_memory(2 * size)
        except BaseException:
            self.close()
            raise

    def send_to(self, other: _Part) -> None:
        """Start to copy what is here to another device."""
        copy = function("ggml_backend_tensor_copy_async", None, _P, _P, _P, _P)
        copy(self.backend, other.backend, self.own, other.received)

    def add(self) -> None:
        """Start to add what was received."""
        compute = function("ggml_backend_graph_compute_async", ctypes.c_int, _P, _P)
        if status := compute(self.backend, self._adding):
            raise EngineError(f"{self.device} failed to compute (status {status})")

    def wait(self) -> None:
        """Wait until all is done; another machine has done it once it sends what comes after."""
        function("ggml_backend_synchronize", None, _P)(self.backend)
        into = ctypes.create_string_buffer(4)
        fetch = function("ggml_backend_tensor_get", None, _P, _P, ctypes.c_size_t, ctypes.c_size_t)
        fetch(self.own, into, 0, 4)


class PartialSums(ExitStack):
    """Two devices that exchange and add up what they have computed, as in a split by tensor; close it."""

    def __init__(self, first: str, second: str, size: int) -> None:
        """Take the memory for parts of `size` bytes; raises as `Buffers` does."""
        super().__init__()
        try:
            self._parts = tuple(self.enter_context(_Part(device, size)) for device in (first, second))
        except BaseException:
            self.close()
            raise

    def sum_s(self) -> float:
        """Return the seconds of one sum, of several in a row (ggml-backend-meta.cpp, allreduce_fallback)."""
        first, second = self._parts
        started = time.perf_counter()
        for _ in range(_SUMS):
            first.send_to(second)
            second.send_to(first)
            first.add()
            second.add()
        first.wait()
        second.wait()
        return (time.perf_counter() - started) / _SUMS


def _use_all_cores(backend: int, device: int) -> None:
    """Give the CPU's backend its threads; other backends have no such function."""
    registry = function("ggml_backend_dev_backend_reg", _P, _P)(device)
    find = function("ggml_backend_reg_get_proc_address", _P, _P, ctypes.c_char_p)
    if address := find(registry, b"ggml_backend_set_n_threads"):
        ctypes.CFUNCTYPE(None, _P, ctypes.c_int)(address)(backend, physical_cores())
