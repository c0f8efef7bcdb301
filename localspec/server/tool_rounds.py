"""An answer whose model calls tools that run here: message after message, until one calls none of them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from localspec.chat.calls.form import ToolFormat
from localspec.chat.tool_use.answer_tools import AnswerTools
from localspec.chat.tool_use.calls_run import CallEnded, CallEvent
from localspec.chat.tool_use.consent import ConsentDesk
from localspec.chat.tool_use.described import describe_run
from localspec.chat.tool_use.offer import ToolOffer
from localspec.errors import ContextFullError
from localspec.server.blocks import BlockStream, MessageEnded, ReplyEvent
from localspec.server.queue import QueuedRequest
from localspec.server.service import ChatService
from localspec.server.threads import in_thread
from localspec.server.tools_here import ToolsHere
from localspec.server.wordless import in_words, together, tokens_left, with_answer
from localspec.types.events import Finished, Summary
from localspec.types.request import Message, ToolCall
from localspec.types.request import Request as GenerationRequest


@dataclass(frozen=True, slots=True)
class ToolRounds:
    """Tools that run here for an answer, and how its later messages are asked for.

    `calling` may call tools and has to call none, even where the first message had to; `last` has none.
    """

    here: ToolsHere
    messages: tuple[Message, ...]
    form: ToolFormat
    calling: GenerationRequest
    last: GenerationRequest
    most_calls: int | None = None

    async def answer(
        self, service: ChatService, asked: QueuedRequest, blocks: Callable[[], BlockStream]
    ) -> AsyncGenerator[ReplyEvent]:
        """Yield the events of all messages, with one `Finished` that has the figures of all.

        `blocks` returns what reads the answer; it has taken each event before the next one is asked for. A
        call of one of the client's tools ends the answer, as does a limit, also that of the context where
        results have filled it. Closing the generator stops what runs.
        """
        first = asked.overrides.answer
        offer = ToolOffer(self.form, self.calling.tools, self.calling.triggers)
        asked = with_answer(asked, replace(first, prompt=offer.noted(self.messages)))
        desk = ConsentDesk()
        summaries = list[Summary]()
        finished = Finished("stop", Summary())
        room = service.queue.models.target.context  # characters, so about a quarter of the context
        tools = AnswerTools(self.here.kit, self.here.offered, offer, desk, room, self.most_calls)
        messages = list(self.messages)
        try:
            while True:
                is_last = tools.are_over
                try:
                    async with aclosing(in_words(service, asked, blocks)) as events:
                        async for event in events:
                            if isinstance(event, Finished):
                                finished = event
                            else:
                                yield event
                except ContextFullError:
                    if not summaries:
                        raise
                    yield replace(finished, reason="context", summary=together(summaries))
                    return
                summaries.append(finished.summary)
                yield MessageEnded(finished)
                read = blocks()
                said = read.message() if finished.reason == "stop" else Message("assistant", "")
                messages.append(said)
                async with aclosing(in_thread(partial(_run, tools, said.tool_calls))) as steps:
                    async for step in steps:
                        if isinstance(step, CallEnded):
                            messages.append(Message("tool", step.text, tool_call_id=step.run.call.id))
                            service.report(f"{time.strftime('%H:%M:%S')}  {describe_run(step.run)}")
                        yield step
                left = tokens_left(first, summaries)
                if is_last or not said.tool_calls or read.calls or left == 0:
                    reason = "length" if said.tool_calls and left == 0 else finished.reason
                    yield replace(finished, reason=reason, summary=together(summaries))
                    return
                another = self.last if tools.are_over else self.calling
                another = replace(another, prompt=tuple(messages), seed=first.seed, max_tokens=left)
                read.go_on(tools.offer.reader())
                asked = with_answer(asked, tools.offer.put_into(another))
        finally:
            desk.stop()


def _run(tools: AnswerTools, calls: Sequence[ToolCall], tell: Callable[[CallEvent], object]) -> None:
    """Run calls to their ends, and tell their steps."""
    if calls:
        for step in tools.run(calls):
            tell(step)
