"""How each model of a pair is thought to be opened."""

from __future__ import annotations

from localspec.hardware.device_info import Machine
from localspec.hardware.memory.needs import CacheTypes, LayerSplit
from localspec.hardware.placement.candidates import PlacementSearch
from tests.hardware.machines import MIDDLE, SMALL, asking, card, cpu, machine

ON_CARD, HERE = LayerSplit(("CUDA0",), (28,)), LayerSplit()


def search(where: Machine | None = None, **wished: object) -> PlacementSearch:
    constraints = asking(**wished)  # type: ignore[arg-type]
    return PlacementSearch(where or machine((card(0, 24), 900)), (MIDDLE, SMALL), constraints)


def test_the_draft_has_room_for_its_branches() -> None:
    found = search(max_fan_out=5)
    assert found.memory_request(SMALL, ON_CARD, 4096).sequences == 6
    assert found.memory_request(MIDDLE, HERE, 4096).sequences == 1


def test_a_draft_on_the_cpu_does_without_flash_attention_where_it_can() -> None:
    assert search().memory_request(SMALL, HERE, 4096).flash_attention is False
    assert search().memory_request(SMALL, ON_CARD, 4096).flash_attention is None
    assert search().memory_request(MIDDLE, HERE, 4096).flash_attention is None
    narrow = search(draft_cache=CacheTypes("f16", "q8_0"))  # which nothing else can read
    assert narrow.memory_request(SMALL, HERE, 4096).flash_attention is None
    assert search(flash_attention=True).memory_request(SMALL, HERE, 4096).flash_attention is True


def test_models_on_one_core_take_turns() -> None:
    assert search(machine(processor=cpu(28, 1))).threads(HERE, HERE).take_turns
    assert not search(machine(processor=cpu(28, 2))).threads(HERE, HERE).take_turns
    assert not search(machine(processor=cpu(28, 1))).threads(HERE, None).take_turns
