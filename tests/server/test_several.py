"""Several answers to one request, written at the same time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.calls.reader import AnswerReader
from localspec.errors import EngineError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.server.blocks import BlockStream, ReplyEvent
from localspec.server.choices import ChoicesReply, Wanted
from localspec.server.queue import QueuedRequest
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, GenerationEvent, Summary, TextDelta, TextPiece
from localspec.types.request import Message, Request
from tests.inference.runtimes import in_f32
from tests.server.running import Served, serving
from tests.server.test_at_once import SeatedTurning
from tests.server.test_queue import PROFILE
from tests.waiting import until

ASKED = {"messages": [{"role": "user", "content": "a"}], "n": 3, "seed": 7, "max_tokens": 5}


@dataclass
class SeatedFailing(SeatedTurning):
    """Models that fail in the middle of the answers with some seeds."""

    failing: set[int] = field(default_factory=set)

    def _rounds(self, request: Request) -> Iterator[GenerationEvent]:
        for number, event in enumerate(super()._rounds(request)):
            if request.seed in self.failing and number == 4:
                raise EngineError("one of them fails")
            yield event


@pytest.fixture
def models() -> SeatedFailing:
    return SeatedFailing(steps=threading.Semaphore(0))


@pytest.fixture
def seated(models: SeatedFailing) -> Iterator[Served]:
    assert models.steps is not None
    with serving(lambda: models) as served:
        yield served
        models.steps.release(10_000)


def stepping(models: SeatedFailing, count: int = 1000) -> None:
    assert models.steps is not None
    models.steps.release(count)


def streamed(served: Served, **body: object) -> list[dict[str, Any]]:
    """Return the events of a stream, without the last, which only says that it is over."""
    lines = served.chat(**ASKED | {"stream": True} | body).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def texts_of(events: list[dict[str, Any]]) -> dict[int, str]:
    texts = dict[int, str]()
    for event in events:
        for choice in event.get("choices", ()):
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    return texts


def test_the_others_begin_when_the_first_has_read_the_prompt(seated: Served, models: SeatedFailing) -> None:
    body = ASKED | {"stream": True, "max_tokens": 60}
    with seated.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = (line for line in reply.iter_lines() if line.startswith("data: {"))
        stepping(models, 1)
        events = [json.loads(next(lines)[6:])]
        until(lambda: len(models.written) == 1)
        assert [len(jobs) for jobs in seated.service.queue.jobs()] == [1, 0]
        stepping(models, 2)
        until(lambda: len(models.at_work) == 3)
        while not all(texts_of(events).get(choice) for choice in range(3)):  # not one after the other
            assert len(models.written) < 60
            stepping(models, 1)
            events.append(json.loads(next(lines)[6:]))
        stepping(models)
        events += [json.loads(line[6:]) for line in lines]
    assert texts_of(events) == dict.fromkeys(range(3), "a" * 60)
    choices = [choice for event in events for choice in event["choices"]]
    assert sorted(choice["index"] for choice in choices if choice["delta"].get("role")) == [0, 1, 2]
    ends = {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}
    assert ends == dict.fromkeys(range(3), "length")


def test_a_whole_reply_has_them_in_order(seated: Served, models: SeatedFailing) -> None:
    stepping(models)
    reply = seated.chat(**ASKED, logprobs=False).json()
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["aaaaa"] * 3
    assert reply["usage"]["completion_tokens"] == 15


def test_one_that_fails_leaves_the_others_of_a_stream(seated: Served, models: SeatedFailing) -> None:
    models.failing = {8}
    stepping(models)
    *events, last = streamed(seated)
    assert texts_of(events) == {0: "aaaaa", 1: "aa", 2: "aaaaa"}
    assert last["error"]["message"] == "one of them fails"


def test_one_that_fails_is_reported_in_place_of_a_whole_reply(seated: Served, models: SeatedFailing) -> None:
    models.failing = {8}
    stepping(models)
    reply = seated.chat(**ASKED)
    assert (reply.status_code, reply.json()["error"]["message"]) == (500, "one of them fails")
    until(lambda: seated.service.queue.jobs() == ((), ()))


def test_a_client_that_leaves_ends_all_of_them(seated: Served, models: SeatedFailing) -> None:
    body = ASKED | {"stream": True, "max_tokens": 1000}
    with seated.client.stream("POST", "/v1/chat/completions", json=body):
        stepping(models, 3)
        until(lambda: len(models.at_work) == 3)
    running, _ = seated.service.queue.jobs()
    until(lambda: all(job.given_up.is_set() for job in running))
    stepping(models, 3)
    until(lambda: seated.service.queue.jobs() == ((), ()))


def test_more_answers_than_seats_are_all_written(seated: Served, models: SeatedFailing) -> None:
    stepping(models)
    assert texts_of(streamed(seated, n=8)) == dict.fromkeys(range(8), "aaaaa")


async def events_of(*events: GenerationEvent) -> AsyncGenerator[ReplyEvent]:
    for event in events:
        await asyncio.sleep(0)  # the other one is next
        yield event


def said(*texts: str) -> tuple[GenerationEvent, ...]:
    deltas = (TextDelta((TextPiece(text, Provenance.TARGET),)) for text in texts)
    return (*deltas, Finished("stop", Summary()))


def test_thinking_of_one_is_not_that_of_another() -> None:
    question = QueuedRequest(PROFILE, SessionRequest(answer=Request((Message("user", "Hi"),))))
    reply = ChoicesReply([question] * 2, lambda: BlockStream(AnswerReader()), 1, Wanted())
    answers = said("<think>", "far", "</think>", "thought"), said("so", " it", " is", " said")
    events = reply.events_of_all(lambda which: events_of(*answers[which]), 1, 2, streams=True)

    async def course() -> None:
        chunks: list[Any] = [chunk async for chunk in reply._stream(events)]
        order = [chunk["choices"][0]["index"] for chunk in chunks]
        assert len([*groupby(order)]) > 3

    asyncio.run(course())
    found: Any = reply.complete()
    messages = [choice["message"] for choice in found["choices"]]
    assert [message["content"] for message in messages] == ["thought", "so it is said"]
    assert [message.get("reasoning_content") for message in messages] == ["far", None]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "sd"])
def test_each_is_the_answer_that_its_seed_gives_alone(
    demo_target_f32: Path, demo_draft: Path, mode: str
) -> None:
    options = in_f32(demo_target_f32, 1024)
    plan = OpenPlan(options, replace(options, path=demo_draft), seats=4)
    body = ASKED | {"n": 4, "max_tokens": 24, "temperature": 0.8, "speculative": {"mode": mode}}
    body["messages"] = [{"role": "user", "content": "Tell me a story of a fox and a bear. " * 8}]
    with serving(lambda: Runtime.open(plan)) as served:
        together = served.chat(**body).json()
        read = served.service.server.totals.copy()
        alone = [served.chat(**body | {"n": 1, "seed": 7 + number}).json() for number in range(4)]
    texts = [choice["message"]["content"] for choice in together["choices"]]
    assert texts == [reply["choices"][0]["message"]["content"] for reply in alone]
    assert len(set(texts)) > 1
    prompt = together["usage"]["prompt_tokens"]
    assert read["prompt_tokens"] == 4 * prompt
    assert prompt <= read["prompt_tokens"] - read["cached_tokens"] <= prompt + 8
