"""Plots with two axes as inline SVG, coloured by the page's style sheet.

Drawn here: pygal, the one kept-up small library, has no heatmap, no whiskers and no colours from the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from localspec.tuning.report.markup import Markup, join, short, tag
from localspec.tuning.report.scales import Point, Scale, finite, fixed, percent, tight_scale, whole_scale

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


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its interval; `value` is drawn, `told` is what stands at its end."""

    name: str
    told: str
    value: float
    low: float
    high: float
    chosen: bool = False


def rate_bars(bars: Sequence[Bar]) -> Markup | None:
    """Return bars with whiskers below their names; a dashed line marks the end of the first."""
    kept = [bar for bar in bars if isfinite(bar.value) and bar.value >= 0]
    if not kept:
        return None
    longest = max(max(bar.value, bar.high if isfinite(bar.high) else 0.0) for bar in kept)
    scale = Scale(0.0, longest or 1.0, 1, WIDTH - 2, ())
    first = scale(kept[0].value)
    return tag("ul", *(_row(bar, scale, first) for bar in kept), class_="bars")


def _row(bar: Bar, scale: Scale, first: float) -> Markup:
    parts: list[str] = [
        tag("rect", x=1, y=2, width=scale(bar.value) - 1, height=12, rx=2, class_="bar"),
        path([(first, 0), (first, 16)], "compare"),
    ]
    if isfinite(bar.low) and isfinite(bar.high) and bar.low < bar.high:
        low, high = scale(bar.low), scale(bar.high)
        parts.append(path([(low, 8), (high, 8)], "whisker"))
        parts += [path([(end, 4), (end, 12)], "whisker") for end in (low, high)]
    words = tag("span", bar.name), tag("span", bar.told)
    drawn = tag(
        "svg", *parts, viewBox=f"0 0 {short(WIDTH)} 16", preserveAspectRatio="none", aria_hidden="true"
    )
    return tag("li", *words, drawn, class_="a chosen" if bar.chosen else "muted")


def columns(key: str, title: str, shares: Sequence[float], used: int) -> Markup | None:
    """Return a column for each position, from 1; those after the first `used` are pale."""
    kept = [(at, share) for at, share in enumerate(shares, start=1) if isfinite(share)]
    if not kept:
        return None
    left, right, top, bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    scale = whole_scale(0, 1, bottom, top)
    step = (right - left) / len(shares)
    content: list[str] = [label(4, 12, "accepted", "axis")]
    for tick in scale.ticks:
        content.append(path([(left, scale(tick)), (right, scale(tick))], "grid-line"))
        content.append(label(left - 7, scale(tick) + 4, percent(tick), anchor="end"))
    for at, share in kept:
        middle, end = left + (at - 0.5) * step, scale(share)
        title_of_column = tag("title", f"draft token {at}: {percent(share)} accepted")
        width = min(40.0, step * 0.68)
        place = {"x": middle - width / 2, "y": end, "width": width, "height": bottom - end}
        content.append(
            tag(
                "g",
                tag("rect", title_of_column, **place, class_="bar"),
                class_="a" if at <= used else "muted",
            )
        )
        content.append(label(middle, max(end - 5, top - 4), percent(share), "figure", "middle"))
        content.append(label(middle, bottom + 17, str(at), anchor="middle"))
    content.append(path([(left, bottom), (right, bottom)], "base"))
    content.append(label((left + right) / 2, HEIGHT - 6, "position in the draft", "axis", "middle"))
    told = ", ".join(f"{at}: {percent(share)}" for at, share in kept)
    return drawing(key, title, told, (WIDTH, HEIGHT), content)


def share_bars(key: str, title: str, shares: Sequence[tuple[str, float]]) -> Markup | None:
    """Return a thin bar for each named share, the longest first."""
    kept = sorted(((n, s) for n, s in shares if isfinite(s) and s >= 0), key=lambda item: -item[1])
    if not kept:
        return None
    left, row = 144.0, 26.0
    scale = Scale(0.0, max(share for _, share in kept) or 1.0, left, WIDTH - 48, ())
    content: list[str] = []
    for index, (name, share) in enumerate(kept):
        top = index * row + 6
        content.append(label(left - 10, top + 13, clipped(name, left - 12), anchor="end"))
        bar = tag("rect", x=left, y=top + 2, width=scale(share) - left, height=14, rx=2, class_="bar")
        content.append(tag("g", tag("title", f"{name}: {share:.1%}"), bar, class_="a"))
        content.append(label(scale(share) + 8, top + 13, f"{share:.1%}", "figure"))
    told = ", ".join(f"{name}: {share:.1%}" for name, share in kept)
    return drawing(key, title, told, (WIDTH, row * len(kept) + 10), content)


LEVELS = 10  # colours in the style sheet: h0 ... h9
_END = WIDTH - RIGHT


@dataclass(frozen=True, slots=True)
class Cell:
    """A value at whole coordinates."""

    x: int
    y: int
    value: float


@dataclass(frozen=True, slots=True)
class _Field:
    """Which columns and rows there are, and where; the smallest y is at the bottom."""

    across: tuple[int, ...]
    up: tuple[int, ...]
    width: float
    height: float

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> _Field:
        across, up = tuple(sorted({cell.x for cell in cells})), tuple(sorted({cell.y for cell in cells}))
        return cls(across, up, (_END - LEFT) / len(across), max(16.0, min(28.0, 182.0 / len(up))))

    @property
    def bottom(self) -> float:
        return TOP + self.height * len(self.up)

    def left_of(self, x: int) -> float:
        return LEFT + self.width * self.across.index(x)

    def top_of(self, y: int) -> float:
        return self.bottom - self.height * (self.up.index(y) + 1)


def heatmap(key: str, names: tuple[str, str, str], cells: Sequence[Cell], ring: Cell | None) -> Markup | None:
    """Return a field of colours with a ring around one cell; `names` are its title and its axes'."""
    kept = [cell for cell in cells if isfinite(cell.value)]
    if not kept:
        return None
    field = _Field.of(kept)
    low, high = min(cell.value for cell in kept), max(cell.value for cell in kept)
    content: list[str] = [label(4, 12, names[2], "axis")]
    for cell in kept:
        share = (cell.value - low) / (high - low) if high > low else 0.5
        content.append(_cell(cell, field, min(LEVELS - 1, int(LEVELS * share))))
    content += _labels(field)
    content.append(label((LEFT + _END) / 2, field.bottom + 36, names[1], "axis", "middle"))
    if ring is not None and ring in kept:
        place = {"x": field.left_of(ring.x), "y": field.top_of(ring.y)}
        content.append(tag("rect", **place, width=field.width, height=field.height, rx=3, class_="ring"))
    told = f"{len(kept)} cells from {fixed(low)} to {fixed(high)} tokens/s"
    return drawing(key, names[0], told, (WIDTH, field.bottom + 42), content)


def _labels(field: _Field) -> Iterator[Markup]:
    for y in field.up:
        yield label(LEFT - 7, field.top_of(y) + field.height / 2 + 4, str(y), anchor="end")
    for x in field.across:
        yield label(field.left_of(x) + field.width / 2, field.bottom + 17, str(x), anchor="middle")


def _cell(cell: Cell, field: _Field, level: int) -> Markup:
    x, y, width, height = field.left_of(cell.x), field.top_of(cell.y), field.width, field.height
    box = tag("rect", x=x + 0.5, y=y + 0.5, width=width - 1, height=height - 1, class_=f"h{level}")
    parts = [tag("title", f"draft length {cell.x}, budget {cell.y}: {fixed(cell.value)} tokens/s"), box]
    if width >= 34:
        ink = "on-high" if level >= LEVELS // 2 else "on-low"
        parts.append(label(x + width / 2, y + height / 2 + 4, fixed(cell.value), ink, "middle"))
    return tag("g", *parts)


def colour_key(cells: Sequence[Cell]) -> Markup:
    """Return what the colours of a heatmap mean."""
    values = [cell.value for cell in cells if isfinite(cell.value)]
    boxes = (
        tag("rect", x=14 * level, y=0, width=14, height=10, class_=f"h{level}") for level in range(LEVELS)
    )
    bar = tag("svg", *boxes, viewBox=f"0 0 {14 * LEVELS} 10", class_="ramp", aria_hidden="true")
    return tag("p", fixed(min(values)), bar, f"{fixed(max(values))} tokens/s", class_="legend")
