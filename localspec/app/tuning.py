"""From flags or a screen to a run of the tuner: which tasks, which models, how long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, get_args

from localspec.app.opening import (
    TUNED_FAN_OUT,
    find_files,
    identity_of,
    open_in_worker,
    placed_with_draft,
)
from localspec.errors import Cancelled, EngineError, UserError
from localspec.inference.interface import TunableModels
from localspec.models.pair_files import ModelSource
from localspec.models.pair_request import PairRequest
from localspec.models.recommended import recommended_for, suited
from localspec.storage.profiles import Profile, Profiles
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import TuneEvent
from localspec.tuning.plan import QUICK_TRIALS, TRIALS, Opener, TunePlan
from localspec.tuning.run_folder import RunFolder, TaskState
from localspec.types.request import TaskType

if TYPE_CHECKING:
    from localspec.hardware.placement.open_plan import OpenPlan
    from localspec.inference.worker.client import Worker
    from localspec.inference.worker.wire import LogLine


class StopSignal:
    """A request to stop, which may come at any time and from any thread."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._models: TunableModels | None = None

    @property
    def wanted(self) -> bool:
        """Return whether to stop."""
        return self._wanted.is_set()

    def ask(self) -> None:
        """Stop what runs by closing the models, in a second at most; a second call does nothing."""
        models = self._models
        was_wanted = self.wanted
        self._wanted.set()
        if models is not None and not was_wanted:
            threading.Thread(target=models.close, name="localspec-tune-stop", daemon=True).start()

    def check(self) -> None:
        """Raise `Cancelled` if a stop was requested."""
        if self._wanted.is_set():
            raise Cancelled("tuning was stopped")

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise `Cancelled` in the place of an error that models make because they were closed."""
        try:
            yield
        except EngineError:
            self.check()
            raise

    def at(self, open_models: Opener) -> Opener:
        """Return an opener whose models close at a stop; none are opened after that."""

        @contextmanager
        def opened(load_options: LoadOptions) -> Iterator[TunableModels]:
            self.check()
            with open_models(load_options) as models, self.explained():
                self._models = models
                try:
                    self.check()
                    yield models
                finally:
                    self._models = None

        return opened


DEFAULT_TASKS: tuple[TaskType, ...] = ("coding", "writing", "dialogue")


def profiles_of(found: Profiles, tasks: Sequence[TaskType], names: Sequence[str] = ()) -> tuple[Profile, ...]:
    """Return the profiles to tune, by task and name, by default the usual ones; raises UserError."""
    if not tasks and not names:
        tasks = DEFAULT_TASKS
    chosen = {task: found.for_task(task) for task in tasks}
    for named in map(found.named, dict.fromkeys(names)):
        other = chosen.setdefault(named.task, named)
        if other is not named:
            raise UserError(
                f"the profiles {other.name} and {named.name} are both of the task {named.task}",
                "settings are saved for each task: tune one of them",
            )
    return tuple(chosen.values())


def stopped_profiles(found: Profiles, pair: OpenPlan) -> tuple[Profile, ...]:
    """Return the profiles of the last run of these models, none if it was not stopped."""
    last = RunFolder(identity_of(pair).pair).state.read()
    return () if last is None or last.complete else profiles_of_run(found, last.tasks)


def profiles_of_run(found: Profiles, states: Iterable[TaskState]) -> tuple[Profile, ...]:
    """Return the profiles under which tasks were tuned, or those of the tasks where they are gone."""
    by_name = {profile.name: profile for profile in found}
    return tuple(by_name.get(state.profile) or found.for_task(state.task) for state in states)


def read_tasks(words: Sequence[str]) -> tuple[TaskType, ...]:
    """Return the tasks that words name; raises UserError."""
    known: dict[str, TaskType] = {task: task for task in get_args(TaskType)}
    for word in words:
        if word.lower() not in known:
            raise UserError(f"there is no task `{word}`", f"tasks: {', '.join(known)}")
    return tuple(dict.fromkeys(known[word.lower()] for word in words))


def plan_to_tune(
    request: PairRequest, source: ModelSource, report: Callable[[str], None] | None = None
) -> OpenPlan:
    """Plan the models to tune on this machine; `report` gets the whole plan.

    The draft model is placed even if it is not expected to help, because that will be measured.
    Raises UserError.
    """
    wide = replace(request, mode=None, draft_length=None, max_fan_out=TUNED_FAN_OUT)
    files = find_files(wide, source)
    return placed_with_draft(files, wide, via=None, report=report, explain=True)


@dataclass(frozen=True, slots=True)
class TuneChoice:
    """What the user wants tuned, and how thoroughly; `trials` None leaves their number to the tuner.

    `resume` continues with a run that was stopped. `allows_cache_types` also tries another type of the
    target's cache, which moves its distribution.
    """

    tasks: tuple[TaskType, ...]
    quick: bool = False
    resume: bool = False
    budget_s: float | None = None
    trials: int | None = None
    allows_cache_types: bool = False


def plan_of(
    pair: OpenPlan, profiles: Iterable[Profile], choice: TuneChoice, fixed: tuple[str, ...] = ()
) -> TunePlan:
    """Return the plan of a run on these models; flags have set the `fixed` fields of `LoadOptions`."""
    recommended = recommended_for(pair.target.path)
    return TunePlan(
        pair,
        tuple(suited(profile, recommended) for profile in profiles),
        fixed=fixed,
        budget_s=choice.budget_s,
        trials=choice.trials or (QUICK_TRIALS if choice.quick else TRIALS),
        quick=choice.quick,
        resume=choice.resume,
        allows_cache_types=choice.allows_cache_types,
    )


def opener(
    pair: OpenPlan, stop: StopSignal, on_log: Callable[[LogLine], None] | None = None
) -> Callable[[LoadOptions], Worker]:
    """Return an opener of the models in a child process, with given options."""

    def open_models(load_options: LoadOptions) -> Worker:
        return open_in_worker(pair.opened_with(load_options), lambda _fraction: not stop.wanted, on_log)

    return open_models


def run(
    plan: TunePlan, stop: StopSignal, on_log: Callable[[LogLine], None] | None = None
) -> Iterator[TuneEvent]:
    """Yield what a run of the tuner says; raises `Cancelled` when it is stopped."""
    from localspec.tuning.run import tune

    events = cast("Generator[TuneEvent]", tune(plan, stop.at(opener(plan.pair, stop, on_log))))
    with closing(events), stop.explained():
        for event in events:
            yield event
            stop.check()
