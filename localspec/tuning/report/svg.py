"""Plots with two axes as inline SVG, coloured by the page's style sheet.

Drawn here: pygal, the one kept-up small library, has no heatmap, no whiskers and no colours from the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from localspec.tuning.report.markup import Markup, join, short, tag
from localspec.tuning.report.scales import Point, Scale, finite, tight_scale, whole_scale

WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 26.0, 42.0
_MANY = 150  # dots that get no tooltips
_LETTER = 6.2  # average width of a letter at the font size of the plots


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says and how its ticks are chosen; `unit` is written after a value in tooltips.

    `zero` begins at 0; `tight` (of counts) and `doubling` axes end with the values, others with a tick.
    """

    label: str
    doubling: bool = False
    zero: bool = False
    tight: bool = False
    percent: bool = False
    unit: str = ""

    def scale(self, values: Sequence[float], start: float, end: float) -> Scale:
        """Return the scale on which all these values can be drawn."""
        low, high = min(values), max(values)
        if self.doubling or self.tight:
            return tight_scale(low, high, start, end, self.doubling)
        return whole_scale(min(low, 0.0) if self.zero else low, high, start, end)

    def say(self, value: float) -> str:
        """Return a value in words."""
        return f"{100 * value:.0f}%" if self.percent else f"{value:.4g}{self.unit}"

    def tick(self, scale: Scale, value: float) -> str:
        """Return the text beside a tick."""
        return f"{100 * value:.0f}%" if self.percent else scale.label(value)


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind: `look` are classes of the style sheet; whiskers are (x, low, high)."""

    name: str
    points: tuple[Point, ...]
    look: str
    line: bool = True
    dots: bool = True
    whiskers: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """A point to be noticed."""

    x: float
    y: float
    text: str
    lift: float = 14.0  # of the text above the point


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot; `key` is unique on the page, `describe` is read aloud, `band` shades an area.

    Both axes of a `square` one show the same range.
    """

    key: str
    title: str
    describe: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    mark: Mark | None = None
    band: tuple[Point, ...] = ()
    square: bool = False


def drawing(key: str, title: str, describe: str, size: Point, content: Sequence[str]) -> Markup:
    """Return an SVG that has a name and a description for those who cannot see it."""
    return tag(
        "svg",
        tag("title", title, id=f"{key}-t"),
        tag("desc", describe, id=f"{key}-d"),
        *content,
        viewBox=f"0 0 {short(size[0])} {short(size[1])}",
        role="img",
        aria_labelledby=f"{key}-t {key}-d",
    )


def label(x: float, y: float, words: str, class_: str = "", anchor: str | None = None) -> Markup:
    """Return a line of text in a plot."""
    return tag("text", words, x=x, y=y, class_=class_ or None, text_anchor=anchor)


def path(points: Sequence[Point], class_: str) -> Markup:
    """Return a line through points that are coordinates already."""
    return tag("path", d="M" + "L".join(f"{short(x)} {short(y)}" for x, y in points), class_=class_)


def clipped(words: str, width: float) -> str:
    """Return a text short enough for a width."""
    room = int(width / _LETTER)
    return words if len(words) <= room else words[: max(1, room - 1)].rstrip() + "…"


def line_chart(chart: Chart) -> Markup | None:
    """Return the chart, or None where it has no point that can be drawn."""
    kept = [(each, _drawable(each.points, chart)) for each in chart.series]
    seen = [point for _, points in kept for point in points]
    if not seen:
        return None
    whiskers = [end for each in chart.series for _, *ends in each.whiskers for end in ends if isfinite(end)]
    across, up = [x for x, _ in seen], [y for _, y in seen] + whiskers
    both = across + up if chart.square else []
    x = chart.x.scale(both or across, LEFT, WIDTH - RIGHT)
    y = chart.y.scale(both or up, HEIGHT - BOTTOM, TOP)
    content = [_grid(chart, x, y)]
    if chart.band:
        edge = " ".join(f"{short(x(a))},{short(y(b))}" for a, b in finite(chart.band))
        content.append(tag("polygon", points=edge, class_="band"))
    content += [_series(each, points, chart, (x, y)) for each, points in kept]
    if chart.mark and finite([(chart.mark.x, chart.mark.y)]):
        content.append(_mark(chart.mark, x, y))
    return drawing(chart.key, chart.title, chart.describe, (WIDTH, HEIGHT), content)


def _drawable(points: Sequence[Point], chart: Chart) -> tuple[Point, ...]:
    return tuple((x, y) for x, y in finite(points) if x > 0 or not chart.x.doubling)


def _grid(chart: Chart, x: Scale, y: Scale) -> Markup:
    parts: list[str] = [label(4, 12, chart.y.label, "axis")]
    for tick in y.ticks:
        at = y(tick)
        parts.append(path([(x.start, at), (x.end, at)], "grid-line"))
        parts.append(label(x.start - 7, at + 4, chart.y.tick(y, tick), anchor="end"))
    for tick in x.ticks:
        at = x(tick)
        parts.append(path([(at, y.start), (at, y.start + 4)], "tickmark"))
        parts.append(label(at, y.start + 17, chart.x.tick(x, tick), anchor="middle"))
    parts.append(path([(x.start, y.start), (x.end, y.start)], "base"))
    parts.append(label((x.start + x.end) / 2, HEIGHT - 6, chart.x.label, "axis", "middle"))
    return join(parts)


def _series(each: Series, points: Sequence[Point], chart: Chart, scales: tuple[Scale, Scale]) -> Markup:
    x, y = scales
    parts: list[str] = []
    if each.line and len(points) > 1:
        parts.append(path([(x(a), y(b)) for a, b in points], "line"))
    for at, low, high in each.whiskers:
        if all(map(isfinite, (at, low, high))) and low < high:
            parts.append(path([(x(at), y(low)), (x(at), y(high))], "whisker"))
    if each.dots and len(points) > _MANY:
        dots = join(f"M{short(x(a))} {short(y(b))}h0" for a, b in points)
        parts.append(tag("path", d=dots, class_="cloud"))  # a tenth of the bytes of circles
    elif each.dots or len(points) == 1:
        for a, b in points:
            told = tag("title", f"{each.name}, {chart.x.say(a)}: {chart.y.say(b)}")
            parts.append(tag("circle", told, cx=x(a), cy=y(b), r=3, class_="dot"))
    return tag("g", *parts, class_=each.look)


def _mark(mark: Mark, x: Scale, y: Scale) -> Markup:
    across, up = x(mark.x), y(mark.y)
    half = len(mark.text) * _LETTER / 2
    middle = min(WIDTH - RIGHT - half, max(LEFT + half, across))
    above = up - mark.lift if up - mark.lift > TOP + 8 else up + 24
    return join(
        [
            path([(across, y.start), (across, up)], "guide"),
            tag("circle", cx=across, cy=up, r=6.5, class_="ring"),
            label(middle, above, mark.text, "strong marked", "middle"),
        ]
    )
