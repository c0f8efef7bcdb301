"""The devices that this build of llama.cpp can compute on, from ggml's registry."""

from __future__ import annotations

import ctypes
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import psutil

from localspec.errors import UserError
from localspec.llama import ggml
from localspec.llama.library import Native, native
from localspec.types import DeviceMemory

DeviceKind = Literal["cpu", "gpu", "igpu", "accel"]
_KINDS: tuple[DeviceKind, ...] = ("cpu", "gpu", "igpu", "accel")  # ggml-backend.h, in this order


@dataclass(frozen=True, slots=True)
class BackendDevice:
    """One of ggml's devices; `bus_id` is its PCI address ("0000:c1:00.0") or empty.

    `backend` is the part of ggml that runs it: "CPU", "CUDA", "ROCm", "Vulkan", "MTL" (Metal), ...
    """

    name: str
    description: str
    kind: DeviceKind
    memory_total: int
    memory_free: int
    bus_id: str = ""
    backend: str = ""


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
    read = ggml.function("ggml_backend_dev_get_props", None, ctypes.c_void_p, ctypes.c_void_p)
    available = psutil.virtual_memory().available  # ggml calls all of the CPU's memory free
    found = []
    for handle in ggml.device_handles():
        props = _Props()
        read(handle, ctypes.byref(props))
        if props.type < len(_KINDS):
            found.append(
                BackendDevice(
                    name=ggml.text(props.name),
                    description=ggml.text(props.description),
                    kind=_KINDS[props.type],
                    memory_total=props.memory_total,
                    memory_free=available if props.type == 0 else props.memory_free,
                    bus_id=ggml.text(props.device_id),
                    backend=ggml.device_backend(handle),
                )
            )
    return tuple(found)


def graphics() -> tuple[BackendDevice, ...]:
    """Return the devices that llama.cpp offloads to by default: graphics cards, else integrated graphics."""
    every = devices()
    cards = tuple(device for device in every if device.kind == "gpu")
    return cards or tuple(device for device in every if device.kind == "igpu")[:1]


def memory_of(names: Collection[str]) -> tuple[DeviceMemory, ...]:
    """Return the memory of the named devices, and at last that of the processor."""
    cards = [device for device in devices() if device.kind != "cpu" and device.name in names]
    return (
        *(DeviceMemory(card.name, card.memory_total - card.memory_free, card.memory_total) for card in cards),
        DeviceMemory("CPU", psutil.Process().memory_info().rss, psutil.virtual_memory().total),
    )


def device_array(names: tuple[str, ...]) -> Native:
    """Return ggml's handles of the named devices, NULL-terminated; no name is the CPU alone."""
    offloadable = {device.name: device for device in devices() if device.kind != "cpu"}
    by_name = {ggml.device_name(handle): handle for handle in ggml.device_handles()}
    chosen = [name for name in names if name.upper() != "CPU"]
    for name in chosen:
        if name not in offloadable:
            there = ", ".join(offloadable) or "none: this build of llama.cpp computes on the CPU only"
            raise UserError(f"no device is called {name!r}", f"devices: {there}")
    if len(set(chosen)) != len(chosen):
        raise UserError(f"a device is named twice: {', '.join(chosen)}", "name each device once")
    return (ctypes.c_void_p * (len(chosen) + 1))(*[by_name[name] for name in chosen], None)


def features() -> dict[str, tuple[str, ...]]:
    """Return, for each backend of this build, what it was built to use: "AVX2", "ARCHS = 890"."""
    found: dict[str, tuple[str, ...]] = {}
    backend = ""
    for entry in ggml.text(native().llama_print_system_info()).split("|"):
        *title, feature = entry.split(" : ")
        backend = title[0].strip() if title else backend
        name, _, value = feature.strip().partition(" = ")
        if name and value != "0":
            found[backend] = (*found.get(backend, ()), name if value in {"", "1"} else f"{name} = {value}")
    return found


def names() -> tuple[str, ...]:
    """Return every backend of this build, also those that found no device."""
    count = ggml.function("ggml_backend_reg_count", ctypes.c_size_t)()
    get = ggml.function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
    return tuple(ggml.backend_name(get(index)) for index in range(count))


def version() -> str:
    """Return the version of llama-cpp-python that serves."""
    native()
    import llama_cpp

    return str(llama_cpp.__version__)
