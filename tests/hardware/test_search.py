"""How each model of a pair is thought to be opened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.hardware.device_info import Machine
from localspec.hardware.memory.needs import CacheTypes, LayerSplit
from localspec.hardware.placement.candidates import PlacementSearch
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape, MovedWeights
from tests.hardware.machines import MIDDLE, SMALL, asking, card, cpu, machine, recurrent

ON_CARD, HERE = LayerSplit(("CUDA0",), (28,)), LayerSplit()
FINE = replace(MIDDLE, heads=64)


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
    narrow = search(draft_cache=CacheTypes("f16", "q8_0"))  # which nothing else can read
    assert narrow.memory_request(SMALL, HERE, 4096).flash_attention is None
    assert search(flash_attention=True).memory_request(SMALL, HERE, 4096).flash_attention is True


@pytest.mark.parametrize(
    ("asked", "flash", "rows"),
    [
        (asking(), False, 128),
        (asking(micro_batch=512), False, 512),
        (replace(asking(), batch=64), False, 64),
        (asking(flash_attention=True), True, 512),
        (asking(flash_attention=False), False, 512),
        (replace(asking(), flash_attention="auto"), None, 512),
        (asking(cache=CacheTypes("q8_0", "f16")), False, 128),
        (asking(cache=CacheTypes("f16", "q8_0")), None, 512),
        (replace(asking(), in_company=True), None, 512),
        (replace(asking(), in_company=True, kv_unified=False), False, 128),
    ],
)
def test_a_target_with_small_heads_on_the_cpu_goes_without_flash_attention_unless_told_to(
    asked: PairRequest, flash: bool | None, rows: int
) -> None:
    here = PlacementSearch(machine(), (FINE, SMALL), asked)
    found = here.memory_request(FINE, HERE, 4096)
    assert (found.flash_attention, found.micro_batch) == (flash, rows)
    assert here.memory_request(SMALL, HERE, 4096).micro_batch == rows


def test_it_is_llama_cpps_choice_where_a_gpu_helps_or_scores_are_many_or_a_model_needs_it() -> None:
    def flash_of(shape: ModelShape, split: LayerSplit = HERE, context: int = 4096) -> bool | None:
        where = machine((card(0, 24), 900))
        return (
            PlacementSearch(where, (shape, None), asking())
            .memory_request(shape, split, context)
            .flash_attention
        )

    assert flash_of(FINE) is False
    assert flash_of(MIDDLE) is None  # whose heads have 128
    assert flash_of(FINE, ON_CARD) is None
    assert flash_of(replace(FINE, moved=(MovedWeights("CUDA0", 0, 10, 10),))) is None
    assert flash_of(replace(FINE, moved=(MovedWeights("CPU", 0, 10, 10),))) is False
    assert flash_of(FINE, context=16_384) is False  # 512 MiB
    assert flash_of(FINE, context=16_400) is None
    assert flash_of(replace(FINE, architecture="minimax-m3")) is None


def test_in_company_are_only_those_that_share_calls() -> None:
    windowed = replace(FINE, layers=(replace(FINE.layers[0], window=512), *FINE.layers[1:]))
    for shape, flash in ((FINE, None), (windowed, False), (replace(recurrent(4, 32), heads=64), False)):
        here = PlacementSearch(machine(), (shape, None), replace(asking(), in_company=True))
        assert here.memory_request(shape, HERE, 4096).flash_attention is flash


def test_models_on_one_core_take_turns() -> None:
    assert search(machine(processor=cpu(28, 1))).threads(HERE, HERE).take_turns
    assert not search(machine(processor=cpu(28, 2))).threads(HERE, HERE).take_turns
    assert not search(machine(processor=cpu(28, 1))).threads(HERE, None).take_turns
