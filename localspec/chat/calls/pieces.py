"""Parts of an answer as they come, and how calls among them are numbered."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal, TypeVar
from uuid import uuid4

_T = TypeVar("_T")
Kind = Literal["thinking", "text", "call"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer, of the thinking before it, or of a call: the JSON text of its arguments.

    The first piece of a call has its name, and its id of nine letters and digits, as Mistral's templates
    want it; `index` counts calls.
    """

    kind: Kind
    text: str = ""
    index: int = 0
    id: str = ""
    name: str = ""


Reading = Generator[Piece | None, None, _T]
"""A parser that yields what is certain; None: more text has to come."""


class CallCounter:
    """Makes the pieces of calls, one after the other."""

    def __init__(self) -> None:
        """Begin with the first call."""
        self.count = 0

    def begun(self, name: str) -> Piece:
        """Return the first piece of another call."""
        self.count += 1
        return Piece("call", "", self.count - 1, new_id(), name)

    def more(self, text: str) -> Piece:
        """Return some of the arguments of the latest call."""
        return Piece("call", text, self.count - 1)


def new_id() -> str:
    """Return the id of a call."""
    return uuid4().hex[:9]
