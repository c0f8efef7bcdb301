"""Bars and columns as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from localspec.tuning.report.markup import Markup, short, tag
from localspec.tuning.report.scales import Scale, percent, whole_scale
from localspec.tuning.report.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    clipped,
    drawing,
    label,
    path,
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
