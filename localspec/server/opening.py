"""From a request to the model that it names: waiting until it is open, in silence or in a stream."""

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

OPENING_S = 1.0  # between two signs of life of a stream whose model is being opened
AnswerBy = Callable[[OpenedModel], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class NamedModel:
    """What a request says before its handler reads it: the name of its model, and whether it is a stream."""

    model: str | None = None
    streams: bool = False


async def named_model(request: Request, protocol: Protocol[Any]) -> NamedModel:
    """Read the name of a model from the address, or from the JSON that is sent; raises as `read_json`."""
    if not protocol.names_model:
        await read_body(request)  # before anything else listens to the client
        return NamedModel()
    if request.method == "GET":
        return NamedModel(request.query_params.get("model"))
    body = await read_json(request)
    if not isinstance(body, dict):
        return NamedModel()  # which the handler refuses
    name = body.get("model")
    streams = body.get("stream", protocol.streams)
    return NamedModel(name if isinstance(name, str) else None, bool(streams))


async def answered(
    models: ServedModels, kind: Kind, protocol: Protocol[Any], request: Request, answer: AnswerBy
) -> Response:
    """Return a request's response, by the model that it names, once that is open.

    A stream begins after `BEGIN_S`, with the progress as comments.
    """
    asked = await named_model(request, protocol)
    model = models.find(asked.model, kind)
    if model.is_ready:
        opened = await models.use(model)
    else:
        use = asyncio.ensure_future(models.use(model))
        try:
            await unless_gone(request, _looked_for(use, BEGIN_S if asked.streams else None))
        except BaseException:
            await _give_up(models, model, use)
            raise
        if not use.done():
            return _OpeningStream(models, model, use, protocol, request, answer)
        opened = use.result()  # raises what is wrong
    release = partial(models.release, model)
    try:
        return _Releasing(await answer(opened), release)
    except BaseException:
        release()
        raise


async def _looked_for(use: asyncio.Future[OpenedModel], seconds: float | None) -> None:
    await asyncio.wait((use,), timeout=seconds)


async def _give_up(models: ServedModels, model: ServedModel, use: asyncio.Future[OpenedModel]) -> None:
    """End a use of a model that is not open yet, or has just opened."""
    use.cancel()
    with suppress(asyncio.CancelledError, LocalSpecError):
        await use
        models.release(model)


class _Releasing(Response):
    """A response after which its model is not in use any more."""

    def __init__(self, response: Response, release: Callable[[], None]) -> None:
        self._response, self._release = response, release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._response(scope, receive, send)
        finally:
            self._release()


class _OpeningStream(Response):
    """A stream that tells how its model is being opened, and continues as the stream of its answer."""

    def __init__(
        self,
        models: ServedModels,
        model: ServedModel,
        use: asyncio.Future[OpenedModel],
        protocol: Protocol[Any],
        request: Request,
        answer: AnswerBy,
    ) -> None:
        super().__init__(media_type=protocol.form.media_type, headers=UNCACHED)
        self._models, self._model, self._use = models, model, use
        self._protocol, self._request, self._answer = protocol, request, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [header for header in self.raw_headers if header[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        is_open = False
        try:
            await unless_gone(self._request, self._tell(send))
            opened = self._use.result()
            is_open = True
        except (LocalSpecError, HTTPException) as error:
            await self._fail(error, send)
            return
        finally:
            if not is_open:
                await _give_up(self._models, self._model, self._use)
        try:
            response = await self._answer(opened)
            await response(scope, receive, partial(_send_body, send))
        except (LocalSpecError, HTTPException) as error:
            await self._fail(error, send)
        finally:
            self._models.release(self._model)

    async def _tell(self, send: Send) -> None:
        path, name = self._request.url.path, self._model.name
        while not self._use.done():
            words = self._protocol.opening(safe_line(self._model.opening_words), path, name)
            await send({"type": "http.response.body", "body": words.encode(), "more_body": True})
            await _looked_for(self._use, OPENING_S)

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
