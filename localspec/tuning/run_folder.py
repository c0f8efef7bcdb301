"""The files of a tuner's run for a pair of models, to resume after it was stopped or killed.

One file has its progress, and each traced answer has its own, in NumPy's compressed format.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from localspec.decoding.measurements import Costs, TraceSegment
from localspec.errors import ContextFullError, EngineError, StoreError, os_errors_as
from localspec.storage.json_file import JsonFile
from localspec.storage.paths import data_dir, make_private_folder, write_atomically
from localspec.storage.profiles import Profile
from localspec.tuning.events import LoadOptionsChosen, TaskResult
from localspec.tuning.plan import ReopenedModels, requests
from localspec.types.request import Request, TaskType


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
        """Return the progress of a task."""
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
        """Return the folder, made where it was missing; raises StoreError."""
        path = data_dir() / "tuning" / self.pair
        with os_errors_as(f"cannot make the folder `{path}`", StoreError):
            make_private_folder(path.parent)
            make_private_folder(path)
        return path

    @property
    def state(self) -> JsonFile[RunState]:
        """Return the progress of the last run."""
        return JsonFile(self.path / "run.json", RunState)


def digest(*of: object, length: int = 16) -> str:
    """Return a short name for values that have a `repr` of their content."""
    return sha256(repr(of).encode()).hexdigest()[:length]


def record(models: ReopenedModels, asked: Iterable[Request], folder: Path) -> Iterator[TraceSegment]:
    """Yield a trace of each answer, from the folder if it is there; empty if there is none.

    Empty are those of prompts that do not fit the context, and of prompts at which the models failed; those
    are reopened then. A second failure in a row raises its `EngineError`. Raises `StoreError` and
    `OSError`.
    """
    from localspec.tuning.trace import trace  # numpy: 0.1 s that `--help` should not cost

    make_private_folder(folder)
    has_failed = False
    for request in asked:
        file = folder / f"{digest(request)}.npz"
        if (kept := _read(file)) is not None:
            yield kept
            continue
        try:
            segment = models.now.perform(trace, request)
            has_failed = False
        except ContextFullError:
            segment = _untraced()
        except EngineError:
            if has_failed:
                raise
            has_failed = True
            segment = _untraced()
            models.again()
        write_atomically(file, _packed(segment))
        yield segment


def recorded(profile: Profile, count: int, folder: Path) -> tuple[TraceSegment, ...]:
    """Return the traces of the first `count` answers to a profile's prompts, none where one is missing."""
    asked = requests(None, profile, profile.tuning_prompts().prompts)
    read = (_read(folder / f"{digest(request)}.npz") for request in asked)
    found = list(islice((each for each in read if each is not None), count))  # none of what did not fit
    return with_tokens(found) if len(found) == count else ()


def with_tokens(segments: Iterable[TraceSegment]) -> tuple[TraceSegment, ...]:
    """Return the answers that could be traced."""
    return tuple(segment for segment in segments if len(segment.tokens))


def _untraced() -> TraceSegment:
    import numpy as np  # 0.1 s that `--help` should not cost

    tokens = np.zeros(0, np.int32)
    of_tokens = np.zeros(0, np.float32)
    ids = tokens.reshape(0, 0)
    values = of_tokens.reshape(0, 0)
    return TraceSegment((), tokens, ids, values, of_tokens, ids, values, values, 0.0, ended=False)


def _packed(segment: TraceSegment) -> bytes:
    import numpy as np

    file = BytesIO()
    arrays = {each.name: getattr(segment, each.name) for each in fields(segment)}
    np.savez_compressed(file, **arrays | {"prompt": np.array(segment.prompt, np.int32)})
    return file.getvalue()


def _read(file: Path) -> TraceSegment | None:
    """Return a traced answer; None where there is none, or a damaged one."""
    import numpy as np

    with suppress(OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
        found = np.load(BytesIO(file.read_bytes()))
        values: dict[str, Any] = {each.name: found[each.name] for each in fields(TraceSegment)}
        plain = {name: values[name].tolist() for name in ("prompt", "decode_s", "ended")}
        return TraceSegment(**values | plain | {"prompt": tuple(plain["prompt"])})
    return None
