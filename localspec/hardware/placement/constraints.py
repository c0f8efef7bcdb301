"""What is asked of a placement, and how a model may be spread over devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from localspec.hardware.device_info import DeviceNeed
from localspec.models.shape import ModelShape
from localspec.types import KvType, Mode, ModelOptions


@dataclass(frozen=True, slots=True)
class CacheTypes:
    """The number types of a model's cache."""

    keys: KvType = "f16"
    values: KvType = "f16"


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """The last layers of a model on devices in order, the layers before them with the processor.

    The weights after the last layer sit on the last device; no device is the processor alone.
    """

    devices: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()

    @property
    def on_cards(self) -> int:
        """Return how many layers are not with the processor."""
        return sum(self.layers)


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """One model on its devices with its context: what its need of memory follows from."""

    split: LayerSplit
    context: int
    cache: CacheTypes = CacheTypes()
    flash_attention: bool | None = None
    micro_batch: int = 512
    sequences: int = 1


Need = Callable[[ModelShape, MemoryRequest], tuple[DeviceNeed, ...]]


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """What a person asks of a placement; None leaves the choice to it.

    `context` 0 takes the usual one, or less where that fits better. `reserve` is kept free on a device.
    The fields from `devices` on override parts of the plan, with the meaning of `ModelOptions`.
    """

    context: int = 0
    cache: CacheTypes = CacheTypes()
    draft_cache: CacheTypes = CacheTypes()
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
        """Return the wishes that leave every choice to the plan, but the size of the context."""
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


DEFAULT_CONTEXT = 8192  # models trained on 128k tokens would ask for many GiB of cache
_FLOATS = ("f32", "f16", "bf16")


def context_size(asked: int, trained: int) -> int:
    """Return the tokens of a conversation; 0 asks for the usual number."""
    return asked or min(trained, DEFAULT_CONTEXT)


def draft_options(options: ModelOptions, size: int, *, on_processor: bool) -> ModelOptions:
    """Return how a draft model's context is opened beside a target's of `size` tokens."""
    if options.flash_attention is None and options.kv_type_v in _FLOATS and on_processor:
        options = replace(options, flash_attention=False)  # half the price of a branch on small heads
    return replace(options, context=size)
