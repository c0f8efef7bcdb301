"""Devices that are not here: what holds a model's calls for the time that they would take there.

Two held models behave like two graphics cards with memories of their own. Figures from them are "paced".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pacing:
    """The cost of a call: `first_s` for one token, `further` of that more for every further one."""

    first_s: float
    further: float

    def __call__(self, size: int) -> float:
        """Return the seconds of a call with `size` tokens."""
        return self.first_s * (1.0 + self.further * (size - 1))


class Hold:
    """Holds calls until their cost has passed, without the interpreter lock.

    A prompt is read at the price of one call for each `chunk` tokens.
    """

    def __init__(self, cost: Callable[[int], float], chunk: int = 512) -> None:
        self._cost = cost
        self._chunk = chunk
        self.seconds = 0.0  # that calls were held so far

    def rest(self, size: int, spent_s: float) -> None:
        """Hold a call with `size` tokens that has taken `spent_s` seconds for the rest of its cost."""
        whole, more = divmod(size, self._chunk)
        cost_s = whole * self._cost(self._chunk) + (self._cost(more) if more else 0.0)
        if cost_s > spent_s:
            before = time.perf_counter()
            time.sleep(cost_s - spent_s)
            self.seconds += time.perf_counter() - before
