"""The intermediate memory of placements as llama.cpp plans it, in place of the formula's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from localspec.hardware.memory.needs import (
    DeviceNeed,
    LayerSplit,
    MemoryRequest,
    Needs,
    estimate,
    experts_at_home,
)
from localspec.models.shape import ModelShape


@dataclass(frozen=True, slots=True)
class SplitKind:
    """Placements of a model whose intermediate memory is the same, however many layers each device has."""

    is_draft: bool
    request: MemoryRequest  # with one layer on each device
    is_whole: bool  # all layers are on GPUs


@dataclass(frozen=True, slots=True)
class MeasuredCompute:
    """Bytes of intermediate results on each device, by kind of placement."""

    known: Mapping[SplitKind, Mapping[str, int]] = field(default_factory=dict)

    def knows(self, kind: SplitKind) -> bool:
        """Return whether llama.cpp was asked about a kind."""
        return kind in self.known

    def with_needs(self, kind: SplitKind, needs: Needs) -> MeasuredCompute:
        """Return these sizes and those of another kind."""
        return MeasuredCompute({**self.known, kind: {need.device: need.compute for need in needs}})

    def needs(self, shape: ModelShape, request: MemoryRequest, *, is_draft: bool) -> Needs:
        """Return the memory of a model on each device, by formula where nothing was measured."""
        known = self.known.get(kind_of(shape, request, is_draft=is_draft), {})
        return tuple(_with_compute(need, known) for need in estimate(shape, request))


def kind_of(shape: ModelShape, request: MemoryRequest, *, is_draft: bool) -> SplitKind:
    """Return the kind of a placement."""
    split = request.split
    alike = LayerSplit(
        split.devices,
        (1,) * len(split.devices),
        split.output_at_home,
        experts_at_home=int(bool(experts_at_home(shape, split))),
        shares=split.shares,
    )
    return SplitKind(is_draft, replace(request, split=alike), split.on_cards == len(shape.layers))


def _with_compute(need: DeviceNeed, known: Mapping[str, int]) -> DeviceNeed:
    return replace(need, compute=known.get(need.device, need.compute))
