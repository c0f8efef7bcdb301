"""What NVIDIA's management library knows of its GPUs; every single answer may be missing, or nonsense."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from localspec.hardware.device_info import DeviceInfo, DeviceUser, possible, possible_count

Library: TypeAlias = Any
"""The module `pynvml`, which has no types."""
Answer: TypeAlias = Any
_LIBRARY = "libnvidia-ml.so.1"
UNKNOWN = DeviceInfo(id="", kind="gpu", backend="CUDA", name="", memory_total=0, memory_free=0)


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU; `number` is that of nvidia-smi, `device` has NVML's facts; ggml adds its name and rate."""

    number: int
    bus_id: str = ""
    device: DeviceInfo = UNKNOWN
    capability: int = 0  # CUDA's compute capability times a hundred, as builds write it; 0 where unknown


@dataclass(frozen=True, slots=True)
class Cards:
    """All GPUs of the machine, the version of their driver, and why nothing is known if so."""

    cards: tuple[Card, ...] = ()
    driver: str = ""
    trouble: str = ""


def look() -> Cards:
    """Ask NVML about every GPU."""
    if sys.platform == "linux" and not _is_installed():
        return Cards(trouble="NVIDIA's driver does not answer (NVML Shared Library Not Found)")
    try:
        import pynvml
    except Exception as error:  # noqa: BLE001 - a broken installation fails in its own ways; nothing depends on it
        return Cards(trouble=f"the package nvidia-ml-py cannot be used ({_words(error)})")
    return look_through(pynvml)


def _is_installed() -> bool:
    """Return whether the driver's library is there: importing the binding for nothing takes 15 ms."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return True


def look_through(library: Library) -> Cards:
    """Ask about every GPU through a given binding of NVML."""
    try:
        library.nvmlInit()
        try:
            driver = _answer(library.nvmlSystemGetDriverVersion) or ""
            cards = tuple(_card(library, number) for number in range(library.nvmlDeviceGetCount()))
            return Cards(cards, _text(driver))
        finally:
            _answer(library.nvmlShutdown)
    except Exception as error:  # noqa: BLE001 - a broken driver fails in its own ways; nothing depends on it
        return Cards(trouble=f"NVIDIA's driver does not answer ({_words(error)})")


def _answer(question: Callable[..., Answer], *arguments: object) -> Answer:
    """Return the answer, None where there is none."""
    try:
        return question(*arguments)
    except Exception:  # noqa: BLE001 - NVMLError, or a binding that lacks or cannot read something
        return None


def _card(library: Library, number: int) -> Card:
    handle = _answer(library.nvmlDeviceGetHandleByIndex, number)
    if handle is None:
        return Card(number)

    def ask(function: str, *more: object) -> Answer:
        return _answer(lambda: getattr(library, function)(handle, *more))

    pci = ask("nvmlDeviceGetPciInfo")
    milliwatts = ask("nvmlDeviceGetEnforcedPowerLimit")
    temperature = ask("nvmlDeviceGetTemperature", getattr(library, "NVML_TEMPERATURE_GPU", 0))
    display = ask("nvmlDeviceGetDisplayActive")
    device = replace(
        UNKNOWN,
        name=_text(ask("nvmlDeviceGetName") or ""),
        drives_display=bool(display) if display in (0, 1) else None,
        pcie_generation=possible_count("pcie_generation", ask("nvmlDeviceGetCurrPcieLinkGeneration")),
        pcie_width=possible_count("pcie_width", ask("nvmlDeviceGetCurrPcieLinkWidth")),
        pcie_width_max=possible_count("pcie_width", ask("nvmlDeviceGetMaxPcieLinkWidth")),
        power_limit_w=possible("power_limit_w", milliwatts / 1000) if isinstance(milliwatts, int) else None,
        temperature_c=possible("temperature_c", temperature),
        theoretical_rate=_theoretical_rate(ask, getattr(library, "NVML_CLOCK_MEM", 2)),
        users=_users(library, ask),
    )
    return Card(
        number,
        _plain_bus_id(_text(pci.busId)) if pci is not None else "",
        device,
        _capability(ask("nvmlDeviceGetCudaComputeCapability")),
    )


def _capability(answer: Answer) -> int:
    """Return CUDA's compute capability times a hundred, 0 where it is unknown."""
    match answer:
        case (int(major), int(minor)):
            return possible_count("capability", 100 * major + 10 * minor) or 0
    return 0


def _theoretical_rate(ask: Callable[..., Answer], memory_clock: int) -> float | None:
    """Return bus width times clock; GPU memory moves data twice per clock that NVML reports."""
    bits = possible("bus_width", ask("nvmlDeviceGetMemoryBusWidth"))
    mhz = possible("clock_mhz", ask("nvmlDeviceGetMaxClockInfo", memory_clock))
    return bits / 8 * mhz * 1e6 * 2 if bits and mhz else None


def _users(library: Library, ask: Callable[..., Answer]) -> tuple[DeviceUser, ...]:
    computing = ask("nvmlDeviceGetComputeRunningProcesses")
    drawing = ask("nvmlDeviceGetGraphicsRunningProcesses")
    found: dict[int, DeviceUser] = {}
    for process in (*(drawing or ()), *(computing or ())):
        if process.pid != os.getpid():  # asking itself takes memory
            memory = possible_count("user_memory", getattr(process, "usedGpuMemory", None))
            found[process.pid] = DeviceUser(process.pid, _program(library, process.pid), memory)
    return tuple(sorted(found.values(), key=lambda user: (-(user.memory or 0), user.pid)))


def _program(library: Library, pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        name = _answer(library.nvmlSystemGetProcessName, pid)
        return _text(name).replace("\\", "/").rsplit("/", 1)[-1] if name else "unknown program"


def _plain_bus_id(bus_id: str) -> str:
    """Return a PCI address as ggml writes it: NVML gives the domain twice as many digits."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _text(raw: str | bytes) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _words(error: Exception) -> str:
    """Return the text of an error, without the name of the library's class."""
    return (str(error) or type(error).__name__).strip().rstrip(".")
