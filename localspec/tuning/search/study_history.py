"""What a study has tried so far, and what follows from it; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.tuning.search.space import Way
from localspec.types import EngineSettings

MAY_LAG = ((4, 0.25), (7, 0.15), (11, 0.08), (17, 0.03))  # after fewer trials than the first: how far behind
LAST_LAG = 0.015
NOTICEABLE = 1.001  # times the best: less is no reason to go on searching


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial of the study: settings, and the simulated tokens per second of the whole trace.

    `tokens_per_s` is None where `failure` says why, or where the trial was left early because it was clearly
    behind; `so_far` then holds the tokens per second of each share of the trace that was simulated.
    """

    number: int
    settings: EngineSettings
    tokens_per_s: float | None
    failure: str = ""
    is_best: bool = False  # of all until then
    so_far: tuple[float, ...] = ()
    kept: bool = False  # from an earlier run of the same study
    seconds: float = 0.0

    @property
    def left_early(self) -> bool:
        """Tell whether the trial was given up for being behind."""
        return self.tokens_per_s is None and not self.failure

    @property
    def estimate(self) -> float:
        """Return the best guess of its tokens per second: at least those of a share; 0 after a failure."""
        return self.tokens_per_s or (self.so_far[-1] if self.so_far else 0.0)


@dataclass(slots=True)
class WayHistory:
    """How one way has done."""

    trials: int = 0
    best: float = 0.0


@dataclass(slots=True)
class History:
    """All trials of a study in their order."""

    tried: list[Tried] = field(default_factory=list)
    seen: set[EngineSettings] = field(default_factory=set)
    ways: dict[Way, WayHistory] = field(default_factory=dict)
    best: Tried | None = None
    quiet_trials: int = 0  # since the last noticeable gain
    seconds: float = 0.0

    def is_gain(self, value: float | None) -> bool:
        """Tell whether a value is better than all before it."""
        return value is not None and (self.best is None or value > self.best.estimate)

    def add(self, tried: Tried) -> None:
        """Take a finished trial."""
        known = self.best.estimate if self.best is not None else 0.0
        gains = tried.is_best and tried.estimate > NOTICEABLE * known
        self.quiet_trials = 0 if gains else self.quiet_trials + 1
        if tried.is_best:
            self.best = tried
        self.tried.append(tried)
        self.seen.add(tried.settings)
        self.seconds += tried.seconds
        way = self.ways.setdefault(Way.of(tried.settings), WayHistory())
        way.trials += 1
        way.best = max(way.best, tried.estimate)

    def was_quiet(self, begin: int, trials: int) -> bool:
        """Tell whether so many trials in a row were no better than those before, from number `begin` on."""
        quiet = 0
        for tried in self.tried[begin:]:
            quiet = 0 if tried.is_best else quiet + 1
            if quiet >= trials:
                return True
        return False

    def ways_open(self, ways: Sequence[Way]) -> list[Way]:
        """Return the ways worth searching: the longer a way was searched, the less it may be behind."""
        best = max((self.ways[way].best for way in ways if way in self.ways), default=0.0)
        return [
            way
            for way in ways
            if way not in self.ways or self.ways[way].best >= best * (1.0 - _may_lag(self.ways[way].trials))
        ]


def _may_lag(trials: int) -> float:
    """Return how far behind a way may be that was searched so often."""
    return next((lag for below, lag in MAY_LAG if trials < below), LAST_LAG)
