"""What is asked of a placement, and what was decided."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from localspec.hardware.memory.needs import CacheTypes, DeviceNeed
from localspec.types import Mode


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """What a person asks of a placement; None leaves the choice to it.

    `context` 0 takes the usual one, or less where that fits better. `reserve` is kept free on a device.
    The fields from `devices` on override parts of the plan, with the meaning of `ModelOptions`.
    """

    context: int = 0
    cache: CacheTypes = field(default_factory=CacheTypes)
    draft_cache: CacheTypes = field(default_factory=CacheTypes)
    flash_attention: bool | None = None
    micro_batch: int = 512
    max_fan_out: int = 16
    reserve: tuple[tuple[str, int], ...] = ()
    devices: tuple[str, ...] | None = None
    gpu_layers: int | None = None
    tensor_split: tuple[float, ...] | None = None
    threads: int | None = None
    draft_devices: tuple[str, ...] | None = None
    draft_gpu_layers: int | None = None
    draft_threads: int | None = None
    mode: Mode | None = None

    def without_overrides(self) -> PlacementConstraints:
        """Return the constraints that leave every choice to the plan, but the size of the context."""
        return replace(
            self,
            devices=None,
            gpu_layers=None,
            tensor_split=None,
            threads=None,
            draft_devices=None,
            draft_gpu_layers=None,
            draft_threads=None,
            mode=None,
        )


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
