"""What a tool is to a model and to the user, independent of the program that runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Literal, Protocol

Effect = Literal["none", "reads", "fetches", "writes", "runs"]
"""What a call does outside of the chat at most. `none` needs no consent; `reads` stays within the workspace;
`fetches` uses the network; `runs` may do anything."""

Arguments = Mapping[str, Any]
"""The arguments of a call: an object of JSON that fits the tool's schema."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool by its name; `parameters` is the JSON schema of its arguments.

    `source` is the MCP server that runs it, or empty for our own.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    effect: Effect
    source: str = ""

    @property
    def own_name(self) -> str:
        """Return the name without that of the server."""
        return self.name.removeprefix(f"{self.source}__") if self.source else self.name

    def as_function(self) -> str:
        """Return the tool as `Request.tools` has it: OpenAI's JSON of a function."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool returned, as text for the model; with `is_error` it says what went wrong.

    `data` has for programs what the text says in words.
    """

    text: str
    is_error: bool = False
    data: Mapping[str, Any] = field(default_factory=dict)


Tell = Callable[[str], object]
"""Takes what a call prints, piece by piece, while it runs."""


def tell_nobody(_text: str) -> None:
    """Drop what a call prints."""


class Toolbox(Protocol):
    """Tools that one owner runs. Calls may come from several threads at once."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools that can be called now; may start a server, and wait for it."""

    def problems(self) -> Sequence[str]:
        """Return a line for each thing that kept tools from being listed the last time."""

    def preview(self, name: str, arguments: Arguments) -> str:
        """Return in Markdown what a call would do, for the user to decide: a diff, a command.

        Empty where the arguments say it all. Raises `UserError` for a call that cannot succeed.
        """

    def run(self, name: str, arguments: Arguments, stop: Event, tell: Tell = tell_nobody) -> ToolOutput:
        """Run a call to its end, or until `stop` is set; raises `UserError` where it cannot be run."""
