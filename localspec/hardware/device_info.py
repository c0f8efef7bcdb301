"""Values of a machine: its devices and measurements.

Sizes are in bytes, rates in bytes per second. None means unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "gpu", "integrated", "remote"]
"""`integrated` shares the CPU's memory; `remote` is of another machine."""


_POSSIBLE = {  # least and most that any GPU has; drivers write other numbers where they know nothing
    "pcie_generation": (1, 8),
    "pcie_width": (1, 32),  # lanes
    "power_limit_w": (1, 10_000),
    "temperature_c": (-50, 200),
    "bus_width": (8, 65_536),  # bits between a GPU and its memory
    "clock_mhz": (1, 100_000),
    "user_memory": (0, 2**50),
    "capability": (100, 9_990),  # of CUDA, times a hundred
}


def possible(what: str, value: object) -> float | None:
    """Return a driver's number, None if it is impossible; `what` is a key of the ranges."""
    low, high = _POSSIBLE[what]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        return None
    return value


def possible_count(what: str, value: object) -> int | None:
    """Return a driver's whole number, None if it is impossible."""
    number = possible(what, value)
    return None if number is None or number != int(number) else int(number)


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A program that has memory on a GPU."""

    pid: int
    name: str
    memory: int | None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What was seen of one device, without judgement.

    `id` is ggml's name, which flags take ("CUDA0", "Metal", "CPU"). `cores` are physical ones, of the
    CPU alone.
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

    Of devices that may be CPUs also how fast they multiply quantised `weights` with one token, and what
    each `further` token takes of that time.
    """

    device: str
    read: float
    link: float | None = None
    weights: float | None = None
    further: float | None = None


@dataclass(frozen=True, slots=True)
class SumCost:
    """How long two devices take to add up what each of them computed: `delay_s`, and the bytes at `rate`."""

    devices: tuple[str, str]
    delay_s: float
    rate: float


@dataclass(frozen=True, slots=True)
class RateFailure:
    """A device whose memory could not be measured, and why."""

    device: str
    reason: str

    def __str__(self) -> str:
        return f"the memory of {self.device} could not be measured: {self.reason}"


@dataclass(frozen=True, slots=True)
class SumFailure:
    """Two devices whose sums could not be measured, and why."""

    devices: tuple[str, str]
    reason: str

    def __str__(self) -> str:
        return f"sums over {' and '.join(self.devices)} could not be measured: {self.reason}"


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything known of this machine; rates are empty where nothing was measured, sums then None."""

    devices: tuple[DeviceInfo, ...]
    rates: tuple[MemoryRate, ...] = ()
    failures: tuple[RateFailure, ...] = ()
    notes: tuple[str, ...] = ()
    sums: tuple[SumCost, ...] | None = None


@dataclass(frozen=True, slots=True)
class DescribedMachine(Machine):
    """A machine that a file describes: it is not here to be asked or measured."""
