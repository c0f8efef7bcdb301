"""Conversations that share the models: caches that are kept, and answers that stand still."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.decoding import loop
from localspec.demo import prompts
from localspec.errors import UserError
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished, GenerationEvent, Paused, PromptProgress, RoundDone
from localspec.types.models import SavedConversations
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.inference.runtimes import (
    FORCED,
    LONG_STORY,
    MODES,
    OFF,
    answer,
    end_of,
    greedy,
    open_pair,
    text_of,
)

ROOM = 2**30
SSD = EngineSettings(mode="ssd", min_confidence=0.2)
WORDS = " ".join(item.prompt for item in prompts()).split()
HALVES: list[tuple[Message, ...]] = [
    (Message("user", " ".join(WORDS[start : start + 250])),) for start in (0, 250)
]


@pytest.fixture(scope="module")
def pair(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


@pytest.fixture(scope="module")
def mtp(made_hybrid: Path) -> Iterator[Runtime]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "READ_CHUNK", 32)  # from 64 tokens in a call on, the CPU rounds differently
        with open_pair(made_hybrid, made_hybrid) as opened:
            yield opened


@pytest.fixture(params=["pair", "mtp"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    opened: Runtime = request.getfixturevalue(request.param)
    opened._engine.forget()
    opened.keep_conversations(ROOM)
    yield opened
    opened.keep_conversations(0)


def anew(runtime: Runtime, request: Request) -> str:
    """Return the answer of models that have kept nothing."""
    runtime.keep_conversations(0)
    found, _ = answer(runtime, replace(request, reuses_cache=False))
    runtime.keep_conversations(ROOM)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("settings", [OFF, FORCED, SSD], ids=lambda settings: settings.mode)
def test_conversations_alternately_say_what_each_would_say_alone(
    runtime: Runtime, settings: EngineSettings
) -> None:
    talks, asked = list(HALVES), list[tuple[Request, str]]()
    for turn in range(3):
        for number, talk in enumerate(talks):
            request = greedy(settings, talk, 24)
            found, end = answer(runtime, request)
            read = end.summary.prompt_tokens - end.summary.cached_tokens
            assert read < (600 if turn == 0 else 120)
            drawn = replace(request, sampling=Sampling(temperature=1.0), settings=OFF)
            asked += [(request, found), (drawn, answer(runtime, drawn)[0])]
            talks[number] = (*talk, Message("assistant", found), Message("user", "And then?"))
    for request, found in asked[-6:]:
        assert found == anew(runtime, replace(request, settings=OFF))


def test_figures_of_what_is_kept_and_its_end(runtime: Runtime) -> None:
    for text in HALVES:
        answer(runtime, greedy(FORCED, text))
    saved = runtime.saved()
    assert (saved.count, saved.limit) == (1, ROOM)
    assert saved.tokens > 300
    assert saved.bytes > 100 * saved.tokens
    answer(runtime, replace(greedy(FORCED, HALVES[1]), reuses_cache=False))
    assert runtime.saved().count == 2  # what was in the cache was not in its way
    runtime.keep_conversations(0)
    assert runtime.saved() == SavedConversations(0, 0, 0, 0)


def in_pieces(runtime: Runtime, request: Request, between: Request | None) -> list[GenerationEvent]:
    """Pause an answer after every other event, and let another be written meanwhile."""
    events, number = runtime.generate(request), 0
    came = list[GenerationEvent]()
    while True:
        for count, event in enumerate(events):
            if isinstance(event, Paused):
                number = event.number
                break
            came.append(event)
            if count == 3:
                runtime.pause()
        else:
            return came
        if between is not None:
            answer(runtime, between)
        events = runtime.resume(number)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [OFF, FORCED, SSD], ids=lambda settings: settings.mode)
def test_a_paused_answer_continues_as_if_nothing_had_happened(
    runtime: Runtime, settings: EngineSettings
) -> None:
    whole = anew(runtime, greedy(OFF, HALVES[0], 60))
    stop = whole[-12:-8]
    request = replace(greedy(settings, HALVES[0], 60), stop=(stop,))
    events = in_pieces(runtime, request, greedy(OFF, HALVES[1], 3))
    assert text_of(events) == whole[: whole.index(stop)]
    end = end_of(events)
    assert end.reason == "stop"
    rounds = [event for event in events if isinstance(event, RoundDone)]
    assert end.summary.tokens == sum(event.tokens for event in rounds)
    assert end.summary.rounds == len(rounds) - 1
    assert end.summary.cached_tokens < end.summary.prompt_tokens
    parts = end.summary.verify_s + end.summary.draft_s + end.summary.wait_s + end.summary.python_s
    assert parts == pytest.approx(end.summary.decode_s)


@pytest.mark.parametrize("mode", MODES)
def test_limits_hold_over_pauses(pair: Runtime, mode: Mode) -> None:
    request = greedy(EngineSettings(mode=mode, min_confidence=0.2), max_tokens=30)
    events = in_pieces(pair, request, None)
    assert text_of(events) == answer(pair, request)[0]
    assert (end_of(events).reason, end_of(events).summary.tokens) == ("length", 30)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_and_the_seed_continue_over_pauses(pair: Runtime, temperature: float) -> None:
    penalised = Sampling(temperature, repetition_penalty=1.3, frequency_penalty=0.5, penalty_window=400)
    request = replace(greedy(OFF, HALVES[0], 60), sampling=penalised)
    whole = anew(pair, request)
    assert text_of(in_pieces(pair, request, None)) == whole


def test_the_first_round_after_a_pause_has_no_draft_to_miss(pair: Runtime) -> None:
    events = in_pieces(pair, greedy(replace(SSD, min_confidence=0.0), HALVES[0], 60), None)
    rounds = sum(isinstance(event, RoundDone) for event in events)
    summary, pauses = end_of(events).summary, (len(events) - 1) // 4
    assert pauses > 3
    assert 0 < summary.hits + summary.misses <= rounds - pauses


def test_segments_draw_from_streams_of_their_own(pair: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    segments, real = list[object](), pair._engine.segment

    def segment(*arguments: object) -> object:
        segments.append(arguments[-1])
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pair._engine, "segment", segment)
    in_pieces(pair, replace(greedy(max_tokens=12), sampling=Sampling(temperature=1.0)), None)
    assert segments == list(range(len(segments)))
    assert len(segments) > 3


def test_a_long_prompt_is_paused_between_its_pieces(pair: Runtime) -> None:
    request = replace(greedy(OFF, LONG_STORY, 5), reuses_cache=False)
    expected, end = answer(pair, request)
    events = list[GenerationEvent]()
    for event in pair.generate(request):
        pair.pause()
        events.append(event)
    assert [type(event) for event in events] == [PromptProgress, Paused]
    last = events.pop()
    assert isinstance(last, Paused)
    rest = list(pair.resume(last.number))
    assert text_of(rest) == expected
    assert end_of(rest).summary.cached_tokens == end.summary.cached_tokens == 0


def test_a_pause_of_nothing_does_nothing(pair: Runtime) -> None:
    pair.pause()
    expected, _ = answer(pair, greedy(max_tokens=1))
    events = list[GenerationEvent]()
    for event in pair.generate(greedy(max_tokens=1)):
        pair.pause()  # it ends by itself
        events.append(event)
    assert text_of(events) == expected
    assert end_of(events).reason == "length"


def test_a_paused_answer_can_be_dropped_but_not_resumed_twice(pair: Runtime) -> None:
    numbers = [paused(pair, greedy()) for _ in range(3)]
    assert len(set(numbers)) == 3
    pair.drop(numbers[0])
    pair.drop(77)
    for number in (numbers[0], 77):
        with pytest.raises(UserError, match=f"there is no paused answer {number}"):
            list(pair.resume(number))
    expected, _ = answer(pair, greedy())
    rest = list(pair.resume(numbers[2]))
    assert expected.endswith(text_of(rest))
    with pytest.raises(UserError):
        list(pair.resume(numbers[2]))


def paused(runtime: Runtime, request: Request) -> int:
    """Return the number of an answer that is paused after its first round."""
    events = runtime.generate(request)
    for event in events:
        runtime.pause()
        if isinstance(event, Paused):
            return event.number
    raise AssertionError("it was not paused")


def test_a_cancel_ends_a_resumed_answer(pair: Runtime) -> None:
    events = list[GenerationEvent]()
    for event in pair.resume(paused(pair, greedy(max_tokens=500))):
        events.append(event)
        pair.cancel()
    assert end_of(events).reason == "cancelled"
    assert end_of(events).summary.tokens < 20


def test_another_thread_may_pause_at_any_moment(pair: Runtime) -> None:
    expected, _ = answer(pair, greedy())
    ended = threading.Event()

    def keep_pausing() -> None:
        while not ended.is_set():
            pair.pause()

    thread = threading.Thread(target=keep_pausing)
    thread.start()
    try:
        texts, events = list[str](), pair.generate(greedy())
        while True:
            came: Sequence[GenerationEvent] = list(events)
            texts.append(text_of(came))
            if isinstance(came[-1], Finished):
                break
            assert isinstance(came[-1], Paused)
            events = pair.resume(came[-1].number)
    finally:
        ended.set()
        thread.join()
    assert "".join(texts) == expected
    assert len(texts) > 3
