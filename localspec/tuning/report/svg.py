"""Drawings as inline SVG: scales and what can be drawn are settled here, `svg.html.j2` writes the elements.

Drawn here: pygal, the one kept-up small library, has no heatmap, no whiskers and no colours from the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, floor, isfinite, log2, log10, nan
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from localspec.tuning.words import fixed, milliseconds, mode_name, parameters, percent
from localspec.units import memory

Point = tuple[float, float]
WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 388.0, 26.0, 208.0  # of the field inside the axes
LETTER = 6.2  # average width of a letter at the font size of the plots
# What XML forbids even as a reference, and single surrogates, which cannot be encoded.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@cache
def _environment() -> Environment:
    found = Environment(
        autoescape=True,
        extensions=["jinja2.ext.do"],
        finalize=_written,
        keep_trailing_newline=True,
        loader=FileSystemLoader(Path(__file__).parent),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    found.globals |= {"WIDTH": WIDTH, "HEIGHT": HEIGHT, "LETTER": LETTER, "nan": nan}
    found.globals |= {"LEFT": LEFT, "RIGHT": RIGHT, "TOP": TOP, "BOTTOM": BOTTOM}
    functions = Axis, Chart, Mark, Scale, Series, enumerate, line_chart
    found.globals |= {each.__name__: each for each in functions}
    found.tests["finite"] = isfinite
    filters = clipped, finite, fixed, memory, milliseconds, mode_name, parameters, percent
    found.filters |= {each.__name__: each for each in filters}
    return found


def _written(value: object) -> object:
    """Write a bare float as a coordinate: with at most two decimals."""
    if not isinstance(value, float):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def rendered(template: str, **values: object) -> str:
    """Return a template with its values: texts escaped, characters that cannot be written replaced."""
    text = _environment().get_template(template).render(values)
    return _FORBIDDEN.sub("\ufffd", text)


def drawn(macro: str, **values: object) -> Markup:
    """Return what a macro of `svg.html.j2` writes."""
    found: Markup = getattr(_environment().get_template("svg.html.j2").module, macro)(**values)
    return found


def clipped(words: str, width: float) -> str:
    """Return a text short enough for a width."""
    room = int(width / LETTER)
    return words if len(words) <= room else words[: max(1, room - 1)].rstrip() + "…"


def finite(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that can be drawn."""
    return tuple((float(x), float(y)) for x, y in points if isfinite(x) and isfinite(y))


def linear_ticks(low: float, high: float, count: int = 6) -> tuple[float, ...]:
    """Return multiples of 1, 2 or 5 times a power of ten that enclose a range; an empty one is widened."""
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / count
    power = 10.0 ** floor(log10(rough))
    step = next((factor * power for factor in (1, 2, 5) if rough <= factor * power * 1.0001), 10 * power)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def doubling_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return the powers of two that enclose a positive range; at least two of them."""
    first, last = floor(log2(low)), ceil(log2(max(low, high)))
    return tuple(2.0**power for power in range(first, max(last, first + 1) + 1))


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis says and how its ticks are chosen; `unit` is written after a value in tooltips.

    `zero` begins at 0; `tight` (of counts) and `doubling` axes end with the values, others with a tick.
    """

    label: str = ""
    doubling: bool = False
    zero: bool = False
    tight: bool = False
    percent: bool = False
    unit: str = ""

    def scale(self, values: Iterable[float], start: float, end: float) -> Scale:
        """Return the scale on which all these values can be drawn."""
        values = tuple(values)
        low, high = min(values), max(values)
        if self.doubling:
            ticks = doubling_ticks(low, high)
        else:
            ticks = linear_ticks(min(low, 0.0) if self.zero else low, high, 8 if self.tight else 6)
        inside = tuple(tick for tick in ticks if low <= tick <= high and (self.doubling or tick % 1 == 0))
        if (self.doubling or self.tight) and low < high and inside:
            return Scale(self, low, high, start, end, inside)
        return Scale(self, ticks[0], ticks[-1], start, end, ticks)

    def say(self, value: float) -> str:
        """Return a value in words."""
        return percent(value) if self.percent else f"{value:.4g}{self.unit}"


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to coordinates: `low` is drawn at `start`, `high` at `end`."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value; one outside is drawn at the border."""
        low, high = self.low, self.high
        value = min(high, max(low, value))
        share = log2(value / low) / log2(high / low) if self.axis.doubling else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def label(self, tick: float) -> str:
        """Return a tick with the decimals that the steps need."""
        if self.axis.percent:
            return percent(tick)
        if self.axis.doubling:
            return f"{tick:,.6g}"
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        return f"{tick:,.{max(0, ceil(-log10(step) - 1e-9))}f}"


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind: `look` are classes of the style sheet; whiskers are (x, low, high)."""

    name: str
    points: tuple[Point, ...]
    look: str
    line: bool = True
    dots: bool = True
    whiskers: tuple[tuple[float, float, float], ...] = ()

    def drawable(self, x: Axis) -> Series:
        """Return the series without what has no place on the drawing."""
        points = tuple(point for point in finite(self.points) if point[0] > 0 or not x.doubling)
        whiskers = tuple(each for each in self.whiskers if all(map(isfinite, each)) and each[1] < each[2])
        return replace(self, points=points, whiskers=whiskers)


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


def line_chart(chart: Chart) -> Markup | None:
    """Return the chart, or None where it has no point that can be drawn."""
    series = tuple(each.drawable(chart.x) for each in chart.series)
    across = [x for each in series for x, _ in each.points]
    if not across:
        return None
    up = [y for each in series for _, y in each.points]
    up += [end for each in series for _, *ends in each.whiskers for end in ends]
    both = across + up if chart.square else []
    x = chart.x.scale(both or across, LEFT, RIGHT)
    y = chart.y.scale(both or up, BOTTOM, TOP)
    mark = chart.mark if chart.mark and finite([(chart.mark.x, chart.mark.y)]) else None
    return drawn("line_chart", chart=replace(chart, series=series, mark=mark), x=x, y=y)
