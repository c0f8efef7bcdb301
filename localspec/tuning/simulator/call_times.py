"""What calls take in a simulation, at the depth of an answer; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from localspec.decoding.measure import STEP_WIDTHS, VERIFY_SIZES
from localspec.decoding.measurements import CallCosts, Costs, Overhead
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.types.request import Mode

# What the drafter's thread does takes so much of the Python for one token of plain speculation, as measured.
AHEAD_STEP = 1.8  # around a call that prepares outcomes
FURTHER_BRANCH = 0.25  # for every further one of its branches
MAX_SPREAD = 0.2  # beyond it the measurement was disturbed
MIDDLE_HALF = 1.35  # width of a normal distribution's middle half in its deviation

Points = tuple[tuple[int, float], ...]


_NORMAL = [NormalDist().inv_cdf((place + 0.5) / 256) for place in range(256)]
Random(0).shuffle(_NORMAL)


class CallCurve:
    """Seconds of a call by its size, at one depth; beyond what was measured every token costs the same."""

    def __init__(self, points: Points, factor: float) -> None:
        self._curve = CostCurve({size: factor * seconds for size, seconds in points})
        self._known = max(size for size, _ in points)
        span = max(self._known - 1, 1)
        self._further_s = max(self._curve(self._known) - self._curve(1), 0.0) / span

    def __call__(self, size: int) -> float:
        """Return the seconds of a call."""
        if size <= self._known:
            return self._curve(size)
        return self._curve(self._known) + self._further_s * (size - self._known)


@dataclass(frozen=True, slots=True)
class CallTimes:
    """All times while one answer is decoded."""

    verify: CallCurve
    step: CallCurve  # while the target works, if it ever does
    waited_step: CallCurve  # of the draft model while the target waits for it
    round_s: float
    token_s: float
    drafting_s: float  # Python of a drafter with its own thread: to follow a verdict, or to draft one token
    handoff_s: float
    deviation: float  # of one verification from the next, in its time

    def around_step(self, width: int) -> float:
        """Return Python's time around a call that prepares outcomes."""
        return self.drafting_s * (AHEAD_STEP + FURTHER_BRANCH * (width - 1))

    def unsteady(self, number: int) -> float:
        """Return the ratio of a verification to its typical time."""
        return 1.0 + self.deviation * _NORMAL[number % len(_NORMAL)]


class Timing:
    """The measured costs in one mode."""

    def __init__(self, costs: Costs, mode: Mode) -> None:
        together = [calls for calls in costs.calls if calls.together == (mode == "ssd")]
        self._calls = sorted(together or costs.calls, key=lambda calls: calls.depth)
        overheads = {overhead.mode: overhead for overhead in costs.overheads}
        self._overhead = overheads.get(mode, Overhead(mode, 0.0))
        self._drafting = overheads.get("sd", self._overhead)
        self._mode = mode

    def latency_model(self) -> LatencyModel:
        """Return the costs known before decoding: a few sizes, with little text in the caches."""
        calls = self._calls[0]
        return LatencyModel(
            CostCurve(_chosen(calls.verify, VERIFY_SIZES)),
            CostCurve(_chosen(calls.step or calls.verify[:1], STEP_WIDTHS)),
        )

    def at(self, depth: int) -> CallTimes:
        """Return the call times with `depth` tokens in the caches."""
        known = self._overhead
        first = self._calls[0]
        last = self._calls[-1]
        share = (depth - first.depth) / (last.depth - first.depth) if last.depth > first.depth else 0.0
        steps = _between(first, last, share, "step") or ((1, 0.0),)
        waited_step = CallCurve(steps, known.step)
        return CallTimes(
            CallCurve(_between(first, last, share, "verify"), known.verify),
            CallCurve(steps, 1.0) if self._mode == "ssd" else waited_step,
            waited_step,
            known.round_s,
            known.token_s,
            self._drafting.token_s if self._mode == "ssd" else 0.0,
            known.handoff_s,
            min(first.spread, MAX_SPREAD) / MIDDLE_HALF,
        )


def _chosen(points: Points, sizes: Sequence[int]) -> dict[int, float]:
    """Return the points of these sizes, or all if there are none."""
    return {size: seconds for size, seconds in points if size in sizes} or dict(points)


def _between(first: CallCosts, last: CallCosts, share: float, name: str) -> Points:
    """Return the costs between two depths, or beyond them on the same line but never below half of both."""
    low = dict(getattr(first, name))
    high = dict(getattr(last, name))
    return tuple(
        (size, max(low[size] + share * (high[size] - low[size]), min(low[size], high[size]) / 2))
        for size in low
        if size in high
    )
