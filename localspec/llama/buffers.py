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

_F32, _Q4_K = 0, 12  # ggml.h, enum ggml_type
_ROW = 4096
"""Numbers in a row of the matrix: as wide as a model of 8 billion parameters."""
_ROW_BYTES = {_F32: 4 * _ROW, _Q4_K: _ROW // 256 * 144}
SEVERAL = 5
"""Tokens of a pass that judges a draft."""
_META = 2**20  # bytes for descriptions of tensors and graphs
_FILLING = 0x3C  # 0.0115 when read as a number: no denormal, and no zeros that a GPU might leave out
_P = ctypes.c_void_p


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


class Buffers(ExitStack):
    """A block on one device, with the graph that reads it; close it. `bytes` is its size."""

    def __init__(self, device: str, size: int, passes: int = 1, *, quantised: bool = False) -> None:
        """Take the memory; raises EngineError where the device refuses, UserError where there is none."""
        self.device = device
        self._kind = _Q4_K if quantised else _F32
        self._row = _ROW_BYTES[self._kind]
        self.bytes = max(1, size // self._row) * self._row
        handles = device_handles()
        if device not in handles:
            raise UserError(f"no device is called {device!r}", f"devices: {', '.join(handles)}")
        self._handle = handles[device]
        super().__init__()
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
        self._backend = function("ggml_backend_dev_init", _P, _P, ctypes.c_char_p)(self._handle, None)
        if not self._backend:
            raise EngineError(f"{self.device} cannot be started")
        self._freed_by("ggml_backend_free", self._backend)
        largest = function("ggml_backend_get_max_size", ctypes.c_size_t, _P)(self._backend)
        self.bytes = min(self.bytes, largest // self._row * self._row)
        _use_all_cores(self._backend, self._handle)
        self._context = function("ggml_init", _P, _InitParams)(_InitParams(_META, None, True))
        self._freed_by("ggml_free", self._context)
        matrix = function("ggml_new_tensor_2d", _P, _P, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        self.matrix: int = matrix(self._context, self._kind, _ROW, self.bytes // self._row)
        self._passes = passes
        self._is_remote = any(found.name == self.device and found.round_trip_s for found in devices())
        self._reading = {
            tokens: self._graph("ggml_mul_mat", matrix(self._context, _F32, _ROW, tokens))
            for tokens in ((1, SEVERAL) if self._kind == _Q4_K else (1,))
        }
        allocate = function("ggml_backend_alloc_ctx_tensors", _P, _P, _P)
        buffer = allocate(self._context, self._backend)
        if not buffer:
            raise EngineError(f"{self.device} has no space for {self.bytes / 2**20:.0f} MiB")
        self._freed_by("ggml_backend_buffer_free", buffer)
        function("ggml_backend_buffer_clear", None, _P, ctypes.c_uint8)(buffer, _FILLING)

    def _freed_by(self, name: str, pointer: int) -> None:
        self.callback(function(name, None, _P), pointer)

    def _graph(self, operation: str, operand: int) -> int:
        """Describe a graph that does one thing to the matrix, over and over: starting it costs time."""
        graph: int = function("ggml_new_graph", _P, _P)(self._context)
        node = function(operation, _P, _P, _P, _P)
        expand = function("ggml_build_forward_expand", None, _P, _P)
        for _ in range(self._passes):
            expand(graph, node(self._context, self.matrix, operand))
        return graph

    def _compute_s(self, graph: int) -> float:
        compute = function("ggml_backend_graph_compute", ctypes.c_int, _P, _P)
        started = time.perf_counter()
        status = compute(self._backend, graph)
        if self._is_remote:  # fetching a result waits for the computation there
            self.fetch_s(4)
        seconds = time.perf_counter() - started
        if status != 0:
            raise EngineError(f"{self.device} failed to compute (status {status})")
        return seconds


def _use_all_cores(backend: int, device: int) -> None:
    """Give the CPU's backend its threads; other backends have no such function."""
    registry = function("ggml_backend_dev_backend_reg", _P, _P)(device)
    find = function("ggml_backend_reg_get_proc_address", _P, _P, ctypes.c_char_p)
    if address := find(registry, b"ggml_backend_set_n_threads"):
        ctypes.CFUNCTYPE(None, _P, ctypes.c_int)(address)(backend, physical_cores())
