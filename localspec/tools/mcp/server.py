"""A server by its name: started when something is asked of it, and again at the next call after its death."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import Cancelled, UserError
from localspec.tools.mcp.contents import ResourceContent, call_text, prompt_text, resource_content
from localspec.tools.mcp.descriptions import OfferedTool, offered_tools, shown_line
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.known import Known, Memory
from localspec.tools.tool import ToolOutput

if TYPE_CHECKING:
    from localspec.tools.mcp.connection import Greeting, McpConnection

_RETRY_S = 60.0  # after a start that failed, unless a tool is called
_POLL_S = 0.05
_MOST_LISTED = 500  # prompts and resources
_TOO_OLD = ("1.", "2.0.", "2.1.", "2.2.")  # these cannot limit the size of an event
_MISSING = "MCP servers need the package `mcp`"
_INSTALL = "run `pip install 'localspec[mcp]'`"
_PROMPTS, _RESOURCES = ("prompts",), ("resources",)  # as questions; a text asks for the resource of that URI
_PACKAGES = ("mcp", "mcp_types", "anyio", "httpx2", "pydantic")


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt; its value is a text."""

    name: str
    description: str
    required: bool


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt that a server offers."""

    server: str
    name: str
    description: str
    arguments: tuple[PromptArgument, ...] = ()


@dataclass(frozen=True, slots=True)
class McpResource:
    """A resource that a server offers, such as a file or a page."""

    server: str
    uri: str
    name: str
    description: str
    mime_type: str = ""


class McpServer:
    """A server of mcp.json; its methods may be called from several threads and raise UserError."""

    def __init__(self, name: str, entry: ServerEntry, folder: Path) -> None:
        """Remember it; nothing is started yet."""
        self.name, self.entry, self._folder = name, entry, folder
        self.problems: tuple[str, ...] = ()  # of the list of tools
        self._connection: McpConnection | None = None
        self._tools: tuple[OfferedTool, ...] | None = None
        self._changed = threading.Event()  # the list of tools, since it was asked for
        self._failed: tuple[float, str, str] | None = None  # when, and why
        self.memory = Memory()
        self._lock = threading.RLock()
        self._is_closed = False

    def tools(self) -> Sequence[OfferedTool]:
        """Return the tools; raises UserError. A start that failed is not tried again for a minute."""
        with self._lock:
            connection = self._opened(None, again=False)
            if self._tools is None or self._changed.is_set():
                self._changed.clear()  # before asking: what changes now is asked for next time
                self._tools = self._listed_tools(connection)
            return self._tools

    def call(self, tool: str, arguments: Mapping[str, Any], stop: threading.Event) -> ToolOutput:
        """Call a tool by the server's own name for it; once `stop` is set, that is said in the output."""
        import_package()
        from mcp_types import CallToolRequest, CallToolRequestParams

        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
        try:
            text, is_error = call_text(self._ask(request, stop))
        except Cancelled as stopped:
            return ToolOutput(str(stopped), is_error=True)
        return ToolOutput(text, is_error)

    @property
    def is_running(self) -> bool:
        """Return whether it has been started and can be asked."""
        return self._connection is not None and self._connection.is_open

    def prompts(self, stop: threading.Event | None = None) -> Sequence[McpPrompt]:
        """Return the prompts; with a `stop`, a start that has just failed is tried again."""
        import_package()
        from mcp_types import ListPromptsRequest

        connection = self._opened(stop, again=stop is not None)
        listed: Sequence[object] = ()
        if connection.greeting().has_prompts:
            listed = connection.ask_for_all(
                lambda page: ListPromptsRequest(params=page), self.entry.call_seconds, "prompts", stop
            )
        prompts = tuple(_prompt(self.name, item) for item in _with_text(listed, "name"))
        self.memory.put(_PROMPTS, Known(prompts))
        return prompts

    def known_prompts(self) -> Known[Sequence[McpPrompt]]:
        """Return the prompts if they are known; does not wait, and starts nothing."""
        return self.memory.known(_PROMPTS, self.prompts if self.is_running else None)

    def prompt(self, name: str, arguments: Mapping[str, str], stop: threading.Event) -> str:
        """Return the text of a prompt; raises Cancelled, too."""
        import_package()
        from mcp_types import GetPromptRequest, GetPromptRequestParams

        params = GetPromptRequestParams(name=name, arguments=dict(arguments))
        return prompt_text(self._ask(GetPromptRequest(params=params), stop))

    def resources(self, stop: threading.Event | None = None) -> Sequence[McpResource]:
        """Return the resources; with a `stop`, a start that has just failed is tried again."""
        import_package()
        from mcp_types import ListResourcesRequest

        connection = self._opened(stop, again=stop is not None)
        listed: Sequence[object] = ()
        if connection.greeting().has_resources:
            listed = connection.ask_for_all(
                lambda page: ListResourcesRequest(params=page), self.entry.call_seconds, "resources", stop
            )
        resources = tuple(_resource(self.name, item) for item in _with_text(listed, "uri"))
        self.memory.put(_RESOURCES, Known(resources))
        return resources

    def known_resources(self) -> Known[Sequence[McpResource]]:
        """Return the resources if they are known; does not wait, but starts the server."""
        return self.memory.known(_RESOURCES, self.resources)

    def resource(self, uri: str, stop: threading.Event) -> ResourceContent:
        """Return the content of a resource; raises Cancelled, too."""
        import_package()
        from mcp_types import ReadResourceRequest, ReadResourceRequestParams

        request = ReadResourceRequest(params=ReadResourceRequestParams(uri=uri))
        content = resource_content(self._ask(request, stop))
        self.memory.put(uri, Known(content))
        return content

    def known_resource(self, uri: str) -> Known[ResourceContent]:
        """Return the content of a resource if it is known; does not wait, and starts nothing."""
        never = threading.Event()
        return self.memory.known(uri, (lambda: self.resource(uri, never)) if self.is_running else None)

    def greeting(self) -> Greeting:
        """Return the name and the offers of the server; starts it if needed."""
        return self._opened(None, again=True).greeting()

    def close(self) -> None:
        """End the server and all its processes, for good."""
        self._is_closed = True
        connection = self._connection  # without the lock, which a start may hold
        if connection is not None:
            connection.close()

    def _ask(self, request: object, stop: threading.Event) -> dict[str, Any]:
        """Ask once more where the server has forgotten the session, since it has done nothing then."""
        from localspec.tools.mcp.connection import SessionLostError

        connection = self._opened(stop, again=True)
        try:
            return connection.ask(request, self.entry.call_seconds, stop)
        except SessionLostError:
            connection.close()
        try:
            return self._opened(stop, again=True).ask(request, self.entry.call_seconds, stop)
        except SessionLostError as error:
            raise UserError(f"{error}, twice") from None

    def _listed_tools(self, connection: McpConnection) -> tuple[OfferedTool, ...]:
        from mcp_types import ListToolsRequest

        if not connection.greeting().has_tools:
            self.problems = ()
            return ()
        listed = connection.ask_for_all(
            lambda page: ListToolsRequest(params=page), self.entry.call_seconds, "tools"
        )
        tools, problems = offered_tools(listed)
        self.problems = tuple(f"the MCP server `{self.name}`: {problem}" for problem in problems)
        return tuple(tools)

    def _opened(self, stop: threading.Event | None, *, again: bool) -> McpConnection:
        """Return the open connection, or start the server; `again` also if that has just failed."""
        while not self._lock.acquire(timeout=_POLL_S):  # another thread starts it
            if stop is not None and stop.is_set():
                raise Cancelled("the call was stopped")
        try:
            if self._connection is None or not self._connection.is_open:
                self._restart(stop, again=again)
            assert self._connection is not None
            return self._connection
        finally:
            self._lock.release()

    def _restart(self, stop: threading.Event | None, *, again: bool) -> None:
        if self._is_closed:
            raise UserError(f"the MCP server `{self.name}` was closed")
        if self._failed is not None and not again and time.monotonic() < self._failed[0] + _RETRY_S:
            raise UserError(*self._failed[1:])
        try:
            self._connection = self._started(stop)
            self._failed, self._tools, self.problems = None, None, ()
        except UserError as error:
            self._failed = (time.monotonic(), error.message, error.hint)
            raise

    def _started(self, stop: threading.Event | None) -> McpConnection:
        import_package()
        from localspec.tools.mcp.connection import McpConnection

        if self._connection is not None:
            self._connection.close()  # the new process may need what the old one holds
        entry = self.entry.resolved(self.name, self._folder)
        self._connection = McpConnection(self.name, entry, self._changed.set)
        if self._is_closed:
            self._connection.close()
        self._connection.greeting(stop)
        return self._connection


def check_installed() -> None:
    """Raise UserError if the package `mcp` is not installed; does not import it, which takes a second."""
    if find_spec("mcp_types") is None:  # which mcp 1 has not
        raise UserError(_MISSING, _INSTALL)


def import_package() -> None:
    """Import the package `mcp`; raises UserError if it is not installed, or too old."""
    from importlib.metadata import version  # 20 ms

    try:
        import mcp
        import mcp_types  # which mcp 1 has not

        assert mcp, mcp_types
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise UserError(_MISSING, _INSTALL) from None
    found = version("mcp")
    if found.startswith(_TOO_OLD):
        raise UserError(f"{_MISSING} 2.3 or newer, and {found} is installed", _INSTALL)


def _with_text(listed: Sequence[object], key: str) -> list[dict[str, Any]]:
    found = [
        item for item in listed if isinstance(item, dict) and isinstance(item.get(key), str) and item[key]
    ]
    return found[:_MOST_LISTED]


def _prompt(server: str, item: dict[str, Any]) -> McpPrompt:
    given = item.get("arguments")
    arguments = tuple(
        PromptArgument(each["name"], _line(each, "description"), required=each.get("required") is True)
        for each in _with_text(given if isinstance(given, list) else [], "name")
    )
    return McpPrompt(server, item["name"], _line(item, "description", "title"), arguments)


def _resource(server: str, item: dict[str, Any]) -> McpResource:
    name, description = _line(item, "title", "name"), _line(item, "description")
    return McpResource(server, item["uri"], name, description, _line(item, "mimeType"))


def _line(item: dict[str, Any], *keys: str) -> str:
    """Return the first of some texts of a server, in one line."""
    texts = (item[key] for key in keys if isinstance(item.get(key), str))
    return shown_line(next(texts, ""))
