"""Measured plain decoding, which the speed of other modes is compared with."""

from __future__ import annotations

from bisect import bisect_left

from localspec.chat.messages import AnswerRecord
from localspec.types.models import PlainRate

NEAR_TOKENS = 256  # a single measurement speaks for depths this near,
NEAR_SHARE = 0.25  # or within this share of its own depth
SAME_DEPTH = 32  # tokens within which a new measurement replaces an old one
ENOUGH_TOKENS = 16  # a plain answer at least this long is itself a measurement


class PlainRates:
    """Measured plain decoding at several depths of context; safe to share between threads."""

    def __init__(self) -> None:
        self._points: tuple[PlainRate, ...] = ()  # by depth; replaced, never changed

    def forget(self) -> None:
        """Drop what was measured: other models decode from now on."""
        self._points = ()

    def add(self, rate: PlainRate) -> None:
        """Take in a measurement; it replaces an earlier one of about the same depth."""
        if rate.tokens_per_s > 0:
            others = (point for point in self._points if abs(point.depth - rate.depth) > SAME_DEPTH)
            self._points = tuple(sorted((*others, rate), key=lambda point: point.depth))

    def learn(self, record: AnswerRecord) -> None:
        """Add the speed of an answer in plain decoding; ignore others."""
        if record.summary.tokens > ENOUGH_TOKENS and (rate := own_rate(record)):
            self.add(rate)

    def at(self, depth: int) -> float | None:
        """Return the tokens per second at a depth: between two measurements or near one, else None."""
        points = self._points
        place = bisect_left(points, depth, key=lambda point: point.depth)
        if 0 < place < len(points):
            lower, upper = points[place - 1 : place + 1]
            share = (depth - lower.depth) / (upper.depth - lower.depth)
            # the time of a token grows with the depth in a straight line
            return 1 / ((1 - share) / lower.tokens_per_s + share / upper.tokens_per_s)
        for point in points[max(0, place - 1) : place + 1]:
            if abs(point.depth - depth) <= max(NEAR_TOKENS, NEAR_SHARE * point.depth):
                return point.tokens_per_s
        return None


def own_rate(record: AnswerRecord) -> PlainRate | None:
    """Return the speed of an answer that was plain throughout, None for others."""
    speed = record.summary.tokens_per_s
    is_plain = record.mode == "off" and not record.changes
    return PlainRate(record.summary.mean_depth, speed) if is_plain and speed else None
