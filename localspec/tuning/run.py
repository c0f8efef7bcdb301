"""The whole run: choose how to open the models, measure costs, then trace, search and confirm each task.

Answers of the models are on disk before they are reported, and not repeated: a stopped or killed run
resumes where it was. Simulations are repeated, with the same outcome.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

from localspec.benchmark.harness import answered
from localspec.decoding.measurements import Costs, Trace, TraceSegment
from localspec.errors import UserError, os_errors_as
from localspec.hardware.machine import facts_of, known_machine
from localspec.inference.interface import TunableModels
from localspec.llama.overrides import CPU
from localspec.models.shape import read_shape
from localspec.storage import tuned_settings
from localspec.storage.pair_identity import Identity, MachineFacts, identify
from localspec.storage.paths import PRIVATE_FILE, data_dir, make_private_folder
from localspec.storage.profiles import Profile
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.confirm import ConfirmationPlan, Entrant, confirm, entrants
from localspec.tuning.costs import costs_of, steps_of
from localspec.tuning.events import (
    Attempt,
    BestSoFar,
    ConfirmedContender,
    DistributionShift,
    FailedContender,
    LoadOptionsChosen,
    PassesCompared,
    Stage,
    StageBegan,
    StageProgress,
    TaskResult,
    TuneEvent,
)
from localspec.tuning.load_options import MachineLimits, choose, possible, try_load_options
from localspec.tuning.plan import (
    ANSWER_TOKENS,
    MIN_TRACE_TOKENS,
    PROBE_TOKENS,
    TRACE_TOKENS,
    Opener,
    PlainPace,
    ReopenedModels,
    RunSoFar,
    TunePlan,
    left_s,
    nothing_fits,
    requests,
    seconds_of,
)
from localspec.tuning.run_folder import RunFolder, RunState, TaskState, digest, record, with_tokens
from localspec.tuning.simulator.simulator import Simulator
from localspec.tuning.space import LLAMA_CPP
from localspec.tuning.study import Trial, best, predicted, search
from localspec.types.models import ModelOptions
from localspec.types.request import Request, TaskType
from localspec.units import short

ATTEMPT_PROMPTS = 2  # of the first profile, for each way to open the models
ATTEMPT_TOKENS = 64
COST_PROMPTS = 6
RECORDED_PROMPTS = 4  # whose answers are read to measure the target


def tune(plan: TunePlan, open_models: Opener) -> Iterator[TuneEvent]:
    """Tune every task of the plan; closing the iterator stops it, and all results so far are saved.

    Raises `UserError` for models that cannot be tuned, `EngineDied`, `StoreError` and `Cancelled`.
    """
    facts = facts_of(known_machine())
    identity = identify(plan.pair.target, plan.pair.draft, facts)
    return TuningRun(plan, open_models, identity, limits_of(plan, facts)).events()


def limits_of(plan: TunePlan, facts: MachineFacts) -> MachineLimits:
    """Return the limits of load options on a machine; raises ModelFileError."""
    target = plan.pair.target
    draft = plan.pair.draft
    shape = read_shape(target.path, target.overrides)
    every = len(shape.layers) + shape.prediction_layers + 1
    is_whole = _uses_cards(target, facts) and (target.gpu_layers is None or target.gpu_layers >= every)
    moved = any(weights.device == CPU and weights.read_bytes for weights in shape.moved)
    experts_at_home = plan.pair.layers_with_experts_at_home
    return MachineLimits(
        cores=(target.threads if "threads" in plan.fixed else 0) or facts.cores,
        has_draft=draft is not None,
        target_on_card=is_whole and not (moved or target.output_at_home or experts_at_home),
        draft_on_card=draft is not None and _uses_cards(draft, facts),
        expert_layers=len(shape.layers) if is_whole and shape.expert_bytes else 0,
        experts_at_home=experts_at_home,
        allows_cache_types=plan.allows_cache_types,
        fixed=plan.fixed,
    )


def _uses_cards(options: ModelOptions, facts: MachineFacts) -> bool:
    return bool(facts.devices if options.devices is None else options.devices) and options.gpu_layers != 0


class TuningRun:
    """One run over all tasks of a plan."""

    def __init__(
        self, plan: TunePlan, open_models: Opener, identity: Identity, limits: MachineLimits
    ) -> None:
        """Take the identity that results are for, and the other ways to open the models."""
        self._open = open_models
        self._identity = identity
        self._limits = limits
        self._place = digest(identity)
        self._began_s = time.monotonic()
        self._pace: PlainPace | None = None  # once it is measured
        self._stage: Stage | None = None  # that runs,
        self._stage_began_s = self._began_s
        self._took_s: dict[Stage, float] = {}  # by those before, of each kind the last one
        self.folder = RunFolder(identity.pair)
        self.state = _begun(plan, self.folder.state.read(), self._place)
        self.plan = replace(plan, quick=self.state.quick)

    def events(self) -> Iterator[TuneEvent]:
        """Do what is not done yet; raises `UserError` while another program tunes."""
        from filelock import FileLock, Timeout  # 20 ms

        with os_errors_as(f"cannot make the folder `{data_dir()}`"):
            make_private_folder(data_dir())
        try:
            with FileLock(data_dir() / "tune.lock", timeout=0, mode=PRIVATE_FILE):
                yield from self._stages()
        except Timeout:
            raise UserError(
                "another tuning run is in progress, and each would disturb the other's measurements",
                "wait until it ends, or stop it",
            ) from None

    def keep(self, state: RunState) -> None:
        """Write down how far the run is."""
        self.folder.state.write(state)
        self.state = state

    def begin(self, stage: Stage, steps: int, task: TaskType | None = None) -> StageBegan:
        """Return the beginning of a stage, which ends the one before."""
        now_s = time.monotonic()
        if self._stage is not None:
            self._took_s[self._stage] = now_s - self._stage_began_s
        self._stage = stage
        self._stage_began_s = now_s
        return StageBegan(stage, task, steps)

    def progress(
        self,
        stage: Stage,
        done: int,
        steps: int,
        note: str = "",
        task: TaskType | None = None,
        *,
        share: float | None = None,
    ) -> StageProgress:
        """Return the progress of a stage, with the expected time of it and all later ones.

        `share` is what is done of its time, where steps do not say that.
        """
        tasks = [profile.task for profile in self.plan.profiles]
        later = tasks if task is None else tasks[tasks.index(task) + 1 :]
        to_do = sum(self.state.of(each).result is None for each in later)
        run = RunSoFar(self._pace, time.monotonic() - self._stage_began_s, self._took_s)
        rest_s = left_s(self.plan, stage, done / steps if share is None else share, to_do, run)
        return StageProgress(stage, task, done, steps, rest_s, note)

    def _stages(self) -> Generator[TuneEvent, None, None]:
        self.keep(self.state)
        load_options = yield from self._choose_load_options()
        with ReopenedModels(lambda: self._open(load_options)) as models:
            self._pace = self._pace or self._measured_pace(models.now)
            self._check_budget()
            costs = yield from self._measure(models, load_options)
            if costs.compared:
                yield PassesCompared(costs.compared)
            for profile in self.plan.profiles:
                result = self.state.of(profile.task).result
                if result is None:
                    result = yield from _TaskRun(self, models, costs, profile).events()
                    tuned_settings.keep(self._identity, _summary(result))
                    self.keep(self.state.having(replace(self.state.of(profile.task), result=result)))
                yield result
        self.keep(replace(self.state, complete=all(state.result for state in self.state.tasks)))

    def _measured_pace(self, models: TunableModels) -> PlainPace | None:
        """Return the speed of plain decoding, None if an answer is too short."""
        if not self._to_do:
            return None
        request = self._prompts(models, 1, PROBE_TOKENS)[0]
        answered(models, request)  # warms up
        summary, _ = answered(models, request)
        pace = summary.seconds_per_token
        return None if pace is None else PlainPace(pace, summary.first_token_s)

    def _check_budget(self) -> None:
        """Raise `UserError` with the time that is needed, where that is more than the user gives."""
        budget_s = self.plan.budget_s
        needed_s = 0.0 if self._pace is None else self._pace.least_run_s(self._to_do)
        if budget_s is not None and needed_s > budget_s:
            raise UserError(
                f"--budget {short(budget_s)} is too short: on this machine, a run with these models takes "
                f"{short(needed_s)} at least",
                "give more time, fewer tasks, or no --budget",
            )

    @property
    def _to_do(self) -> int:
        """Return the number of tasks without a result."""
        return sum(self.state.of(profile.task).result is None for profile in self.plan.profiles)

    def confirm_s(self) -> float:
        """Return the time to confirm a task in: within a budget, no more than is left of its share."""
        usual = seconds_of("confirm", self.plan)
        if self.plan.budget_s is None:
            return usual
        left = self.plan.budget_s - (time.monotonic() - self._began_s)
        return max(0.0, min(usual, left / max(1, self._to_do)))

    def _choose_load_options(self) -> Generator[TuneEvent, None, LoadOptions]:
        """Try other ways to open the models, and return the fastest."""
        plan = self.plan
        usual = LoadOptions()
        if plan.quick:
            known = tuned_settings.find_load_options(self._identity) or usual
            known = replace(known, **{name: getattr(usual, name) for name in plan.fixed})
            if known.target_kv_type != usual.target_kv_type:
                yield LoadOptionsChosen(known, (), "an earlier run found this the fastest")
            return known
        if self.state.opened is not None:
            yield self.state.opened
            return self.state.opened.workplace
        with self._open(usual) as models:
            asked = self._prompts(models, ATTEMPT_PROMPTS, ATTEMPT_TOKENS)
            self._pace = self._measured_pace(models)
            self._check_budget()
        steps = len(possible(self._limits)) + 2
        attempts = list[Attempt]()
        yield self.begin("machine", steps)
        yield self.progress("machine", 0, steps)
        for attempt in try_load_options(self._open, self._limits, asked, seconds_of("machine", plan)):
            attempts.append(attempt)
            yield self.progress("machine", min(len(attempts), steps), steps, attempt.failure)
        chosen, reason = choose(attempts)
        shift = None
        if chosen.target_kv_type != usual.target_kv_type:
            note = f"reading answers with a {chosen.target_kv_type} cache"
            yield self.progress("machine", min(len(attempts), steps), steps, note)
            shift = self._shift(chosen)
        tuned_settings.save_load_options(self._identity, chosen)
        outcome = LoadOptionsChosen(chosen, tuple(attempts), reason, shift)
        self.keep(replace(self.state, opened=outcome))
        yield outcome
        return chosen

    def _shift(self, chosen: LoadOptions) -> DistributionShift:
        """Measure the shift of the target's distribution by the chosen type of its cache."""
        from localspec.tuning.distribution_shift import read_answer, recorded_answer, shift  # numpy

        usual = replace(chosen, target_kv_type=LoadOptions().target_kv_type)
        usual = replace(usual, more_experts_at_home=0)  # a smaller cache may have made room for others
        with ReopenedModels(lambda: self._open(usual)) as reopened:
            answers = [recorded_answer(each) for each in self._recorded(reopened)]
            before = [reopened.now.perform(read_answer, answer) for answer in answers]
        with self._open(chosen) as models:
            pairs = zip(answers, before, strict=True)
            after = [models.perform(read_answer, answer, read.ids) for answer, read in pairs]
        return shift(before, after)

    def _recorded(self, models: ReopenedModels) -> tuple[TraceSegment, ...]:
        """Return the answers to the first prompts, which the traces of tasks need as well."""
        asked = self._prompts(models.now, RECORDED_PROMPTS)
        return with_tokens(record(models, asked, self.folder.path / "traces"))

    def _measure(
        self, models: ReopenedModels, load_options: LoadOptions
    ) -> Generator[TuneEvent, None, Costs]:
        key = digest(self._place, load_options)
        has_experts = self.plan.has_experts
        steps = steps_of(models.now, has_experts=has_experts)
        # A run continues by the costs that it began with: its trials are simulated by them.
        yield self.begin("costs", steps)
        if self.state.costs is not None and self.state.costs_key == key:
            return self.state.costs
        answers = self._recorded(models) if has_experts else ()
        text = tuple(token for answer in answers for token in answer.tokens.tolist())
        asked = self._prompts(models.now, COST_PROMPTS)
        work = costs_of(models, asked, seconds_of("costs", self.plan), text)
        for done, each in enumerate(work, 1):
            if isinstance(each, Costs):
                self.keep(replace(self.state, costs=each, costs_key=key))
                return each
            note, steps = each
            yield self.progress("costs", done, steps, note)
        raise AssertionError("measuring ends with costs")

    def _prompts(self, models: TunableModels, count: int, tokens: int = ANSWER_TOKENS) -> tuple[Request, ...]:
        """Return the first requests of all profiles, alternating."""
        each = -(-count // len(self.plan.profiles))
        found: list[Request] = []
        for profile in self.plan.profiles:
            found += islice(requests(models, profile, profile.tuning_prompts().prompts), each)
        if not found:
            raise nothing_fits(self.plan.profiles[0])
        return tuple(replace(request, max_tokens=tokens) for request in found[:count])


def _begun(plan: TunePlan, last: RunState | None, place: str) -> RunState:
    """Return the start of a run: with `resume`, where the last one was stopped.

    Work for another placement, or for another profile of a task, is repeated.
    """
    if last is not None and plan.resume and not last.complete:
        state = replace(last, place=place, quick=plan.quick or last.quick)
        if last.place != place:
            tasks = tuple(replace(state, result=None, seconds=0.0) for state in last.tasks)
            state = replace(state, tasks=tasks, opened=None)
    else:
        state = RunState(last.number + 1 if last else 1, place=place, quick=plan.quick)
    for profile in plan.profiles:
        if state.of(profile.task).profile != profile.name:
            state = state.having(TaskState(profile.task, profile=profile.name))
    return state


def _summary(result: TaskResult) -> tuned_settings.TunedTask:
    """Return the part of a result that decoding needs."""
    gain = result.winner.gain
    return tuned_settings.TunedTask(
        task=result.task,
        settings=result.settings,
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
        rate=result.winner.rate.value,
        plain_rate=result.contenders[0].rate.value,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        reason=result.reason,
    )


class _TaskRun:
    """The work on one task, stage by stage; every stage leaves what the next one needs."""

    def __init__(self, run: TuningRun, models: ReopenedModels, costs: Costs, profile: Profile) -> None:
        self._run = run
        self._models = models
        self._costs = costs
        self._profile = profile
        self._task = profile.task
        self._plan = run.plan
        self._space = run.plan.space(profile, costs)
        self._state = run.state.of(profile.task)
        self._began_s = time.monotonic() - self._state.seconds

    def events(self) -> Generator[TuneEvent, None, TaskResult]:
        """Run the remaining stages, and return their results."""
        try:
            result = yield from (self._plain() if self._only_plain else self._stages())
        finally:
            self._note(self._state)
        return replace(result, seconds=self._state.seconds, quick=self._plan.quick)

    def _note(self, state: TaskState) -> None:
        self._state = replace(state, seconds=time.monotonic() - self._began_s)
        self._run.keep(self._run.state.having(self._state))

    @property
    def _only_plain(self) -> bool:
        return self._space.modes == ("off",)

    def _plain(self) -> Generator[TuneEvent, None, TaskResult]:
        """Time plain decoding shortly, where nothing else is possible."""
        reasons = dict.fromkeys(reason for _, reason in self._costs.left_out)
        result = yield from self._confirm((), digest(self._costs, self._run.state.number), 0.0)
        return replace(result, reason="; ".join(reasons), dropped=())

    def _stages(self) -> Generator[TuneEvent, None, TaskResult]:
        segments = yield from self._trace()
        simulator = Simulator(Trace(self._profile.sampling, segments), self._costs)
        tried = yield from self._search(simulator)
        field = entrants(best(tried), predicted(tried, LLAMA_CPP, self._space))
        key = digest(self._costs, self._run.state.number, len(segments))
        result = yield from self._confirm(field, key, self._run.confirm_s())
        left_out = (FailedContender(mode, reason) for mode, reason in self._costs.left_out)
        return replace(result, trials=len(tried), dropped=(*left_out, *result.dropped))

    def _trace(self) -> Generator[TuneEvent, None, tuple[TraceSegment, ...]]:
        """Return the answers of a trace; those on disk are not decoded again."""
        profile = self._profile
        traced = self._state.traced
        wanted = requests(self._models.now, profile, profile.tuning_prompts().prompts)
        yield self._run.begin("traces", TRACE_TOKENS, self._task)
        ends_s = time.monotonic() + seconds_of("traces", self._plan)
        segments = list[TraceSegment]()
        tokens = 0
        for segment in record(self._models, wanted, self._run.folder.path / "traces"):
            segments.append(segment)
            tokens += len(segment.tokens)
            done = min(tokens, TRACE_TOKENS)
            yield self._progress("traces", done, TRACE_TOKENS, f"{len(with_tokens(segments))} answers")
            wanted_tokens = MIN_TRACE_TOKENS if time.monotonic() > ends_s else TRACE_TOKENS
            if len(segments) == traced or (not traced and tokens >= wanted_tokens):
                break
        if not tokens:
            raise nothing_fits(profile)
        self._note(replace(self._state, traced=len(segments)))
        return with_tokens(segments)

    def _search(self, simulator: Simulator) -> Generator[TuneEvent, None, list[Trial]]:
        plan = self._plan
        tried = list[Trial]()
        yield self._run.begin("study", plan.trials, self._task)
        for each in search(simulator.rate, self._space, plan.trials, seconds_of("study", plan)):
            tried.append(each)
            if each.is_best:
                yield BestSoFar(self._task, each.settings, each.tokens_per_s)
            yield self._progress("study", len(tried), plan.trials, each.failure)
        return tried

    def _confirm(
        self, field: tuple[Entrant, ...], key: str, budget_s: float
    ) -> Generator[TuneEvent, None, TaskResult]:
        task = self._task
        prompts = self._profile.tuning_prompts().held_out
        held_out = tuple(requests(self._models.now, self._profile, prompts, seed=ANSWER_TOKENS))
        field = tuple(each for each in field if each.settings.mode in self._space.modes)
        yield self._run.begin("confirm", 1, task)
        terms = ConfirmationPlan(task, budget_s, key, self._run.folder.path / f"{task}.runs.json")
        leader: ConfirmedContender | None = None
        for each in confirm(self._models, held_out, field, terms):
            if isinstance(each, TaskResult):
                return each
            if each.leader is not None and each.leader != leader:
                leader = each.leader
                yield BestSoFar(task, leader.settings, leader.predicted, leader.rate)
            yield self._progress("confirm", each.done, each.steps, share=each.share)
        raise AssertionError("a confirmation ends with a verdict")

    def _progress(
        self, stage: Stage, done: int, steps: int, note: str = "", share: float | None = None
    ) -> StageProgress:
        progress = self._run.progress(stage, done, steps, note, self._task, share=share)
        return replace(progress, left_s=None) if self._only_plain else progress
