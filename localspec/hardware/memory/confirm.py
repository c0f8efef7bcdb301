"""Before models are opened where it is close: ask llama.cpp itself what they take."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from localspec.errors import EngineError
from localspec.hardware.device_info import DeviceAssignment, Machine, Placement
from localspec.hardware.memory.budget import MemoryBudget, reserve_on
from localspec.hardware.memory.fit import check_fit
from localspec.hardware.placement.constraints import (
    CacheTypes,
    LayerSplit,
    MemoryRequest,
    PlacementConstraints,
)
from localspec.models.shape import ModelShape
from localspec.types import ModelOptions

if TYPE_CHECKING:
    from localspec.hardware.memory.exact import Needs

CLOSE = 0.15  # of what a device has to give: the formula may be wrong by less than that


def _exact(*options: ModelOptions, max_fan_out: int) -> tuple[Needs, ...]:
    from localspec.hardware.memory.exact import exact  # few plans are that close

    return exact(*options, max_fan_out=max_fan_out)


def confirm(
    placement: Placement,
    shapes: tuple[ModelShape, ...],
    options: tuple[ModelOptions, ...],
    machine: Machine,
    wishes: PlacementConstraints,
    *,
    ask: Callable[..., tuple[Needs, ...]] = _exact,
) -> None:
    """Raise `UserError` if models that the plan holds for fitting do not; `options` open them as planned.

    Where the plan leaves room enough, or llama.cpp cannot tell, the plan's own figures stand.
    """
    seats = [seat for seat in (placement.target, placement.draft) if seat is not None]
    if not is_close(seats, machine, wishes):
        return
    try:
        needs = ask(*options, max_fan_out=wishes.max_fan_out)
    except EngineError:
        return
    sittings = zip(shapes, seats, (wishes.cache, wishes.draft_cache), strict=False)
    models = tuple((shape, _sitting(seat, cache, wishes)) for shape, seat, cache in sittings)
    check_fit(chain(*needs), machine, wishes.reserve, models)


def is_close(seats: list[DeviceAssignment], machine: Machine, wishes: PlacementConstraints) -> bool:
    """Tell whether a plan fills a device nearly."""
    room = MemoryBudget(machine, reserve_on(machine, wishes.reserve))
    left = room.left(chain(*(seat.needs for seat in seats)))
    used = {need.device for seat in seats for need in seat.needs}
    return any(left[device] < CLOSE * room.free[device] for device in used)


def _sitting(seat: DeviceAssignment, cache: CacheTypes, wishes: PlacementConstraints) -> MemoryRequest:
    spread = LayerSplit(seat.devices, seat.layers)
    return MemoryRequest(spread, seat.context, cache, wishes.flash_attention, wishes.micro_batch)
