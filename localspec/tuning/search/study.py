"""The study of a task's settings: Optuna over the simulator, kept in SQLite, the same after a kill.

Finished trials alone are written, each in one step, and every choice follows from them and the seed: a study
that was killed goes on as if it had not been. A trial costs about 30 ms beside its simulation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from localspec.errors import Cancelled, LocalSpecError
from localspec.tuning.search.space import (
    Space,
    Way,
    fitting,
    neighbours,
    parameters,
    starting_points,
    suggest,
    ways,
)
from localspec.tuning.search.study_file import FAILURE, StudyFile, StudyKey, explained, quiet
from localspec.types import EngineSettings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


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


RANDOM_TRIALS = 4  # of each way, start points included, before its model is asked
SETTLED = 8  # trials without a better one, after which every other one looks around the best settings
ATTEMPTS = 8  # to get settings that were not tried from a model, before something else is tried
_FIXED = ("mode", "acceptance", "stop")  # the parameters that make a way


class Choice:
    """The study's sampler: TPE for each way, over trials in memory."""

    def __init__(self, space: Space, starts: Sequence[EngineSettings], seed: int) -> None:
        """Try `starts` first, and with them the usual ones."""
        self._space = space
        self._starts = tuple(dict.fromkeys((*starting_points(space), *fitting(starts, space))))
        self._ways = ways(space)
        self._studies: dict[Way, Study] = {}
        self._seed = seed

    def is_start(self, settings: EngineSettings) -> bool:
        """Tell whether these are settings that somebody will ask about: they are never left early."""
        return settings in self._starts

    def learn(self, settings: EngineSettings, trial: FrozenTrial) -> None:
        """Take a finished trial."""
        self._study(Way.of(settings)).add_trial(trial)

    def next(self, history: History) -> EngineSettings | None:
        """Return settings that were not tried, None if nothing new can be found."""
        number = len(history.tried)
        for start in self._starts:
            if start not in history.seen:
                return start
        random = Random(f"{self._seed} {number}")
        settled = number % 2 and history.was_quiet(len(self._starts), SETTLED)
        if settled and (near := self._near(history, random)) is not None:
            return near
        return self._from_models(history, number) or self._near(history, random)

    def _near(self, history: History, random: Random) -> EngineSettings | None:
        if history.best is None or history.best.settings.mode == "off":
            return None
        around = neighbours(history.best.settings, self._space)
        untried = [settings for settings in around if settings not in history.seen]
        return random.choice(untried) if untried else None

    def _from_models(self, history: History, number: int) -> EngineSettings | None:
        """Ask the leading way's model and the least searched way's in turn, then all others."""
        found = history.ways_open(self._ways)
        if not found:
            return None
        known = history.ways
        by_trials = sorted(found, key=lambda way: known[way].trials if way in known else 0)
        leader = max(found, key=lambda way: known[way].best if way in known else 0.0)
        order = [leader, *by_trials] if number % 4 < 2 else [*by_trials, leader]  # parity picks neighbours
        for way in dict.fromkeys(order):
            if (settings := self._sampled(way, history, number)) is not None:
                return settings
        return None

    def _sampled(self, way: Way, history: History, number: int) -> EngineSettings | None:
        """Return new settings from a way's model; all chance comes from the seed and the trial's number."""
        from optuna.trial import TrialState

        study = self._study(way)
        for attempt in range(ATTEMPTS):
            study.sampler = self._sampler(way, self._seed * 1_000_003 + number * ATTEMPTS + attempt)
            trial = study.ask()
            settings = suggest(trial, self._space)
            study.tell(trial, state=TrialState.FAIL)  # what really happens is told by `learn`
            if settings not in history.seen:
                return settings
        return None

    def _sampler(self, way: Way, seed: int) -> BaseSampler:
        from optuna.samplers import PartialFixedSampler, TPESampler

        example = EngineSettings(
            way.mode, acceptance=way.acceptance, min_confidence=None if way.stop == "automatic" else 0.0
        )
        answers = parameters(example, self._space)
        fixed = {name: answers[name] for name in _FIXED if name in answers}
        with quiet():
            model = TPESampler(
                seed=seed % 2**32, multivariate=True, constant_liar=False, n_startup_trials=RANDOM_TRIALS
            )
            return PartialFixedSampler(fixed, model)

    def _study(self, way: Way) -> Study:
        import optuna

        if way not in self._studies:
            self._studies[way] = optuna.create_study(direction="maximize")
        return self._studies[way]


def distributions(settings: EngineSettings, space: Space) -> dict[str, BaseDistribution]:
    """Return where the parameters of settings come from."""
    from optuna.trial import FixedTrial

    trial = FixedTrial(parameters(settings, space))
    suggest(trial, space)
    return trial.distributions


Simulate = Callable[[EngineSettings, int], float]
"""Returns tokens per second over the trace's shares 0 to the given one."""

PATIENCE = 60  # trials without a noticeable gain: the last tenth of a percent is below what a run can tell
STUDY_MAY_LAG = 0.2  # behind the best after the first share; a half, a third ... of it after the next ones


@dataclass(frozen=True, slots=True)
class Search:
    """What to search, and when to stop; `starts` are tried first.

    `shares` is in how many steps a trial sees the trace. Both limits count what earlier runs of the same
    study did.
    """

    space: Space
    starts: tuple[EngineSettings, ...] = ()
    shares: int = 3
    trials: int = 150
    budget_s: float = math.inf
    seed: int = 0


def search(simulate: Simulate, wish: Search, path: Path, key: StudyKey) -> Iterator[Tried]:
    """Yield the trials of a study, those on file first, until a limit is reached or nothing improves.

    A simulation that raises is a failed trial. Raises `StoreError`, and passes on `Cancelled`.
    """
    with StudyFile(path) as file:
        study = file.study(key.name(wish.space, wish.shares), *_about(wish))
        choice, history = Choice(wish.space, wish.starts, wish.seed), History()
        for trial in study.get_trials(deepcopy=False):
            if (tried := _recalled(trial, history, wish.space)) is not None:
                choice.learn(tried.settings, trial)
                history.add(tried)
                yield tried
        while _goes_on(history, wish):
            started = time.perf_counter()
            settings = choice.next(history)
            if settings is None:
                return
            bar = None if choice.is_start(settings) else history.best
            tried = _try(simulate, settings, bar, history, wish.shares)
            tried = replace(tried, seconds=time.perf_counter() - started)
            trial = _frozen(tried, wish.space)
            with explained(path):
                study.add_trial(trial)
            choice.learn(settings, trial)
            history.add(tried)
            yield tried


def _about(wish: Search) -> tuple[tuple[str, str], ...]:
    """Return what somebody who opens the file should know about the study."""
    return (
        ("value", "tokens per second of decoding, simulated on traced answers with measured costs"),
        ("steps", f"shares of the trace: {wish.shares} of {wish.shares} are all of it"),
        ("pruned", "clearly behind the best on the first shares"),
        ("failed", f"the simulation gave no number; the attribute `{FAILURE}` says why"),
    )


def _goes_on(history: History, wish: Search) -> bool:
    return (
        len(history.tried) < wish.trials
        and history.seconds < wish.budget_s
        and history.quiet_trials < PATIENCE
    )


def _try(
    simulate: Simulate, settings: EngineSettings, bar: Tried | None, history: History, shares: int
) -> Tried:
    """Simulate share after share; leave early if clearly behind `bar`."""
    number, so_far = len(history.tried), list[float]()
    try:
        for share in range(shares):
            so_far.append(_checked(simulate(settings, share)))
            if share < shares - 1 and bar is not None and so_far[-1] < _least(bar, share):
                return Tried(number, settings, None, so_far=tuple(so_far))
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this trial's failure and the study goes on
        return Tried(number, settings, None, _reason(error), so_far=tuple(so_far))
    return Tried(number, settings, so_far[-1], is_best=history.is_gain(so_far[-1]), so_far=tuple(so_far))


def _least(bar: Tried, share: int) -> float:
    """Return what a trial must reach on a share: all trials see the same text, so that little is chance."""
    return bar.so_far[share] * (1.0 - STUDY_MAY_LAG / (share + 1))


def _checked(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"the simulation gave {value} tokens per second")
    return float(value)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    line = next(iter(str(error).splitlines()), "")
    return line if line and isinstance(error, LocalSpecError) else f"{type(error).__name__}: {line}"


def _frozen(tried: Tried, space: Space) -> FrozenTrial:
    """Return a trial as Optuna keeps it."""
    from optuna.trial import TrialState, create_trial

    whole = TrialState.PRUNED if tried.left_early else TrialState.COMPLETE
    trial = create_trial(
        state=TrialState.FAIL if tried.failure else whole,
        value=None if tried.failure else tried.estimate,
        params=parameters(tried.settings, space),
        distributions=distributions(tried.settings, space),
        intermediate_values=dict(enumerate(tried.so_far)),
        user_attrs={FAILURE: tried.failure} if tried.failure else {},
    )
    trial.datetime_start = datetime.now() - timedelta(seconds=tried.seconds)  # noqa: DTZ005 - Optuna's are without a zone
    return trial


def _recalled(trial: FrozenTrial, history: History, space: Space) -> Tried | None:
    """Return a trial that is on file, None for one that somebody else left unfinished."""
    from optuna.trial import FixedTrial, TrialState

    failure = str(trial.user_attrs.get(FAILURE, ""))
    if not trial.state.is_finished() or (trial.state == TrialState.FAIL and not failure):
        return None
    value = trial.value if trial.state == TrialState.COMPLETE else None
    return Tried(
        number=len(history.tried),
        settings=suggest(FixedTrial(trial.params), space),
        tokens_per_s=value,
        failure=failure,
        is_best=history.is_gain(value),
        so_far=tuple(trial.intermediate_values[step] for step in sorted(trial.intermediate_values)),
        kept=True,
        seconds=trial.duration.total_seconds() if trial.duration is not None else 0.0,
    )
