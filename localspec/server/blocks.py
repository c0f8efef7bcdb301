"""An answer as blocks, one after another: thinking, text, calls of tools; protocols word them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.chat.calls.pieces import Kind, Piece
from localspec.chat.calls.reader import AnswerReader
from localspec.chat.messages import ToolRun
from localspec.chat.tool_use.calls_run import CallEnded, CallEvent, CallStarted
from localspec.server.exchange import SERVER_SENT, ApiError, error, streamed, unless_gone
from localspec.server.live_timings import NOTHING, Live, LiveTimings
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
from localspec.types.request import Message, ToolCall

_BETWEEN = "\n\n"  # the texts of two messages, where the client sees one


@dataclass(slots=True)
class ContentBlock:
    """Thinking, text, or the JSON of a call's arguments, so far."""

    kind: Kind
    index: int
    text: str = ""
    id: str = ""  # of a call
    name: str = ""  # of its tool
    is_here: bool = False  # a call that runs on this side
    run: ToolRun | None = None  # of such a call, when it has ended
    output: str = ""  # of such a call


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A block begins, gets some text, or ends; a call on this side then `runs`, and is `over` in any case."""

    kind: Literal["begins", "grows", "ends", "runs", "over"]
    block: ContentBlock
    added: str = ""


@dataclass(frozen=True, slots=True)
class MessageEnded:
    """A message of an answer with tools on this side is complete; its calls, or the end, come next."""

    finished: Finished


ReplyEvent = GenerationEvent | MessageEnded | CallEvent


class BlockStream:
    """The blocks of one answer, as its events come."""

    def __init__(
        self,
        reader: AnswerReader,
        schemas: ReplySchemas = NO_SCHEMAS,
        *,
        parallel: bool = True,
        warnings: Sequence[str] = (),
        here: Collection[str] = (),
    ) -> None:
        """Begin with nothing, but with warnings about the request.

        Without `parallel` all calls but the first are left out. Calls of the tools `here` are not the
        client's.
        """
        self._reader = reader
        self._schemas = schemas
        self._parallel = parallel
        self._here = here
        self._starts = [0]  # of its messages
        self._is_read = False  # whether the last one is complete
        self.all: list[ContentBlock] = []
        self.scores: list[TokenScore] = []
        self._sent = 0  # of them
        self.is_begun = False  # in the stream of its reply
        self.finished: Finished | None = None
        self.timings = LiveTimings()
        self.warnings = list(warnings)  # and those about its JSON, when it is finished

    def new_scores(self) -> list[TokenScore]:
        """Return the scores that were not sent yet, which then are."""
        new = self.scores[self._sent :]
        self._sent = len(self.scores)
        return new

    def go_on(self, reader: AnswerReader) -> None:
        """Take another message of the answer."""
        self._starts.append(len(self.all))
        self._reader = reader
        self._is_read = False

    def take(self, event: ReplyEvent) -> Iterator[BlockEvent]:
        """Yield the steps of an event of the answer."""
        pieces: Iterator[Piece] = iter(())
        if isinstance(event, ThinkingOpened):
            self._reader.open(event)
        elif isinstance(event, TextDelta):
            pieces = self._reader.feed(event.text)
        elif isinstance(event, TokensScored):
            self.scores += event.scores
        elif isinstance(event, MessageEnded):
            yield from self._end(event.finished)
        elif isinstance(event, CallStarted):
            yield BlockEvent("runs", self._called(event.call))
        elif isinstance(event, CallEnded):
            block = self._called(event.run.call)
            block.run = event.run
            block.output = event.text
            yield BlockEvent("over", block)
        elif isinstance(event, Finished):
            self.finished = event
            yield from self._end(event)
            yield from (BlockEvent("over", block) for block in self.to_run)
            calls = [(call.name, call.text) for call in self.calls]
            is_cut = event.reason != "stop"
            self.warnings += self._schemas.warnings(self.message().content, calls, is_cut=is_cut)
        for piece in pieces:
            yield from self._take(piece)

    def _end(self, finished: Finished) -> Iterator[BlockEvent]:
        """Yield the last steps of a message, once."""
        if self._is_read:
            return
        self._is_read = True
        for piece in self._reader.feed("", more=False, is_cut=finished.reason != "stop"):
            yield from self._take(piece)
        if self._latest:
            yield BlockEvent("ends", self._latest[-1])

    @property
    def _latest(self) -> list[ContentBlock]:
        """Return the blocks of the latest message."""
        return self.all[self._starts[-1] :]

    def _called(self, call: ToolCall) -> ContentBlock:
        return next(block for block in self._latest if block.id == call.id)

    @property
    def reason(self) -> Literal["stop", "length", "tool_calls"]:
        """Return the reason of the answer's end, in OpenAI's words."""
        assert self.finished is not None  # events end with it, or with an error
        if self.finished.reason != "stop":
            return "length"
        return "tool_calls" if self.calls else "stop"

    def text(self, kind: Kind) -> str:
        """Return all of the thinking, or of the text."""
        messages = [self.all[begin:end] for begin, end in pairwise((*self._starts, len(self.all)))]
        texts = ("".join(block.text for block in each if block.kind == kind) for each in messages)
        return _BETWEEN.join(filter(None, texts))

    def before(self, block: ContentBlock) -> str:
        """Return the gap between the text of earlier messages and a new block of it."""
        earlier = [each for each in self.all[: block.index] if each.kind == block.kind]
        is_first = bool(earlier) and earlier[-1].index < self._starts[-1]
        return _BETWEEN if is_first else ""

    @property
    def calls(self) -> list[ContentBlock]:
        """Return the calls that are the client's."""
        return [block for block in self.all if block.kind == "call" and not block.is_here]

    @property
    def to_run(self) -> list[ContentBlock]:
        """Return the calls on this side that have not been run."""
        return [block for block in self._latest if block.is_here and block.run is None]

    @property
    def is_wordless(self) -> bool:
        """Whether the latest message says by a call that it makes none, and nothing else."""
        return self._reader.answers_directly and all(each.kind == "thinking" for each in self._latest)

    def message(self) -> Message:
        """Return the latest message, with its calls on this side."""
        said = {"text": "", "thinking": "", "call": ""}
        for block in self._latest:
            said[block.kind] += block.text
        calls = tuple(ToolCall(block.id, block.name, block.text) for block in self.to_run)
        return Message("assistant", said["text"], calls, thinking=said["thinking"])

    def _take(self, piece: Piece) -> Iterator[BlockEvent]:
        if piece.index and not self._parallel:
            return
        last = self._latest[-1] if self._latest else None
        if last is None or piece.kind != last.kind or piece.id:
            if last is not None:
                yield BlockEvent("ends", last)
            last = ContentBlock(piece.kind, len(self.all), "", piece.id, piece.name, piece.name in self._here)
            self.all.append(last)
            yield BlockEvent("begins", last)
        if piece.text:
            last.text += piece.text
            yield BlockEvent("grows", last, piece.text)


class ProtocolReply(ABC):
    """What a client gets to see of an answer, in the words of a protocol."""

    form = SERVER_SENT

    def __init__(self, blocks: BlockStream, live: Live = NOTHING) -> None:
        """Begin with nothing."""
        self.blocks = blocks  # of the answer whose events come
        self._live = live
        self.began = time.monotonic()

    async def send(self, request: Request, events: AsyncGenerator[ReplyEvent], *, streams: bool) -> Response:
        """Return the response: a stream of events, or all in one when the answer is complete."""
        if streams:
            return await streamed(request, self._stream(events), self.error_event, self.form)
        return JSONResponse(await unless_gone(request, self._whole(events)))

    async def _stream(self, events: AsyncGenerator[ReplyEvent]) -> AsyncGenerator[Json]:
        async with aclosing(events):  # an answer without a reader ends at once
            async for event in events:
                for payload in self.begin():  # not before: until then, the status shows what is wrong
                    yield payload
                self.blocks.timings.take(event)
                if self._live.progress and isinstance(event, PromptProgress):
                    told = prompt_progress(event, self.began) | self.live()
                    for payload in self.progress_events(told):
                        yield payload
                for step in self.blocks.take(event):
                    for payload in self.events_of(step):
                        yield payload
                if isinstance(event, Finished):
                    for payload in self.last_events():
                        yield payload

    async def _whole(self, events: AsyncGenerator[ReplyEvent]) -> Json | list[Json]:
        async for _ in self._stream(events):
            pass
        return self.complete()

    def begin(self) -> Iterator[Json]:
        """Yield the first events of an answer that has not begun, which then has."""
        if not self.blocks.is_begun:
            self.blocks.is_begun = True
            yield from self.first_events()

    def first_events(self) -> Iterator[Json]:
        """Yield the first events of an answer."""
        yield from ()

    def live(self) -> Json:
        """Return the figures so far, if they are wanted."""
        return {"timings": self.blocks.timings.told()} if self._live.timings else {}

    def progress_events(self, _told: Json) -> Iterator[Json]:
        """Yield the events of a part of the prompt that was read, with this about it."""
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
