"""Bars of a placement: what they show, and that they fit a narrow terminal."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest

from localspec.hardware.device_info import Machine
from localspec.hardware.memory.budget import MemoryBudget, Models
from localspec.hardware.memory.needs import DeviceNeed, estimate
from localspec.hardware.placement.candidates import Placement, PlacementSearch
from localspec.hardware.placement.explain import TARGET_PARTS, WIDTH, bars, outlook
from localspec.hardware.placement.place import place
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape
from localspec.units import memory
from tests.hardware.machines import GIB, LARGE, MIDDLE, SMALL, apple, asking, card, cpu, machine

TWO = machine((card(0, 24), 900), (card(1, 8), 300))


def planned(
    where: Machine, *shapes: ModelShape, request: PairRequest | None = None
) -> tuple[Placement, MemoryBudget, Models]:
    request = request or asking()
    target, draft = (*shapes, None)[:2]
    assert target is not None
    placement = place(where, target, draft, request)
    search = PlacementSearch(where, (target, draft), request)
    assigned = zip(shapes, (placement.target, placement.draft), strict=False)
    models = tuple(
        (shape, search.memory_request(shape, each.split, each.context)) for shape, each in assigned if each
    )
    return placement, search.budget, models


def bar_of(lines: list[str], device: str) -> tuple[str, dict[str, str]]:
    """Return the bar of a device, and the sizes in its legend by their names."""
    at = next(at for at, line in enumerate(lines) if line.startswith(f"  {device}"))
    end = next((at for at in range(at + 1, len(lines)) if not lines[at].startswith("    ")), len(lines))
    legend = "  ".join(line.strip() for line in lines[at + 2 : end])
    entries = re.findall(r"\S ([^\d]+) (\d\S* \S+?)(?:  |$)", legend)
    return lines[at + 1].strip(), dict(entries)


def test_every_device_has_a_bar_of_its_parts() -> None:
    placement, budget, _ = planned(TWO, LARGE, SMALL)
    lines = bars(placement, budget)
    assert lines[:2] == ["memory:", "  CUDA0 (A graphics card): 24.0 GiB"]
    bar, legend = bar_of(lines, "CUDA0")
    need = placement.target.needs[0]
    assert list(legend) == ["weights", "cache", "intermediate results", "reserve", "free", "in use already"]
    assert legend["weights"] == memory(need.weights)
    assert legend["cache"] == memory(need.cache)
    assert legend["reserve"] == "512 MiB"
    left = budget.left((*placement.target.needs, *(placement.draft.needs if placement.draft else ())))
    assert legend["free"] == memory(left["CUDA0"])
    assert legend["in use already"] == "307 MiB"
    assert bar.count("█") / len(bar) == pytest.approx(need.weights / (24 * GIB), abs=0.05)
    _, legend = bar_of(lines, "CUDA1")
    assert list(legend) == ["draft", "reserve", "free", "in use already"]
    assert list(bar_of(lines, "CPU")[1])[:3] == ["weights", "intermediate results", "draft"]


@pytest.mark.parametrize(
    "where",
    [
        TWO,
        machine(processor=cpu(60)),
        machine((card(0, 12), 360)),
        apple(64),
        machine((replace(card(0, 24), id="A" * 16, name="A card with a long name " * 3), 900)),
    ],
    ids=["two", "cpu", "split", "apple", "names"],
)
def test_bars_fit_a_terminal_of_80_columns_and_are_of_one_length(where: Machine) -> None:
    placement, budget, models = planned(where, LARGE, SMALL)
    lines = [*bars(placement, budget), *outlook(models, budget)]
    assert max(map(len, lines)) <= WIDTH == 80
    assert {len(bar_of(lines, device)[0]) for device in budget.devices} == {WIDTH - 4}


def test_the_smallest_part_is_seen() -> None:
    placement, budget, _ = planned(machine((card(0, 1000), 900)), SMALL)
    bar, legend = bar_of(bars(placement, budget), "CUDA0")
    assert len(legend) == len(set(bar)) == 6


def test_parts_of_a_need_are_all_drawn() -> None:
    sizes = {field.name: 10**at for at, field in enumerate(fields(DeviceNeed)) if field.name != "device"}
    need = DeviceNeed("CPU", **sizes)
    assert sum(part.of(need) for part in TARGET_PARTS) == need.total


def test_shared_memory_shows_what_the_gpu_takes_of_it() -> None:
    placement, budget, _ = planned(apple(64), LARGE)
    lines = bars(placement, budget)
    taken = next(need.total for need in placement.target.needs if need.device == "Metal")
    assert bar_of(lines, "CPU")[1]["used by Metal"] == memory(taken)
    assert "used by Metal" not in bar_of(lines, "Metal")[1]


def test_the_outlook_is_of_the_placement() -> None:
    placement, _, models = planned(TWO, LARGE, SMALL)
    for (shape, request), assignment in zip(models, (placement.target, placement.draft), strict=True):
        assert assignment is not None
        assert estimate(shape, request) == assignment.needs


def test_what_other_caches_would_change_on_the_fullest_gpu() -> None:
    placement, budget, models = planned(TWO, LARGE, SMALL)
    double, smaller = outlook(models, budget)
    (need,) = (need for need in placement.target.needs if need.device == "CUDA0")
    assert double.startswith("  -c 16384 (twice the context) takes 2.0 GiB more of CUDA0, and ")
    assert smaller == f"  -ctk q8_0 -ctv q8_0 (a q8_0 cache) saves {memory(need.cache * 15 / 32)} of CUDA0"


@pytest.mark.parametrize(("memory_gib", "verdict"), [(12, "fits"), (6, "does not fit")])
def test_twice_the_context_fits_or_not(memory_gib: float, verdict: str) -> None:
    where = machine((card(0, memory_gib), 400))
    _, budget, models = planned(where, MIDDLE, request=asking(context=4096))
    assert outlook(models, budget)[0].endswith(f" more of CUDA0, and {verdict}")


def test_a_context_beyond_the_training_is_not_offered() -> None:
    shape = replace(SMALL, training_context=4096)
    _, budget, models = planned(TWO, shape)
    assert outlook(models, budget)[0] == "  twice the context: the model was trained for 4,096 tokens only"


def test_without_flash_attention_no_quantised_cache_is_offered() -> None:
    _, budget, models = planned(TWO, SMALL, request=asking(flash_attention=False))
    assert len(outlook(models, budget, may_quantise=False)) == 1
    here, budget, models = planned(machine(processor=cpu(60)), replace(SMALL, heads=16))
    assert here.flash_attention is False
    assert outlook(models, budget)[1].startswith("  -ctk q8_0 -ctv q8_0 ")  # which bring it back


def test_without_a_gpu_the_outlook_is_of_the_cpu() -> None:
    _, budget, models = planned(machine(processor=cpu(60)), LARGE)
    assert all(" of CPU" in line for line in outlook(models, budget))
