"""Room for one more pair: what the open ones give back, and which of them close."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.errors import UserError
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.needs import DeviceNeed
from localspec.hardware.placement.candidates import Placement
from localspec.hardware.placement.place import place
from localspec.hardware.placement.room import HeldMemory, beside, fewest_to_close
from tests.hardware.machines import GIB, apple, asking, card, cpu, machine, model


def held(mapped: bool = True, **devices: tuple[float, float]) -> HeldMemory:
    """Return what a pair takes: the GiB of weights, and of caches, on each device."""
    return HeldMemory(
        tuple(DeviceNeed(name, int(w * GIB), int(c * GIB), 0) for name, (w, c) in devices.items()), mapped
    )


def free(where: Machine, device: str) -> float:
    return next(each.memory_free for each in where.devices if each.id == device) / GIB


def test_mapped_weights_of_those_that_stay_are_not_free() -> None:
    seen = machine(processor=cpu(20))
    assert free(beside(seen, [held(CPU=(6, 2))], []), "CPU") == 14  # its cache is not free as it is
    assert free(beside(seen, [held(False, CPU=(6, 2))], []), "CPU") == 20
    assert free(beside(seen, [held(CPU=(30, 2))], []), "CPU") == 0


def test_those_that_leave_give_back_what_the_system_counts_as_taken() -> None:
    seen = machine((card(0, 24, used=10), 900), processor=cpu(20))
    leaves = held(CPU=(3, 1), CUDA0=(8, 1))
    there = beside(seen, [], [leaves])
    assert (free(there, "CPU"), free(there, "CUDA0")) == (21, 23)
    assert free(beside(seen, [], [held(CUDA0=(30, 0))]), "CUDA0") == 24  # not more than it has
    assert free(beside(seen, [], [held(CUDA7=(5, 0))]), "CPU") == 20  # a card that is gone
    shared = apple(32)
    assert free(beside(shared, [], [held(Metal=(2, 0))]), "CPU") == pytest.approx(free(shared, "CPU") + 2)


def closing(seen: Machine, others: Sequence[HeldMemory], layers: int = 32, size: float = 8) -> int:
    shape = model(size, layers=layers)

    def plan(where: Machine) -> Placement:
        return place(where, shape, None, asking())

    return fewest_to_close(plan, lambda found: found, seen, others)[1]


def test_nothing_closes_where_a_pair_fits_as_well_beside_the_others() -> None:
    assert closing(machine((card(0, 48, used=12), 900)), [held(CUDA0=(11, 1))]) == 0
    assert closing(machine(processor=cpu(40)), [held(CPU=(8, 1))]) == 0


def test_as_many_close_as_it_takes_to_be_as_fast_as_alone() -> None:
    seen = machine((card(0, 24, used=21), 900), processor=cpu(60))  # it would fit in RAM, and crawl
    assert closing(seen, [held(CUDA0=(9, 1)), held(CUDA0=(9, 1))]) == 1
    assert closing(seen, [held(CPU=(1, 1)), held(CUDA0=(18, 2))]) == 2


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(UserError, match="does not fit"):
        closing(machine(processor=cpu(2)), [held(CPU=(1, 0))], size=40)
