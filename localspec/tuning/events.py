"""The tuner's events and results as frozen values, and the progress of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from localspec.benchmark.statistics import Interval
from localspec.decoding.measurements import ComparedPass
from localspec.storage.tuned_settings import LoadOptions
from localspec.types.request import EngineSettings, TaskType

Stage = Literal["machine", "costs", "traces", "study", "confirm"]
STAGES: tuple[Stage, ...] = ("machine", "costs", "traces", "study", "confirm")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A really run trial of a workplace: tokens per second of its best mode, or why there are none."""

    workplace: LoadOptions
    tokens_per_s: float | None
    mode: str = ""
    failure: str = ""  # "out of memory", "the process ended by SIGABRT", ...; a failure is never a zero


@dataclass(frozen=True, slots=True)
class ConfirmedContender:
    """One way of decoding in the confirmation: measured tokens per second, and in those of plain decoding."""

    name: str  # "plain", "best", "second", "third", "llama.cpp"
    settings: EngineSettings
    predicted: float | None
    rate: Interval
    gain: Interval


@dataclass(frozen=True, slots=True)
class FailedContender:
    """A contender, or a mode, that could not be measured, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The tuner's result for a task, with its reason."""

    task: TaskType
    settings: EngineSettings  # mode "off" where nothing beats plain decoding
    reason: str  # in a plain sentence
    contenders: tuple[ConfirmedContender, ...]  # "plain" first
    trials: int
    seconds: float  # of work, those before a restart included
    drift: float = 1.0  # of plain decoding, from the beginning of the confirmation to its end
    dropped: tuple[FailedContender, ...] = ()
    quick: bool = False

    @property
    def winner(self) -> ConfirmedContender:
        """Return the contender that the settings are."""
        return next(each for each in self.contenders if each.settings == self.settings)


@dataclass(frozen=True, slots=True)
class StageBegan:
    """A stage begins; `task` None where it serves all tasks."""

    stage: Stage
    task: TaskType | None
    steps: int


@dataclass(frozen=True, slots=True)
class StageProgress:
    """The progress of a stage in steps; `left_s` estimates the rest of the whole run."""

    stage: Stage
    task: TaskType | None
    done: int
    steps: int
    left_s: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class BestSoFar:
    """The best known way for a task; `rate` once it has really run."""

    task: TaskType
    settings: EngineSettings
    predicted: float | None
    rate: Interval | None = None


@dataclass(frozen=True, slots=True)
class DistributionShift:
    """How far the target's distributions move on tokens of recorded answers: Kullback-Leibler, in nats."""

    tokens: int
    mean: float
    high: float  # 99th percentile
    changed: float  # share of tokens at which another one becomes the most likely


@dataclass(frozen=True, slots=True)
class LoadOptionsChosen:
    """How the models are opened from here on, and why; `shift` is that of another type of the cache."""

    workplace: LoadOptions
    attempts: tuple[Attempt, ...]
    reason: str
    shift: DistributionShift | None = None


@dataclass(frozen=True, slots=True)
class PassesCompared:
    """How much neighbouring tokens share the experts of a mixture."""

    passes: tuple[ComparedPass, ...]


TuneEvent = StageBegan | StageProgress | BestSoFar | LoadOptionsChosen | PassesCompared | TaskResult
"""A result means that its task is tuned and its settings are saved."""


@dataclass(slots=True)
class StageStatus:
    """One stage of a task, or of all tasks where that is None."""

    stage: Stage
    task: TaskType | None
    steps: int
    began_s: float
    done: int = 0
    note: str = ""
    took_s: float | None = None  # None while it runs

    @property
    def fraction(self) -> float:
        """Return its progress, from 0 to 1."""
        return min(1.0, self.done / self.steps) if self.steps > 0 else float(self.took_s is not None)


@dataclass(slots=True)
class TaskStatus:
    """The state of a task; `history` has the best value after every step of its study."""

    task: TaskType
    best: BestSoFar | None = None
    history: list[float] = field(default_factory=list)
    result: TaskResult | None = None


class TuneProgress:
    """Folds the events of one run; `now_s` is whatever clock the caller reads."""

    def __init__(self, tasks: Sequence[TaskType], now_s: float) -> None:
        self.tasks = tuple(TaskStatus(task) for task in tasks)
        self.stages: list[StageStatus] = []
        self.workplace: LoadOptionsChosen | None = None
        self.compared: tuple[ComparedPass, ...] = ()
        self._began_s = now_s
        self._left: tuple[float, float] | None = None  # seconds, and when that was said

    @property
    def current(self) -> StageStatus | None:
        """Return the stage that runs."""
        return self.stages[-1] if self.stages and self.stages[-1].took_s is None else None

    @property
    def results(self) -> tuple[TaskResult, ...]:
        """Return the tasks that are tuned."""
        return tuple(each.result for each in self.tasks if each.result is not None)

    def of(self, task: TaskType) -> TaskStatus:
        """Return the state of a task; add an unknown one."""
        for state in self.tasks:
            if state.task == task:
                return state
        self.tasks = (*self.tasks, TaskStatus(task))
        return self.tasks[-1]

    def took_s(self, now_s: float) -> float:
        """Return the duration of the run so far."""
        return now_s - self._began_s

    def left_s(self, now_s: float) -> float | None:
        """Return the estimated rest of the run, None if unknown."""
        if self._left is None:
            return None
        left_s, said_s = self._left
        return max(0.0, left_s - (now_s - said_s))

    def take(self, event: TuneEvent, now_s: float) -> StageStatus | None:
        """Take in an event; return the stage that it ended, if it did."""
        match event:
            case StageBegan(stage, task, steps):
                ended = self.end_stage(now_s)
                self.stages.append(StageStatus(stage, task, steps, now_s))
                return ended
            case StageProgress(stage, task, done, steps, left_s, note):
                state = self.current
                assert state is not None, "a stage begins before it makes progress"
                state.done = done
                state.steps = steps
                state.note = note
                self._left = None if left_s is None else (left_s, now_s)
                best = self.of(task).best if stage == "study" and task is not None else None
                if best is not None and best.predicted is not None:
                    self.of(best.task).history.append(best.predicted)
            case BestSoFar(task):
                self.of(task).best = event
            case LoadOptionsChosen():
                self.workplace = event
                if self.current is not None and self.current.stage == "machine":
                    return self.end_stage(now_s)
            case PassesCompared(passes):
                self.compared = passes
            case TaskResult(task):
                self.of(task).result = event
                return self.end_stage(now_s)
            case _:
                assert_never(event)
        return None

    def end_stage(self, now_s: float) -> StageStatus | None:
        """Take the running stage as ended, and return it."""
        state = self.current
        if state is not None:
            state.took_s = now_s - state.began_s
        return state
