"""A heatmap as inline SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from localspec.tuning.report.markup import Markup, tag
from localspec.tuning.report.scales import fixed
from localspec.tuning.report.svg import LEFT, RIGHT, TOP, WIDTH, drawing, label

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
