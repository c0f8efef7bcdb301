"""Scales, their ticks, and figures in words: pure functions of finite numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, floor, isfinite, log2, log10

Point = tuple[float, float]
UNKNOWN = "–"


def finite(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that can be drawn."""
    return tuple((float(x), float(y)) for x, y in points if isfinite(x) and isfinite(y))


def nice_step(span: float, count: int = 5) -> float:
    """Return the step of about `count` ticks over a positive span: 1, 2 or 5 times a power of ten."""
    rough = span / count
    power = 10.0 ** floor(log10(rough))
    return next((factor * power for factor in (1, 2, 5) if rough <= factor * power * 1.0001), 10 * power)


def linear_ticks(low: float, high: float, count: int = 6) -> tuple[float, ...]:
    """Return nice numbers that enclose the range; an empty range is widened."""
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    step = nice_step(high - low, count)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def doubling_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return the powers of two that enclose a positive range; at least two of them."""
    first, last = floor(log2(low)), ceil(log2(max(low, high)))
    return tuple(2.0**power for power in range(first, max(last, first + 1) + 1))


def whole_scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return a scale that begins and ends with a tick."""
    ticks = linear_ticks(low, high)
    return Scale(ticks[0], ticks[-1], start, end, ticks)


def tight_scale(low: float, high: float, start: float, end: float, doubling: bool = False) -> Scale:
    """Return a scale of counts that begins and ends with the values, where they differ."""
    ticks = doubling_ticks(low, high) if doubling else linear_ticks(low, high, 8)
    inside = tuple(tick for tick in ticks if low <= tick <= high and (doubling or tick % 1 == 0))
    if low >= high or not inside:
        return Scale(ticks[0], ticks[-1], start, end, ticks, doubling)
    return Scale(low, high, start, end, inside, doubling)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to coordinates: `low` is drawn at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    doubling: bool = False

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value; one outside is drawn at the border."""
        low, high = self.low, self.high
        value = min(high, max(low, value))
        share = log2(value / low) / log2(high / low) if self.doubling else (value - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def label(self, tick: float) -> str:
        """Return a tick with the decimals that the steps need."""
        if self.doubling:
            return f"{tick:,.6g}"
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        return f"{tick:,.{max(0, ceil(-log10(step) - 1e-9))}f}"


def fixed(value: float, digits: int = 1) -> str:
    """Return a number with so many decimals, or a dash for what is no number."""
    return f"{value:,.{digits}f}" if isfinite(value) else UNKNOWN


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f}%" if isfinite(share) else UNKNOWN


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with about three digits."""
    if not isfinite(seconds):
        return UNKNOWN
    value = 1000 * seconds
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}\u00a0ms"


def size(amount: float) -> str:
    """Return bytes as people say them."""
    return f"{amount / 2**30:.1f} GiB" if amount >= 2**30 else f"{amount / 2**20:.0f} MiB"


def parameters(count: float) -> str:
    """Return a number of weights as people say them."""
    for unit, name in ((1e9, "billion"), (1e6, "million")):
        if count >= unit:
            return f"{count / unit:.{1 if count < 100 * unit else 0}f} {name}"
    return f"{count:,.0f}"
