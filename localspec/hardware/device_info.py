"""Values of this machine: what was seen of its devices, and what was measured.

Sizes are in bytes, rates in bytes per second. None says that nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "gpu", "integrated", "remote"]
"""`integrated` shares the processor's memory; `remote` is of another machine."""


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A program that has memory on a card."""

    pid: int
    name: str
    memory: int | None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What was seen of one device, without judgement.

    `id` is ggml's name, which flags take ("CUDA0", "Metal", "CPU"). `cores` are physical ones, of the
    processor alone.
    """

    id: str
    kind: DeviceKind
    backend: str
    name: str
    memory_total: int
    memory_free: int
    cores: int = 0
    features: tuple[str, ...] = ()  # instruction sets that this build of llama.cpp uses
    splits_rows: bool = False  # with others of its backend
    drives_display: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    theoretical_rate: float | None = None  # of its memory
    users: tuple[DeviceUser, ...] = ()
    round_trip_s: float | None = None  # to another machine and back


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """How fast a device reads its memory, as measured, and what comes from it: of another machine alone.

    Of devices that may be processors also how fast they multiply quantised `weights` with one token, and what
    each `further` token takes of that time.
    """

    device: str
    read: float
    link: float | None = None
    weights: float | None = None
    further: float | None = None


@dataclass(frozen=True, slots=True)
class RateFailure:
    """A device whose memory could not be measured, and why."""

    device: str
    reason: str

    def __str__(self) -> str:
        return f"the memory of {self.device} could not be measured: {self.reason}"


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything known of this machine; rates are empty where nothing was measured."""

    devices: tuple[DeviceInfo, ...]
    rates: tuple[MemoryRate, ...] = ()
    failures: tuple[RateFailure, ...] = ()
    notes: tuple[str, ...] = ()
