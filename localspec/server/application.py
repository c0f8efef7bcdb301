"""The HTTP server: its paths, access policy, limits, and timeouts for slow clients."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from socket import IPPROTO_TCP, TCP_NODELAY, socket
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.errors import LocalSpecError
from localspec.safe_text import safe_line
from localspec.server import (
    about,
    adapters,
    anthropic,
    completion,
    direct_calls,
    embeddings,
    engine,
    loading,
    ollama,
    openai,
    reranking,
    responses,
    resuming,
    slots,
    texts,
)
from localspec.server.exchange import GONE, error, to_api_error, without_content
from localspec.server.opening import NamedModel, answered, named_model
from localspec.server.origins import EVERYTHING, CrossOrigin, is_own, middleware, pattern, refusal
from localspec.server.queue import QueueFullError
from localspec.server.resuming import ResumableStreams
from localspec.server.served import Kind, ServedModels
from localspec.server.service import Handler, Protocol

MAX_HEADER = 64 * 2**10  # bytes
MAX_CONNECTIONS = 512  # below the 1,024 descriptors that a process has by default
HEADER_S = 10.0  # for the head of a request to arrive
KEEP_ALIVE_S = 60  # for the next request; many clients find out late that a connection was closed
DRAIN_S = 30  # for answers in progress when the server is to end
CUT_S = 5  # for clients to hear that their answers do not go on then
RETRY_S = 10  # after which a client may ask again that found the queue full
_OF_CHATS = tuple(
    each.PROTOCOL
    for each in (openai, responses, anthropic, completion, texts, ollama, engine, slots, adapters)
)
_OF_EMBEDDINGS = (embeddings.PROTOCOL, embeddings.OLLAMA)
_OF_RERANKING = (reranking.PROTOCOL,)
_OF_SERVER = (
    about.PROTOCOL,
    loading.PROTOCOL,
    direct_calls.PROTOCOL,
    ollama.TOLD,
    engine.TOLD,
    slots.TOLD,
)
_LONGEST_PATH = 200  # in the log
_OPEN = ("/", "/health", "/v1/health")  # which also who has no key may ask for


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The access policy of a server."""

    api_key: str | None = None
    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "::1"})  # empty where a key protects
    origins: frozenset[str] = frozenset()  # pages that may ask, as `read_origin` returns them
    pages: CrossOrigin = EVERYTHING  # what those may do

    def check(self, request: Request) -> None:
        """Raise HTTPException (401 or 403) for a client without access."""
        headers = request.headers
        if self.hosts and (host := _host(headers.get("host", ""))) not in self.hosts:
            raise HTTPException(403, f"this server is not {host or 'what the request calls it'}")
        origin = headers.get("origin")
        is_ours = origin is not None and is_own(origin, headers.get("host"))
        if origin is not None and not is_ours and not pattern(self.origins).fullmatch(origin):
            raise refusal(origin)
        if self.api_key is not None and request.url.path not in _OPEN:
            scheme, _, bearer = headers.get("authorization", "").partition(" ")
            given = (bearer if scheme.lower() == "bearer" else "", headers.get("x-api-key", ""))
            if not any(hmac.compare_digest(key.encode(), self.api_key.encode()) for key in given):
                raise HTTPException(401, "the API key is missing or wrong")


class LoggedApplication:
    """Logs a line for every request that is rejected or fails, without the client's data."""

    def __init__(self, application: ASGIApp, models: ServedModels) -> None:
        """Remember what answers, and the models of the server."""
        self._application = application
        self.models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        status = 0
        failure = None
        scope = {**scope, "path": _cleaned(scope["path"])}

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._application(scope, receive, watched)
        except Exception as error:
            failure = error
            raise
        finally:
            failure = scope.get("state", {}).get("failure", failure)
            asked = safe_line(f"{scope.get('method')} {scope.get('path')}")[:_LONGEST_PATH]
            if isinstance(failure, TimeoutError):
                self.report(f"{asked}  dropped: its client does not read")
            elif failure is not None and to_api_error(failure).status != GONE:
                self.report(f"{asked}  {to_api_error(failure).status} {without_content(failure)}")
            elif failure is None and status >= 400:
                self.report(f"{asked}  {status}")

    def report(self, line: str) -> None:
        """Log a line, after the time."""
        self.models.report(f"{time.strftime('%H:%M:%S')}  {line}")


def application(models: ServedModels, policy: AccessPolicy) -> LoggedApplication:
    """Return the ASGI application."""
    streams = ResumableStreams()

    async def tell(_protocol: object, handler: Handler[ServedModels], request: Request) -> Response:
        policy.check(request)
        return await handler(models, request)

    def by(kind: Kind) -> Callable[[Protocol[Any], Handler[Any], Request], Awaitable[Response]]:
        async def answer(protocol: Protocol[Any], handler: Handler[Any], request: Request) -> Response:
            async def respond(asked: Request) -> Response:
                return await answered(models, kind, protocol, asked, lambda opened: handler(opened, asked))

            policy.check(request)
            conversation = request.headers.get(resuming.HEADER)
            wanted = await named_model(request, protocol) if conversation else NamedModel()
            if not conversation or not wanted.streams:
                return await respond(request)
            return await streams.response(conversation, models.find(wanted.model, kind), request, respond)

        return answer

    async def fail(request: Request, failed: Exception) -> Response:
        request.state.failure = failed
        refused = to_api_error(failed)
        words = errors.get(request.url.path, error)
        later = {"Retry-After": str(RETRY_S)} if isinstance(failed, QueueFullError) else None
        return JSONResponse(words(refused), refused.status, later)

    groups: tuple[tuple[Callable[..., Awaitable[Response]], Sequence[Protocol[Any]]], ...] = (
        (tell, (*_OF_SERVER, streams.protocol)),
        (by("chat"), _OF_CHATS),
        (by("embeddings"), _OF_EMBEDDINGS),
        (by("rerank"), _OF_RERANKING),
    )
    known = {
        path
        for _, protocols in groups
        for protocol in protocols
        for path in (*protocol.handlers, *protocol.told, *protocol.removed)
    }
    errors = {}
    routes = list[Route]()
    for answer, protocols in groups:
        for protocol in protocols:
            methods = (("POST", protocol.handlers), ("GET", protocol.told), ("DELETE", protocol.removed))
            for method, handlers in methods:
                for path, handler in handlers.items():
                    for name in {path, *({_twin(path)} - known)}:
                        errors[name] = protocol.error
                        routes.append(Route(name, partial(answer, protocol, handler), methods=[method]))
    found = Starlette(
        routes=routes,
        middleware=[middleware(policy.origins, policy.pages)] if policy.origins else [],
        exception_handlers={LocalSpecError: fail, HTTPException: fail, Exception: fail},
    )
    found.router.redirect_slashes = False  # to wherever the request says that it is
    return LoggedApplication(found, models)


def _twin(path: str) -> str:
    """Return the path with `/v1` in front, or without: base URLs are given both ways."""
    return path.removeprefix("/v1") if path.startswith("/v1/") else f"/v1{path}"


def _cleaned(path: str) -> str:
    """Return a path without what base URLs double or leave at its end."""
    return re.sub(r"^(/v1)+(?=/v1/)", "", re.sub(r"/+", "/", path)).rstrip("/") or "/"


def _host(header: str) -> str:
    with suppress(ValueError):
        return urlsplit(f"//{header}").hostname or ""
    return ""


def http_server(application: LoggedApplication) -> Server:
    """Return a server without its own log, which finishes running answers before it ends."""
    logging.getLogger("asyncio").addHandler(logging.NullHandler())  # it would log clients that disconnect
    config = Config(
        application,
        http=_HttpProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER,
        timeout_graceful_shutdown=DRAIN_S + CUT_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return _DrainingServer(config)


class _DrainingServer(Server):
    """Ends answers that take too long with an error when it is stopped; uvicorn would only drop them."""

    @property
    def _models(self) -> ServedModels:
        assert isinstance(self.config.app, LoggedApplication)
        return self.config.app.models

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self._models.start()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._models.stop()
        cut = asyncio.get_running_loop().call_later(DRAIN_S, self._models.cut)
        await super().shutdown(sockets)
        cut.cancel()


class _HttpProtocol(H11Protocol):
    """Sends each piece of a stream at once, and closes a connection without a request.

    uvicorn waits for ever for the rest of a request's head.
    """

    _closes: asyncio.TimerHandle | None = None

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        assert isinstance(self.config.app, LoggedApplication)
        self.config.app.report("400 the data is not HTTP")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        # asyncio does so only for listeners that name their protocol: a piece would wait up to 40 ms for the
        # client's word that the one before has come
        transport.get_extra_info("socket").setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel()

    def _look(self) -> None:
        """Wait for a head that is not complete, from its first byte on."""
        if self.conn.their_state is not h11.IDLE:
            self._cancel()
        elif self._closes is None:
            self._closes = self.loop.call_later(HEADER_S, self.transport.close)

    def _cancel(self) -> None:
        if self._closes is not None:
            self._closes.cancel()
            self._closes = None
