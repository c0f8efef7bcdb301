"""The speeds of a benchmark as bars with their intervals, in an SVG file that needs nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.cli.bench.output import times
from localspec.tuning.report.markup import Markup, join, short, tag
from localspec.tuning.report.scales import Scale, whole_scale
from localspec.tuning.report.style import COLOURS, MARKS
from localspec.tuning.report.svg import clipped, label, path
from localspec.tuning.words import figure

if TYPE_CHECKING:
    from localspec.benchmark.figures import Row, SpeedTable

WIDTH, MARGIN = 800.0, 20.0
_NAMES, _FIGURES = 160.0, 230.0  # room beside the bars
_TOP, _HEADING, _ROW, _GAP, _BOTTOM = 66.0, 24.0, 24.0, 16.0, 44.0
_STYLE = """
svg { background: var(--card); font-family: system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
svg .heading { fill: var(--ink); font-size: 17px; font-weight: 600; }
"""


def picture(table: SpeedTable, title: str, below: str) -> Markup:
    """Return the drawing: the first contender of each task pale, with a dashed line where its bar ends."""
    tasks = dict.fromkeys(row.task for row in table.rows)
    groups = {task: [row for row in table.rows if row.task == task] for task in tasks}
    heights = [_HEADING + _ROW * len(rows) + _GAP for rows in groups.values()]
    floor = _TOP + sum(heights)
    scale = whole_scale(0.0, _end(table), MARGIN + _NAMES, WIDTH - MARGIN - _FIGURES)
    parts: list[str] = [
        tag("title", title, id="bench-t"),
        tag("desc", _told(table), id="bench-d"),
        tag("style", Markup(COLOURS + MARKS + _STYLE)),
        tag("rect", width=WIDTH, height=floor + _BOTTOM, style="fill: var(--card)"),
        label(MARGIN, 32, clipped(title, 0.65 * WIDTH), "heading"),
        label(MARGIN, 51, clipped(below, WIDTH - 2 * MARGIN)),
        _grid(scale, floor),
    ]
    top = _TOP
    for (task, rows), height in zip(groups.items(), heights, strict=True):
        parts.append(_group(task, rows, scale, top))
        top += height
    return tag(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {short(WIDTH)} {short(floor + _BOTTOM)}",
        width=WIDTH,
        height=floor + _BOTTOM,
        role="img",
        aria_labelledby="bench-t bench-d",
    )


def _end(table: SpeedTable) -> float:
    """Return the speed up to which is drawn; an interval that says nothing does not flatten all bars."""
    fastest = max(row.tokens_per_s.value for row in table.rows)
    return min(2 * fastest, max(row.tokens_per_s.high or fastest for row in table.rows))


def _told(table: SpeedTable) -> str:
    return "; ".join(f"{row.task}, {row.contender}: {_words(row)}" for row in table.rows)


def _words(row: Row) -> str:
    speed = f"{figure(row.tokens_per_s.value)} tokens/s"
    if row.against is None:
        return speed
    low, high = row.against.low, row.against.high
    ends = "" if low is None or high is None else f" ({times(low)}-{times(high)})"
    return f"{speed}, ×{times(row.against.value)}{ends}"


def _grid(scale: Scale, floor: float) -> Markup:
    parts: list[str] = []
    for tick in scale.ticks:
        parts.append(path([(scale(tick), _TOP), (scale(tick), floor - _GAP / 2)], "grid-line"))
        parts.append(label(scale(tick), floor + 8, scale.label(tick), anchor="middle"))
    parts.append(label((scale.start + scale.end) / 2, floor + 26, "tokens per second", "axis", "middle"))
    return join(parts)


def _group(task: str, rows: list[Row], scale: Scale, top: float) -> Markup:
    first = scale(rows[0].tokens_per_s.value)
    begin, end = top + _HEADING, top + _HEADING + _ROW * len(rows)
    parts: list[str] = [label(MARGIN, top + 15, clipped(task, _NAMES), "strong")]
    parts += [_row(row, scale, begin + number * _ROW, plain=number == 0) for number, row in enumerate(rows)]
    return tag("g", *parts, path([(first, begin), (first, end)], "compare"))


def _row(row: Row, scale: Scale, top: float, *, plain: bool) -> Markup:
    speed, middle = row.tokens_per_s, top + _ROW / 2
    parts: list[str] = [
        label(scale.start - 10, middle + 4, clipped(row.contender, _NAMES - 12), "figure", "end"),
        tag("rect", x=scale.start, y=top + 4, width=scale(speed.value) - scale.start, height=_ROW - 8, rx=2,
            class_="bar"),
    ]  # fmt: skip
    if speed.low is not None and speed.high is not None and speed.low < speed.high:
        low, high = scale(speed.low), scale(speed.high)
        parts.append(path([(low, middle), (high, middle)], "whisker"))
        inside = [low] if speed.high > scale.high else [low, high]
        parts += [path([(at, middle - 4), (at, middle + 4)], "whisker") for at in inside]
    parts.append(label(scale.end + 14, middle + 4, _words(row), "figure"))
    return tag("g", *parts, class_="muted" if plain else "a")
