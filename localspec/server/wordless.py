"""Answers that say by a call that they make none, as Command R's do: their words are asked for afterwards."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import fields, replace

from localspec.chat.calls.reader import AnswerReader
from localspec.server.blocks import BlockStream, MessageEnded, ReplyEvent
from localspec.server.queue import QueuedRequest
from localspec.server.service import ChatService
from localspec.types.events import Finished, Summary
from localspec.types.request import Request

_SUMMED = tuple(each.name for each in fields(Summary) if isinstance(each.default, int | float))


async def in_words(
    service: ChatService, asked: QueuedRequest, blocks: Callable[[], BlockStream]
) -> AsyncGenerator[ReplyEvent]:
    """Yield the events of an answer, and those of a second one without tools where the first is wordless.

    `blocks` returns what reads the answer; it has taken each event before the next one is asked for. One
    `Finished` has the figures of both.
    """
    first = asked.overrides.answer
    finished = Finished("stop", Summary())
    async with aclosing(service.answer(asked)) as events:
        async for event in events:
            if isinstance(event, Finished):
                finished = event
            else:
                yield event
    if not first.tools or finished.reason != "stop":
        yield finished
        return
    yield MessageEnded(finished)
    read = blocks()
    left = tokens_left(first, [finished.summary])
    if not read.is_wordless or left == 0:
        yield finished
        return
    read.go_on(AnswerReader())
    again = replace(first, tools=(), triggers=(), shows_control=False, max_tokens=left)
    async with aclosing(service.answer(with_answer(asked, again))) as events:
        async for event in events:
            if isinstance(event, Finished):
                yield replace(event, summary=together([finished.summary, event.summary]))
            else:
                yield event


def with_answer(asked: QueuedRequest, answer: Request) -> QueuedRequest:
    """Return the same request for another answer."""
    return replace(asked, overrides=replace(asked.overrides, answer=answer))


def tokens_left(first: Request, summaries: Sequence[Summary]) -> int | None:
    """Return the number of tokens that are left to an answer after some messages, None without a limit."""
    if first.max_tokens is None:
        return None
    return max(0, first.max_tokens - sum(each.tokens for each in summaries))


def together(summaries: Sequence[Summary]) -> Summary:
    """Return the figures of several messages as those of one answer."""
    sums = {name: sum(getattr(each, name) for each in summaries) for name in _SUMMED}
    return replace(summaries[0], **sums | {"first_token_s": summaries[0].first_token_s})
