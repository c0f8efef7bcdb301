"""What is to be tuned, with which models, from which prompts, and how the time is shared out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import Self

from localspec.decoding.measurements import Costs
from localspec.errors import EngineError, ModelFileError, UserError
from localspec.gguf import STATE_DRAFT
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import OpenModels, TunableModels
from localspec.models.shape import read_shape
from localspec.storage.profiles import Profile
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import STAGES, Stage
from localspec.tuning.space import Space, space_of
from localspec.types.request import EngineSettings, Message, Mode, Request

LONGEST_DRAFT = 16
FIRST_S = 45.0  # for what serves all tasks
TASK_S = 85.0  # for each task
QUICK = 0.4  # of these, for a quick run
TRIALS = 150
QUICK_TRIALS = 60
ANSWER_TOKENS = 96
TRACE_TOKENS = 2400  # of one task: more hardly changes what the simulation says
MIN_TRACE_TOKENS = 400  # before time may end a trace
# The least that a run does, in plain decoding's time: measuring costs takes that of this many tokens,
MIN_COST_TOKENS = 500
MIN_TASK_TOKENS = 1900  # confirming a task that of this many,
MIN_TASK_ANSWERS = 50  # in this many answers.
PROBE_TOKENS = 16  # of an answer that measures the models' speed

_FIRST_STAGES: tuple[Stage, ...] = ("machine", "costs")
_TASK_STAGES: tuple[Stage, ...] = ("traces", "study", "confirm")
_CUT_SHORT: tuple[Stage, ...] = ("traces", "study")  # by their time, before they have done everything
TRACING = 1.5  # of plain decoding's time: distributions of both models are recorded, too
STUDIED = 0.4  # of a study's time that it is expected to need, where none has run yet
_SHARES: dict[Stage, float] = {"machine": 0.6, "costs": 0.4, "traces": 0.25, "study": 0.35, "confirm": 0.4}

Opener = Callable[[LoadOptions], AbstractContextManager[TunableModels]]


@dataclass(frozen=True, slots=True)
class TunePlan:
    """What to tune: a pair with its plan, and one profile for each task."""

    pair: OpenPlan
    profiles: tuple[Profile, ...]
    fixed: tuple[str, ...] = ()  # fields of `LoadOptions` that the user has set
    budget_s: float | None = None  # of the whole run
    trials: int = TRIALS  # simulated, of each task
    quick: bool = False  # without trying other ways to open the models, and with less of everything
    resume: bool = False  # continue with the last run if it was stopped
    allows_cache_types: bool = False  # also try another type of the target's cache

    @property
    def longest_draft(self) -> int:
        """Return the largest draft length; recurrent states have a limited number of snapshots."""
        for each in (self.pair.target, self.pair.draft):
            with suppress(ModelFileError):  # opening it reports the error
                if each is not None and read_shape(each.path).state_bytes:
                    return STATE_DRAFT
        return LONGEST_DRAFT

    @property
    def has_experts(self) -> bool:
        """Return whether the target is a mixture of experts."""
        with suppress(ModelFileError):  # opening it reports the error
            return read_shape(self.pair.target.path).expert_bytes > 0
        return False

    def space(self, profile: Profile, costs: Costs) -> Space:
        """Return the search space of a profile's task, from the call costs."""
        return space_of(
            profile.sampling,
            costs,
            has_draft=self.pair.draft is not None,
            max_draft_length=self.longest_draft,
            max_fan_out=self.pair.max_fan_out,
        )


def seconds_of(stage: Stage, plan: TunePlan) -> float:
    """Return the time that a stage may take, for one task where it serves one."""
    tasks = len(plan.profiles)
    scale = QUICK if plan.quick else 1.0
    if plan.budget_s is not None:
        scale = plan.budget_s / (FIRST_S + TASK_S * tasks)
    share = _SHARES[stage]
    if stage == "machine":
        return 0.0 if plan.quick else FIRST_S * scale * share
    if stage == "costs":
        return FIRST_S * scale * (1.0 if plan.quick else share)
    return TASK_S * scale * share


@dataclass(frozen=True, slots=True)
class PlainPace:
    """The speed of plain decoding here: seconds per token, and until the first one."""

    token_s: float
    first_token_s: float

    def least_s(self, stage: Stage) -> float:
        """Estimate the shortest useful time of a stage, for one task if it is a task's.

        In less time its measurements would be worthless.
        """
        match stage:
            case "costs":
                return MIN_COST_TOKENS * self.token_s
            case "traces":
                return MIN_TRACE_TOKENS * self.token_s
            case "confirm":
                return MIN_TASK_TOKENS * self.token_s + MIN_TASK_ANSWERS * self.first_token_s
        return 0.0

    def least_run_s(self, tasks: int) -> float:
        """Estimate the least that a run over some tasks takes."""
        return self.least_s("costs") + tasks * sum(map(self.least_s, _TASK_STAGES))


def expected_s(stage: Stage, plan: TunePlan, pace: PlainPace | None = None) -> float:
    """Estimate what a stage takes before one like it has run; slow models need more than its time."""
    most_s = seconds_of(stage, plan)
    if stage == "study":
        return STUDIED * most_s
    if pace is None:
        return most_s
    if stage == "traces":
        most_s = min(most_s, TRACING * TRACE_TOKENS * pace.token_s)
    return max(most_s, pace.least_s(stage))


def usual_s(tasks: int, *, quick: bool) -> float:
    """Estimate what a run over some tasks takes, of models of which nothing is known."""
    task_s = TASK_S * (_SHARES["traces"] + STUDIED * _SHARES["study"] + _SHARES["confirm"])
    return (QUICK if quick else 1.0) * (FIRST_S + tasks * task_s)


@dataclass(frozen=True, slots=True)
class RunSoFar:
    """The speed of a run: of its models, of the stage that it is in, and of stages before, by their kind."""

    pace: PlainPace | None = None
    elapsed_s: float | None = None
    took_s: Mapping[Stage, float] = field(default_factory=dict)


def left_s(plan: TunePlan, stage: Stage, done: float, tasks: int, run: RunSoFar | None = None) -> float:
    """Estimate the rest of a run: a stage of which a share is done, and `tasks` that follow.

    The more of a stage is done, the more it is expected to go on as before. Others are expected to take what
    stages of their kind took.
    """
    run = run or RunSoFar()
    expected = {each: expected_s(each, plan, run.pace) for each in STAGES} | dict(run.took_s)
    rest_s = expected[stage] * (1.0 - done)
    if run.elapsed_s is not None:
        rest_s = (1.0 - done) * (run.elapsed_s + rest_s)
        if stage in _CUT_SHORT:
            least_s = 0.0 if run.pace is None else run.pace.least_s(stage)
            rest_s = min(rest_s, max(0.0, seconds_of(stage, plan) - run.elapsed_s, least_s - run.elapsed_s))
        expected[stage] = run.elapsed_s + rest_s
    part = _FIRST_STAGES if stage in _FIRST_STAGES else _TASK_STAGES
    later_s = sum(expected[each] for each in part[part.index(stage) + 1 :])
    return rest_s + later_s + tasks * sum(expected[each] for each in _TASK_STAGES)


def requests(
    models: OpenModels | None, profile: Profile, prompts: Sequence[str], seed: int = 0
) -> Iterator[Request]:
    """Yield a request for each prompt that fits the context with its answer, of all without models."""
    for number, prompt in enumerate(prompts):
        system = (Message("system", profile.system_prompt),) if profile.system_prompt else ()
        messages = (*system, Message("user", prompt))
        if models is None or models.count_tokens(messages) <= models.target.context - ANSWER_TOKENS:
            yield Request(
                messages,
                sampling=profile.sampling,
                settings=EngineSettings(mode="off"),
                max_tokens=ANSWER_TOKENS,
                seed=seed + number,
                measures_first=True,
            )


def nothing_fits(profile: Profile) -> UserError:
    """Return the error for a profile without a prompt that fits this context."""
    return UserError(
        f"no tuning prompt of the profile {profile.name} fits the context", "open the models with a larger -c"
    )


class ReopenedModels:
    """Models, opened again where a call ended their process, and the modes that did; a context manager."""

    now: TunableModels

    def __init__(self, open_models: Callable[[], AbstractContextManager[TunableModels]]) -> None:
        self._open = open_models
        self._stack = ExitStack()
        self.left_out: dict[Mode, str] = {}

    def __enter__(self) -> Self:
        self.again()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def again(self) -> None:
        """Open the models again; raises what opening raises."""
        self._stack.close()
        self.now = self._stack.enter_context(self._open())

    def leave_out(self, mode: Mode, error: EngineError) -> None:
        """Leave out a mode that made an error, and open models to continue with."""
        self.left_out[mode] = str(error)
        self.again()
