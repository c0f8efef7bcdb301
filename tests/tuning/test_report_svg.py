"""Drawings: where things are, what they say, and what cannot be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, nan
from xml.etree import ElementTree as ET

import pytest

from localspec.tuning.events import ConfirmedContender
from localspec.tuning.report.svg import (
    Axis,
    Chart,
    Mark,
    Series,
    clipped,
    doubling_ticks,
    drawn,
    finite,
    line_chart,
    linear_ticks,
)
from localspec.types import EngineSettings, Interval


def parsed(drawing: str | None) -> ET.Element:
    assert drawing is not None
    return ET.fromstring(drawing)


def titles(drawing: str | None) -> list[str]:
    return [each.text or "" for each in parsed(drawing).iter("title")][1:]


def chart(points: Sequence[tuple[float, float]], x: Axis | None = None, mark: Mark | None = None) -> Chart:
    series = Series("alone", tuple(points), "a")
    return Chart("key", "Title", "in words", x or Axis("size"), Axis("time", unit=" ms"), (series,), mark)


def test_a_chart_has_a_name_a_description_and_a_tooltip_for_every_point() -> None:
    drawing = line_chart(chart([(1, 10), (2, 20)]))
    root = parsed(drawing)
    names = {each.get("id"): each.text for each in root if each.tag in {"title", "desc"}}
    assert root.get("role") == "img"
    assert [names[each] for each in (root.get("aria-labelledby") or "").split()] == ["Title", "in words"]
    assert titles(drawing) == ["alone, 1: 10 ms", "alone, 2: 20 ms"]


def test_points_are_drawn_where_their_values_are() -> None:
    dots = list(parsed(line_chart(chart([(0, 0), (5, 5), (10, 10)]))).iter("circle"))
    xs, ys = ([float(each.get(name) or nan) for each in dots] for name in ("cx", "cy"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1]) == pytest.approx((xs[2] - xs[0]) / 2)
    assert ys[0] > ys[1] > ys[2]  # larger is higher


@pytest.mark.parametrize("bad", [(nan, 1.0), (1.0, nan), (inf, 1.0), (1.0, -inf)])
def test_points_that_are_no_numbers_are_left_out(bad: tuple[float, float]) -> None:
    drawing = line_chart(chart([(1, 10), bad, (2, 20)], mark=Mark(nan, 1, "there")))
    assert titles(drawing) == ["alone, 1: 10 ms", "alone, 2: 20 ms"]
    assert drawing is not None
    assert not {"nan", "inf"} & set(drawing.replace('"', " ").split())
    assert line_chart(chart([bad])) is None


def test_a_doubling_axis_leaves_out_what_has_no_logarithm() -> None:
    assert titles(line_chart(chart([(0, 1), (-1, 1), (4, 2)], Axis("N", doubling=True)))) == [
        "alone, 4: 2 ms"
    ]


def test_a_chart_without_points_is_none() -> None:
    assert line_chart(chart([])) is None


def test_one_point_can_be_drawn() -> None:
    assert titles(line_chart(chart([(3, 7)]))) == ["alone, 3: 7 ms"]


def test_very_many_points_become_one_path() -> None:
    drawing = line_chart(chart([(at, at % 7) for at in range(1000)]))
    root = parsed(drawing)
    clouds = [each for each in root.iter("path") if each.get("class") == "cloud"]
    assert [(each.get("d") or "").count("M") for each in clouds] == [1000]
    assert list(root.iter("circle")) == []


def test_a_square_chart_shows_the_same_range_on_both_axes() -> None:
    series = Series("both", ((10, 90), (20, 80)), "a")
    square = Chart("key", "T", "", Axis("x"), Axis("y"), (series,), square=True)
    labels = [each.text for each in parsed(line_chart(square)).iter("text")]
    assert labels.count("0") == labels.count("100") == 2


def test_whiskers_widen_the_scale_and_bad_ones_are_left_out() -> None:
    whiskers = ((1.0, 5.0, 40.0), (2.0, nan, 3.0))
    series = Series("s", ((1, 10), (2, 20)), "a", whiskers=whiskers)
    root = parsed(line_chart(Chart("key", "T", "", Axis("x"), Axis("y"), (series,))))
    assert "40" in [each.text for each in root.iter("text")]
    assert [each.get("class") for each in root.iter("path")].count("whisker") == 1


def contender(name: str, settings: EngineSettings, rate: Interval) -> ConfirmedContender:
    return ConfirmedContender(name, settings, None, rate, Interval(1.0, 1.0, 1.0))


def test_bars_are_as_long_as_their_values() -> None:
    plain = contender("plain", EngineSettings("off"), Interval(50.0, 48.0, 52.0))
    best = contender("best", EngineSettings("sd", 4), Interval(100.0, 95.0, 105.0))
    root = parsed(drawn("rate_bars", contenders=[plain, best], chosen=best))
    widths = [float(each.get("width") or nan) for each in root.iter("rect")]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    assert [[span.text for span in row.iter("span")] for row in root] == [
        ["plain decoding", "50.0 (48.0 to 52.0)"],
        ["chosen: SD, K 4", "100.0 (95.0 to 105.0)"],
    ]
    assert [(row.get("class") or "").split() for row in root] == [["muted"], ["a", "chosen"]]


def test_a_bar_without_an_interval_has_no_whisker() -> None:
    endless = contender("plain", EngineSettings("off"), Interval(1.0, -inf, inf))
    root = parsed(drawn("rate_bars", contenders=[endless], chosen=None))
    assert [each.get("class") for each in root.iter("path")] == ["compare"]


def test_columns_beyond_the_used_ones_are_pale() -> None:
    drawing = drawn("columns", key="key", title="Accepted", shares=[(1, 0.9), (3, 0.5)], count=3, used=1)
    looks = [each.get("class") for each in parsed(drawing).iter("g")]
    assert looks == ["a", "muted"]
    assert titles(drawing) == ["draft token 1: 90% accepted", "draft token 3: 50% accepted"]


def test_shares_are_told_and_drawn() -> None:
    drawing = drawn("share_bars", key="key", title="What mattered", shares=[("most", 0.8), ("few", 0.1)])
    assert titles(drawing) == ["most: 80.0%", "few: 10.0%"]
    most, few = (float(each.get("width") or nan) for each in parsed(drawing).iter("rect"))
    assert most == pytest.approx(8 * few)


def heatmap(cells: Sequence[tuple[tuple[int, int], float]], ring: tuple[int, int] | None) -> str:
    values = [value for _, value in cells]
    ends = {"low": min(values), "high": max(values)}
    return drawn("heatmap", key="key", title="Field", cells=cells, ring=ring, **ends)


def test_a_heatmap_shows_every_cell_and_one_ring() -> None:
    cells = [((1, 2), 10.0), ((2, 2), 20.0)]
    drawing = heatmap(cells, ring=(2, 2))
    boxes = [each.get("class") for each in parsed(drawing).iter("rect")]
    assert titles(drawing) == [
        "draft length 1, budget 2: 10.0 tokens/s",
        "draft length 2, budget 2: 20.0 tokens/s",
    ]
    assert boxes == ["h0", "h9", "ring"]


def test_a_heatmap_of_equal_cells_can_be_drawn() -> None:
    cells = [((1, 2), 10.0), ((2, 2), 10.0)]
    boxes = [each.get("class") for each in parsed(heatmap(cells, None)).iter("rect")]
    assert len(set(boxes)) == 1


def test_long_names_are_clipped() -> None:
    assert clipped("short", 100) == "short"
    assert clipped("a very long name that does not fit", 100).endswith("…")


@pytest.mark.parametrize(
    ("span", "step"), [(6.0, 1.0), (12.0, 2.0), (13.0, 5.0), (0.0051, 0.001), (48.0, 10.0), (9e6, 2e6)]
)
def test_steps_are_nice_numbers(span: float, step: float) -> None:
    first, second, *_ = linear_ticks(0.0, span)
    assert second - first == pytest.approx(step)


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
    scale = Axis().scale((0, 10), 100, 0)
    assert [scale(value) for value in (0, 5, 10, 99, -1)] == [100, 50, 0, 0, 100]
    assert [scale.label(tick) for tick in scale.ticks] == ["0", "2", "4", "6", "8", "10"]


def test_a_tight_scale_runs_from_value_to_value() -> None:
    scale = Axis(tight=True).scale((1, 16), 0, 150)
    assert (scale(1), scale(16)) == (0, 150)
    assert scale.ticks == (2, 4, 6, 8, 10, 12, 14, 16)


def test_a_tight_scale_counts_in_whole_numbers() -> None:
    assert Axis(tight=True).scale((1, 2), 0, 1).ticks == (1, 2)


def test_a_doubling_scale_gives_every_doubling_the_same_room() -> None:
    scale = Axis(doubling=True).scale((1, 64), 0, 60)
    assert [scale(value) for value in (1, 2, 8, 64)] == pytest.approx([0, 10, 30, 60])
    assert scale.label(0.25) == "0.25"


def test_a_tight_scale_of_one_value_can_still_be_drawn() -> None:
    for doubling in (False, True):
        scale = Axis(tight=True, doubling=doubling).scale((4,), 0, 10)
        assert 0 <= scale(4) <= 10


def test_labels_have_the_decimals_of_their_steps() -> None:
    scale = Axis().scale((0.14, 0.22), 0, 1)
    assert [scale.label(tick) for tick in scale.ticks] == ["0.14", "0.16", "0.18", "0.20", "0.22"]


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert finite([(1, 2), (nan, 1), (1, inf), (2, -inf), (3, 4)]) == ((1, 2), (3, 4))
