"""What a tuner's run keeps on disk for a pair of models, to go on after it was stopped or killed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from localspec.decoding.measurements import Costs
from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir, make_private_folder
from localspec.tuning.events import LoadOptionsChosen, TaskResult
from localspec.types import TaskType


@dataclass(frozen=True, slots=True)
class TaskState:
    """How far a task is; `traced` is how many answers its trace has, 0 until it is recorded."""

    task: TaskType
    profile: str = ""
    traced: int = 0
    seconds: float = 0.0  # it has been worked on
    result: TaskResult | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run is; runs of a pair are numbered from 1, and `place` names machine and placement.

    The models are opened as was chosen, if ways were tried. It goes by `costs`, and `costs_key` names
    everything that they depend on.
    """

    number: int
    place: str = ""
    quick: bool = False
    opened: LoadOptionsChosen | None = None
    costs: Costs | None = None
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
    def state(self) -> JsonFile[RunState]:
        """Return how far the last run is."""
        return JsonFile(self.path / "run.json", RunState)


def digest(*of: object, length: int = 16) -> str:
    """Return a short name for values that have a `repr` of their content."""
    return sha256(repr(of).encode()).hexdigest()[:length]
