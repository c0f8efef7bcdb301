"""What the calls of a pair cost is measured once, and known the next time that it is opened so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.inference import contexts
from localspec.inference.contexts import COMPARED
from localspec.inference.runtime import Runtime
from localspec.storage.paths import data_dir
from localspec.types import ModelOptions
from tests.inference.runtimes import FORCED, answer, greedy

SLOW_S, FAST_S = 50.0, 1e-7  # of a call, as no machine takes here
Open = Callable[..., AbstractContextManager[Runtime]]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note for each measuring whether both models were at work at once; calls take very long."""
    times: list[bool] = []

    def measure(
        _target: LanguageModel, _draft: LanguageModel | None, _budget_s: float, *, together: bool
    ) -> LatencyModel:
        times.append(together)
        return LatencyModel(CostCurve({1: SLOW_S, 9: 1.1 * SLOW_S}), CostCurve({1: 0.001 * SLOW_S}))

    monkeypatch.setattr(contexts, "measure", measure)
    return times


@pytest.fixture
def open_pair(demo_target: Path, demo_draft: Path) -> Open:
    target = ModelOptions(demo_target, context=256, threads=1, keeps_costs=True)
    return partial(Runtime.open, target, replace(target, path=demo_draft), max_fan_out=4)


def test_costs_are_measured_by_the_first_program_alone(open_pair: Open, measured: list[bool]) -> None:
    with open_pair() as runtime:
        chosen, reason = runtime.choose_settings()
        assert "earlier" not in reason
    assert measured == [False, True]
    with open_pair() as runtime:
        again, why = runtime.choose_settings()
        answer(runtime, greedy(FORCED, max_tokens=4))
    assert measured == [False, True]
    assert (again, why) == (chosen, f"{reason}, measured earlier")


def test_another_way_of_opening_the_pair_is_measured_anew(
    open_pair: Open, measured: list[bool], demo_target: Path, demo_draft: Path
) -> None:
    two = ModelOptions(demo_target, context=256, threads=2, keeps_costs=True)
    draft = ModelOptions(demo_draft, flash_attention=False)
    ways = (
        open_pair,
        partial(open_pair, max_fan_out=2),
        partial(open_pair, draft_threads=2),
        partial(Runtime.open, two, draft),
        partial(Runtime.open, two, replace(draft, flash_attention=True)),
    )
    for open_so in ways:
        with open_so() as runtime:
            answer(runtime, greedy(FORCED, max_tokens=2))
    assert len(measured) == len(ways)


def test_nothing_is_kept_or_looked_up_unless_that_is_asked_for(
    measured: list[bool], demo_target: Path, demo_draft: Path
) -> None:
    options = ModelOptions(demo_target, context=256, threads=1)
    for _ in range(2):
        with Runtime.open(options, replace(options, path=demo_draft), max_fan_out=4) as runtime:
            runtime.choose_settings()
    assert measured == [False, True] * 2
    assert not (data_dir() / "costs").exists()


def test_costs_of_a_busy_machine_are_found_out(open_pair: Open, measured: list[bool]) -> None:
    with open_pair() as runtime:
        answer(runtime, greedy(FORCED, max_tokens=2))
    with open_pair() as runtime:
        answer(runtime, greedy(FORCED, max_tokens=10 * COMPARED))
        promised = runtime._engine.plain.at(0)
    assert promised is not None
    assert promised < 0.1 * SLOW_S
    with open_pair() as runtime:
        answer(runtime, greedy(FORCED, max_tokens=2))
    assert measured == [False, False]


def test_costs_of_a_machine_that_was_faster_are_what_speculation_has_to_beat(
    open_pair: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = LatencyModel(CostCurve({1: FAST_S, 9: 2 * FAST_S}), CostCurve({1: FAST_S}))
    monkeypatch.setattr(contexts, "measure", lambda *_, **__: fast)
    for _ in range(2):
        with open_pair() as runtime:
            answer(runtime, greedy(FORCED, max_tokens=10 * COMPARED))
            assert runtime._engine.plain.at(0) == pytest.approx(FAST_S)
