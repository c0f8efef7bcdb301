"""What earlier days tell of the open pair of models, and what its answers add to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.types import EngineSettings, Summary, TaskType

if TYPE_CHECKING:
    from localspec.chat.messages import AnswerRecord


@dataclass(frozen=True, slots=True)
class Tuned:
    """What the tuner kept for a task; `settings` None where it no longer holds.

    `reason` is when it was found and what it gains, `notice` what a person should do about it.
    """

    settings: EngineSettings | None
    reason: str
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as it is learned from; `steady` if it was written in one mode from beginning to end."""

    task: TaskType
    settings: EngineSettings
    summary: Summary
    steady: bool

    @classmethod
    def of(cls, task: TaskType, record: AnswerRecord) -> Answered:
        """Return what an answer that was kept tells."""
        return cls(task, record.settings, record.summary, not record.changes)


def _nothing(_task: TaskType) -> Tuned | None:
    return None


def _ignore(_answered: Answered) -> None:
    """Learn nothing."""


@dataclass(frozen=True, slots=True)
class Experience:
    """Where to look up what was tuned for the open models, and whom to tell of answers.

    Both may read or write a file, and are called in the thread that works with the models.
    """

    recall: Callable[[TaskType], Tuned | None] = _nothing
    learn: Callable[[Answered], None] = _ignore


NONE = Experience()
