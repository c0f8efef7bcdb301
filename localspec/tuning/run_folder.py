"""What a tuner's run keeps on disk for a pair of models, to go on after it was stopped or killed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import get_args

from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir, make_private_folder
from localspec.tuning.events import LoadOptionsChosen, TaskResult
from localspec.types import Sampling, TaskType

SCHEMA = 1
# Keys on disk depend on what classes were called when the first of them were written.
_FIRST_NAMES = {"LoadOptions": "TunedWorkplace", "MachineLimits": "Room"}
# Fields that requests did not have when names were first made of them: left out where they say nothing.
_ADDED = re.compile(
    r", (tool_calls=\(\)|tool_call_id=''|thinking=''|infill=None|tools=\(\)|shows_control=False|grammar=None"
    r"|logit_bias=\(\)|top_logprobs=None|ignores_circles=False)"
)


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
class _KeptResult:
    result: TaskResult


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one pair; `pair` is a name for those of its models."""

    pair: str

    @property
    def path(self) -> Path:
        """Return the folder, made where it was missing."""
        make_private_folder(self._path.parent)
        make_private_folder(self._path)
        return self._path

    @property
    def costs(self) -> Path:
        """Return where the costs of calls are kept."""
        return self.path / "costs.json"

    @property
    def studies(self) -> Path:
        """Return the file of all studies, of all pairs."""
        return data_dir() / "tune.db"

    @property
    def attempts(self) -> Path:
        """Return where other ways to open the models are kept while they are tried."""
        return self.path / "workplaces.jsonl"

    def traces(self, task: TaskType) -> Path:
        """Return where the traces of a task are kept."""
        return self.path / f"{task}.traces"

    def runs(self, task: TaskType) -> Path:
        """Return where the timed answers of a task's confirmation are kept."""
        return self.path / f"{task}.runs.jsonl"

    @property
    def load_options(self) -> JsonFile[LoadOptionsChosen]:
        """Return how the models were opened in the last run that tried other ways."""
        return JsonFile(self.path / "workplace.json", LoadOptionsChosen)

    @property
    def state(self) -> JsonFile[RunState]:
        """Return how far the last run is."""
        return JsonFile(self.path / "run.json", RunState)

    def keep(self, result: TaskResult) -> None:
        """Write a result in the place of the task's last one; raises StoreError, UserError or OSError."""
        make_private_folder(self._path.parent)
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

    @property
    def _path(self) -> Path:
        return data_dir() / "tuning" / self.pair

    def _result(self, task: TaskType) -> JsonFile[_KeptResult]:
        def is_sound(kept: _KeptResult) -> bool:
            result = kept.result
            return result.task == task and any(each.settings == result.settings for each in result.contenders)

        return JsonFile(self._path / f"result-{task}.json", _KeptResult, SCHEMA, is_sound=is_sound)


def digest(*of: object, length: int = 16) -> str:
    """Return a short name for values that have a `repr` of their content."""
    text = _ADDED.sub("", repr(of))
    for now, first in _FIRST_NAMES.items():
        text = text.replace(f"{now}(", f"{first}(")
    return sha256(text.encode()).hexdigest()[:length]
