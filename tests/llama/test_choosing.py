"""llama.cpp chooses the likeliest tokens of every row in its graph; here on the CPU, which can do so, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec.errors import EngineError
from localspec.llama import choosing
from localspec.llama.choosing import SIZES, fitting, output_on_card
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.types.candidates import ChosenRows, FullRows, Rows
from localspec.types.models import ModelOptions, TensorOverride
from tests.llama.conftest import OpenContext

TOKENS = [(7 * place) % 200 + 10 for place in range(60)]


@pytest.fixture
def chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let contexts choose on the CPU."""
    monkeypatch.setattr(choosing, "output_on_card", lambda _model: True)


def same(found: Rows, expected: Rows, count: int = 40) -> bool:
    """Return whether candidates from llama.cpp are those of all logits, to the bit."""
    assert isinstance(found, ChosenRows)
    assert isinstance(expected, FullRows)
    assert len(found) == len(expected)
    return all(
        one.best() == other.best() and one.top(count) == other.top(count)
        for one, other in zip(found, expected, strict=True)
    )


@pytest.mark.usefixtures("chooses")
@pytest.mark.parametrize("limit", SIZES)
def test_candidates_are_those_of_all_logits(
    target_model: Model, open_context: OpenContext, limit: int
) -> None:
    context, whole = (open_context(target_model, sequences=4) for _ in range(2))
    whole.choose(None)
    context.choose(limit)
    calls: tuple[Callable[[Context], Rows], ...] = (
        lambda each: each.evaluate(TOKENS),
        lambda each: each.evaluate(TOKENS[:9], 9),
        lambda each: each.evaluate(TOKENS[:20], 3),
        lambda each: each.step([5, 6, 7, 8], [2, 1, 3, 1]),
        lambda each: each.step([5, 6], [3, 0]),
        lambda each: each.evaluate([4]),
    )
    for number, call in enumerate(calls):
        if number == 3:
            for each in (context, whole):
                for branch in (1, 2, 3):
                    each.share(0, branch, each.length())
        assert same(call(context), call(whole), limit)


@pytest.mark.usefixtures("chooses")
def test_all_logits_come_back_when_they_are_asked_for(target_model: Model, open_context: OpenContext) -> None:
    context = open_context(target_model)
    expected = open_context(target_model)
    expected.choose(None)
    for count, kind in (
        (None, FullRows),
        (30, ChosenRows),
        (1000, FullRows),
        (1, ChosenRows),
        (100, ChosenRows),
    ):
        context.choose(count)
        rows = context.evaluate(TOKENS[:5], 5)
        logits = expected.evaluate(TOKENS[:5], 5)
        assert isinstance(rows, kind)
        if kind is FullRows:
            assert np.array_equal(rows.logits, logits.logits)
        else:
            assert same(rows, logits, count or 0)
            with pytest.raises(EngineError, match="stayed on the device"):
                _ = rows.logits


@pytest.mark.usefixtures("chooses")
def test_a_vocabulary_smaller_than_the_choice_comes_whole(
    llama_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.llama.context.SIZES", (llama_model.vocabulary.size + 9,))
    context = open_context(llama_model)
    rows = context.evaluate(TOKENS[:4], 2)
    assert len(rows[0].top(10_000)[0]) == llama_model.vocabulary.size


@pytest.mark.usefixtures("chooses")
def test_a_device_without_the_operator_gives_all_logits(
    llama_model: Model, open_context: OpenContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing.Chains, "work", property(lambda _chains: False))
    context = open_context(llama_model)
    context.choose(10)
    assert isinstance(context.evaluate(TOKENS[:4], 2), FullRows)


def test_sizes_fit_what_is_asked_for() -> None:
    assert [fitting(count) for count in (1, 40, 64, 65, 128, 129, None)] == [64, 64, 64, 128, 128, 0, 0]


@pytest.mark.parametrize(
    ("change", "cards", "on_card"),
    [
        ({}, ("CUDA0",), True),
        ({}, (), False),
        ({"output_at_home": True}, ("CUDA0",), False),
        ({"split_mode": "tensor"}, ("CUDA0", "CUDA1"), False),
        ({"overrides": (TensorOverride("^output", "CPU"),)}, ("CUDA0",), True),  # it is tied to the other
        ({"overrides": (TensorOverride("token_embd", "CPU"),)}, ("CUDA0",), False),
        ({"overrides": (TensorOverride("token_embd", "CUDA1"),)}, ("CUDA0", "CUDA1"), True),
        ({"experts_at_home": 2}, ("CUDA0",), True),
        ({}, ("RPC0",), False),
        ({}, ("CUDA0", "RPC0"), False),
    ],
)
def test_a_card_chooses_where_it_has_the_output_layer(
    target_model: Model, change: dict[str, Any], cards: tuple[str, ...], on_card: bool
) -> None:
    options = replace(ModelOptions(target_model.options.path), **change)
    model: Any = SimpleNamespace(cards=cards, options=options, header=target_model.header)
    assert output_on_card(model) is on_card
