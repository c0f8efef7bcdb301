"""The devices that this build of llama.cpp can compute on, from ggml's registry."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from operator import add
from typing import Literal

import psutil

from localspec.errors import EngineError, UserError
from localspec.llama import rpc
from localspec.llama.cores import physical_cores
from localspec.llama.library import Native, exported, native, rpc_function
from localspec.llama.memory import free_memory
from localspec.types.models import DeviceMemory

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]
_KINDS: tuple[DeviceKind, ...] = ("cpu", "gpu", "igpu", "accel")  # ggml-backend.h, in this order


@dataclass(frozen=True, slots=True)
class BackendDevice:
    """One of ggml's devices."""

    name: str
    description: str
    kind: DeviceKind
    memory_total: int
    memory_free: int
    bus_id: str = ""  # its PCI address ("0000:c1:00.0") or empty
    backend: str = ""  # ggml's backend: "CPU", "CUDA", "ROCm", "Vulkan", "MTL" (Metal), ...
    splits_rows: bool = False  # with others of its backend
    round_trip_s: float | None = None  # to another machine


class _Props(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("caps", ctypes.c_bool * 5),
    )


def devices() -> tuple[BackendDevice, ...]:
    """Return every device, in ggml's order, with its memory as of now."""
    read = function("ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.c_void_p)
    registry = function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
    procedure = function(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
    )
    available = free_memory()  # ggml calls all of the CPU's memory free
    found = []
    for handle in device_handles().values():
        props = _Props()
        read(handle, ctypes.byref(props))
        look = rpc.looks.get(text(props.description))
        if props.type < len(_KINDS):
            found.append(
                BackendDevice(
                    name=text(props.name),
                    description=text(props.description),
                    kind=_KINDS[props.type],
                    memory_total=props.memory_total,
                    memory_free=available if props.type == 0 else props.memory_free,
                    bus_id=text(props.device_id),
                    backend=_backend_name(registry(handle)),
                    splits_rows=bool(procedure(registry(handle), b"ggml_backend_split_buffer_type")),
                    round_trip_s=look.round_trip_s if look else None,
                )
            )
    return tuple(found)


def rows_refused(device: str) -> UserError:
    """Return the error for a model that is to be split by rows over a device that cannot do so."""
    return UserError(f"-sm row: the backend of {device} cannot split matrices by rows", "use -sm layer")


def graphics() -> tuple[BackendDevice, ...]:
    """Return the devices that llama.cpp offloads to by default: GPUs, else integrated graphics."""
    every = devices()
    cards = tuple(device for device in every if device.kind == "gpu")
    return cards or tuple(device for device in every if device.kind == "igpu")[:1]


def memory_of(names: Collection[str]) -> tuple[DeviceMemory, ...]:
    """Return the memory of the named devices, and at last that of the CPU."""
    cards = [device for device in devices() if device.kind != "cpu" and device.name in names]
    return (
        *(DeviceMemory(card.name, card.memory_total - card.memory_free, card.memory_total) for card in cards),
        DeviceMemory("CPU", psutil.Process().memory_info().rss, psutil.virtual_memory().total),
    )


def waiting_for(context: int, names: Collection[str]) -> Callable[[], None]:
    """Return a function that waits until the devices of a native context have finished.

    With an RPC server, `llama_synchronize` only waits until all is sent; a query then waits for the rest.
    """
    synchronize = native().llama_synchronize
    servers = [device_handles()[name] for name in names if name.startswith("RPC")]
    free = ctypes.c_size_t()
    total = ctypes.c_size_t()
    size = ctypes.POINTER(ctypes.c_size_t)
    ask = function("ggml_backend_dev_memory", None, ctypes.c_void_p, size, size)

    def wait() -> None:
        synchronize(context)
        for server in servers:
            ask(server, free, total)

    return wait


def device_array(names: tuple[str, ...]) -> Native:
    """Return ggml's handles of the named devices, NULL-terminated; no name is the CPU alone."""
    offloadable = {device.name: device for device in devices() if device.kind != "cpu"}
    by_name = device_handles()
    chosen = [name for name in names if name.upper() != "CPU"]
    for name in chosen:
        if name not in offloadable:
            there = ", ".join(offloadable) or "none: this build of llama.cpp computes on the CPU only"
            raise UserError(f"no device is called {name!r}", f"devices: {there}")
    if len(set(chosen)) != len(chosen):
        raise UserError(f"a device is named twice: {', '.join(chosen)}", "name each device once")
    return (ctypes.c_void_p * (len(chosen) + 1))(*[by_name[name] for name in chosen], None)


def buffer_type(device: str) -> int:
    """Return ggml's type of a device's ordinary buffers."""
    find = function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    found: int = find(device_handles()[device])
    return found


def features() -> dict[str, tuple[str, ...]]:
    """Return the build features of each backend: "AVX2", "ARCHS = 890"."""
    found: dict[str, tuple[str, ...]] = {}
    backend = ""
    for entry in text(native().llama_print_system_info()).split("|"):
        *title, feature = entry.split(" : ")
        backend = title[0].strip() if title else backend
        name, _, value = feature.strip().partition(" = ")
        if name and value != "0":
            found[backend] = (*found.get(backend, ()), name if value in {"", "1"} else f"{name} = {value}")
    return found


def names() -> tuple[str, ...]:
    """Return every backend of this build, also those that found no device."""
    return tuple(map(_backend_name, _handles("reg")))


def version() -> str:
    """Return the version of llama-cpp-python that serves."""
    native()
    import llama_cpp

    return str(llama_cpp.__version__)


def function(name: str, result: Native, *arguments: Native) -> Native:
    """Return a function of ggml with its types declared."""
    return exported(native(), name, result, *arguments)


def offer(device: str, host: str, port: int, threads: int) -> None:
    """Be a server of one device (ggml-rpc.cpp) until standard input ends, and end this process.

    `host` is a number of IPv4: llama.cpp takes no names here. 0 threads are all cores.
    """

    def watch() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    os.environ[rpc.VARIABLE] = ""  # a server that uses servers would pass on what it cannot see
    threading.Thread(target=watch, daemon=True).start()
    types = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
    serve = rpc_function(native(), "ggml_backend_rpc_start_server", None, *types)
    handles = (ctypes.c_void_p * 1)(device_handles()[device])
    serve(f"{host}:{port}".encode(), None, threads or physical_cores(), 1, handles)
    os._exit(3)  # it cannot start


def device_handles() -> dict[str, int]:
    """Return ggml's handle of every device by the name that flags take, in its order."""
    return {_device_name(handle): handle for handle in _handles("dev")}


def _handles(kind: str) -> Iterator[int]:
    count = function(f"ggml_backend_{kind}_count", ctypes.c_size_t)()
    return map(function(f"ggml_backend_{kind}_get", ctypes.c_void_p, ctypes.c_size_t), range(count))


def _device_name(handle: int) -> str:
    return text(function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)(handle))


def _backend_name(registry: int) -> str:
    return text(function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)(registry))


def text(raw: bytes | None) -> str:
    """Return C's text as Python's."""
    return (raw or b"").decode("utf-8", "replace")


_NAME = "_Z26llama_get_memory_breakdownPK13llama_context"
_MAX_BUFFERS = 1000
_VALUE = 4  # words of a node before its value: colour, parent, left, right, in either order
_ROOT, _LEFT, _RIGHT = (1, 0, 1) if sys.platform == "darwin" else (2, 2, 3)  # libc++, libstdc++


class _Map(ctypes.Structure):
    _fields_ = (("words", ctypes.c_size_t * 6),)  # returned through memory of the caller, as the map is


def breakdown(context: int) -> dict[str, tuple[int, int, int]]:
    """Return the memory of a native context and its model on each device; raises `EngineError` if unknown.

    These are bytes of the weights, of the KV cache or recurrent state, and of intermediate results.
    llama.cpp keeps the account in a C++ map, which is walked here: the only place that knows every buffer,
    also of a load that allocates nothing. The layouts of the standard libraries of POSIX systems are known.
    The rows of logits, in a separate buffer on the CPU, are not included.
    """
    library = native()._lib  # noqa: SLF001
    if not hasattr(library, _NAME):
        raise EngineError("this build of llama.cpp does not report how much memory it needs")
    account = library[_NAME]
    account.restype = _Map
    account.argtypes = [ctypes.c_void_p]
    sums: dict[str, tuple[int, int, int]] = {}
    for buffer_type, *sizes in _nodes(account(context).words[_ROOT]):
        device = _device(buffer_type)
        weights, cache, compute = map(add, sums.get(device, (0, 0, 0)), sizes)
        sums[device] = weights, cache, compute
    return sums


def _nodes(root: int) -> Iterator[tuple[int, int, int, int]]:
    """Walk a red-black tree; its leaves are null."""
    waiting = [root]
    for _ in range(2 * _MAX_BUFFERS):
        if not waiting:
            return
        if node := waiting.pop():
            words = (ctypes.c_size_t * (_VALUE + 4)).from_address(node)
            waiting += [words[_LEFT], words[_RIGHT]]
            yield words[_VALUE], words[_VALUE + 1], words[_VALUE + 2], words[_VALUE + 3]
    raise EngineError("llama.cpp's account of its memory cannot be read")


def _device(buffer_type: int) -> str:
    """Return ggml's name of the device of a buffer; pinned memory counts as the CPU's."""
    if function("ggml_backend_buft_is_host", ctypes.c_bool, ctypes.c_void_p)(buffer_type):
        return "CPU"
    device = function("ggml_backend_buft_get_device", ctypes.c_void_p, ctypes.c_void_p)(buffer_type)
    name = _device_name(device) if device else "CPU"
    return "CPU" if name.startswith("CPU") else name
