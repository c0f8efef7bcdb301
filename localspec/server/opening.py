"""From a request to the model that it names: waiting until it can be answered, in silence or in a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from localspec.errors import LocalSpecError
from localspec.safe_text import safe_line
from localspec.server.exchange import (
    BEGIN_S,
    GONE,
    UNCACHED,
    read_body,
    read_json,
    to_api_error,
    unless_gone,
)
from localspec.server.served import Kind, OpenedModel, ServedModel, ServedModels
from localspec.server.service import Protocol

PREPARING_S = 1.0  # for what is wrong with a request to set the status, where its model is open
OPENING_S = 1.0  # between two signs of life of a stream that waits
AnswerBy = Callable[[OpenedModel], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a request says before its handler reads it: the name of its model, and whether it is a stream.

    `autoload` says whether its model may be opened for it, None if it leaves that to the server.
    """

    model: str | None = None
    streams: bool = False
    autoload: bool | None = None


async def named_model(request: Request, protocol: Protocol[Any]) -> NamedModel:
    """Read the name of a model from the address, or from the JSON that is sent; raises as `read_json`."""
    autoload = _autoload(request)
    if not protocol.names_model:
        await read_body(request)  # before anything else listens to the client
        return NamedModel(autoload=autoload)
    if request.method == "GET":
        return NamedModel(request.query_params.get("model"), autoload=autoload)
    body = await read_json(request)
    if not isinstance(body, dict):
        return NamedModel(autoload=autoload)  # which the handler refuses
    name = body.get("model")
    streams = body.get("stream", protocol.streams)
    return NamedModel(name if isinstance(name, str) else None, bool(streams), autoload)


def _autoload(request: Request) -> bool | None:
    """Return whether the address allows a model to be opened, None if it leaves that open."""
    asked = request.query_params.get("autoload")
    return None if asked is None else asked in ("true", "1")


async def answered(
    models: ServedModels, kind: Kind, protocol: Protocol[Any], request: Request, answer: AnswerBy
) -> Response:
    """Return a request's response, by the model that it names, once that is open.

    A stream begins after `BEGIN_S` if its model is not open, with the progress as comments, and after
    `PREPARING_S` if something else takes long, such as the start of an MCP server.
    """
    asked = await named_model(request, protocol)
    model = models.find(asked.model, kind)
    models.check_open(model, asked.autoload)
    use = asyncio.ensure_future(models.use(model))
    try:
        is_ready = model.is_ready or not asked.streams
        await unless_gone(request, _looked_for(use, None if is_ready else BEGIN_S))
    except BaseException:
        await _give_up(models, model, use)
        raise
    response = asyncio.ensure_future(_responded(models, model, use, answer))
    try:
        if use.done():
            await _looked_for(response, PREPARING_S if asked.streams else None)
        if response.done():
            return response.result()  # raises what is wrong
    except BaseException:
        await _abandon(response)
        raise

    def words() -> str:
        said = "preparing the answer" if use.done() else safe_line(model.opening_words)
        return protocol.opening(said, request.url.path, model.name)

    return _BegunStream(response, protocol, request, words)


async def _looked_for(wanted: asyncio.Future[Any], seconds: float | None) -> None:
    await asyncio.wait((wanted,), timeout=seconds)


async def _responded(
    models: ServedModels, model: ServedModel, use: asyncio.Future[OpenedModel], answer: AnswerBy
) -> _Releasing:
    """Return the response to a request once its model is open."""
    try:
        opened = await use
    except BaseException:
        await _give_up(models, model, use)
        raise
    release = partial(models.release, model)
    try:
        return _Releasing(await answer(opened), release)
    except BaseException:
        release()
        raise


async def _give_up(models: ServedModels, model: ServedModel, use: asyncio.Future[OpenedModel]) -> None:
    """End a use of a model that is not open yet, or has just opened."""
    use.cancel()
    with suppress(asyncio.CancelledError, LocalSpecError):
        await use
        models.release(model)


async def _abandon(response: asyncio.Future[_Releasing]) -> None:
    """End the preparation of a response whose client has left."""
    response.cancel()
    with suppress(asyncio.CancelledError, LocalSpecError, HTTPException):
        (await response).release()


class _Releasing(Response):
    """A response after which its model is not in use any more."""

    def __init__(self, response: Response, release: Callable[[], None]) -> None:
        self._response = response
        self.release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self.release()


class _BegunStream(Response):
    """A stream that says in words what it waits for, and continues as the stream of its response."""

    def __init__(
        self,
        response: asyncio.Future[_Releasing],
        protocol: Protocol[Any],
        request: Request,
        words: Callable[[], str],
    ) -> None:
        super().__init__(media_type=protocol.form.media_type, headers=UNCACHED)
        self._response = response
        self._protocol = protocol
        self._request = request
        self._words = words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [header for header in self.raw_headers if header[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            try:
                await unless_gone(self._request, self._tell(send))
            except BaseException:
                await _abandon(self._response)
                raise
            await self._response.result()(scope, receive, partial(_send_body, send))
        except (LocalSpecError, HTTPException) as error:
            await self._fail(error, send)

    async def _tell(self, send: Send) -> None:
        while not self._response.done():
            body = self._words().encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await _looked_for(self._response, OPENING_S)

    async def _fail(self, error: LocalSpecError | HTTPException, send: Send) -> None:
        """End the stream with an error in the protocol's words."""
        self._request.state.failure = error
        refused = to_api_error(error)
        frame = "" if refused.status == GONE else self._protocol.form.frame(self._protocol.error(refused))
        await send({"type": "http.response.body", "body": frame.encode(), "more_body": False})


async def _send_body(send: Send, message: Message) -> None:
    """Send what continues a response that has begun."""
    if message["type"] != "http.response.start":
        await send(message)
