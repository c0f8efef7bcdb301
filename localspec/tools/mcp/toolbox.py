"""The tools of all MCP servers, as one toolbox for the chat."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

from localspec.errors import UserError
from localspec.tools.mcp.descriptions import OfferedTool, shown_line
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.names import server_names, tool_names
from localspec.tools.mcp.server import McpServer
from localspec.tools.tool import Arguments, Tell, Tool, ToolOutput, tell_nobody

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Target:
    """A tool's server, and the server's own name for it."""

    server: McpServer
    tool: str


class McpTools:
    """A `Toolbox` of MCP servers, which start in `folder` when first needed and end with the program.

    One that fails does not keep the others from working: `problems` says in a line each what is wrong.
    """

    def __init__(self, entries: Mapping[str, ServerEntry], folder: Path) -> None:
        """Take the servers of mcp.json that are not disabled; starts none of them."""
        entries = {name: entry for name, entry in entries.items() if not entry.disabled}
        self._servers = {name: McpServer(name, entry, folder) for name, entry in entries.items()}
        self._names = server_names(self._servers)
        self._failures: dict[str, str] = {}
        self._targets: dict[str, _Target] = {}
        self._lock = threading.Lock()
        self._end = weakref.finalize(self, _close, tuple(self._servers.values()))

    @property
    def servers(self) -> Mapping[str, McpServer]:
        """The servers, by names that are fit for models and commands."""
        return {self._names[name]: server for name, server in self._servers.items()}

    @property
    def is_running(self) -> bool:
        """Return whether all servers have been started."""
        return all(server.is_running for server in self._servers.values())

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all servers that answer; starts those that do not run, all at once."""
        offered = self._of_each(McpServer.tools)
        tools: list[Tool] = []
        targets: dict[str, _Target] = {}
        for server, own in offered:
            names = tool_names(self._names[server.name], [tool.name for tool in own])
            tools += [self._tool(server, names[tool.name], tool) for tool in own]
            targets |= {names[tool.name]: _Target(server, tool.name) for tool in own}
        with self._lock:
            self._targets = targets
        return tools

    def preview(self, name: str, arguments: Arguments) -> str:
        """Return nothing, because only the server knows what a call would do; raises UserError."""
        self._target(name)
        return ""

    def run(self, name: str, arguments: Arguments, stop: Event, tell: Tell = tell_nobody) -> ToolOutput:
        """Call a tool, and start its server first if that has ended; raises UserError in one line."""
        del tell  # servers print nothing while they work
        target = self._target(name)
        return target.server.call(target.tool, arguments, stop)

    def problems(self) -> Sequence[str]:
        """Return a line for each server that failed when last asked, and for each tool that is left out."""
        left_out = [problem for server in self._servers.values() for problem in server.problems]
        return [*self._failures.values(), *left_out]

    def close(self) -> None:
        """End all servers; a second call does nothing."""
        self._end()

    def _tool(self, server: McpServer, name: str, offered: OfferedTool) -> Tool:
        """Return a tool whose source is the fit name of its server, with which its own name begins."""
        effect = server.entry.effect_of(offered.name)
        return Tool(name, offered.description, offered.parameters, effect, self._names[server.name])

    def _target(self, name: str) -> _Target:
        with self._lock:
            is_listed = bool(self._targets)
        if not is_listed:
            self.tools()
        with self._lock:
            target = self._targets.get(name)
        if target is None:
            raise UserError(f"no MCP server has a tool `{shown_line(name)}`")
        return target

    def _of_each(self, ask: Callable[[McpServer], Sequence[T]]) -> list[tuple[McpServer, Sequence[T]]]:
        """Ask all servers at once; one that fails has nothing, and `problems` says why."""
        answers: dict[str, Sequence[T]] = {}

        def answer(server: McpServer) -> None:
            try:
                answers[server.name] = ask(server)
                self._failures.pop(server.name, None)
            except UserError as error:
                self._failures[server.name] = str(error)

        servers = list(self._servers.values())
        _at_once([partial(answer, server) for server in servers])
        return [(server, answers.get(server.name, ())) for server in servers]


def _close(servers: Iterable[McpServer]) -> None:
    _at_once([server.close for server in servers])


def _at_once(tasks: Iterable[Callable[[], None]]) -> None:
    """Do tasks in threads that do not keep the program from ending, and wait for them."""
    threads = [threading.Thread(target=task, name="localspec-mcp", daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
