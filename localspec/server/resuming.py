"""Streams that continue without their client, which may read them again from any byte, as in llama-server.

A request with the header X-Conversation-Id begins one; `DELETE /v1/stream` ends it. What a stream has sent
stays in memory for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.server.exchange import SERVER_SENT, UNCACHED, EventStream, read, read_json
from localspec.server.served import ServedModel, ServedModels
from localspec.server.service import Protocol

HEADER = "x-conversation-id"
HELD_S = 10.0  # that a reply waits for the model to be open: a stop sets its status until then
KEPT_S = 300.0  # a stream that has ended
MAX_BYTES = 4 * 2**20  # of a stream; its first bytes go
MAX_STREAMS = 32  # that have ended
_LONGEST_ID = 1024
_BEFORE_MODEL = "::"  # in llama-server's page, which puts the model's name behind that of a conversation
_MOST_ASKED = 1000
Respond = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True, eq=False)
class ResumableStream:
    """What a response has sent so far."""

    model: ServedModel
    since: float = field(default_factory=time.time)
    start: Message | None = None  # of the response
    sent: bytearray = field(default_factory=bytearray)
    dropped: int = 0  # bytes before those
    ended_at: float | None = None
    failure: Exception | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    @property
    def is_opening(self) -> bool:
        """Return whether it still waits for its model."""
        return self.ended_at is None and self.model.opened is None

    @property
    def total(self) -> int:
        """Return the number of bytes that it has sent."""
        return self.dropped + len(self.sent)

    async def take(self, message: Message) -> None:
        """Take a message of the response."""
        if message["type"] == "http.response.start":
            self.start = message
        self.sent += message.get("body", b"")
        if (over := len(self.sent) - MAX_BYTES) > 0:
            del self.sent[:over]
            self.dropped += over
        self.tell()

    def end(self, failure: Exception | None = None) -> None:
        """Take its end."""
        if self.ended_at is None:
            self.failure = failure
            self.ended_at = time.monotonic()
            self.tell()

    def tell(self) -> None:
        """Wake those who wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def begun(self) -> None:
        """Wait for the response to begin, or to fail."""
        while self.start is None and self.ended_at is None:
            await self.changed.wait()

    async def opened(self) -> None:
        """Wait for the model of a stream to be open."""
        while self.is_opening:
            await self.changed.wait()

    async def bytes_from(self, at: int) -> AsyncGenerator[bytes]:
        """Yield what it has sent from a byte on, until its end."""
        while True:
            at = max(at, self.dropped)  # a reader that is too slow loses what is gone
            changed = self.changed
            if at < self.total:
                piece = bytes(self.sent[at - self.dropped :])
                at += len(piece)
                yield piece
            elif self.ended_at is not None:
                return
            else:
                await changed.wait()


class ResumableStreams:
    """The streams of a server by the names of their conversations, of which each has one at most."""

    def __init__(self) -> None:
        self._streams: dict[str, ResumableStream] = {}

    async def response(self, name: str, model: ServedModel, request: Request, respond: Respond) -> Response:
        """Return the response to a request, which continues without the client; raises its failure."""
        if len(name) > _LONGEST_ID:
            raise UserError(f"the {HEADER} header is longer than {_LONGEST_ID} characters", "shorten it")
        self._drop_old()
        self.stop(name)
        stream = self._streams[name] = ResumableStream(model)
        detached = Request(request.scope, _Nothing().receive)
        stream.task = asyncio.create_task(_respond(stream, detached, respond))
        with suppress(TimeoutError):
            async with asyncio.timeout(HELD_S):
                await stream.opened()
        await stream.begun()
        if stream.failure is not None:
            if self._streams.get(name) is stream:
                del self._streams[name]
            raise stream.failure
        return _reply(stream, 0)

    def stop(self, name: str) -> None:
        """End a stream and forget it; nothing happens without one of this name."""
        stream = self._streams.pop(name, None)
        if stream is not None and stream.ended_at is None:
            stream.end(HTTPException(400, "the request was cancelled by a stop of its conversation"))
            if stream.task is not None:
                stream.task.cancel()

    @property
    def protocol(self) -> Protocol[ServedModels]:
        """Return the paths at which clients read and end their streams."""
        path = "/v1/stream"
        lookup = {"/v1/streams/lookup": self._look_up}
        return Protocol(lookup, told={path: self._read}, removed={path: self._delete})

    async def _read(self, _models: ServedModels, request: Request) -> Response:
        """Return a stream from the byte that the address names; raises HTTPException."""
        name = _name(request)
        start = request.query_params.get("from") or "0"
        if not (start.isascii() and start.isdecimal()):
            raise HTTPException(400, "from is not the number of a byte")
        self._drop_old()
        stream = self._streams.get(name)
        if stream is None:
            raise HTTPException(404, "there is no stream of this conversation, or it ended too long ago")
        if stream.is_opening:
            raise HTTPException(503, "the model of this stream is being opened; ask again soon")
        if int(start) < stream.dropped:
            raise HTTPException(400, f"the stream begins at byte {stream.dropped}; the bytes before are gone")
        await stream.begun()
        return _reply(stream, int(start))

    async def _look_up(self, _models: ServedModels, request: Request) -> Response:
        """Tell of the streams of some conversations, and of no others."""
        asked = read(LookUp, await read_json(request)).conversation_ids
        self._drop_old()
        ids = {*asked[:_MOST_ASKED]}
        known = self._streams.items()
        found = [each for each in known if ids & {each[0], each[0].partition(_BEFORE_MODEL)[0]}]
        return JSONResponse([_described(name, stream) for name, stream in found])

    async def _delete(self, _models: ServedModels, request: Request) -> Response:
        """End a stream, if there is one."""
        self.stop(_name(request))
        return Response(status_code=204)

    def _drop_old(self) -> None:
        """Forget streams that ended long ago, and the oldest ones if many have ended."""
        ended = [(stream.ended_at, name) for name, stream in self._streams.items() if stream.ended_at]
        ended.sort(reverse=True)
        for at, (ended_at, name) in enumerate(ended):
            if at >= MAX_STREAMS or time.monotonic() - ended_at > KEPT_S:
                del self._streams[name]


@dataclass(frozen=True, slots=True)
class LookUp:
    """The conversations whose streams a client asks about."""

    conversation_ids: tuple[str, ...]


class _Nothing:
    """A client that never leaves and has nothing more to say."""

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


def _name(request: Request) -> str:
    name = request.query_params.get("conv_id")
    if not name:
        raise HTTPException(400, "conv_id names no conversation")
    return name


async def _respond(stream: ResumableStream, request: Request, respond: Respond) -> None:
    """Let a stream take the response to a request."""
    failure = None
    try:
        response = await respond(request)
        await response(request.scope, request.receive, stream.take)
    except Exception as error:  # noqa: BLE001 - the client that waits for it raises it
        failure = error
    finally:
        stream.end(failure)


def _reply(stream: ResumableStream, at: int) -> Response:
    """Return a stream's response from a byte on."""
    status = 200 if stream.start is None else stream.start["status"]
    reply = EventStream(stream.bytes_from(at), status, media_type=SERVER_SENT.media_type, headers=UNCACHED)
    if stream.start is not None:
        reply.raw_headers = [each for each in stream.start["headers"] if each[0] != b"content-length"]
    return reply


def _described(name: str, stream: ResumableStream) -> Json:
    """Return the facts about a stream, by llama-server's names."""
    ended_s = None if stream.ended_at is None else time.monotonic() - stream.ended_at
    return {
        "conversation_id": name,
        "is_done": ended_s is not None,
        "total_bytes": stream.total,
        "started_at": int(stream.since),
        "completed_at": 0 if ended_s is None else int(time.time() - ended_s),
    }
