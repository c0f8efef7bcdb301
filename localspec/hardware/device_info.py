"""Values of this machine: what was seen and measured, what is needed, and what was decided.

Sizes are in bytes, rates in bytes per second. None says that nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.types import Mode

DeviceKind = Literal["cpu", "gpu", "integrated"]
"""`integrated` shares the processor's memory."""


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
    processor alone. `missing` says in words what could not be found out.
    """

    id: str
    kind: DeviceKind
    backend: str
    name: str
    memory_total: int
    memory_free: int
    cores: int = 0
    sockets: int = 0
    features: tuple[str, ...] = ()  # instruction sets that this build of llama.cpp uses
    drives_display: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    theoretical_rate: float | None = None  # of its memory
    users: tuple[DeviceUser, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """How fast a device reads its memory, and copies within it, as measured."""

    device: str
    read: float
    copy: float


@dataclass(frozen=True, slots=True)
class LinkRate:
    """How fast data gets from one device to another, as measured."""

    source: str
    target: str
    rate: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything known of this machine; rates are empty where nothing was measured."""

    devices: tuple[DeviceInfo, ...]
    rates: tuple[MemoryRate, ...] = ()
    links: tuple[LinkRate, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """What one model takes of one device."""

    device: str
    weights: int
    cache: int
    compute: int

    @property
    def total(self) -> int:
        """Return all of it."""
        return self.weights + self.cache + self.compute


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """Where one model sits: `layers` on each of `devices` in order, the rest with the processor.

    No devices are the processor alone. The field names below `needs` are those of `ModelOptions`.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]
    threads: int
    context: int
    needs: tuple[DeviceNeed, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A placement that was looked at: what it would be, why it was not taken, what it would have given."""

    description: str
    reason: str
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Who sits where, and why; `reasons` are shown to the person word for word."""

    target: DeviceAssignment
    draft: DeviceAssignment | None
    mode: Mode
    tokens_per_s: float | None  # expected from rates and sizes
    reasons: tuple[str, ...]
    rejected: tuple[Alternative, ...] = ()
