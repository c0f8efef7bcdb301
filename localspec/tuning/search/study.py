"""The study of a task's settings: Optuna over the simulator, kept in SQLite, the same after a kill.

Finished trials alone are written, each in one step, and every choice follows from them and the seed: a study
that was killed goes on as if it had not been. A trial costs about 30 ms beside its simulation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import Cancelled, LocalSpecError
from localspec.tuning.search.space import Space, parameters, suggest
from localspec.tuning.search.study_choice import Choice, distributions
from localspec.tuning.search.study_file import FAILURE, StudyFile, StudyKey, explained
from localspec.tuning.search.study_history import History, Tried
from localspec.types import EngineSettings

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Simulate = Callable[[EngineSettings, int], float]
"""Returns tokens per second over the trace's shares 0 to the given one."""

PATIENCE = 60  # trials without a noticeable gain: the last tenth of a percent is below what a run can tell
MAY_LAG = 0.2  # behind the best after the first share; a half, a third ... of it after the next ones


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
    return bar.so_far[share] * (1.0 - MAY_LAG / (share + 1))


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
