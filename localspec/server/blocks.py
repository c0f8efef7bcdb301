"""An answer as blocks, one after another: thinking, text, calls of tools; protocols word them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.chat.calls.pieces import Kind, Piece
from localspec.chat.calls.reader import AnswerReader
from localspec.server.exchange import SERVER_SENT, ApiError, error, streamed, unless_gone
from localspec.server.schemas import NO_SCHEMAS, ReplySchemas
from localspec.types.events import (
    Finished,
    GenerationEvent,
    PromptProgress,
    TextDelta,
    ThinkingOpened,
    TokenScore,
    TokensScored,
)


@dataclass(slots=True)
class ContentBlock:
    """Thinking, text, or the JSON of a call's arguments, so far."""

    kind: Kind
    index: int
    text: str = ""
    id: str = ""  # of a call
    name: str = ""  # of its tool


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block begins, gets some text, or ends."""

    kind: Literal["begins", "grows", "ends"]
    block: ContentBlock
    added: str = ""


class BlockStream:
    """The blocks of one answer, as its events come."""

    def __init__(
        self,
        reader: AnswerReader,
        schemas: ReplySchemas = NO_SCHEMAS,
        *,
        parallel: bool = True,
        warnings: Sequence[str] = (),
    ) -> None:
        """Begin with nothing, but with warnings about the request.

        Without `parallel` all calls but the first are left out.
        """
        self._reader, self._schemas, self._parallel = reader, schemas, parallel
        self.all: list[ContentBlock] = []
        self.scores: list[TokenScore] = []  # not sent yet
        self.finished: Finished | None = None
        self.warnings = list(warnings)  # and those about its JSON, when it is finished

    def take(self, event: GenerationEvent) -> Iterator[BlockEvent]:
        """Yield the steps of an event of the answer."""
        pieces: Iterator[Piece] = iter(())
        if isinstance(event, ThinkingOpened):
            self._reader.open(event)
        elif isinstance(event, TextDelta):
            pieces = self._reader.feed(event.text)
        elif isinstance(event, TokensScored):
            self.scores += event.scores
        elif isinstance(event, Finished):
            self.finished = event
            pieces = self._reader.feed("", more=False, is_cut=event.reason != "stop")
        for piece in pieces:
            yield from self._take(piece)
        if self.finished is not None:
            if self.all:
                yield BlockEvent("ends", self.all[-1])
            calls = [(call.name, call.text) for call in self.calls]
            is_cut = self.finished.reason != "stop"
            self.warnings += self._schemas.warnings(self.text("text"), calls, is_cut=is_cut)

    @property
    def reason(self) -> Literal["stop", "length", "tool_calls"]:
        """Return the reason of the answer's end, in OpenAI's words."""
        assert self.finished is not None  # events end with it, or with an error
        if self.finished.reason != "stop":
            return "length"
        return "tool_calls" if self.calls else "stop"

    def text(self, kind: Kind) -> str:
        """Return all of the thinking, or of the text."""
        return "".join(block.text for block in self.all if block.kind == kind)

    @property
    def calls(self) -> list[ContentBlock]:
        """Return the calls."""
        return [block for block in self.all if block.kind == "call"]

    def _take(self, piece: Piece) -> Iterator[BlockEvent]:
        if piece.index and not self._parallel:
            return
        last = self.all[-1] if self.all else None
        if last is None or piece.kind != last.kind or piece.id:
            if last is not None:
                yield BlockEvent("ends", last)
            last = ContentBlock(piece.kind, len(self.all), "", piece.id, piece.name)
            self.all.append(last)
            yield BlockEvent("begins", last)
        if piece.text:
            last.text += piece.text
            yield BlockEvent("grows", last, piece.text)


class ProtocolReply(ABC):
    """What a client gets to see of an answer, in the words of a protocol."""

    form = SERVER_SENT

    def __init__(self, blocks: BlockStream) -> None:
        """Begin with nothing."""
        self.blocks = blocks
        self._begun = False
        self.began = time.monotonic()

    async def send(
        self, request: Request, events: AsyncGenerator[GenerationEvent], *, streams: bool
    ) -> Response:
        """Return the response: a stream of events, or all in one when the answer is complete."""
        if streams:
            return await streamed(request, self._stream(events), self.error_event, self.form)
        return JSONResponse(await unless_gone(request, self._whole(events)))

    async def _stream(self, events: AsyncGenerator[GenerationEvent]) -> AsyncGenerator[Json]:
        async with aclosing(events):  # an answer without a reader ends at once
            async for event in events:
                for payload in self.begin():  # not before: until then, the status shows what is wrong
                    yield payload
                if isinstance(event, PromptProgress):
                    for payload in self.progress_events(event):
                        yield payload
                for step in self.blocks.take(event):
                    for payload in self.events_of(step):
                        yield payload
                if isinstance(event, Finished):
                    self._begun = False  # another answer to the same may follow
                    for payload in self.last_events():
                        yield payload

    async def _whole(self, events: AsyncGenerator[GenerationEvent]) -> Json | list[Json]:
        async for _ in self._stream(events):
            pass
        return self.complete()

    def begin(self) -> Iterator[Json]:
        """Yield the first events of a stream that has not begun, which then has."""
        if not self._begun:
            self._begun = True
            yield from self.first_events()

    def first_events(self) -> Iterator[Json]:
        """Yield the first events of a stream."""
        yield from ()

    def progress_events(self, _progress: PromptProgress) -> Iterator[Json]:
        """Yield the events of a part of the prompt that was read."""
        yield from ()

    @abstractmethod
    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        """Yield the events of a step."""

    @abstractmethod
    def last_events(self) -> Iterator[Json]:
        """Yield the last events of a stream."""

    @abstractmethod
    def complete(self) -> Json | list[Json]:
        """Return the complete answer, or those of several."""

    def error_event(self, failure: ApiError) -> Json:
        """Return the event for an answer that failed after its start."""
        return error(failure)


def warned(warnings: Sequence[str]) -> Json:
    """Return the field for warnings about an answer, which is missing without any."""
    return {"warnings": list(warnings)} if warnings else {}


def prompt_progress(progress: PromptProgress, began: float) -> Json:
    """Return the progress of reading a prompt in llama-server's words, which count cached tokens as read.

    `began` is a time of `time.monotonic`.
    """
    cached = progress.cached
    told = {"total": progress.total + cached, "cache": cached, "processed": progress.done + cached}
    return {"prompt_progress": told | {"time_ms": round(1000 * (time.monotonic() - began))}}
