"""The queue before the models: fair turns, clients that leave, models that die."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest, nothing_known
from localspec.errors import EngineDied, EngineError, LocalSpecError
from localspec.inference import turns
from localspec.server import queue as queue_module
from localspec.server.queue import MAX_WAITING, EngineQueue, QueuedRequest, QueueFullError
from localspec.storage.profiles import Profile
from localspec.types.events import Finished, GenerationEvent, TextDelta
from localspec.types.request import EngineSettings, Request, Sampling
from tests.server.turning_models import TurningModels

_MOMENT = threading.Event()
PROFILE = Profile("general", "General", "", "dialogue", "", Sampling(), Path("general"))


def asked(prompt: str, tokens: int | None = None, client: object = None) -> QueuedRequest:
    return QueuedRequest(PROFILE, SessionRequest(answer=Request(prompt, max_tokens=tokens)), client=client)


class Engine:
    """A queue before models that write a round at every step, and what is seen of both."""

    def __init__(self, parallel: int = 3) -> None:
        self.opened: list[TurningModels] = []
        self.steps = threading.Semaphore(0)
        self.opening_fails = False
        self.queue = EngineQueue(self._open, nothing_known, parallel)

    def _open(self) -> TurningModels:
        if self.opening_fails:
            raise EngineError("no memory")
        self.opened.append(TurningModels(steps=self.steps))
        return self.opened[-1]

    @property
    def models(self) -> TurningModels:
        return self.opened[-1]

    async def text(self, prompt: str, tokens: int | None = None, client: object = None) -> str:
        events = self.queue.answer(asked(prompt, tokens, client))
        return "".join([event.text async for event in events if isinstance(event, TextDelta)])

    def start(self, prompt: str, tokens: int | None = None, client: object = None) -> asyncio.Task[str]:
        return asyncio.create_task(self.text(prompt, tokens, client))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.to_thread(_MOMENT.wait, 0.001)

    async def at_work(self, number: int) -> None:
        """Wait until N requests have come in."""
        await self.until(lambda: self.queue._numbers == number and bool(self.queue._running))


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(turns, "TURN_S", 0.0)  # a turn is a round where someone else has had less
    found = Engine(*getattr(request, "param", ()))
    yield found
    found.steps.release(10_000)
    found.queue.close()
    assert not any(thread.is_alive() for thread in found.queue._threads)


def run(wanted: Awaitable[None]) -> None:
    async def within() -> None:
        await asyncio.wait_for(wanted, 20)

    asyncio.run(within())


def test_the_answer_with_the_fewest_tokens_is_next(engine: Engine) -> None:
    async def course() -> None:
        answers = [engine.start("a", 40), engine.start("b", 40)]
        await engine.at_work(2)
        engine.steps.release(80)
        assert await asyncio.gather(*answers) == ["a" * 40, "b" * 40]

    run(course())
    had: Counter[str] = Counter()
    for letter in engine.models.written:
        had[letter] += 1
        assert abs(had["a"] - had["b"]) <= 2


def test_a_short_answer_does_not_wait_for_a_long_one(engine: Engine) -> None:
    async def course() -> None:
        long = engine.start("l", 1000)
        await engine.at_work(1)
        engine.steps.release(100)
        await engine.until(lambda: len(engine.models.written) == 100)
        short = engine.start("s", 3)
        await engine.at_work(2)
        engine.steps.release(10)
        assert await short == "sss"
        assert not long.done()
        engine.steps.release(1000)
        assert await long == "l" * 1000

    run(course())


def test_a_new_answer_does_not_wait_for_the_end_of_a_turn(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 1000.0)

    async def course() -> None:
        long = engine.start("l", 100)
        await engine.at_work(1)
        engine.steps.release(10)
        await engine.until(lambda: len(engine.models.written) == 10)
        short = engine.start("s", 3)
        await engine.at_work(2)
        engine.steps.release(5)
        assert await short == "sss"
        engine.steps.release(100)
        assert await long == "l" * 100

    run(course())


@pytest.mark.parametrize("engine", [(1,)], indirect=True)
def test_without_sharing_the_order_is_that_of_arrival(engine: Engine) -> None:
    async def course() -> None:
        answers = [engine.start(letter, 5) for letter in "abc"]
        await engine.at_work(3)
        engine.steps.release(15)
        await asyncio.gather(*answers)

    run(course())
    assert "".join(engine.models.written) == "aaaaabbbbbccccc"


def test_no_more_answers_stand_still_than_may_be_under_way(engine: Engine) -> None:
    async def course() -> None:
        answers = [engine.start(letter, 5) for letter in "abcdef"]
        await engine.at_work(6)
        engine.steps.release(30)
        await asyncio.gather(*answers)

    run(course())
    written = "".join(engine.models.written)
    assert min(map(written.index, "def")) > min(map(written.rindex, "abc"))


def test_generation_stops_when_the_client_leaves(engine: Engine) -> None:
    """One whose answer is being written, one whose answer stands still, and one that waits."""

    async def course() -> None:
        tasks = {letter: engine.start(letter) for letter in "abcd"}
        await engine.at_work(4)
        engine.steps.release(3)
        await engine.until(lambda: len(engine.models.written) == 3)
        assert [job.paused for job in engine.queue.jobs()[1]].count(None) == 1
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        engine.steps.release(1)  # the one that is being written sees it when its round is over
        last = engine.start("z", 1)
        engine.steps.release(1)
        assert await last == "z"

    run(course())
    assert engine.models.still == {}
    assert len(engine.models.dropped) >= 2
    assert len(engine.models.written) <= 5
    assert len(engine.models.requests) == 4  # d's never came to the models


def test_a_client_that_leaves_ends_a_round_that_goes_on(engine: Engine) -> None:
    async def course() -> None:
        task = engine.start("a")
        engine.steps.release(1)
        await engine.until(lambda: engine.models.written == ["a"])
        engine.models.cancels.clear()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await engine.until(engine.models.cancels.is_set)  # no further round was needed for that

    run(course())


def test_too_many_are_rejected(engine: Engine) -> None:
    async def course() -> None:
        tasks = [engine.start("a")]
        await engine.at_work(1)
        tasks += [engine.start("a") for _ in range(MAX_WAITING)]
        await engine.at_work(MAX_WAITING + 1)
        with pytest.raises(QueueFullError, match="64 requests are waiting already"):
            await engine.text("b")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(course())


def test_a_death_ends_what_was_begun_and_nothing_else(engine: Engine) -> None:
    async def course() -> None:
        tasks = [engine.start(letter, 3) for letter in "abcd"]
        await engine.at_work(4)
        engine.steps.release(2)
        await engine.until(lambda: len(engine.models.written) == 2)
        engine.models.dies.set()
        engine.steps.release(100)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for letter, result in zip("abcd", results, strict=True):
            if letter in engine.opened[0].written:
                assert str(result) == "the model process was ended by the system (SIGKILL)"
            else:
                assert result == 3 * letter

    run(course())
    assert engine.queue.restarts == 1
    assert engine.opened[0].closed


def test_a_death_before_the_first_token_shows_to_nobody(engine: Engine) -> None:
    async def course() -> None:
        engine.models.dies.set()
        engine.steps.release(10)
        assert await engine.text("a", 3) == "aaa"

    run(course())


def test_after_a_death_the_new_models_are_asked_how_to_decode_and_how_to_write_calls(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose, asked_of = TurningModels.choose_settings, list[TurningModels]()

    def choose_settings(
        models: TurningModels, settings: EngineSettings | None = None
    ) -> tuple[EngineSettings, str]:
        asked_of.append(models)
        return choose(models, settings)

    def render(models: TurningModels, asked_for: Request) -> str:
        asked_of.append(models)
        written = '<tool_call>{"name": "look_up", "arguments": {"word": "probed"}}</tool_call>'
        return f"Look it up.{written}it says so" if asked_for.tools else "Look it up."

    monkeypatch.setattr(TurningModels, "choose_settings", choose_settings)
    monkeypatch.setattr(TurningModels, "render", render)
    engine: Engine = request.getfixturevalue("engine")

    async def course() -> None:
        engine.steps.release(10)
        for is_again in (False, True):
            assert await engine.text("a", 1) == "a"
            assert engine.queue.tool_format().opening == "<tool_call>"
            assert len(asked_of) == 3  # the template is rendered twice
            assert all(models is engine.opened[is_again] for models in asked_of)
            engine.models.dies.set()  # the new ones write the next answer
            asked_of.clear()

    run(course())


def test_a_death_while_nobody_asks_is_noticed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def course() -> None:
        monkeypatch.setattr(queue_module, "IDLE_S", 0.001)
        engine.steps.release()
        assert await engine.text("a", 1) == "a"  # from now on it waits for no longer
        engine.models.dies.set()
        await engine.until(lambda: engine.queue.restarts == 1)

    run(course())


def test_tokens_processed_again_after_a_crash_count_again(engine: Engine) -> None:
    """Of two that have read a prompt, one is at work, and one is paused."""

    def shares() -> list[float]:
        running, waiting = engine.queue.jobs()
        return sorted(16 * job.share for job in (*running, *waiting))

    async def course() -> None:
        first = engine.start("f", 1)
        await engine.until(lambda: shares() == [1])  # who comes begins with as much
        both = [engine.start("a", 2), engine.start("b", 2)]
        await engine.at_work(3)
        engine.steps.release()
        await engine.until(lambda: shares()[:2] == [2, 2])
        engine.models.dies.set()
        engine.steps.release()
        await engine.until(lambda: shares() == [3, 3])
        with pytest.raises(EngineDied):
            await first
        engine.steps.release(4)
        assert await asyncio.gather(*both) == ["aa", "bb"]

    run(course())


async def ended(engine: Engine, name: str) -> Finished:
    """Return the last event of an answer of 60 tokens that can be cancelled by its name."""
    wanted = QueuedRequest(PROFILE, SessionRequest(answer=Request(name, max_tokens=60)), name=name)
    *_, last = [event async for event in engine.queue.answer(wanted)]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("engine", [(2,), (1,)], indirect=True, ids=["paused", "not begun"])
def test_a_cancelled_answer_ends_in_its_next_turn_and_no_other_does(engine: Engine) -> None:
    async def course() -> None:
        answers = {name: asyncio.create_task(ended(engine, name)) for name in ("a", "b")}
        await engine.at_work(2)
        engine.steps.release(6)
        await engine.until(lambda: len(engine.models.written) == 6)
        (current,), (waiting,) = engine.queue.jobs()
        assert engine.queue.cancel(waiting.asked.name)
        engine.steps.release(120)
        stopped, other = await answers[waiting.asked.name], await answers[current.asked.name]
        assert (stopped.reason, other.reason, other.summary.tokens) == ("cancelled", "length", 60)
        assert stopped.summary.tokens <= waiting.tokens + 1

    run(course())


def test_a_request_that_kills_the_models_twice_is_dropped(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def generate(_models: TurningModels, _request: Request) -> Iterator[GenerationEvent]:
        raise EngineDied("it crashed")

    monkeypatch.setattr(TurningModels, "generate", generate)

    async def course() -> None:
        with pytest.raises(EngineDied, match="it crashed"):
            await engine.text("a")

    run(course())
    assert engine.queue.restarts == 2


def test_models_that_cannot_be_opened_again_are_tried_with_every_request(engine: Engine) -> None:
    async def course() -> None:
        engine.models.dies.set()
        engine.opening_fails = True
        engine.steps.release(10)
        for _ in range(2):
            with pytest.raises(EngineDied, match="no memory"):
                await engine.text("a")
        assert engine.queue.trouble == "no memory"
        engine.opening_fails = False
        assert await engine.text("a", 2) == "aa"
        assert engine.queue.trouble == ""

    run(course())


def test_a_mistake_of_ours_ends_one_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def generate(_models: TurningModels, _request: Request) -> Iterator[GenerationEvent]:
        raise ZeroDivisionError("oh")

    async def course() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(TurningModels, "generate", generate)
            with pytest.raises(LocalSpecError, match="unexpected ZeroDivisionError: oh"):
                await engine.text("a")
        engine.steps.release(1)
        assert await engine.text("a", 1) == "a"

    run(course())


def test_closing_an_answer_ends_it(engine: Engine) -> None:
    async def course() -> None:
        async with aclosing(engine.queue.answer(asked("a"))) as events:
            engine.steps.release(2)
            await anext(events)
        engine.steps.release(1)
        await engine.until(lambda: engine.queue.jobs() == ((), ()))

    run(course())
    assert len(engine.models.written) <= 3
