"""Drawings: where things are, what they say, and what cannot be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from xml.etree import ElementTree as ET

import pytest

from localspec.tuning.report.markup import Markup, table, tag, text
from localspec.tuning.report.svg import (
    Axis,
    Bar,
    Cell,
    Chart,
    Mark,
    Series,
    clipped,
    columns,
    heatmap,
    line_chart,
    rate_bars,
    share_bars,
)


def parsed(drawing: Markup | None) -> ET.Element:
    assert drawing is not None
    return ET.fromstring(drawing)


def titles(drawing: Markup | None) -> list[str]:
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


def test_bars_are_as_long_as_their_values() -> None:
    bars = [Bar("plain", "50", 50, 48, 52), Bar("best", "100", 100, 95, 105, chosen=True)]
    root = parsed(rate_bars(bars))
    plain, best = (float(each.get("width") or nan) for each in root.iter("rect"))
    assert best == pytest.approx(2 * plain, rel=0.01)
    assert [[span.text for span in row.iter("span")] for row in root] == [["plain", "50"], ["best", "100"]]
    assert [(row.get("class") or "").split() for row in root] == [["muted"], ["a", "chosen"]]


def test_bars_that_are_no_numbers_are_left_out() -> None:
    assert rate_bars([Bar("plain", "?", nan, nan, nan)]) is None
    assert len(parsed(rate_bars([Bar("plain", "?", nan, 1, 2), Bar("best", "1", 1, -inf, inf)]))) == 1


def test_columns_beyond_the_used_ones_are_pale() -> None:
    drawing = columns("key", "Acceptance", (0.9, nan, 0.5), used=1)
    looks = [each.get("class") for each in parsed(drawing).iter("g")]
    assert looks == ["a", "muted"]
    assert titles(drawing) == ["draft token 1: 90% accepted", "draft token 3: 50% accepted"]
    assert columns("key", "Acceptance", (nan,), 1) is None


def test_shares_stand_in_their_order() -> None:
    drawing = share_bars("key", "What mattered", (("few", 0.1), ("most", 0.85), ("bad", nan)))
    assert titles(drawing) == ["most: 85.0%", "few: 10.0%"]
    assert share_bars("key", "What mattered", ()) is None


def test_a_heatmap_shows_every_cell_and_one_ring() -> None:
    cells = [Cell(1, 2, 10.0), Cell(2, 2, 20.0), Cell(2, 8, nan)]
    drawing = heatmap("key", ("Field", "K", "budget"), cells, ring=cells[1])
    boxes = [each.get("class") for each in parsed(drawing).iter("rect")]
    assert titles(drawing) == [
        "draft length 1, budget 2: 10.0 tokens/s",
        "draft length 2, budget 2: 20.0 tokens/s",
    ]
    assert boxes == ["h0", "h9", "ring"]
    assert heatmap("key", ("Field", "K", "budget"), [cells[2]], ring=None) is None


def test_a_heatmap_of_equal_cells_can_be_drawn() -> None:
    cells = [Cell(1, 2, 10.0), Cell(2, 2, 10.0)]
    boxes = [each.get("class") for each in parsed(heatmap("k", ("F", "K", "B"), cells, None)).iter("rect")]
    assert len(set(boxes)) == 1


def test_markup_escapes_texts_once_and_forbidden_characters_not_at_all() -> None:
    assert tag("p", "<b> & \"'", title='<&">') == (
        '<p title="&lt;&amp;&quot;&gt;">&lt;b&gt; &amp; &quot;&#x27;</p>'
    )
    assert text(text("<")) == "&lt;"
    assert text("a\x00\x1b[31m\ud800") == "a\ufffd\ufffd[31m\ufffd"
    assert "<script>" not in table("<script>", ["<script>"], [["<script>", "<script>"]])


def test_long_names_are_clipped() -> None:
    assert clipped("short", 100) == "short"
    assert clipped("a very long name that does not fit", 100).endswith("…")
