"""Flags override any part of a plan."""

from __future__ import annotations

import pytest

from localspec.errors import UserError
from localspec.hardware.memory.needs import CacheTypes, LayerSplit, by_shares
from localspec.hardware.placement.candidates import Placement
from localspec.hardware.placement.place import place
from tests.hardware.machines import GIB, LARGE, MIDDLE, SMALL, asking, card, cpu, machine, model

TWO = machine((card(0, 24), 900), (card(1, 8), 300))


def reason(placement: Placement, word: str) -> str:
    [found] = [reason for reason in placement.reasons if word in reason]
    return found


def test_layers_are_as_many_as_the_flag_says() -> None:
    found = place(TWO, LARGE, SMALL, asking(gpu_layers=20))
    assert sum(found.target.layers) == 19  # the weights after the last layer count as one


def test_no_layers_are_the_cpu_alone() -> None:
    found = place(TWO, MIDDLE, SMALL, asking(gpu_layers=0, draft_gpu_layers=0))
    assert (found.target.devices, found.target.layers) == ((), ())
    assert found.draft is not None
    assert found.draft.devices == ()


def test_layers_that_do_not_fit_are_rejected_not_lowered() -> None:
    with pytest.raises(UserError, match=r"CUDA0 has 11\.2 GiB to give") as refused:
        place(machine((card(0, 12), 360)), LARGE, None, asking(gpu_layers=99))
    assert "-ngl" in refused.value.hint


def test_devices_are_those_named() -> None:
    found = place(TWO, MIDDLE, SMALL, asking(devices=("CUDA1",), draft_devices=("CUDA0",)))
    assert found.target.devices == ("CUDA1",)
    assert found.draft is not None
    assert found.draft.devices == ("CUDA0",)
    with pytest.raises(UserError, match="no device is called 'CUDA7'"):
        place(TWO, MIDDLE, SMALL, asking(devices=("CUDA7",)))


def test_layers_of_the_draft_are_as_many_as_the_flag_says() -> None:
    found = place(TWO, LARGE, SMALL, asking(draft_devices=("CUDA1",), draft_gpu_layers=10, mode="sd"))
    assert found.draft is not None
    assert (found.draft.devices, found.draft.layers) == (("CUDA1",), (9,))


def test_layers_of_the_draft_on_a_gpu_are_on_a_gpu_even_if_the_cpu_would_do_better() -> None:
    where = machine((card(0, 24), 300), processor=cpu(60, 32), rate=120)
    assignments = [place(where, LARGE, SMALL, asking(draft_gpu_layers=count)).draft for count in (None, 99)]
    assert [assignment and assignment.devices for assignment in assignments] == [(), ("CUDA0",)]


def test_a_draft_on_two_named_devices_is_split() -> None:
    cards = machine((card(0, 8), 400), (card(1, 8), 400))
    constraints = asking(gpu_layers=0, draft_devices=("CUDA0", "CUDA1"), context=2048, mode="sd")
    found = place(cards, MIDDLE, model(10, 40), constraints)
    assert found.draft is not None
    assert found.draft.devices == ("CUDA0", "CUDA1")
    assert sum(found.draft.layers) == 40


def test_gpus_slower_than_the_cpu_stay_empty() -> None:
    found = place(machine((card(0, 24), 15), (card(1, 24), 15), rate=200), MIDDLE, None, asking())
    assert found.target.devices == ()


def test_shares_are_taken_as_they_are() -> None:
    found = place(TWO, MIDDLE, None, asking(tensor_split=(3, 1)))
    assert found.target.devices == ("CUDA0", "CUDA1")
    assert found.target.layers == (25, 7)


@pytest.mark.parametrize(
    ("shares", "gpu_layers", "split"),
    [
        ((3, 1), 33, LayerSplit(("A", "B"), (25, 7))),
        ((1, 1), 33, LayerSplit(("A", "B"), (17, 15))),
        ((3, 1), 2, LayerSplit(("A",), (1,))),
        ((1, 0), 33, LayerSplit(("A",), (32,))),
        ((0, 1), 33, LayerSplit(("B",), (32,))),
        ((1, 1), 1, LayerSplit(("A",), (0,))),
        ((1, 1), 0, LayerSplit()),
        ((25, 8), 33, LayerSplit(("A", "B"), (25, 7))),
    ],
)
def test_shares_divide_as_llama_cpp_does(
    shares: tuple[float, ...], gpu_layers: int, split: LayerSplit
) -> None:
    assert by_shares(("A", "B"), shares, gpu_layers, 32) == split


def test_the_mode_may_be_asked_for() -> None:
    off = place(TWO, LARGE, SMALL, asking(mode="off"))
    assert (off.mode, off.draft) == ("off", None)
    assert "mode off does not ask it" in reason(off, "stays closed")
    sd = place(TWO, LARGE, SMALL, asking(mode="sd"))
    assert sd.mode == "sd"
    assert (sd.tokens_per_s or 0) < (place(TWO, LARGE, SMALL, asking()).tokens_per_s or 0)


def test_a_device_named_twice_is_rejected() -> None:
    with pytest.raises(UserError, match="a device is named twice: CUDA0, CUDA0"):
        place(TWO, MIDDLE, SMALL, asking(devices=("CUDA0", "CUDA0")))


def test_threads_are_those_given() -> None:
    found = place(machine(), MIDDLE, SMALL, asking(threads=4, draft_threads=2))
    assert found.target.threads == 4
    assert found.draft is not None
    assert found.draft.threads == 2


@pytest.mark.parametrize("name", ["0", "CUDA0", "cuda0"])
def test_a_reserve_is_kept_free(name: str) -> None:
    found = place(TWO, LARGE, SMALL, asking(reserve=((name, 12 * GIB),)))
    on_card = sum(need.total for need in found.target.needs if need.device == "CUDA0")
    assert on_card <= 23.7 * GIB - 12 * GIB


def test_a_reserve_for_a_device_that_is_not_there_is_rejected() -> None:
    with pytest.raises(UserError, match="there is no device 5"):
        place(TWO, LARGE, SMALL, asking(reserve=(("5", GIB),)))


def test_a_smaller_cache_leaves_room_for_layers() -> None:
    where, target = machine((card(0, 8), 360)), model(6.2, 32)
    wide = place(where, target, None, asking(context=16384))
    narrow = place(where, target, None, asking(context=16384, cache=CacheTypes("q8_0", "q8_0")))
    assert sum(narrow.target.layers) > sum(wide.target.layers)


def test_an_output_alone_on_a_gpu_is_possible() -> None:
    found = place(TWO, MIDDLE, None, asking(gpu_layers=1, devices=("CUDA0",)))
    assert sum(found.target.layers) == 0
