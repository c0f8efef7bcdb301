"""What the two processes say to each other: pickled values, one after the other, over two pipes.

The child greets before its first value. Replies travel in lists: what piles up is sent at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localspec.errors import LocalSpecError
from localspec.types.models import ModelInfo
from localspec.types.request import Mode

ASIDES = frozenset({"count_tokens", "render", "tokenize", "detokenize", "memory", "drop", "saved"})
"""The methods that are answered at once, while another call is being worked on."""
SILENT = "no reply: "
"""How the last line of a process begins that has given up waiting for another machine."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log, or of what a library printed; `level` is one of `logging`."""

    level: int
    name: str
    text: str


Opened = tuple[ModelInfo, ModelInfo | None, tuple[str, ...], tuple[Mode, ...]]
"""The target, the draft model, notes about them and their modes: the result of `open`."""


@dataclass(frozen=True, slots=True)
class Call:
    """Something to do; the replies bear the same number."""

    number: int
    method: str  # of open models, or `look`, `open` and `perform`
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The call of this number is not wanted any more; it still ends with a reply."""

    number: int


@dataclass(frozen=True, slots=True)
class Pause:
    """The answer of this call is to stand still, if it is being written; it still ends with a reply."""

    number: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened in a call that goes on: a fraction loaded, a part of an answer or of a task."""

    number: int
    event: object


@dataclass(frozen=True, slots=True)
class FirstCall:
    """A card has been making programs for so long, or has done with it (None)."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Measuring:
    """The process begins to measure what calls cost, because nobody asks anything, or has ended that."""

    is_under_way: bool


@dataclass(frozen=True, slots=True)
class Result:
    """A call has ended well."""

    number: int
    value: object


@dataclass(frozen=True, slots=True)
class Failure:
    """A call has ended with an error."""

    number: int
    error: LocalSpecError


Request = Call | Cancel | Pause
Reply = Event | Result | Failure
Told = Reply | LogLine | FirstCall | Measuring
