"""A server by its name: started when something is asked of it, and again at the next call after its death."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.errors import Cancelled, UserError
from localspec.tools.mcp.contents import ResourceContent, call_text, prompt_text, resource_content
from localspec.tools.mcp.descriptions import OfferedTool, offered_tools
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.known import Known, Memory
from localspec.tools.mcp.listings import PROMPTS, RESOURCES, TOOLS, Listing, McpPrompt, McpResource
from localspec.tools.tool import ToolOutput

if TYPE_CHECKING:
    from localspec.tools.mcp.connection import Greeting, McpConnection

T = TypeVar("T")
_RETRY_S = 60.0  # after a start that failed, unless a tool is called
_POLL_S = 0.05
_TOO_OLD = ("1.", "2.0.", "2.1.", "2.2.")  # these cannot limit the size of an event
_MISSING = "MCP servers need the package `mcp`"
_INSTALL = "run `pip install 'localspec[mcp]'`"
_PACKAGES = ("mcp", "mcp_types", "anyio", "httpx2", "pydantic")


class McpServer:
    """A server of mcp.json; its methods may be called from several threads and raise UserError."""

    def __init__(self, name: str, entry: ServerEntry, folder: Path) -> None:
        """Remember it; nothing is started yet."""
        self.name = name
        self.entry = entry
        self._folder = folder
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
        return self._asked_for(PROMPTS, stop)

    def known_prompts(self) -> Known[Sequence[McpPrompt]]:
        """Return the prompts if they are known; does not wait, and starts nothing."""
        return self.memory.known((PROMPTS.name,), self.prompts if self.is_running else None)

    def prompt(self, name: str, arguments: Mapping[str, str], stop: threading.Event) -> str:
        """Return the text of a prompt; raises Cancelled, too."""
        import_package()
        from mcp_types import GetPromptRequest, GetPromptRequestParams

        params = GetPromptRequestParams(name=name, arguments=dict(arguments))
        return prompt_text(self._ask(GetPromptRequest(params=params), stop))

    def resources(self, stop: threading.Event | None = None) -> Sequence[McpResource]:
        """Return the resources; with a `stop`, a start that has just failed is tried again."""
        return self._asked_for(RESOURCES, stop)

    def known_resources(self, *, asks: bool = True) -> Known[Sequence[McpResource]]:
        """Return the resources if they are known; does not wait, but starts the server if it `asks`."""
        return self.memory.known((RESOURCES.name,), self.resources if asks else None)

    def resource(self, uri: str, stop: threading.Event) -> ResourceContent:
        """Return the content of a resource; raises Cancelled, too."""
        import_package()
        from mcp_types import ReadResourceRequest, ReadResourceRequestParams

        request = ReadResourceRequest(params=ReadResourceRequestParams(uri=uri))
        content = resource_content(self._ask(request, stop))
        self.memory.put(uri, Known(content))
        return content

    def known_resource(self, uri: str, *, asks: bool = True) -> Known[ResourceContent]:
        """Return the content of a resource if it is known; does not wait, and starts nothing."""
        never = threading.Event()
        may_ask = asks and self.is_running
        return self.memory.known(uri, (lambda: self.resource(uri, never)) if may_ask else None)

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

    def _asked_for(self, listing: Listing[T], stop: threading.Event | None) -> Sequence[T]:
        """Ask for a list, and remember it."""
        import_package()
        listed = self._listed(self._opened(stop, again=stop is not None), listing, stop)
        self.memory.put((listing.name,), Known(listed))
        return listed

    def _listed(
        self, connection: McpConnection, listing: Listing[T], stop: threading.Event | None = None
    ) -> Sequence[T]:
        """Return all entries of a list; none if the server does not offer it."""
        import mcp_types

        if listing.name not in connection.greeting().offers:
            return ()
        request = getattr(mcp_types, listing.request)
        listed = connection.ask_for_all(
            lambda page: request(params=page), self.entry.call_seconds, listing.name, stop
        )
        return listing.read(self.name, listed)

    def _listed_tools(self, connection: McpConnection) -> tuple[OfferedTool, ...]:
        tools, problems = offered_tools(self._listed(connection, TOOLS))
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
            self._failed = None
            self._tools = None
            self.problems = ()
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
