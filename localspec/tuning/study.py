"""The study of a task's settings: Optuna over the simulator, kept in SQLite, the same after a kill.

Finished trials alone are written, each in one step, and every choice follows from them and the seed: a study
that was killed goes on as if it had not been. Chance, with every other trial a neighbour of the best, came
within 0.6% of Optuna's multivariate TPE on paced devices in a quarter of its time
(`tests/benchmarks/search.py`).
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Self

from localspec.errors import Cancelled, LocalSpecError, StoreError
from localspec.storage.paths import PRIVATE_FILE, make_private_folder
from localspec.tuning.run_folder import digest
from localspec.tuning.space import (
    Space,
    canonical,
    neighbours,
    parameters,
    starting_points,
    suggest,
)
from localspec.types import EngineSettings, Mode

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial


NOTICEABLE = 1.001  # times the best: less is no reason to go on searching
PATIENCE = 60  # trials without a noticeable gain: the last tenth of a percent is below what a run can tell
ATTEMPTS = 40  # to get settings by chance that were not tried
CLOSE = 0.1  # behind the best: the simulator may err by nearly that between modes, and less within one
FEWEST = 12  # trials of a mode, before it is said which parameters matter

Simulate = Callable[[EngineSettings], float]
"""Returns tokens per second over the trace."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One trial of the study: settings, and simulated tokens per second; None where `failure` says why."""

    number: int
    settings: EngineSettings
    tokens_per_s: float | None
    failure: str = ""
    is_best: bool = False  # of all until then
    kept: bool = False  # from an earlier run of the same study
    seconds: float = 0.0

    @property
    def estimate(self) -> float:
        """Return its tokens per second, 0 after a failure."""
        return self.tokens_per_s or 0.0


@dataclass(frozen=True, slots=True)
class Search:
    """What to search, and when to stop.

    Both limits count what earlier runs of the same study did.
    """

    space: Space
    trials: int = 150
    budget_s: float = math.inf
    seed: int = 0


class _Trials:
    """All trials of a study in their order, and the settings that come next."""

    def __init__(self, request: Search) -> None:
        self._space, self._seed = request.space, request.seed
        self._starts = dict.fromkeys(starting_points(self._space))
        self._seen: set[EngineSettings] = set()
        self.count = 0
        self.best: Tried | None = None
        self.quiet_trials = 0  # since the last noticeable gain
        self.seconds = 0.0

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
        self.count += 1
        self.seconds += tried.seconds
        self._seen.add(tried.settings)

    def next(self) -> EngineSettings | None:
        """Return settings that were not tried, None if nothing new can be found."""
        for start in self._starts:
            if start not in self._seen:
                return start
        random = Random(f"{self._seed} {self.count}")
        if self.count % 2 and (near := self._near(random)) is not None:
            return near
        return self._by_chance(random) or self._near(random)

    def _near(self, random: Random) -> EngineSettings | None:
        """Return settings next to the best."""
        around = () if self.best is None else neighbours(self.best.settings, self._space)
        untried = [settings for settings in around if settings not in self._seen]
        return random.choice(untried) if untried else None

    def _by_chance(self, random: Random) -> EngineSettings | None:
        import optuna

        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=random.getrandbits(32)))
        for _ in range(ATTEMPTS):
            settings = suggest(study.ask(), self._space)
            if settings not in self._seen:
                return settings
        return None


def search(simulate: Simulate, request: Search, path: Path, key: StudyKey) -> Iterator[Tried]:
    """Yield the trials of a study, those on file first, until a limit is reached or nothing improves.

    A simulation that raises is a failed trial. Raises `StoreError`, and passes on `Cancelled`.
    """
    space = request.space
    with StudyFile(path) as file:
        study = file.study(key.name(space, _IN_NAMES), *_ABOUT)
        trials = _Trials(request)
        for trial in study.get_trials(deepcopy=False):
            if (tried := _recalled(trial, trials, space)) is not None:
                trials.add(tried)
                yield tried
        while trials.count < request.trials and trials.seconds < request.budget_s:
            started = time.perf_counter()
            settings = trials.next() if trials.quiet_trials < PATIENCE else None
            if settings is None:
                return
            tried = _try(simulate, settings, trials)
            tried = replace(tried, seconds=time.perf_counter() - started)
            with explained(path):
                study.add_trial(_frozen(tried, space))
            trials.add(tried)
            yield tried


def _try(simulate: Simulate, settings: EngineSettings, trials: _Trials) -> Tried:
    try:
        value = float(simulate(settings))
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"the simulation gave {value} tokens per second")
    except Cancelled:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this trial's failure and the study goes on
        return Tried(trials.count, settings, None, _reason(error))
    return Tried(trials.count, settings, value, is_best=trials.is_gain(value))


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    line = next(iter(str(error).splitlines()), "")
    return line if line and isinstance(error, LocalSpecError) else f"{type(error).__name__}: {line}"


def _frozen(tried: Tried, space: Space) -> FrozenTrial:
    """Return a trial as Optuna keeps it."""
    from optuna.trial import TrialState, create_trial

    trial = create_trial(
        state=TrialState.FAIL if tried.failure else TrialState.COMPLETE,
        value=tried.tokens_per_s,
        params=parameters(tried.settings, space),
        distributions=distributions(tried.settings, space),
        user_attrs={FAILURE: tried.failure} if tried.failure else {},
    )
    trial.datetime_start = datetime.now() - timedelta(seconds=tried.seconds)  # noqa: DTZ005 - Optuna's are without a zone
    return trial


def distributions(settings: EngineSettings, space: Space) -> dict[str, BaseDistribution]:
    """Return where the parameters of settings come from."""
    from optuna.trial import FixedTrial

    trial = FixedTrial(parameters(settings, space))
    suggest(trial, space)
    return trial.distributions


def _recalled(trial: FrozenTrial, trials: _Trials, space: Space) -> Tried | None:
    """Return a trial that is on file, None for one that somebody else left unfinished."""
    from optuna.trial import FixedTrial, TrialState

    failure = str(trial.user_attrs.get(FAILURE, ""))
    if not trial.state.is_finished() or (trial.state == TrialState.FAIL and not failure):
        return None
    value = trial.value if trial.state == TrialState.COMPLETE else None
    return Tried(
        number=trials.count,
        settings=suggest(FixedTrial(trial.params), space),
        tokens_per_s=value,
        failure=failure,
        is_best=trials.is_gain(value),
        kept=True,
        seconds=trial.duration.total_seconds() if trial.duration is not None else 0.0,
    )


def best(tried: Iterable[Tried], count: int = 3) -> tuple[Tried, ...]:
    """Return the best settings that differ in behaviour, without plain decoding.

    The very best comes first, then the best of every other mode that is close to it, since errors of the
    simulator are shared within a mode and differ between modes; then the next best ones.
    """
    ranked = sorted(
        (each for each in tried if each.tokens_per_s is not None and each.settings.mode != "off"),
        key=lambda each: (-each.estimate, each.number),
    )
    firsts: dict[Mode, Tried] = {}
    for each in ranked:
        if each.estimate >= (1.0 - CLOSE) * ranked[0].estimate:
            firsts.setdefault(each.settings.mode, each)
    chosen: list[Tried] = []
    for each in [*firsts.values(), *ranked]:
        if len(chosen) < count and not any(_alike(each, other) for other in chosen):
            chosen.append(each)
    return tuple(sorted(chosen, key=lambda each: (-each.estimate, each.number)))


def _alike(one: Tried, other: Tried) -> bool:
    """Tell whether two trials did the same, or nearly: a real run could not tell them apart."""
    a, b = one.settings, other.settings
    if a.mode != b.mode or a.acceptance != b.acceptance:
        return False
    if math.isclose(one.estimate, other.estimate, rel_tol=1e-9):
        return True  # they differ in limits that are never reached
    if (a.min_confidence is None) != (b.min_confidence is None) or a.fan_out_shape != b.fan_out_shape:
        return False
    return (
        a.fallback == b.fallback
        and abs(a.draft_length - b.draft_length) <= 1
        and abs(math.log(a.fan_out_budget / b.fan_out_budget)) < math.log(1.5)
        and abs(math.log(a.draft_temperature / b.draft_temperature)) < math.log(1.2)
        and abs(a.saguaro_c - b.saguaro_c) < 0.15
        and abs((a.min_confidence or 0.0) - (b.min_confidence or 0.0)) < 0.1
    )


def predicted(tried: Iterable[Tried], settings: EngineSettings, space: Space) -> float | None:
    """Return the simulated tokens per second of settings, None if they were not tried to the end."""
    if settings.mode not in space.modes:
        return None
    wanted = canonical(settings, space)
    return next((each.tokens_per_s for each in tried if each.settings == wanted), None)


def landscape(tried: Iterable[Tried]) -> tuple[tuple[tuple[int, int], float], ...]:
    """Return the best value for each draft length and fan-out budget, 0 for speculating without one."""
    cells: dict[tuple[int, int], float] = {}
    for each in tried:
        settings = each.settings
        if each.tokens_per_s is None or settings.mode not in ("sd", "ssd"):
            continue
        place = settings.draft_length, settings.fan_out_budget if settings.mode == "ssd" else 0
        cells[place] = max(each.tokens_per_s, cells.get(place, 0.0))
    return tuple(sorted(cells.items()))


def importance(tried: Sequence[Tried], space: Space) -> tuple[tuple[str, float], ...]:
    """Return how much each parameter mattered in the best mode, the most important first, by PED-ANOVA.

    A parameter that a trial did not need counts with its default. Empty after too few trials.
    """
    found = best(tried, 1)
    mode = found[0].settings.mode if found else "off"
    usable = [each for each in tried if each.tokens_per_s is not None and each.settings.mode == mode]
    if len(usable) < FEWEST:
        return ()
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    full = EngineSettings(mode=mode, acceptance="rejection", min_confidence=0.0)  # has every parameter
    everywhere = distributions(full, space)
    names = [name for name, values in everywhere.items() if name != "mode" and not values.single()]
    with quiet():
        study = optuna.create_study(direction="maximize")
        for each in usable:
            answers = parameters(full, space) | parameters(each.settings, space)
            study.add_trial(
                optuna.trial.create_trial(value=each.estimate, params=answers, distributions=everywhere)
            )
        shares = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), params=names)
    return tuple(shares.items())


FAILURE = "failure"
_ABOUT = (
    ("value", "tokens per second of decoding, simulated on traced answers with measured costs"),
    ("failed", f"the simulation gave no number; the attribute `{FAILURE}` says why"),
)
_IN_NAMES = 3  # shares of the trace, in which trials once saw it: studies are found by their names
_BUSY_S = 10.0  # patience with another program that writes


@dataclass(frozen=True, slots=True)
class StudyKey:
    """Which study: a title for people, and the digest of all evidence behind it; another is another study."""

    title: str
    digest: str

    def name(self, *details: object) -> str:
        """Return the study's name, which depends on further details too."""
        return f"{self.title} [{digest(self.digest, details, length=10)}]"


@contextmanager
def quiet() -> Iterator[None]:
    """Use parts of Optuna that may change with a release, as the tests of each release will tell."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


class StudyFile:
    """The file, open; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the file, made where it was missing; one that is damaged is set aside for a new one."""
        self.path = path
        with explained(path):
            try:
                self._storage = _opened(path)
            except _Unusable:
                path.replace(path.with_name(f"{path.name}.damaged"))
                for ending in ("-wal", "-shm"):
                    path.with_name(path.name + ending).unlink(missing_ok=True)
                self._storage = _opened(path)

    def study(self, name: str, *about: tuple[str, str]) -> Study:
        """Return a study that maximises tokens per second, made where it was missing."""
        import optuna

        with explained(self.path), quiet():
            study = optuna.create_study(
                storage=self._storage, study_name=name, direction="maximize", load_if_exists=True
            )
            if not study.user_attrs:
                study.set_metric_names(["tokens per second"])
                for title, text in about:
                    study.set_user_attr(title, text)
        return study

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._storage.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Unusable(Exception):  # noqa: N818 - the file, not the program
    """This is no file of studies, or one of another release of Optuna."""


def _opened(path: Path) -> RDBStorage:
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy import event
    from sqlalchemy.exc import DatabaseError, OperationalError

    optuna.logging.disable_default_handler()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    _prepare(path)
    try:
        storage = RDBStorage(_url(path), {"connect_args": {"timeout": _BUSY_S}})
    except OperationalError:
        raise
    except (DatabaseError, RuntimeError) as error:
        raise _Unusable from error
    storage.engine.dispose()
    event.listen(storage.engine, "connect", _relax)
    return storage


def _url(path: Path) -> str:
    """Return where Optuna finds the file; it would fill in what stands in braces."""
    from sqlalchemy import URL

    address = URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
    return address.replace("{", "{{").replace("}", "}}")


def _prepare(path: Path) -> None:
    """Make the file private, and let others read while one writes."""
    make_private_folder(path.parent)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE))
    with closing(sqlite3.connect(path, _BUSY_S)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise _Unusable
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise _Unusable from error


def _relax(connection: sqlite3.Connection, _: object) -> None:
    """Do not wait for the disk: a power cut may cost the last trials, never the file."""
    connection.execute("PRAGMA synchronous = NORMAL")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the file into a `StoreError`."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OSError, sqlite3.Error, StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ or error
        line = next(iter(str(cause).splitlines()), type(cause).__name__)
        raise StoreError(f"cannot keep the study in `{path}`: {line}") from error
