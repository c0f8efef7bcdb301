"""What the tuner settled on with all evidence, on disk: a small file for each pair of models and task."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from localspec.storage.json_file import UnexpectedError, checked
from localspec.storage.paths import data_dir, make_private_folder, write_atomically
from localspec.tuning.events import TaskResult
from localspec.types import TaskType

logger = logging.getLogger("localspec.tuning")

SCHEMA = 1
LARGEST_FILE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _File:
    schema: int
    result: TaskResult


def folder_of(pair: str) -> Path:
    """Return where everything about a pair is kept; `pair` is a name for its files."""
    return data_dir() / "tuning" / pair


def keep(pair: str, result: TaskResult) -> None:
    """Write a result in the place of the task's last one; raises StoreError, UserError or OSError."""
    folder = folder_of(pair)
    make_private_folder(folder.parent)
    make_private_folder(folder)
    write_atomically(_path(pair, result.task), json.dumps(asdict(_File(SCHEMA, result)), indent=1) + "\n")


def recall(pair: str, task: TaskType) -> TaskResult | None:
    """Return the result for a task, None if there is none or its file is damaged."""
    path = _path(pair, task)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UnexpectedError("it is far too large")
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict) or value.get("schema") != SCHEMA:
            raise UnexpectedError("its schema is not known")
        result = checked(_File, value, "the file").result
        _check(result, task)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%s cannot be used: %s", path, error)
        return None
    return result


def everything(pair: str) -> tuple[TaskResult, ...]:
    """Return the results for all tasks that were tuned."""
    found = (recall(pair, task) for task in get_args(TaskType))
    return tuple(result for result in found if result is not None)


def forget(pair: str, task: TaskType) -> None:
    """Remove the result for a task, if there is one; raises OSError."""
    _path(pair, task).unlink(missing_ok=True)


def _path(pair: str, task: TaskType) -> Path:
    return folder_of(pair) / f"result-{task}.json"


def _check(result: TaskResult, task: TaskType) -> None:
    if result.task != task:
        raise UnexpectedError("it is about another task")
    if all(contender.settings != result.settings for contender in result.contenders):
        raise UnexpectedError("none of its contenders has its settings")
    if result.calibration is not None and any(len(point) != 2 for point in result.calibration.divergence):
        raise UnexpectedError("its calibration makes no sense")
