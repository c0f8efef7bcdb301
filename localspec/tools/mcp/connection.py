"""A connection to one server, with a thread and an event loop of its own; imports the package `mcp`.

Whatever the server does, a request ends: with its result, with an error, by its time limit or by `stop`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

import httpx2
import mcp_types as types
from mcp import ClientSession
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from localspec.errors import Cancelled, UserError
from localspec.tools.mcp.address import http_streams
from localspec.tools.mcp.descriptions import shown_line
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.life import Life
from localspec.tools.mcp.listings import Offer
from localspec.tools.mcp.originals import AS_IT_CAME, KeepingDispatcher, Result, original
from localspec.tools.mcp.process import process_streams
from localspec.version import __version__

T = TypeVar("T")
_POLL_S = 0.05  # between two looks at `stop`
_PING_S = 5.0  # for a server that was told to give up a call
_END_S = 5.0  # for all processes of a server to end
_MOST_PAGES = 100
_WITHOUT_HANDSHAKE = (types.METHOD_NOT_FOUND, types.UNSUPPORTED_PROTOCOL_VERSION)  # answers of such servers
# What the SDK says of a bad HTTP status, which is less than its number.
_OF_THE_SDK = ("Server returned an error response", "Not Found", "Session terminated")
_BAD_REQUEST = 400
_NOT_FOUND = 404
_REFUSALS = {
    404: "check the `url` in mcp.json",
    401: "write a token into `headers`",
    403: "the token in `headers` may not use it",
}

# What the SDK logs, a user cannot act on; the last words of a server are in our messages.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class SessionLostError(Exception):
    """The server has forgotten the session; what was asked has not been done, and may be asked again."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server said of itself at the start."""

    server: str  # its name and version
    protocol: str
    offers: frozenset[Offer]


class McpConnection:
    """An open connection to a server, which it starts in the background."""

    def __init__(self, name: str, entry: ServerEntry, on_change: Callable[[], None]) -> None:
        """Start the server; `on_change` is called in another thread when its list of tools has changed."""
        self._name = name
        self._entry = entry
        self._life = Life(on_change)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Any = None
        self._greeting: Greeting | None = None
        self._tasks: set[asyncio.Future[None]] = set()  # which asyncio alone would forget
        self._ready = threading.Event()
        self._over = threading.Event()
        self._failure = ""
        self._hint = ""
        self._thread = threading.Thread(target=self._run, name=f"localspec-mcp-{name}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Return whether it can be asked."""
        has_begun = self._ready.is_set() and not self._over.is_set()
        return has_begun and not self._life.ended.is_set() and not self._life.is_mute

    def greeting(self, stop: threading.Event | None = None) -> Greeting:
        """Wait for the server's start; raises UserError, and Cancelled once `stop` is set."""
        while not self._ready.wait(_POLL_S) and not self._over.is_set():
            if stop is not None and stop.is_set():
                self.close(wait_s=0)
                raise Cancelled("the start of the server was stopped")
        if self._greeting is None:
            raise self._dead()
        return self._greeting

    def ask(self, request: Any, seconds: float, stop: threading.Event | None = None) -> Result:  # noqa: ANN401
        """Send a request of the SDK's types, and return its result as the server sent it.

        Raises UserError, SessionLostError, and Cancelled once `stop` is set; the server is told of that, but
        not waited for.
        """
        return self._wait_for(self._asked(request), seconds, stop)

    def ask_for_all(
        self, make: Callable[[Any], Any], seconds: float, key: str, stop: threading.Event | None = None
    ) -> list[object]:
        """Ask for all pages of a list; `make` makes the request for a page. Raises what `ask` raises."""

        async def pages() -> list[object]:
            items: list[object] = []
            cursors: list[str] = []
            while len(cursors) < _MOST_PAGES:
                params = types.PaginatedRequestParams(cursor=cursors[-1]) if cursors else None
                page = await self._asked(make(params))
                found = page.get(key)
                if not isinstance(found, list):
                    raise UserError(f"the MCP server `{self._name}` sent a list of {key} that is none")
                items += found
                cursor = page.get("nextCursor")
                if not isinstance(cursor, str) or not cursor or cursor in cursors:
                    break  # some servers send the same cursor for ever
                cursors.append(cursor)
            return items

        return self._wait_for(pages(), seconds, stop)

    def close(self, wait_s: float = _END_S) -> None:
        """End the connection and all processes of the server; a second call does nothing."""
        self._in_loop(self._life.end, "was closed")
        if wait_s:
            self._thread.join(wait_s)

    def _in_loop(self, do: Callable[..., object], *arguments: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(do, *arguments)

    async def _asked(self, request: Any) -> Result:  # noqa: ANN401
        self._life.status = 0
        result: Result = await self._session.send_request(request, AS_IT_CAME)
        found = original(result)
        if found is None:
            raise UserError(f"the MCP server `{self._name}` asks for input that LocalSpec cannot give")
        return found

    def _wait_for(self, asked: Coroutine[Any, Any, T], seconds: float, stop: threading.Event | None) -> T:
        """Run a coroutine in the loop, until its end, its time limit or `stop`."""
        ends = time.monotonic() + seconds
        try:
            if self._loop is None or not self.is_open:
                raise RuntimeError
            future: Future[T] = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:
            asked.close()
            raise self._dead() from None
        while not wait([future], _POLL_S).done:
            if self._over.is_set() and not future.done():
                raise self._dead()
            if stop is not None and stop.is_set():
                self._give_up(future)
                raise Cancelled("the call was stopped")
            if time.monotonic() > ends:
                self._give_up(future)
                problem = f"the MCP server `{self._name}` did not answer within {seconds:g} s"
                raise UserError(problem, "`call_seconds` in mcp.json allows more")
        return self._result_of(future)

    def _result_of(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError:
            raise self._dead() from None
        except (UserError, SessionLostError):
            raise
        except MCPError as error:
            raise self._refused(error) from None
        except Exception as error:  # noqa: BLE001 - whatever a server provokes in the SDK
            reason = shown_line(str(error)) or type(error).__name__
            raise UserError(f"the MCP server `{self._name}` sent what cannot be read: {reason}") from None

    def _refused(self, error: MCPError) -> Exception:
        status = self._life.status
        is_lost = "session" in error.message.lower()
        if self._entry.url and (status == _NOT_FOUND or (status == _BAD_REQUEST and is_lost)):
            self._in_loop(self._life.end, "has forgotten the session")
            return SessionLostError(f"the MCP server `{self._name}` has forgotten the session")
        if _is_closed(error):
            return self._dead()
        return UserError(f"the MCP server `{self._name}` {_words(error, status)}", _REFUSALS.get(status, ""))

    def _dead(self) -> UserError:
        if not self._failure and not self._life.reason:
            self._over.wait(_END_S)
        why = self._failure or self._life.reason or "has ended"
        return UserError(f"the MCP server `{self._name}` {why}", self._hint)

    def _give_up(self, future: Future[T]) -> None:
        """Cancel a call, which tells the server, and end a server that does not even answer a ping then."""
        future.cancel()
        self._in_loop(self._in_background, self._ping)

    def _in_background(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ping(self) -> None:
        if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return  # which has no pings
        try:
            async with asyncio.timeout(_PING_S):
                await self._session.send_ping()
        except TimeoutError:
            self._life.end("did not answer any more and was ended")
        except Exception:  # noqa: BLE001 - any answer is a sign of life
            return

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                self._loop = runner.get_loop()
                self._loop.set_exception_handler(lambda *_: None)
                runner.run(self._live())
        except BaseException as error:  # noqa: BLE001 - it is told where something is asked
            self._fail(error)
        finally:
            self._over.set()

    async def _live(self) -> None:
        streams = http_streams if self._entry.url else process_streams
        async with AsyncExitStack() as stack:
            reader, writer = await stack.enter_async_context(streams(self._entry, self._life))
            self._session = await stack.enter_async_context(self._new_session(reader, writer))
            self._greeting = await self._started()
            self._ready.set()
            if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
                self._in_background(self._listen)
            await self._life.ended.wait()

    async def _started(self) -> Greeting:
        """Greet the server within its time limit; raises UserError, and what the SDK raises."""
        seconds = self._entry.start_seconds
        life = self._life
        greeting = asyncio.ensure_future(self._greet())
        ended = asyncio.ensure_future(life.ended.wait())
        await asyncio.wait({greeting, ended}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if greeting.done():
            return greeting.result()
        greeting.cancel()
        if life.ended.is_set():
            raise UserError(life.reason)
        words = f"; it wrote: {life.last_words}" if life.last_words else ""
        problem = f"did not start within {seconds:g} s{words}"
        raise UserError(problem, "`start_seconds` in mcp.json allows more")

    async def _greet(self) -> Greeting:
        """Shake hands as all servers know it, and in the newest protocol only with those that refuse this.

        In the other order, which is the SDK's default, a server that does not answer the first takes 10 s.
        """
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code not in _WITHOUT_HANDSHAKE:
                raise
            await self._session.discover()
        about = self._session.server_info
        offers = self._session.server_capabilities
        return Greeting(
            shown_line(f"{about.name} {about.version}", 80) if about else "",
            self._session.protocol_version,
            frozenset(name for name in get_args(Offer) if getattr(offers, name) is not None),
        )

    def _new_session(self, reader: Any, writer: Any) -> Any:  # noqa: ANN401 - the SDK's types
        return ClientSession(
            dispatcher=KeepingDispatcher(JSONRPCDispatcher(reader, writer)),
            message_handler=self._notified,
            client_info=types.Implementation(name="localspec", version=__version__),
        )

    async def _notified(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._life.on_change()

    async def _listen(self) -> None:
        """Follow changes in the newest protocol, in which a client has to ask for them."""
        with suppress(Exception):  # of a server that does not offer it
            async with listen(self._session, tools_list_changed=True) as events:
                async for _ in events:
                    self._life.on_change()

    def _fail(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, UserError):
            self._failure = error.message
            self._hint = error.hint
        elif isinstance(error, MCPError) and not _is_closed(error):
            status = self._life.status
            self._failure = _words(error, status)
            self._hint = _REFUSALS.get(status, "")
        elif not self._life.reason:
            is_network = isinstance(error, OSError | httpx2.TransportError)
            what = "cannot be reached" if is_network else "cannot be used"
            self._failure = f"{what}: {shown_line(str(error)) or type(error).__name__}"


def _is_closed(error: MCPError) -> bool:
    """Return whether the SDK says that the connection ended; servers use its number for other errors, too."""
    return bool(error.code == types.CONNECTION_CLOSED and error.message == "Connection closed")


def _words(error: MCPError, status: int) -> str:
    message = shown_line(error.message)
    if not status:
        return f"answered with an error: {message}"
    return f"answered with HTTP {status}" + ("" if message in _OF_THE_SDK else f": {message}")
