"""What a tuner's run keeps on disk for a pair of models, to go on after it was stopped or killed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import get_args

from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir, make_private_folder
from localspec.tuning.events import TaskResult
from localspec.types import TaskType

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TaskState:
    """How far a task is; `traced` is how many answers its trace has, 0 until it is recorded."""

    task: TaskType
    profile: str = ""
    traced: int = 0
    done: bool = False
    seconds: float = 0.0  # it has been worked on


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is; runs of a pair are numbered from 1, and `place` names machine and placement.

    `costs_key` names the costs that it goes by.
    """

    number: int
    place: str = ""
    quick: bool = False
    costs_key: str = ""
    tasks: tuple[TaskState, ...] = ()
    complete: bool = False

    def of(self, task: TaskType) -> TaskState:
        """Return how far a task is."""
        return next((state for state in self.tasks if state.task == task), TaskState(task))

    def having(self, state: TaskState) -> RunState:
        """Return the run with a task's new state."""
        tasks = {other.task: other for other in self.tasks} | {state.task: state}
        return replace(self, tasks=tuple(tasks.values()))


@dataclass(frozen=True, slots=True)
class _KeptResult:
    result: TaskResult


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one pair; `pair` is a name for those of its models."""

    pair: str

    @property
    def path(self) -> Path:
        """Return the folder, made where it was missing."""
        path = data_dir() / "tuning" / self.pair
        make_private_folder(path.parent)
        make_private_folder(path)
        return path

    @property
    def costs(self) -> Path:
        """Return where the costs of calls are kept."""
        return self.path / "costs.json"

    @property
    def attempts(self) -> Path:
        """Return where other ways to open the models are kept while they are tried."""
        return self.path / "workplaces.jsonl"

    @property
    def traces(self) -> Path:
        """Return where traced answers are kept."""
        return self.path / "traces"

    def runs(self, task: TaskType) -> Path:
        """Return where the timed answers of a task's confirmation are kept."""
        return self.path / f"{task}.runs.jsonl"

    @property
    def state(self) -> JsonFile[RunState]:
        """Return how far the last run is."""
        return JsonFile(self.path / "run.json", RunState)

    def keep(self, result: TaskResult) -> None:
        """Write a result in the place of the task's last one; raises StoreError, UserError or OSError."""
        self._result(result.task).write(_KeptResult(result))

    def result(self, task: TaskType) -> TaskResult | None:
        """Return the result for a task, None if there is none or its file is damaged."""
        kept = self._result(task).read()
        return None if kept is None else kept.result

    def results(self) -> tuple[TaskResult, ...]:
        """Return the results for all tasks that were tuned."""
        found = map(self.result, get_args(TaskType))
        return tuple(result for result in found if result is not None)

    def forget(self, task: TaskType) -> None:
        """Remove the result for a task, if there is one; raises OSError."""
        self._result(task).path.unlink(missing_ok=True)

    def _result(self, task: TaskType) -> JsonFile[_KeptResult]:
        def is_sound(kept: _KeptResult) -> bool:
            result = kept.result
            return result.task == task and any(each.settings == result.settings for each in result.contenders)

        return JsonFile(self.path / f"result-{task}.json", _KeptResult, SCHEMA, is_sound=is_sound)


def digest(*of: object, length: int = 16) -> str:
    """Return a short name for values that have a `repr` of their content."""
    return sha256(repr(of).encode()).hexdigest()[:length]
