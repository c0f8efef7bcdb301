"""One exchange with a client: a body within its limits, a reply whole or as it is written, and what failed.

Knows HTTP and nothing of models; which words a protocol has for an error is the protocol's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from localspec import values
from localspec.app.answer_json import Json
from localspec.errors import (
    Cancelled,
    ContextFullError,
    EngineDied,
    EngineError,
    LocalSpecError,
    UserError,
)
from localspec.lenient_json import with_whole_characters
from localspec.server.encodings import unpacked
from localspec.server.queue import QueueFullError, ServerEndsError

MAX_BODY = 32 * 2**20  # bytes: more than any context
BODY_S = 30.0  # for a request to arrive
STALLED_S = 60.0  # for a client that reads nothing of its stream
BEGIN_S = 0.25  # for what is wrong with a request to set the status, before its stream begins
SILENCE_S = 5.0  # after which a stream says that it waits
WAITING = ": waiting\n"
"""A comment, which readers of server-sent events skip; some take a blank line after it for an event."""
OVERFLOW = "context_length_exceeded"  # OpenAI's code
GONE = 499  # nginx's status for a client that has disconnected
_LINE_ENDS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}  # for some readers of lines
UNCACHED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
T = TypeVar("T")


class BodyError(UserError):
    """A body is not what its protocol says; the message names the place and repeats nothing of the body."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """Why a request is not answered, in the words that OpenAI's protocol and others share."""

    status: int
    kind: str
    message: str
    overflow: ContextFullError | None = None


def error(failure: ApiError) -> Json:
    """Return an error as OpenAI words it, one of a full context also as llama-server does."""
    payload = {
        "message": failure.message,
        "type": failure.kind,
        "param": None,
        "code": failure.status,
    }
    if failure.overflow is not None:
        sizes = {"n_prompt_tokens": failure.overflow.tokens, "n_ctx": failure.overflow.context}
        payload |= {"code": OVERFLOW, **sizes}
    return {"error": payload}


def to_api_error(error: Exception) -> ApiError:
    """Convert an error to the one sent to the client."""
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, _kind(error.status_code), error.detail)
    if isinstance(error, ContextFullError):
        return ApiError(400, "exceed_context_size_error", _overflow(error), error)
    if isinstance(error, UserError):
        return ApiError(400, "invalid_request_error", str(error))
    if isinstance(error, QueueFullError | ServerEndsError | EngineDied | Cancelled):
        message = "the answer was stopped" if isinstance(error, Cancelled) else str(error)
        return ApiError(503, "unavailable_error", message)
    if isinstance(error, LocalSpecError):
        return ApiError(500, "server_error", str(error))
    mistake = f"unexpected {type(error).__name__}: this is a mistake in LocalSpec; please report it"
    return ApiError(500, "server_error", mistake)


def _overflow(error: ContextFullError) -> str:
    """Return the sentence for a full context that agents recognise, and shorten the conversation then.

    It has the words of llama-server, of Anthropic, which LangChain looks for, and of OpenAI, for LiteLLM.
    """
    if not error.tokens:
        return f"the request exceeds the available context size; {error}"
    words = f"the request ({error.tokens} tokens) exceeds the available context size ({error.context} tokens)"
    why = f"the prompt is too long, as this model's maximum context length is {error.context} tokens"
    return f"{words}; {why}: {error.hint}"


def without_content(error: Exception) -> str:
    """Return a log line for an error: its kind, and its message if that has no client data."""
    refused = to_api_error(error)
    if isinstance(error, UserError) and not isinstance(error, ContextFullError | BodyError):
        return refused.kind
    known = EngineDied | QueueFullError | ServerEndsError | Cancelled
    if isinstance(error, EngineError) and not isinstance(error, known):
        return f"{refused.kind}: {refused.message.partition(': ')[0]}"
    return f"{refused.kind}: {refused.message}"


def _kind(status: int) -> str:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        501: "not_supported_error",
    }
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")


async def read_body(request: Request) -> bytes:
    """Read the body of a request, the same at each call; raises HTTPException if it is too large or slow."""
    if not hasattr(request.state, "body"):
        request.state.body = await _received(request)
    data: bytes = request.state.body
    return data


async def _received(request: Request) -> bytes:
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                data += piece
                if len(data) > MAX_BODY:
                    raise HTTPException(413, f"a request may have {MAX_BODY // 2**20} MiB")
    except TimeoutError:
        raise HTTPException(408, f"the request did not arrive within {BODY_S:.0f} s") from None
    return unpacked(bytes(data), request.headers.get("content-encoding", ""), MAX_BODY)


async def read_json(request: Request) -> object:
    """Return the JSON that a client sends, each time it is called; raises UserError, and as `read_body`."""
    if not hasattr(request.state, "json"):
        request.state.json = await _parsed(request)
    return request.state.json


async def _parsed(request: Request) -> object:
    data = await _received(request)
    if not data:
        return {}
    try:
        text = data.decode("utf-8-sig")
        value: object = json.loads(with_whole_characters(text), parse_constant=_no_number)
        return value
    except RecursionError:
        raise UserError("the request is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the request is not UTF-8 at its byte {error.start + 1:,}") from None
    except ValueError as error:
        raise UserError(f"the request is not JSON: {error}") from None


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is not a number")


def read(kind: type[T], value: object) -> T:
    """Return the JSON of a request as a dataclass; raises BodyError with the place of the problem."""
    try:
        return values.read(kind, value, "request")
    except values.InvalidValueError as error:
        raise BodyError(str(error).replace("request.", "", 1)) from None


def frame(event: Json) -> str:
    """Return a server-sent event, which goes by its type if it has one."""
    name = f"event: {event['type']}\n" if "type" in event else ""
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return f"{name}data: {data}\n\n"


def json_line(event: Json) -> str:
    """Return an event as a line of JSON."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS) + "\n"


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How the events of a stream are written."""

    frame: Callable[[Json], str]
    media_type: str
    waiting: Callable[[], str]  # sent while there is no event
    last: str = ""  # of a stream that went well


SERVER_SENT = StreamForm(frame, "text/event-stream", lambda: WAITING)


async def streamed(
    request: Request,
    events: AsyncGenerator[Json],
    failed: Callable[[ApiError], Json],
    form: StreamForm = SERVER_SENT,
) -> Response:
    """Return a reply of events, beginning with the first.

    An error within `BEGIN_S` sets the status; a later one becomes an event by `failed`. Then the reply begins
    with `form.waiting`, which is sent again after every `SILENCE_S` without an event: clients and proxies
    drop a silent connection.
    """
    first = asyncio.ensure_future(anext(events))
    try:
        await unless_gone(request, _looked_for(first, BEGIN_S))
        if first.done():
            first.result()  # raises what is wrong
    except BaseException:
        await _given_up(first)
        await events.aclose()
        raise
    frames = _frames(request, first, events, failed, form)
    return EventStream(frames, media_type=form.media_type, headers=UNCACHED)


async def _looked_for(event: asyncio.Future[Json], seconds: float) -> None:
    """Wait for an event for some time; it may still be pending then."""
    await asyncio.wait((event,), timeout=seconds)


async def _given_up(event: asyncio.Future[Json]) -> None:
    event.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await event


async def _frames(
    request: Request,
    event: asyncio.Future[Json],
    events: AsyncGenerator[Json],
    failed: Callable[[ApiError], Json],
    form: StreamForm,
) -> AsyncGenerator[str]:
    """Yield the frames of a stream whose first event is pending."""
    try:
        while True:
            if not event.done():
                yield form.waiting()
                await _looked_for(event, SILENCE_S)
                continue
            yield form.frame(event.result())
            event = asyncio.ensure_future(anext(events))
            await _looked_for(event, SILENCE_S)
    except StopAsyncIteration:
        yield form.last
    except LocalSpecError as error:
        request.state.failure = error
        yield form.frame(failed(to_api_error(error)))
    finally:
        await _given_up(event)
        await events.aclose()


class EventStream(StreamingResponse):
    """Ends a stream as soon as its client disconnects or stalls."""

    async def stream_response(self, send: Send) -> None:
        """Send the events one by one."""
        assert isinstance(self.body_iterator, AsyncGenerator)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self.body_iterator):
            async for frame in self.body_iterator:
                data = frame.encode("utf-8") if isinstance(frame, str) else bytes(frame)
                body = {"type": "http.response.body", "body": data, "more_body": True}
                async with asyncio.timeout(STALLED_S):
                    await send(body)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(request: Request, wanted: Coroutine[object, object, T]) -> T:
    """Wait for something as long as the client does; raises HTTPException when it has left."""
    task = asyncio.ensure_future(wanted)
    left = asyncio.ensure_future(leaving(request))
    try:
        await asyncio.wait((task, left), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPException(GONE, "the client has left")
        return task.result()
    finally:
        left.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError, LocalSpecError):
                await task


async def leaving(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
