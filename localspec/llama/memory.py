"""How much memory llama.cpp has set aside for a context and its model, device by device.

llama.cpp keeps the account in a C++ map, which is walked here: the only place that knows every buffer, also
of a load that allocates nothing. The layouts of the two standard libraries that POSIX systems use are known.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from localspec.errors import EngineError
from localspec.llama.context import Context
from localspec.llama.library import Native, native

_NAME = "_Z26llama_get_memory_breakdownPK13llama_context"
_MOST_BUFFERS = 1000
_VALUE = 4  # words of a node before its value: colour, parent, left, right, in either order
_ROOT, _LEFT, _RIGHT = (1, 0, 1) if sys.platform == "darwin" else (2, 2, 3)  # libc++, libstdc++


@dataclass(frozen=True, slots=True)
class Buffers:
    """Bytes on one device: of the weights, of the KV cache or running state, and of intermediate results."""

    device: str
    weights: int
    cache: int
    compute: int


class _Map(ctypes.Structure):
    _fields_ = (("words", ctypes.c_size_t * 6),)  # returned through memory of the caller, as the map is


def breakdown(context: Context) -> tuple[Buffers, ...]:
    """Return what a context and its model hold on each device; raises `EngineError` where nobody can tell.

    The rows of logits, which the processor holds in a buffer of their own, are not part of it.
    """
    library = native()._lib  # noqa: SLF001
    if not hasattr(library, _NAME):
        raise EngineError("this build of llama.cpp cannot tell how much memory it needs")
    account = library[_NAME]
    account.restype, account.argtypes = _Map, [ctypes.c_void_p]
    sums: dict[str, list[int]] = {}
    for buffer_type, *sizes in _nodes(account(context.pointer).words[_ROOT]):
        row = sums.setdefault(_device(library, buffer_type), [0, 0, 0])
        row[:] = [held + size for held, size in zip(row, sizes, strict=True)]
    return tuple(Buffers(name, *row) for name, row in sums.items())


def _nodes(root: int) -> Iterator[tuple[int, int, int, int]]:
    """Walk a red-black tree; its leaves are null."""
    waiting = [root]
    for _ in range(2 * _MOST_BUFFERS):
        if not waiting:
            return
        if node := waiting.pop():
            words = (ctypes.c_size_t * (_VALUE + 4)).from_address(node)
            waiting += [words[_LEFT], words[_RIGHT]]
            yield words[_VALUE], words[_VALUE + 1], words[_VALUE + 2], words[_VALUE + 3]
    raise EngineError("llama.cpp's account of its memory cannot be read")


def _device(library: Native, buffer_type: int) -> str:
    """Return ggml's name of the device of a buffer; what a driver has pinned is the CPU's all the same."""
    if _call(library, "ggml_backend_buft_is_host", ctypes.c_bool, buffer_type):
        return "CPU"
    device = _call(library, "ggml_backend_buft_get_device", ctypes.c_void_p, buffer_type)
    if not device:
        return "CPU"
    raw: bytes = _call(library, "ggml_backend_dev_name", ctypes.c_char_p, device)
    name = raw.decode("utf-8", "replace")
    return "CPU" if name.startswith("CPU") else name


def _call(library: Native, name: str, result: Native, argument: int) -> Native:
    function = library[name]
    function.restype, function.argtypes = result, [ctypes.c_void_p]
    return function(argument)
