from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import EngineError, UserError
from localspec.hardware.memory.budget import MemoryBudget
from localspec.hardware.memory.needs import DeviceNeed, LayerSplit, MemoryRequest, Needs, estimate
from localspec.hardware.placement import place as place_module
from localspec.hardware.placement.place import confirm, place
from localspec.models.pair_request import USUAL_FAN_OUT
from localspec.models.shape import ModelShape
from localspec.types.models import ModelOptions
from tests.hardware.machines import SMALL, asking, card, cpu, machine, model

GIB = 1 << 30
OPTIONS = (ModelOptions(Path("large.gguf")),)


class Llama:
    """Tells what it is reported to tell, and whether it was asked."""

    def __init__(self, gib: float | None) -> None:
        self.gib = gib
        self.asked = 0

    def __call__(self, *_options: ModelOptions, max_fan_out: int) -> tuple[Needs, ...]:
        assert max_fan_out == USUAL_FAN_OUT
        self.asked += 1
        if self.gib is None:
            raise EngineError("llama.cpp cannot tell")
        return ((DeviceNeed("CUDA0", int(self.gib * GIB), 0, 0),),)


Check = Callable[[float, float, Llama], None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    def check(model_gib: float, card_gib: float, llama: Llama) -> None:
        monkeypatch.setattr(place_module, "exact", llama)
        shape, on = model(model_gib, layers=32), machine((card(0, card_gib), 600))
        placement = place(on, shape, None, asking())
        confirm(placement, (shape,), OPTIONS, on, asking())

    return check


def test_models_with_room_around_them_are_not_asked_about(check: Check) -> None:
    llama = Llama(99)
    check(4, 24, llama)
    assert llama.asked == 0


def test_tight_fit_that_holds_is_let_through(check: Check) -> None:
    llama = Llama(9.5)
    check(9, 12, llama)
    assert llama.asked == 1


def test_tight_fit_that_does_not_hold_is_rejected_with_numbers_and_ways_out(check: Check) -> None:
    with pytest.raises(UserError, match=r"CUDA0 has .* GiB free") as refused:
        check(9, 12, Llama(13))
    assert "GiB are needed" in refused.value.message
    assert refused.value.hint


def test_plan_stands_where_llama_cannot_tell(check: Check) -> None:
    llama = Llama(None)
    check(9, 12, llama)
    assert llama.asked == 1


@pytest.mark.parametrize("draft", [None, SMALL])
def test_the_context_that_is_named_would_fit_by_llama_cpps_own_figures(
    draft: ModelShape | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, on = model(9, layers=32), machine((card(0, 14 if draft else 12), 600), processor=cpu(60))
    constraints = asking(context=12288, gpu_layers=99, draft_devices=("CUDA0",), max_fan_out=48, mode="sd")
    found = place(on, shape, draft, constraints)
    above = GIB // 2

    def llama(*_options: ModelOptions, max_fan_out: int) -> tuple[Needs, ...]:
        assert max_fan_out == constraints.max_fan_out
        more = tuple(replace(need, compute=need.compute + above) for need in found.target.needs)
        return (more, found.draft.needs) if found.draft else (more,)

    monkeypatch.setattr(place_module, "exact", llama)
    with pytest.raises(UserError, match="CUDA0 has") as refused:
        confirm(found, (shape, draft) if draft else (shape,), OPTIONS, on, constraints)
    context = int(re.findall(r"\(-c (\d+)\)", refused.value.hint)[0])
    free = MemoryBudget(on).free["CUDA0"] - above

    def needed(context: int) -> int:
        requests = [(shape, MemoryRequest(LayerSplit(("CUDA0",), (32,)), context))]
        if draft:
            requests.append((draft, MemoryRequest(LayerSplit(("CUDA0",), (28,)), context, sequences=49)))
        needs = (need for each, request in requests for need in estimate(each, request))
        return sum(need.total for need in needs if need.device == "CUDA0")

    assert needed(context) <= free < needed(context + 256)
