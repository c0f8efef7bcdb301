"""What devices have to give."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.errors import UserError
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.budget import CARD_RESERVE, DISPLAY_RESERVE, MemoryBudget, default_reserve
from localspec.hardware.memory.needs import DeviceNeed
from localspec.hardware.placement.place import place
from tests.hardware.machines import GIB, MIDDLE, apple, asking, card, cpu, machine


@pytest.mark.parametrize(
    ("drives_display", "kept"), [(False, CARD_RESERVE), (True, DISPLAY_RESERVE), (None, DISPLAY_RESERVE)]
)
def test_a_gpu_keeps_room_for_a_display_unless_it_surely_has_none(
    drives_display: bool | None, kept: int
) -> None:
    assert default_reserve(replace(card(0, 8), drives_display=drives_display)) == kept


@pytest.mark.parametrize(("total", "kept"), [(8, 0.8), (64, 2.0)])
def test_the_cpu_keeps_a_tenth_and_never_more_than_two_gib(total: float, kept: float) -> None:
    assert default_reserve(cpu(total - 4)) == pytest.approx(kept * GIB)


def test_what_the_cpu_takes_of_shared_memory_is_missing_on_the_gpu() -> None:
    budget = MemoryBudget(apple(32))
    before = budget.left(())
    left = budget.left([DeviceNeed("CPU", 20 * GIB, 0, 0)])
    assert left["Metal"] == left["CPU"] == before["CPU"] - 20 * GIB


def test_a_reserve_larger_than_a_gpu_leaves_nothing_of_it_and_all_of_the_others() -> None:
    where = machine((card(0, 8), 400), (card(1, 8), 400))
    budget = MemoryBudget(where, (("CUDA0", 100 * GIB),))
    assert budget.free["CUDA0"] == 0
    found = place(where, MIDDLE, None, asking(reserve=(("0", 100 * GIB),)))
    assert found.target.devices == ("CUDA1",)


def test_a_machine_without_a_cpu_is_rejected() -> None:
    with pytest.raises(UserError, match="no CPU was found"):
        MemoryBudget(Machine((card(0, 8),)))
