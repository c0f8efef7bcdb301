"""How far a run of the tuner is, as its events tell; for whatever shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from localspec.tuning.events import (
    BestSoFar,
    LoadOptionsChosen,
    Stage,
    StageBegan,
    StageProgress,
    TaskDone,
    TaskResult,
    TuneEvent,
)
from localspec.types import TaskType

_MOST_MARKS = 400  # of a history; every other one is forgotten beyond that


@dataclass(slots=True)
class StageState:
    """One stage of a task, or of all tasks where that is None."""

    stage: Stage
    task: TaskType | None
    steps: int
    kept: int
    began_s: float
    done: int = 0
    note: str = ""
    took_s: float | None = None  # None while it runs

    @property
    def fraction(self) -> float:
        """Return how much of it is done, from 0 to 1."""
        return min(1.0, self.done / self.steps) if self.steps > 0 else float(self.took_s is not None)


@dataclass(slots=True)
class TaskState:
    """What is known of a task; `history` holds the best value after every `stride` steps of its study."""

    task: TaskType
    best: BestSoFar | None = None
    history: list[float] = field(default_factory=list)
    stride: int = 1
    steps: int = 0
    result: TaskResult | None = None

    def remember(self) -> None:
        """Note how good the best is after another step."""
        if self.best is None or self.best.predicted is None:
            return
        self.steps += 1
        if self.steps % self.stride == 0:
            self.history.append(self.best.predicted)
        if len(self.history) > _MOST_MARKS:
            self.history, self.stride = self.history[1::2], 2 * self.stride


class TuneProgress:
    """Folds the events of one run; `now_s` is whatever clock the caller reads."""

    def __init__(self, tasks: Sequence[TaskType], now_s: float) -> None:
        self.tasks = tuple(TaskState(task) for task in tasks)
        self.stages: list[StageState] = []
        self.workplace: LoadOptionsChosen | None = None
        self._began_s = now_s
        self._left: tuple[float, float] | None = None  # seconds, and when that was said

    @property
    def current(self) -> StageState | None:
        """Return the stage that runs."""
        return self.stages[-1] if self.stages and self.stages[-1].took_s is None else None

    @property
    def results(self) -> tuple[TaskResult, ...]:
        """Return the tasks that are tuned."""
        return tuple(each.result for each in self.tasks if each.result is not None)

    def of(self, task: TaskType) -> TaskState:
        """Return what is known of a task; one that was not announced is added."""
        for state in self.tasks:
            if state.task == task:
                return state
        self.tasks = (*self.tasks, TaskState(task))
        return self.tasks[-1]

    def took_s(self, now_s: float) -> float:
        """Return how long the run has lasted."""
        return now_s - self._began_s

    def left_s(self, now_s: float) -> float | None:
        """Return about how long the run will go on, None where nobody knows."""
        if self._left is None:
            return None
        left_s, said_s = self._left
        return max(0.0, left_s - (now_s - said_s))

    def take(self, event: TuneEvent, now_s: float) -> StageState | None:
        """Take in an event; return the stage that it ended, if it did."""
        match event:
            case StageBegan(stage, task, steps, kept):
                ended = self.end_stage(now_s)
                self.stages.append(StageState(stage, task, steps, kept, now_s, done=kept))
                return ended
            case StageProgress():
                return self._progress(event, now_s)
            case BestSoFar(task):
                self.of(task).best = event
            case LoadOptionsChosen():
                self.workplace = event
                if self.current is not None and self.current.stage == "machine":
                    return self.end_stage(now_s)
            case TaskDone(result):
                self.of(result.task).result = result
                return self.end_stage(now_s)
            case _:
                assert_never(event)
        return None

    def end_stage(self, now_s: float) -> StageState | None:
        """Take the running stage as ended, and return it."""
        state = self.current
        if state is not None:
            state.took_s = now_s - state.began_s
        return state

    def _progress(self, event: StageProgress, now_s: float) -> StageState | None:
        ended, state = None, self.current
        if state is None or (state.stage, state.task) != (event.stage, event.task):
            ended = self.end_stage(now_s)
            state = StageState(event.stage, event.task, event.steps, 0, now_s)
            self.stages.append(state)
        state.done, state.steps, state.note = event.done, event.steps, event.note
        self._left = None if event.left_s is None else (event.left_s, now_s)
        if event.stage == "study" and event.task is not None:
            self.of(event.task).remember()
        return ended
