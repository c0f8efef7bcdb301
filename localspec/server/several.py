"""Several answers to one request, written at the same time as far as the models can."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence

from localspec.errors import LocalSpecError
from localspec.server.blocks import BlockStream, ProtocolReply, ReplyEvent
from localspec.server.live_timings import NOTHING, Live
from localspec.types.events import TextDelta

_READ = 2  # pieces of an answer's text: then both models have read its prompt


class SeveralAnswers(ProtocolReply):
    """A reply with several answers, whose events come in any order."""

    def __init__(self, every: Sequence[BlockStream], live: Live = NOTHING) -> None:
        """Take what reads each answer."""
        super().__init__(every[0], live)
        self.every = every
        self.at = 0  # the number of the answer that the next events belong to

    def turn_to(self, number: int) -> None:
        """Take the next events as those of another answer."""
        self.at = number
        self.blocks = self.every[number]

    async def events_of_all(
        self, answer: Callable[[int], AsyncGenerator[ReplyEvent]], number: int, at_once: int, *, streams: bool
    ) -> AsyncGenerator[ReplyEvent]:
        """Yield the events of all answers, up to `at_once` together.

        Of `number` answers to a prompt the first one reads it, and the others find it in the caches. Where an
        answer fails, the others of a stream are written to their ends before the error is raised.
        """
        left = deque(range(len(self.every)))
        pieces = Counter[int]()
        failure = None
        opened = list[AsyncGenerator[ReplyEvent]]()
        pending: dict[asyncio.Future[ReplyEvent], int] = {}

        def may_begin() -> bool:
            first = left[0] - left[0] % number
            return len(pending) < at_once and (left[0] == first or pieces[first] >= _READ)

        def ask(which: int) -> None:
            pending[asyncio.ensure_future(anext(opened[which]))] = which

        try:
            while left or pending:
                while left and may_begin():
                    opened.append(answer(left[0]))
                    ask(left.popleft())
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                event = next(each for each in pending if each.done())
                which = pending.pop(event)
                try:
                    found = event.result()
                except StopAsyncIteration:
                    pieces[which] = _READ
                    continue
                except LocalSpecError as error:
                    if not streams:
                        raise
                    pieces[which] = _READ
                    failure = failure or error
                    continue
                if isinstance(found, TextDelta):
                    pieces[which] += len(found.pieces)
                self.turn_to(which)
                yield found
                ask(which)
            if failure is not None:
                raise failure
        finally:
            for event in pending:
                event.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for events in opened:
                await events.aclose()
