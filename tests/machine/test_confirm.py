from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import EngineError, UserError
from localspec.machine.confirm import confirm
from localspec.machine.exact import Needs
from localspec.machine.placement import place
from localspec.machine.records import DeviceNeed
from localspec.machine.wishes import Wishes
from localspec.types import ModelOptions
from tests.machine.machines import card, machine, model

GIB = 1 << 30
OPTIONS = (ModelOptions(Path("large.gguf")),)


class Llama:
    """Tells what it is told to tell, and whether it was asked."""

    def __init__(self, gib: float | None) -> None:
        self.gib = gib
        self.asked = 0

    def __call__(self, *_options: ModelOptions, max_fan_out: int) -> tuple[Needs, ...]:
        assert max_fan_out == Wishes().max_fan_out
        self.asked += 1
        if self.gib is None:
            raise EngineError("llama.cpp cannot tell")
        return ((DeviceNeed("CUDA0", int(self.gib * GIB), 0, 0),),)


def check(model_gib: float, card_gib: float, llama: Llama) -> None:
    shape, on = model(model_gib, layers=32), machine((card(0, card_gib), 600))
    confirm(place(on, shape, None, Wishes()), (shape,), OPTIONS, on, Wishes(), ask=llama)


def test_models_with_room_around_them_are_not_asked_about() -> None:
    llama = Llama(99)
    check(4, 24, llama)
    assert llama.asked == 0


def test_tight_fit_that_holds_is_let_through() -> None:
    llama = Llama(9.5)
    check(9, 12, llama)
    assert llama.asked == 1


def test_tight_fit_that_does_not_hold_is_refused_with_numbers_and_ways_out() -> None:
    with pytest.raises(UserError, match=r"CUDA0 has .* GiB free") as refused:
        check(9, 12, Llama(13))
    assert "GiB are needed" in refused.value.message
    assert refused.value.hint


def test_plan_stands_where_llama_cannot_tell() -> None:
    llama = Llama(None)
    check(9, 12, llama)
    assert llama.asked == 1
