"""A server started, asked for all that it offers, timed and ended again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import UserError
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.listings import McpPrompt, McpResource
from localspec.tools.mcp.names import server_names, tool_names
from localspec.tools.mcp.server import McpServer, import_package
from localspec.tools.tool import Effect, Tool

Clock = Callable[[], float]
_CHARACTERS_OF_A_TOKEN = 4  # of English and JSON, roughly, whatever the model


@dataclass(frozen=True, slots=True)
class ExaminedTool:
    """A tool as models get it; `hints` are the server's own words on its effects, which prove nothing."""

    name: str
    own_name: str
    effect: Effect
    hints: tuple[str, ...]
    characters: int  # of its JSON in a prompt

    @property
    def tokens(self) -> int:
        """Return about how many tokens of a prompt it takes."""
        return -(-self.characters // _CHARACTERS_OF_A_TOKEN)


@dataclass(frozen=True, slots=True)
class ExaminedServer:
    """What a server offers, the seconds that its start and its lists took, or why it did not start."""

    name: str
    failure: str = ""
    server: str = ""
    protocol: str = ""
    start_s: float = 0.0
    lists_s: float = 0.0
    tools: tuple[ExaminedTool, ...] = ()
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[McpResource, ...] = ()
    problems: tuple[str, ...] = ()


def examine(name: str, entry: ServerEntry, folder: Path, now: Clock = time.monotonic) -> ExaminedServer:
    """Start a server in a folder, list what it offers, and end it."""
    with closing(McpServer(name, entry, folder)) as server:
        try:
            return _examined(server, now)
        except UserError as error:
            return ExaminedServer(name, failure=str(error))


def _examined(server: McpServer, now: Clock) -> ExaminedServer:
    import_package()  # takes a second, which is not the server's
    began = now()
    greeting = server.greeting()
    started = now()
    offered = server.tools()
    prompts = tuple(server.prompts())
    resources = tuple(server.resources())
    ended = now()
    source = server_names([server.name])[server.name]
    fit = tool_names(source, [tool.name for tool in offered])
    tools = []
    for tool in offered:
        effect = server.entry.effect_of(tool.name)
        shown = Tool(fit[tool.name], tool.description, tool.parameters, effect, source)
        size = len(shown.as_function())
        tools.append(ExaminedTool(shown.name, tool.name, effect, tool.hints, size))
    return ExaminedServer(
        server.name,
        server=greeting.server,
        protocol=greeting.protocol,
        start_s=started - began,
        lists_s=ended - started,
        tools=tuple(tools),
        prompts=prompts,
        resources=resources,
        problems=server.problems,
    )
