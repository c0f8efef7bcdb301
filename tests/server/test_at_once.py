"""The queue with models that write several answers at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from localspec.errors import EngineDied
from localspec.types.events import Finished, GenerationEvent, Paused, Summary
from localspec.types.request import Request
from tests.server.test_queue import Engine, asked
from tests.server.turning_models import TurningModels


@dataclass
class SeatedTurning(TurningModels):
    """Models with three seats, and room for `fitting` answers."""

    seats: int = 3
    fitting: int = 3
    at_work: list[One] = field(default_factory=list)
    most_at_work: int = 0
    arriving: threading.Lock = field(default_factory=threading.Lock)

    def for_one_of_several(self) -> One:
        return One(self)


class One:
    """Writes letters until it is told to stop, or may end."""

    def __init__(self, models: SeatedTurning) -> None:
        self._models = models
        self._cancelled, self._pauses = threading.Event(), threading.Event()

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        return self._until_paused(self._models._rounds(request))

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        return self._until_paused(self._models.still.pop(number))

    def _until_paused(self, rounds: Iterator[GenerationEvent]) -> Iterator[GenerationEvent]:
        models = self._models
        with models.arriving:
            models.at_work.append(self)
            models.most_at_work = max(models.most_at_work, len(models.at_work))
            is_crowded_out = len(models.at_work) > models.fitting
        try:
            for event in () if is_crowded_out else rounds:
                yield event
                if self._cancelled.is_set():
                    yield Finished("cancelled", Summary())
                    return
                if self._pauses.is_set() and not isinstance(event, Finished):
                    is_crowded_out = True
                    break
            if is_crowded_out:
                number = next(models.numbers)
                models.still[number] = rounds
                yield Paused(number)
        finally:
            models.at_work.remove(self)

    def pause(self) -> None:
        self._pauses.set()

    def cancel(self) -> None:
        self._cancelled.set()


class SeatedEngine(Engine):
    """A queue before such models."""

    fitting = 3

    def _open(self) -> TurningModels:
        self.opened.append(SeatedTurning(steps=self.steps, fitting=self.fitting))
        return self.opened[-1]

    @property
    def seated(self) -> SeatedTurning:
        models = self.models
        assert isinstance(models, SeatedTurning)
        return models


@pytest.fixture
def engine() -> Iterator[SeatedEngine]:
    found = SeatedEngine()
    yield found
    found.steps.release(10_000)
    found.queue.close()
    assert not any(thread.is_alive() for thread in found.queue._threads)


def test_as_many_answers_as_there_are_seats_are_written_at_once(engine: SeatedEngine) -> None:
    async def course() -> None:
        answers = [engine.start(letter, 4) for letter in "abcd"]
        await engine.until(lambda: len(engine.seated.at_work) == 3)
        assert [len(jobs) for jobs in engine.queue.jobs()] == [3, 1]
        engine.steps.release(16)
        assert await asyncio.gather(*answers) == ["aaaa", "bbbb", "cccc", "dddd"]
        assert engine.seated.most_at_work == 3

    asyncio.run(course())


def test_a_client_that_leaves_ends_its_answer_alone(engine: SeatedEngine) -> None:
    async def course() -> None:
        other = engine.start("b", 6)
        async with aclosing(engine.queue.answer(asked("a"))) as events:
            reading = asyncio.create_task(anext(events))
            await engine.until(lambda: len(engine.seated.at_work) == 2)
            engine.steps.release(4)
            await reading
        engine.steps.release(40)
        assert await other == "b" * 6
        await engine.until(lambda: engine.queue.jobs() == ((), ()))

    asyncio.run(course())


def test_an_answer_without_room_waits_for_the_end_of_another() -> None:
    class Narrow(SeatedEngine):
        fitting = 1

    engine = Narrow()

    async def course() -> None:
        answers = [engine.start(letter, 4) for letter in "abc"]
        await engine.until(lambda: len(engine.seated.still) == 2)
        engine.steps.release(12)
        assert await asyncio.gather(*answers) == ["aaaa", "bbbb", "cccc"]
        assert next(engine.seated.numbers) <= 3  # times that one had no room: each waited in between

    try:
        asyncio.run(course())
    finally:
        engine.steps.release(10_000)
        engine.queue.close()


def test_several_answers_for_one_client_give_way_to_another(engine: SeatedEngine) -> None:
    client = object()

    async def course() -> None:
        own = [engine.start(letter, 500, client) for letter in "abc"]
        await engine.until(lambda: len(engine.seated.at_work) == 3)
        others = [engine.start(letter, 200) for letter in "de"]

        def both_are_written() -> bool:
            engine.steps.release()
            return {"d", "e"} <= set(engine.seated.written)

        await engine.until(both_are_written)
        assert len(engine.seated.still) == 2
        engine.steps.release(10_000)
        assert await asyncio.gather(*others) == ["d" * 200, "e" * 200]
        assert await asyncio.gather(*own) == ["a" * 500, "b" * 500, "c" * 500]

    asyncio.run(course())


def test_models_that_die_are_opened_once_for_all_their_answers(engine: SeatedEngine) -> None:
    async def course() -> None:
        begun = [engine.start(letter) for letter in "ab"]
        await engine.until(lambda: len(engine.seated.at_work) == 2)
        while not {"a", "b"} <= set(engine.seated.written):
            engine.steps.release()
            await asyncio.sleep(0)
        engine.seated.dies.set()
        engine.steps.release(8)
        found = await asyncio.gather(*begun, return_exceptions=True)
        assert [type(each) for each in found] == [EngineDied, EngineDied]
        assert (len(engine.opened), engine.queue.restarts) == (2, 1)
        again = engine.start("c", 2)
        engine.steps.release(8)
        assert await again == "cc"

    asyncio.run(course())


def test_what_needs_the_models_whole_waits_for_answers_and_they_for_it(engine: SeatedEngine) -> None:
    from localspec.chat.answer_settings import SessionRequest
    from localspec.server.queue import QueuedRequest
    from tests.server.test_queue import PROFILE

    at_work: list[int] = []

    async def course() -> None:
        first = engine.start("a", 3)
        await engine.until(lambda: len(engine.seated.at_work) == 1)

        def work(_models: object) -> Iterator[GenerationEvent]:
            at_work.append(len(engine.seated.at_work))
            return iter(())

        async def ask() -> None:
            async with aclosing(
                engine.queue.answer(QueuedRequest(PROFILE, SessionRequest(), work))
            ) as events:
                async for _ in events:
                    pass

        asking = asyncio.create_task(ask())
        await engine.until(lambda: len(engine.queue.jobs()[1]) == 1)
        engine.steps.release(20)
        assert await first == "aaa"
        await asking
        assert at_work == [0]

    asyncio.run(course())
