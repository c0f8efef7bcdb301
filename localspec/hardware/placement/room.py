"""Room for one more pair beside those that are open: which of them have to close for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from localspec.errors import UserError
from localspec.hardware.bandwidth import PROCESSOR
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.needs import DeviceNeed
from localspec.hardware.placement.candidates import Placement

Plan = TypeVar("Plan")
_AS_FAST = 0.9  # of the speed with all other pairs closed


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """What an open pair takes; `is_mapped` of weights that the system still counts as free memory."""

    needs: tuple[DeviceNeed, ...] = ()
    is_mapped: bool = True

    @property
    def by_device(self) -> dict[str, int]:
        """Return the bytes on each device."""
        found: dict[str, int] = {}
        for need in self.needs:
            found[need.device] = found.get(need.device, 0) + need.total
        return found


def beside(machine: Machine, staying: Iterable[HeldMemory], leaving: Iterable[HeldMemory]) -> Machine:
    """Return a machine, as it is seen now, without the memory of pairs that stay, and with that of others.

    The system counts mapped weights in RAM as free, although a pair that stays needs them there.
    """
    kinds = {device.id: device.kind for device in machine.devices}
    change = dict.fromkeys(kinds, 0)
    for held in staying:
        for need in held.needs:
            if need.device == PROCESSOR and held.is_mapped:
                change[PROCESSOR] -= need.weights
    for held in leaving:
        for need in held.needs:
            if need.device not in change:
                continue
            mapped = need.weights if need.device == PROCESSOR and held.is_mapped else 0
            change[need.device] += need.total - mapped
            if kinds[need.device] == "integrated":
                change[PROCESSOR] += need.total
    devices = (
        replace(device, memory_free=min(device.memory_total, max(0, device.memory_free + change[device.id])))
        for device in machine.devices
    )
    return replace(machine, devices=tuple(devices))


def fewest_to_close(
    plan: Callable[[Machine], Plan],
    placement: Callable[[Plan], Placement | None],
    machine: Machine,
    others: Sequence[HeldMemory],
) -> tuple[Plan, int]:
    """Return the plan of a pair, and the number of other pairs, from the first on, to close for it.

    As many as it takes to run about as fast as with all of them closed. Raises UserError, as `plan` does, if
    the pair does not fit even then.
    """
    alone = plan(beside(machine, (), others))
    for count in range(len(others)):
        with suppress(UserError):
            found = plan(beside(machine, others[count:], others[:count]))
            if _is_as_good(placement(found), placement(alone)):
                return found, count
    return alone, len(others)


def _is_as_good(one: Placement | None, other: Placement | None) -> bool:
    if one is None or other is None:
        return True
    if (one.draft is None, one.target.context) != (other.draft is None, other.target.context):
        return False
    if one.tokens_per_s is None or other.tokens_per_s is None:
        return (one.target.split, one.draft and one.draft.split) == (
            other.target.split,
            other.draft and other.draft.split,
        )
    return one.tokens_per_s >= _AS_FAST * other.tokens_per_s
