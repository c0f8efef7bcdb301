"""The messages of the two processes: pickled values over two pipes.

The child greets before its first value. Replies are sent in lists, so values that pile up go together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from localspec.errors import LocalSpecError
from localspec.types.events import ReadAhead
from localspec.types.models import ModelInfo
from localspec.types.request import Mode
from localspec.types.request import Request as GenerationRequest

TEXTS = frozenset({"count_tokens", "render", "tokenize", "detokenize"})
"""The methods that take as long as their text; nothing waits for them."""
ASIDES = frozenset({"memory", "drop", "saved", "forget_conversation"})
"""The methods that are answered at once, while another call is being worked on."""
GIVING_WAY = frozenset({"measure_plain"})
"""The methods that the next call ends."""
WRITING_S = 10.0
"""The time that a process gets at its end to write conversations to disk."""
SILENT = "no reply: "
"""The beginning of the last line of a process that stopped waiting for another machine."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log, or of what a library printed; `level` is one of `logging`."""

    level: int
    name: str
    text: str


Opened = tuple[ModelInfo, ModelInfo | None, tuple[str, ...], tuple[Mode, ...], int]
"""The target, the draft model, notes about them, their modes and their seats: the result of `open`."""
ANSWERS = frozenset({"generate", "resume"})
"""The methods that write an answer: models with several seats work on several of these calls at once."""


@dataclass(frozen=True, slots=True)
class Call:
    """Something to do; the replies bear the same number."""

    number: int
    method: str  # of open models, or `values_of`, `open` and `perform`
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cancel:
    """The call of this number is not wanted any more; it still ends with a reply."""

    number: int


@dataclass(frozen=True, slots=True)
class Pause:
    """Pause the answer of this call if it is running; it still ends with a reply."""

    number: int


@dataclass(frozen=True, slots=True)
class Read:
    """What to read while no call is worked on; None is nothing. It replaces the last, and a call ends it."""

    number: int
    request: GenerationRequest | None


@dataclass(frozen=True, slots=True)
class ReadSoFar:
    """How much has been read of what was to be read under a number."""

    number: int
    progress: ReadAhead


@dataclass(frozen=True, slots=True)
class Events:
    """Events of a running call: fractions loaded, parts of an answer or of a task."""

    number: int
    events: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class FirstCall:
    """A GPU has been making programs for so long, or has done with it (None)."""

    seconds: float | None


@dataclass(frozen=True, slots=True)
class Measuring:
    """The process has started to measure call costs while idle, or has finished that."""

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


Request = Call | Cancel | Pause | Read
Reply = Events | Result | Failure
Told = Reply | LogLine | FirstCall | Measuring | ReadSoFar
