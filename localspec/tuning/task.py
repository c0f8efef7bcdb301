"""One task of a run: trace the target's answers, search the settings, confirm the best for real."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil

from localspec.decoding.measurements import Costs, Trace, TraceSegment
from localspec.storage.profiles import Profile
from localspec.storage.usage_stats import file_of, learned, starting_points
from localspec.tuning.calibration import calibrate
from localspec.tuning.confirm import LLAMA_CPP, Confirmation, Entrant, Terms, confirm, entrants
from localspec.tuning.events import (
    BestSoFar,
    ConfirmedContender,
    DraftCalibration,
    Dropped,
    SettingsCandidate,
    Stage,
    StageBegan,
    StageProgress,
    TaskResult,
    TuneEvent,
)
from localspec.tuning.opened import Opened
from localspec.tuning.plan import (
    ANSWER_TOKENS,
    FEWEST_TRACE_TOKENS,
    TRACE_TOKENS,
    TunePlan,
    left_s,
    nothing_fits,
    requests,
    seconds_of,
)
from localspec.tuning.run_folder import Folder, TaskState, digest
from localspec.tuning.study import best, predicted
from localspec.tuning.space import Space, space_of
from localspec.tuning.study import Search, Tried, search
from localspec.tuning.study_file import StudyKey
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.traces import append, load, record, with_tokens
from localspec.types import EngineSettings, TaskType

SHARES = 3  # of the trace: a trial that is behind on the first is spared the others
CANDIDATES = 3

Events = Generator[TuneEvent, None, None]


@dataclass(frozen=True, slots=True)
class Scene:
    """What all tasks of a run share."""

    plan: TunePlan
    folder: Folder
    costs: Costs
    number: int  # of the run


class TaskRun:
    """The work on one task, stage by stage; every stage leaves what the next one needs."""

    def __init__(
        self, scene: Scene, opened: Opened, profile: Profile, later: int, keep: Callable[[TaskState], None]
    ) -> None:
        """Prepare a profile's task, with so many `later` ones; `keep` writes down how far it is."""
        self._scene, self._opened, self._later, self._keep = scene, opened, later, keep
        self._profile, self._task = profile, profile.task
        self._prompts = profile.tuning_prompts()
        self._space = space(scene.costs, profile, scene.plan)
        self._state, self._began_s = TaskState(profile.task), 0.0

    def run(self, state: TaskState) -> Generator[TuneEvent, None, TaskResult]:
        """Go through the stages that are not done yet, and return what came of them."""
        self._state, self._began_s = state, time.monotonic() - state.seconds
        try:
            result = yield from (self._plain() if self._only_plain else self._stages())
        finally:
            self._note(self._state)
        return replace(result, seconds=self._state.seconds, quick=self._scene.plan.quick)

    def _note(self, state: TaskState) -> None:
        self._state = replace(state, seconds=time.monotonic() - self._began_s)
        self._keep(self._state)

    @property
    def _only_plain(self) -> bool:
        return self._space.modes == ("off",)

    def _plain(self) -> Generator[TuneEvent, None, TaskResult]:
        """Time plain decoding shortly, where nothing else is possible."""
        reasons = dict.fromkeys(reason for _, reason in self._scene.costs.left_out)
        verdict = yield from self._confirm((), digest(self._scene.costs, self._scene.number), 0.0)
        return replace(self._result(verdict, 0, None), reason="; ".join(reasons), dropped=())

    def _stages(self) -> Generator[TuneEvent, None, TaskResult]:
        segments = yield from self._trace()
        trace = Trace(self._profile.sampling, segments)
        key = digest(self._scene.costs, self._scene.number, self._state.trace_key, len(segments))
        if self._state.study_key != key:
            self._note(replace(self._state, study_key=key))
        simulator = Simulator(trace, self._scene.costs)
        tried = yield from self._search(simulator, len(segments), key)
        candidates = best(tried, CANDIDATES)
        field = entrants(candidates, predicted(tried, LLAMA_CPP, self._space))
        verdict = yield from self._confirm(field, key, seconds_of("confirm", self._scene.plan))
        return self._result(verdict, len(tried), calibrate(trace, _judged_by(verdict, candidates)))

    def _result(self, verdict: Confirmation, trials: int, calibration: DraftCalibration | None) -> TaskResult:
        left_out = (Dropped(mode, reason) for mode, reason in self._scene.costs.left_out)
        return TaskResult(
            task=self._task,
            settings=verdict.settings,
            reason=verdict.reason,
            contenders=verdict.contenders,
            calibration=calibration,
            trials=trials,
            seconds=0.0,
            drift=verdict.drift,
            dropped=(*left_out, *verdict.dropped),
        )

    def _trace(self) -> Generator[TuneEvent, None, tuple[TraceSegment, ...]]:
        """Return the answers of a trace; those on disk are not decoded again."""
        path, profile, state = self._scene.folder.traces(self._task), self._profile, self._state
        wanted = list(requests(self._opened.models, profile, self._prompts.prompts))
        key = digest(self._scene.folder.pair, wanted)
        segments = list(load(path, key))
        if state.trace_key == key and 0 < state.segments <= len(segments):
            tokens = _tokens(segments[: state.segments])
            yield self._began("traces", tokens, tokens)
            return with_tokens(segments[: state.segments])
        yield self._began("traces", TRACE_TOKENS, min(_tokens(segments), TRACE_TOKENS))
        ends_s = time.monotonic() + seconds_of("traces", self._scene.plan)
        rest = record(self._opened, islice(wanted, len(segments), None))
        while not _is_enough(_tokens(segments), time.monotonic() > ends_s):
            segment = next(rest, None)
            if segment is None:
                break
            append(path, key, segment)
            segments.append(segment)
            done = min(_tokens(segments), TRACE_TOKENS)
            yield self._progress("traces", done, TRACE_TOKENS, f"{len(with_tokens(segments))} answers")
        if not _tokens(segments):
            raise nothing_fits(profile)
        traced = replace(state, trace_key=key, segments=len(segments), study_key="")
        self._note(replace(traced, profile=profile.name, sampling=profile.sampling))
        return with_tokens(segments)

    def _search(self, simulator: Simulator, count: int, key: str) -> Generator[TuneEvent, None, list[Tried]]:
        plan, tried = self._scene.plan, list[Tried]()

        def simulate(settings: EngineSettings, share: int) -> float:
            return simulator.rate(settings, range(ceil(count * (share + 1) / shares(count))))

        known = learned(file_of(self._scene.folder.pair), self._task)
        wish = Search(
            self._space,
            () if known is None else starting_points(known),
            shares=shares(count),
            trials=plan.trials,
            budget_s=seconds_of("study", plan),
        )
        yield self._began("study", plan.trials, 0)
        for each in search(simulate, wish, self._scene.folder.studies, study_key(self._task, key)):
            tried.append(each)
            if each.is_best:
                yield BestSoFar(self._task, each.settings, each.tokens_per_s)
            steps = max(plan.trials, len(tried))  # an earlier run may have wanted more
            yield self._progress("study", len(tried), steps, each.failure)
        return tried

    def _confirm(
        self, field: tuple[Entrant, ...], key: str, budget_s: float
    ) -> Generator[TuneEvent, None, Confirmation]:
        models = self._opened.models
        held_out = tuple(requests(models, self._profile, self._prompts.held_out, seed=ANSWER_TOKENS))
        field = tuple(each for each in field if each.settings.mode in self._space.modes)
        yield self._began("confirm", 1, 0)
        terms = Terms(budget_s, key, self._scene.folder.runs(self._task))
        leader: ConfirmedContender | None = None
        for each in confirm(models, held_out, field, terms, self._opened.again):
            if isinstance(each, Confirmation):
                return each
            if each.leader is not None and each.leader != leader:
                leader = each.leader
                yield BestSoFar(self._task, leader.settings, leader.predicted, leader.rate)
            yield self._progress("confirm", each.done, each.steps)
        raise AssertionError("a confirmation ends with an outcome")

    def _began(self, stage: Stage, steps: int, kept: int) -> StageBegan:
        return StageBegan(stage, self._task, steps, kept)

    def _progress(self, stage: Stage, done: int, steps: int, note: str = "") -> StageProgress:
        rest_s = None if self._only_plain else left_s(self._scene.plan, stage, done / steps, self._later)
        return StageProgress(stage, self._task, done, steps, rest_s, note)


def shares(answers: int) -> int:
    """Return in how many steps a trial sees a trace."""
    return min(SHARES, answers)


def study_key(task: TaskType, key: str) -> StudyKey:
    """Return what the study of a task's settings is called."""
    return StudyKey(f"settings for {task}", key)


def space(costs: Costs, profile: Profile, plan: TunePlan) -> Space:
    """Return what can be searched: a mode that ran no rounds when costs were measured cannot run here."""
    modes, left_out = {overhead.mode for overhead in costs.overheads}, dict(costs.left_out)
    found = space_of(
        profile.sampling,
        has_draft=plan.draft is not None,
        can_branch="ssd" in modes,
        max_fan_out=plan.max_fan_out,
    )
    return replace(found, modes=tuple(mode for mode in found.modes if mode not in left_out))


def _judged_by(verdict: Confirmation, candidates: tuple[SettingsCandidate, ...]) -> EngineSettings:
    """Return the settings that a calibration is told of: what was chosen, or what came closest."""
    if verdict.settings.mode in ("sd", "ssd"):
        return verdict.settings
    drafting = (each.settings for each in candidates if each.settings.mode in ("sd", "ssd"))
    return next(drafting, replace(EngineSettings(), mode="sd"))


def _tokens(segments: list[TraceSegment]) -> int:
    return sum(len(segment.tokens) for segment in segments)


def _is_enough(tokens: int, is_late: bool) -> bool:
    return tokens >= TRACE_TOKENS or (is_late and tokens >= FEWEST_TRACE_TOKENS)
