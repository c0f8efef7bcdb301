"""Prompts that are read and not answered: `n_predict: 0`, as llama-server's page and editors send it."""

from __future__ import annotations

import asyncio

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.server.queue import QueuedRequest
from localspec.types.events import Finished, Summary
from localspec.types.request import Request
from tests.server.running import Served
from tests.server.test_queue import PROFILE, Engine, engine, run

__all__ = ["engine"]
LONG = "Once upon a time there was a fox who could not sleep. " * 6
ANSWERED = [
    {"role": "user", "content": LONG},
    {"role": "assistant", "content": "The fox counted the stars until the morning came."},
]
GREEDY = {"temperature": 0, "max_tokens": 4, "speculative": {"mode": "sd"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "nothing",
    [{"n_predict": 0}, {"max_tokens": 0}, {"max_completion_tokens": 0}],
)
def test_what_was_read_is_in_the_cache_of_the_next_turn(served: Served, nothing: dict[str, int]) -> None:
    forget(served)
    reply = served.chat(messages=ANSWERED, stream=False, **nothing).json()
    (choice,) = reply["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "length")
    usage, timings = reply["usage"], reply["timings"]
    assert usage["completion_tokens"] == timings["predicted_n"] == 0
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"] > 50
    later = [*ANSWERED, {"role": "user", "content": "And then?"}]
    asked = served.chat(messages=later, **GREEDY).json()
    assert asked["usage"]["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 16
    again = served.chat(messages=later, n_predict=0).json()["usage"]
    assert again["prompt_tokens_details"]["cached_tokens"] == again["prompt_tokens"]


@pytest.mark.slow
def test_the_answer_is_the_same_with_and_without(served: Served) -> None:
    asked = {"messages": [{"role": "user", "content": LONG}], **GREEDY, "max_tokens": 24}
    texts = []
    for reads in (False, True):
        forget(served)
        if reads:
            served.chat(**asked | {"n_predict": 0})
        texts.append(served.chat(**asked).json()["choices"][0]["message"]["content"])
    assert texts[0] == texts[1] != ""


def test_a_stream_and_other_protocols_end_without_text(served: Served) -> None:
    forget(served)
    said = {"messages": [{"role": "user", "content": LONG}]}
    stream = served.chat(**said, n_predict=0, n=3, stream=True).text
    assert stream.count('"finish_reason":"length"') == 1
    assert stream.endswith("data: [DONE]\n\n")
    bare = served.post("/v1/completions", {"prompt": LONG, "n_predict": 0}).json()
    assert (bare["choices"][0]["text"], bare["usage"]["completion_tokens"]) == ("", 0)
    message = served.post("/v1/messages", {**said, "max_tokens": 0}).json()
    assert (message["content"], message["usage"]["output_tokens"]) == ([], 0)
    assert " tokens before they are asked" in served.lines[-1]


def test_a_prompt_that_cannot_fit_is_rejected_before_it_is_read(served: Served) -> None:
    reply = served.chat(messages=[{"role": "user", "content": "word " * 3000}], n_predict=0)
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "exceed_context_size_error")


def forget(served: Served) -> None:
    """Fill the caches with something else."""
    served.chat(messages=[{"role": "user", "content": "Hi"}], max_tokens=1, speculative={"mode": "sd"})


async def read(engine: Engine, prompt: str) -> Finished:
    asked = QueuedRequest(PROFILE, SessionRequest(answer=Request(prompt)), reads=True)
    *_, end = [event async for event in engine.queue.answer(asked)]
    assert isinstance(end, Finished)
    return end


def test_an_answer_ends_what_is_being_read(engine: Engine) -> None:
    async def course() -> None:
        reading = asyncio.create_task(read(engine, "a long prompt"))
        engine.steps.release(3)
        await engine.until(lambda: len(engine.models.reads) == 1)
        await engine.at_work(1)
        answer = engine.start("b", 2)
        await engine.at_work(2)
        engine.steps.release(3)
        assert await answer == "bb"
        end = await reading
        assert end.reason == "cancelled"
        assert end.summary.prompt_tokens < len("a long prompt")

    run(course())


@pytest.mark.parametrize("engine", [(1,), (3,)], indirect=True)
def test_nothing_is_read_while_an_answer_waits_or_stands_still(engine: Engine) -> None:
    async def course() -> None:
        first = engine.start("a", 6)
        await engine.at_work(1)
        reading = asyncio.create_task(read(engine, "rr"))
        await engine.at_work(2)
        second = engine.start("b", 6)
        await engine.at_work(3)
        engine.steps.release(12)
        assert [await first, await second] == ["aaaaaa", "bbbbbb"]
        engine.steps.release(2)
        assert await reading == Finished("length", Summary(prompt_tokens=2))

    run(course())
    assert len(engine.models.written) == 12


def test_a_prompt_that_waits_to_be_read_gives_nobody_a_longer_turn(engine: Engine) -> None:
    async def course() -> None:
        first = engine.start("a", 30)
        await engine.at_work(1)
        reading = asyncio.create_task(read(engine, "rr"))
        await engine.at_work(2)
        engine.steps.release(20)
        await engine.until(lambda: len(engine.models.written) == 20)
        second = engine.start("b", 10)
        await engine.at_work(3)
        engine.steps.release(20)
        await asyncio.gather(first, second)
        engine.steps.release(2)
        await reading

    run(course())
    assert "bbbb" not in "".join(engine.models.written)


def test_prompts_are_read_in_the_order_of_their_arrival_and_one_that_is_left_is_dropped(
    engine: Engine,
) -> None:
    async def course() -> None:
        tasks = [asyncio.create_task(read(engine, word)) for word in ("one", "two", "three")]
        await engine.at_work(3)
        tasks[1].cancel()
        await engine.until(lambda: len(engine.queue.jobs()[1]) == 1)
        engine.steps.release(10)
        await asyncio.gather(*tasks, return_exceptions=True)

    run(course())
    assert engine.models.reads == ["one", "three"]


def test_models_that_die_while_they_read_are_opened_again(engine: Engine) -> None:
    async def course() -> None:
        reading = asyncio.create_task(read(engine, "aaaa"))
        await engine.until(lambda: len(engine.models.reads) == 1)
        engine.models.dies.set()
        engine.steps.release(2)
        await engine.until(lambda: len(engine.opened) == 2)
        engine.steps.release(10)
        assert (await reading).reason == "length"
        answer = engine.start("b", 2)
        engine.steps.release(2)
        assert await answer == "bb"

    run(course())
