"""What a tuner's run keeps on disk for a pair of models, to go on after it was stopped or killed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import get_args

from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir, make_private_folder
from localspec.tuning.events import LoadOptionsChosen, TaskResult
from localspec.types import Sampling, TaskType


@dataclass(frozen=True, slots=True)
class TaskState:
    """How far a task is; `segments` is how many answers its trace has, 0 until it is recorded.

    The keys say under which name traces and study are on disk. `sampling` is that of the trace, `seconds`
    how long it has been worked on.
    """

    task: TaskType
    trace_key: str = ""
    segments: int = 0
    study_key: str = ""
    done: bool = False
    profile: str = ""
    sampling: Sampling | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is; runs of a pair are numbered from 1. `costs_key` names the costs that it goes by.

    `place` names machine and placement. `earlier` are tasks that only runs before it have done, by the costs
    of `earlier_costs` at the latest.
    """

    number: int
    costs_key: str = ""
    tasks: tuple[TaskState, ...] = ()
    complete: bool = False
    place: str = ""
    quick: bool = False
    earlier: tuple[TaskState, ...] = ()
    earlier_costs: str = ""

    def of(self, task: TaskType) -> TaskState:
        """Return how far a task is."""
        return next((state for state in self.tasks if state.task == task), TaskState(task))

    def having(self, state: TaskState) -> RunState:
        """Return the run with a task's new state."""
        tasks = {other.task: other for other in self.tasks} | {state.task: state}
        return replace(self, tasks=tuple(tasks.values()))

    def evidence(self) -> dict[TaskType, TaskState]:
        """Return how every task was last done."""
        done = (state for state in self.tasks if state.done)
        return {state.task: state for state in (*self.earlier, *done)}


@dataclass(frozen=True, slots=True)
class Folder:
    """The files of one pair, beside its results."""

    pair: str

    @property
    def path(self) -> Path:
        """Return the folder, made where it was missing."""
        path = folder_of(self.pair)
        make_private_folder(path.parent)
        make_private_folder(path)
        return path

    @property
    def costs(self) -> Path:
        """Return where the costs of calls are kept."""
        return self.path / "costs.json"

    @property
    def studies(self) -> Path:
        """Return the file of all studies, of all pairs."""
        return data_dir() / "tune.db"

    def traces(self, task: TaskType) -> Path:
        """Return where the traces of a task are kept."""
        return self.path / f"{task}.traces"

    def runs(self, task: TaskType) -> Path:
        """Return where the timed answers of a task's confirmation are kept."""
        return self.path / f"{task}.runs.jsonl"

    def workplace(self) -> LoadOptionsChosen | None:
        """Return how the models were opened in the last run that tried other ways."""
        return self._workplace.read()

    def keep_workplace(self, chosen: LoadOptionsChosen) -> None:
        """Write down how the models are opened, and what else was tried; raises `StoreError`."""
        self._workplace.write(chosen)

    def last_run(self) -> RunState | None:
        """Return the last run's state, None if there was none or it is damaged."""
        return self._state.read()

    def keep(self, state: RunState) -> None:
        """Write down how far a run is; raises `StoreError`."""
        self._state.write(state)

    @property
    def _workplace(self) -> JsonFile[LoadOptionsChosen]:
        return JsonFile(self.path / "workplace.json", LoadOptionsChosen)

    @property
    def _state(self) -> JsonFile[RunState]:
        return JsonFile(self.path / "run.json", RunState)


def digest(*of: object) -> str:
    """Return a short name for values that have a `repr` of their content."""
    return sha256(repr(of).encode()).hexdigest()[:16]


SCHEMA = 1


@dataclass(frozen=True, slots=True)
class _File:
    result: TaskResult


def folder_of(pair: str) -> Path:
    """Return where everything about a pair is kept; `pair` is a name for its files."""
    return data_dir() / "tuning" / pair


def keep(pair: str, result: TaskResult) -> None:
    """Write a result in the place of the task's last one; raises StoreError, UserError or OSError."""
    make_private_folder(folder_of(pair).parent)
    _file(pair, result.task).write(_File(result))


def recall(pair: str, task: TaskType) -> TaskResult | None:
    """Return the result for a task, None if there is none or its file is damaged."""
    kept = _file(pair, task).read()
    return None if kept is None else kept.result


def everything(pair: str) -> tuple[TaskResult, ...]:
    """Return the results for all tasks that were tuned."""
    found = (recall(pair, task) for task in get_args(TaskType))
    return tuple(result for result in found if result is not None)


def forget(pair: str, task: TaskType) -> None:
    """Remove the result for a task, if there is one; raises OSError."""
    _file(pair, task).path.unlink(missing_ok=True)


def _file(pair: str, task: TaskType) -> JsonFile[_File]:
    def is_sound(file: _File) -> bool:
        result = file.result
        return result.task == task and any(each.settings == result.settings for each in result.contenders)

    return JsonFile(folder_of(pair) / f"result-{task}.json", _File, SCHEMA, is_sound=is_sound)
