"""What calls cost an answer that shares them with others."""

from __future__ import annotations

import threading
from collections.abc import Callable

from localspec.decoding.passes import Seat
from localspec.decoding.policy import CostCurve, LatencyModel

_LEARNING = threading.Lock()


class _SharedCurve(CostCurve):
    """The costs of calls that have rows of others besides: a row costs what it adds to all of them."""

    def __init__(self, curve: CostCurve, others: Callable[[], int]) -> None:
        self._curve = curve
        self._others = others

    def __call__(self, size: int) -> float:
        """Return the seconds of a call with `size` tokens of this answer."""
        return self._curve(size + self._others())

    def up_to(self, size: int) -> list[float]:
        """Return the seconds of calls with 1, 2, ... `size` tokens of this answer."""
        others = self._others()
        return self._curve.up_to(others + size)[others:]

    def observe(self, size: int, seconds: float) -> None:
        """Learn from one call."""
        with _LEARNING:  # answers share the curve
            self._curve.observe(size + self._others(), seconds)

    def points(self) -> dict[int, float]:
        """Return the known sizes of whole calls with their seconds."""
        return self._curve.points()


class _Verifying(_SharedCurve):
    """Costs of verification, learned from calls in which no prompt was read."""

    def __init__(self, curve: CostCurve, seat: Seat) -> None:
        super().__init__(curve, lambda: seat.others)
        self._seat = seat

    def observe(self, size: int, seconds: float) -> None:
        """Learn from one call."""
        if not self._seat.was_reading:
            super().observe(size, seconds)


class _Stepping(CostCurve):
    """An answer's share of a draft step that drafts for others as well."""

    def __init__(self, curve: CostCurve, seat: Seat) -> None:
        self._curve = curve
        self._seat = seat

    def __call__(self, size: int) -> float:
        """Return the share."""
        runs = self._seat.calls
        return self._curve(size + runs - 1) / runs

    def observe(self, size: int, seconds: float) -> None:
        """Learn nothing: a part of the time was spent on waiting for others."""


class SharedLatency(LatencyModel):
    """The costs for an answer in company.

    A token saves less time the more answers a round serves, so drafts get shorter, and end.
    """

    def __init__(
        self, alone: LatencyModel, target: Seat, draft: Seat | None, answers: Callable[[], int]
    ) -> None:
        """Take the costs of whole calls, the answer's seats, and the number of answers that share them."""
        self._answers = answers
        step = alone.step if draft is None else _Stepping(alone.step, draft)
        super().__init__(_Verifying(alone.verify, target), step, alone.unknown)
        self.seconds_per_token /= answers()

    @property
    def answers(self) -> int:
        """Return the number of answers that a round serves."""
        return max(1, self._answers())
