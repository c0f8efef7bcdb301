"""The whole run: choose how to open the models, measure costs, then trace, search and confirm each task.

Every step is on disk before it is told of. What is on disk is not done again: a run that was stopped or
killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count, islice
from typing import cast

from localspec.decoding.measurements import Costs
from localspec.errors import UserError
from localspec.hardware.machine import facts_of, known_machine
from localspec.inference.interface import TunableModels
from localspec.storage import tuned_settings
from localspec.storage.pair_identity import Identity, MachineFacts, identify
from localspec.storage.paths import PRIVATE_FILE, data_dir
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.costs import Step, can_rewind, costs_of, recall_costs, steps_of
from localspec.tuning.events import (
    Attempt,
    LoadOptionsChosen,
    StageBegan,
    StageProgress,
    TaskDone,
    TaskResult,
    TuneEvent,
)
from localspec.tuning.load_options import Room, Runs, choose, possible, try_workplaces
from localspec.tuning.opened import Opened
from localspec.tuning.plan import TunePlan, left_s, nothing_fits, requests, seconds_of
from localspec.tuning.run_folder import Folder, RunState, TaskState, digest, keep, recall
from localspec.tuning.study_file import StudyKey
from localspec.tuning.task import Scene, TaskRun
from localspec.types import Mode, ModelOptions, Request

Opener = Callable[[LoadOptions], AbstractContextManager[TunableModels]]

ATTEMPT_PROMPTS = 2  # of the first profile, for each way to open the models
ATTEMPT_TOKENS = 64
COST_PROMPTS = 6


def tune(plan: TunePlan, open_models: Opener) -> Iterator[TuneEvent]:
    """Tune every task of the plan; closing the iterator stops it, and everything found so far is kept.

    Raises `UserError` for models that cannot be tuned, `EngineDied`, `StoreError` and `Cancelled`.
    """
    facts = facts_of(known_machine())
    identity = identify(plan.target, plan.draft, plan.draft_threads, facts)
    room = Room(
        cores=(plan.target.threads if "threads" in plan.fixed else 0) or facts.cores,
        has_draft=plan.draft is not None,
        target_on_card=_on_card(plan.target, facts),
        draft_on_card=plan.draft is not None and _on_card(plan.draft, facts),
        fixed=plan.fixed,
    )
    return TuningRun(plan, open_models, identity, room).events()


def _on_card(options: ModelOptions, facts: MachineFacts) -> bool:
    return bool(facts.devices if options.devices is None else options.devices) and options.gpu_layers != 0


class TuningRun:
    """One run over all tasks of a plan."""

    def __init__(self, plan: TunePlan, open_models: Opener, identity: Identity, room: Room) -> None:
        """Take what the results will hold for, and what other ways to open the models there are."""
        self._open, self._identity, self._room = open_models, identity, room
        self._folder = Folder(identity.pair)
        self._place = digest(identity)
        self._state = _begun(plan, self._folder.last_run(), self._place)
        self._plan = replace(plan, quick=self._state.quick)

    def events(self) -> Iterator[TuneEvent]:
        """Do what is not done yet; raises `UserError` while another program tunes."""
        from filelock import FileLock, Timeout  # 20 ms

        try:
            with FileLock(data_dir() / "tune.lock", timeout=0, mode=PRIVATE_FILE):
                yield from self._stages()
        except Timeout:
            raise UserError(
                "another run of the tuner is at work, and each would disturb what the other measures",
                "wait for its end, or stop it",
            ) from None

    def _stages(self) -> Generator[TuneEvent, None, None]:
        self._keep(self._state)
        workplace = yield from self._choose_workplace()
        with Opened(lambda: self._open(workplace)) as opened:
            costs = yield from self._measure(opened, workplace)
            scene = Scene(self._plan, self._folder, costs, self._state.number)
            for place, profile in enumerate(self._plan.profiles):
                state = self._state.of(profile.task)
                result = recall(self._identity.pair, profile.task) if state.done else None
                if result is None:
                    later = self._to_do(place + 1)
                    task = TaskRun(scene, opened, profile, later, self._keep_task)
                    result = yield from task.run(state)
                    self._done(result)
                yield TaskDone(result)
        self._keep(replace(self._state, complete=all(state.done for state in self._state.tasks)))

    def _choose_workplace(self) -> Generator[TuneEvent, None, LoadOptions]:
        """Try other ways to open the models, and return the fastest."""
        plan, room = self._plan, self._room
        if plan.quick:
            known, usual = tuned_settings.recall_workplace(self._identity) or LoadOptions(), LoadOptions()
            return replace(known, **{name: getattr(usual, name) for name in plan.fixed})
        attempts: list[Attempt] = []
        steps = len(possible(room)) + 2
        modes: tuple[Mode, ...] = ("off", "sd", "ssd") if room.has_draft else ("off", "ngram")
        with self._open(LoadOptions()) as models:
            asked = self._prompts(models, ATTEMPT_PROMPTS, ATTEMPT_TOKENS)
            if not can_rewind(models):
                return LoadOptions()
        yield StageBegan("machine", None, steps)
        runs = Runs(room, modes, asked, seconds_of("machine", plan))
        key = StudyKey("ways to open the models", digest(self._place, self._state.number))
        for attempt in try_workplaces(self._open, runs, self._folder.studies, key):
            attempts.append(attempt)
            done = min(len(attempts), steps)
            rest_s = left_s(plan, "machine", done / steps, self._to_do())
            yield StageProgress("machine", None, done, steps, rest_s, attempt.failure)
        workplace, reason = choose(attempts)
        tuned_settings.keep_workplace(self._identity, workplace)
        chosen = LoadOptionsChosen(workplace, tuple(attempts), reason)
        self._folder.keep_workplace(chosen)
        yield chosen
        return workplace

    def _measure(self, opened: Opened, workplace: LoadOptions) -> Generator[TuneEvent, None, Costs]:
        key, steps = digest(self._place, workplace), steps_of(opened.models)
        begun = recall_costs(self._folder.costs, key) if self._state.costs_key == key else None
        if (
            begun is not None
        ):  # a run goes on by the costs that it began with: its trials are simulated by them
            yield StageBegan("costs", None, steps, steps)
            return begun
        yield StageBegan("costs", None, steps)
        asked = self._prompts(opened.models, COST_PROMPTS)
        work = costs_of(opened, self._folder.costs, key, asked, seconds_of("costs", self._plan))
        costs = yield from self._told(work)
        self._keep(replace(self._state, costs_key=key))
        return costs

    def _told(self, work: Generator[Step, None, Costs]) -> Generator[TuneEvent, None, Costs]:
        """Turn notes on what was done into progress."""
        for done in count(1):
            try:
                note, steps = next(work)
            except StopIteration as end:
                return cast(Costs, end.value)
            rest_s = left_s(self._plan, "costs", done / steps, self._to_do())
            yield StageProgress("costs", None, done, steps, rest_s, note)
        raise AssertionError("counting does not end")

    def _prompts(self, models: TunableModels, count: int, tokens: int | None = None) -> tuple[Request, ...]:
        """Return the first requests of all profiles, in turn."""
        each = -(-count // len(self._plan.profiles))
        found: list[Request] = []
        for profile in self._plan.profiles:
            found += islice(requests(models, profile, profile.tuning_prompts().prompts), each)
        if tokens is not None:
            found = [replace(request, max_tokens=tokens) for request in found]
        if not found:
            raise nothing_fits(self._plan.profiles[0])
        return tuple(found[:count])

    def _done(self, result: TaskResult) -> None:
        keep(self._identity.pair, result)
        tuned_settings.keep(self._identity, _summary(result))
        state = self._state.of(result.task)
        self._keep(self._state.having(replace(state, done=True)))

    def _to_do(self, begin: int = 0) -> int:
        """Return how many tasks are not done, from a place of the plan on."""
        return sum(not self._state.of(profile.task).done for profile in self._plan.profiles[begin:])

    def _keep_task(self, state: TaskState) -> None:
        self._keep(self._state.having(state))

    def _keep(self, state: RunState) -> None:
        self._folder.keep(state)
        self._state = state


def _begun(plan: TunePlan, last: RunState | None, place: str) -> RunState:
    """Return where a run begins: where the last one was stopped, if that is wanted.

    What was done for another placement, or under another profile of a task, is done again.
    """
    if last is None:
        state = RunState(1, place=place, quick=plan.quick)
    elif plan.resume and not last.complete:
        tasks = last.tasks
        if last.place != place:
            tasks = tuple(replace(state, done=False, seconds=0.0) for state in tasks)
        state = replace(last, tasks=tasks, place=place, quick=plan.quick or last.quick)
    else:
        earlier, costs = tuple(last.evidence().values()), last.costs_key or last.earlier_costs
        state = RunState(last.number + 1, "", (), False, place, plan.quick, earlier, costs)
    for profile in plan.profiles:
        if state.of(profile.task).profile != profile.name:
            state = state.having(TaskState(profile.task, profile=profile.name))
    return state


def _summary(result: TaskResult) -> tuned_settings.TunedTask:
    """Return what of a result is needed to decode by it."""
    winner = next(each for each in result.contenders if each.settings == result.settings)
    return tuned_settings.TunedTask(
        task=result.task,
        settings=result.settings,
        gain=winner.gain.value,
        gain_low=winner.gain.low,
        gain_high=winner.gain.high,
        rate=winner.rate.value,
        plain_rate=result.contenders[0].rate.value,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        reason=result.reason,
    )
