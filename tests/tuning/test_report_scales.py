"""Scales and figures in words."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import pytest

from localspec.tuning.report.scales import (
    doubling_ticks,
    finite,
    fixed,
    linear_ticks,
    milliseconds,
    nice_step,
    parameters,
    percent,
    size,
    tight_scale,
    whole_scale,
)


@pytest.mark.parametrize(
    ("span", "step"), [(1.0, 0.2), (10.0, 2.0), (12.0, 5.0), (0.0042, 0.001), (48.0, 10.0), (9e6, 2e6)]
)
def test_steps_are_nice_numbers(span: float, step: float) -> None:
    assert nice_step(span) == pytest.approx(step)


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.937), (61.7, 118.4), (-3.0, 2.0), (1e-6, 3e-6), (0, 1e9)])
def test_linear_ticks_enclose_the_range_evenly(low: float, high: float) -> None:
    ticks = linear_ticks(low, high)
    steps = {round((b - a) / (ticks[1] - ticks[0]), 6) for a, b in pairwise(ticks)}
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert steps == {1.0}
    assert 3 <= len(ticks) <= 9


def test_ticks_that_fit_are_not_exceeded() -> None:
    assert linear_ticks(0, 1) == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize("value", [0.0, 5.0, -2.0])
def test_an_empty_range_is_widened(value: float) -> None:
    ticks = linear_ticks(value, value)
    assert ticks[0] < value < ticks[-1]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(1, 64, (1, 2, 4, 8, 16, 32, 64)), (3, 20, (2, 4, 8, 16, 32)), (0.3, 0.3, (0.25, 0.5)), (4, 4, (4, 8))],
)
def test_doubling_ticks(low: float, high: float, ticks: tuple[float, ...]) -> None:
    assert doubling_ticks(low, high) == ticks


def test_a_whole_scale_runs_from_tick_to_tick() -> None:
    scale = whole_scale(0, 10, 100, 0)
    assert [scale(value) for value in (0, 5, 10, 99, -1)] == [100, 50, 0, 0, 100]
    assert [scale.label(tick) for tick in scale.ticks] == ["0", "2", "4", "6", "8", "10"]


def test_a_tight_scale_runs_from_value_to_value() -> None:
    scale = tight_scale(1, 16, 0, 150)
    assert (scale(1), scale(16)) == (0, 150)
    assert scale.ticks == (2, 4, 6, 8, 10, 12, 14, 16)


def test_a_tight_scale_counts_in_whole_numbers() -> None:
    assert tight_scale(1, 2, 0, 1).ticks == (1, 2)


def test_a_doubling_scale_gives_every_doubling_the_same_room() -> None:
    scale = tight_scale(1, 64, 0, 60, doubling=True)
    assert [scale(value) for value in (1, 2, 8, 64)] == pytest.approx([0, 10, 30, 60])
    assert scale.label(0.25) == "0.25"


def test_a_tight_scale_of_one_value_can_still_be_drawn() -> None:
    for doubling in (False, True):
        scale = tight_scale(4, 4, 0, 10, doubling)
        assert 0 <= scale(4) <= 10


def test_labels_have_the_decimals_of_their_steps() -> None:
    scale = whole_scale(0.14, 0.22, 0, 1)
    assert [scale.label(tick) for tick in scale.ticks] == ["0.14", "0.16", "0.18", "0.20", "0.22"]


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert finite([(1, 2), (nan, 1), (1, inf), (2, -inf), (3, 4)]) == ((1, 2), (3, 4))


def test_figures_in_words() -> None:
    assert [fixed(1234.56), fixed(nan), fixed(inf), fixed(1.005, 2)] == ["1,234.6", "–", "–", "1.00"]
    assert [percent(0.846), percent(nan)] == ["85%", "–"]
    times = [milliseconds(each) for each in (0.1234, 0.01234, 0.001234, 0.0001234, nan)]
    assert times == ["123\u00a0ms", "12.3\u00a0ms", "1.23\u00a0ms", "0.123\u00a0ms", "–"]
    assert [size(3 * 2**30), size(144_811_072)] == ["3.0 GiB", "138 MiB"]
    assert [parameters(1_711_376_384), parameters(134_515_008), parameters(3200)] == [
        "1.7 billion",
        "135 million",
        "3,200",
    ]
