"""The runtime on the bundled pair: cancels, early closes, later turns, and what it must not leak."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from localspec.demo import prompts
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.events import GenerationEvent, PromptProgress, Summary
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode
from tests.inference.runtimes import (
    FORCED,
    LONG_STORY,
    MODES,
    answer,
    end_of,
    greedy,
    open_pair,
    text_of,
)


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


class Canceller(threading.Thread):
    """Cancels from a thread of its own as soon as it is reported to."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._now = threading.Event()
        self._done = threading.Event()

    def run(self) -> None:
        assert self._now.wait(60)
        self._runtime.cancel()
        self._done.set()

    def cancel_and_wait(self) -> None:
        self._now.set()
        assert self._done.wait(60)


@pytest.mark.parametrize("mode", MODES)
def test_a_cancel_during_a_long_prompt(runtime: Runtime, mode: Mode) -> None:
    expected, _ = answer(runtime, greedy())
    canceller = Canceller(runtime)
    canceller.start()
    events: list[GenerationEvent] = []
    request = greedy(EngineSettings(mode=mode), f"{mode} {LONG_STORY}", 500)
    for event in runtime.generate(request):
        events.append(event)
        if isinstance(event, PromptProgress):
            canceller.cancel_and_wait()
    canceller.join()
    end = end_of(events)
    assert (end.reason, end.summary.tokens) == ("cancelled", 0)
    assert text_of(events) == ""
    assert answer(runtime, greedy(EngineSettings(mode=mode)))[0] == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_cancel_during_decoding(runtime: Runtime, mode: Mode) -> None:
    settings = EngineSettings(mode=mode, min_confidence=0.2)
    expected, _ = answer(runtime, greedy())
    canceller = Canceller(runtime)
    canceller.start()
    events: list[GenerationEvent] = []
    for event in runtime.generate(greedy(settings, max_tokens=500)):
        events.append(event)
        if len(events) == 8:
            canceller.cancel_and_wait()
    canceller.join()
    assert end_of(events).reason == "cancelled"
    assert expected.startswith(text_of(events)[:30])
    assert answer(runtime, greedy(settings))[0] == expected


def test_a_cancel_without_an_answer_is_forgotten(runtime: Runtime) -> None:
    runtime.cancel()
    assert answer(runtime, greedy())[1].reason == "length"


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_may_be_closed_early(runtime: Runtime, mode: Mode) -> None:
    expected, _ = answer(runtime, greedy())
    settings = EngineSettings(mode=mode, min_confidence=0.2)
    for after in (1, 2, 7):
        events = runtime.generate(greedy(settings, max_tokens=300))
        for _ in range(after):
            next(events)
        events.close()  # type: ignore[attr-defined]  # generators have it
    assert "drafter" not in {thread.name for thread in threading.enumerate()}
    assert answer(runtime, greedy(settings))[0] == expected


def cached_and_prompt(runtime: Runtime, messages: Sequence[Message], mode: Mode) -> tuple[str, Summary]:
    settings = EngineSettings(mode=mode, min_confidence=0.2)
    text, end = answer(runtime, greedy(settings, tuple(messages), 25))
    return text, end.summary


@pytest.mark.parametrize("mode", MODES)
def test_a_later_turn_reads_only_what_is_new(runtime: Runtime, mode: Mode) -> None:
    first = [Message("user", f"In mode {mode}: {LONG_STORY[:900]}")]
    text, summary = cached_and_prompt(runtime, first, mode)
    assert summary.cached_tokens < 20
    second = [*first, Message("assistant", text), Message("user", "Go on, please.")]
    _, following = cached_and_prompt(runtime, second, mode)
    assert following.cached_tokens >= summary.prompt_tokens
    assert following.prompt_tokens - following.cached_tokens < 60

    edited = [Message("user", first[0].content[:600] + " Stop here.")]
    kept = len(runtime.encode((Message("user", first[0].content[:600]),))) - 12
    _, after_edit = cached_and_prompt(runtime, edited, mode)
    assert kept <= after_edit.cached_tokens < after_edit.prompt_tokens


@pytest.mark.slow
def test_what_is_cached_is_what_is_not_read(demo_target_q8: Path, demo_draft: Path) -> None:
    """Measuring costs, once for each way of working, may empty the cache: the summary must know."""
    with Runtime.open(OpenPlan(ModelOptions(demo_target_q8), ModelOptions(demo_draft))) as fresh:
        for mode in MODES:
            events = list(fresh.generate(greedy(EngineSettings(mode=mode), LONG_STORY[:3500], 3)))
            read = [event.total for event in events if isinstance(event, PromptProgress)]
            summary = end_of(events).summary
            assert set(read) <= {summary.prompt_tokens - summary.cached_tokens}
            assert read or summary.cached_tokens


@pytest.mark.slow
def test_a_long_conversation_leaks_neither_memory_nor_threads(demo_target: Path, demo_draft: Path) -> None:
    """Thirty turns in all modes with edits, cancels and closes; a KV cache of the target is 4.7 MB."""
    process = psutil.Process()
    options = ModelOptions(demo_target, context=1024)
    after_ten: tuple[int, int] | None = None
    with Runtime.open(OpenPlan(options, replace(options, path=demo_draft))) as opened:
        messages: list[Message] = []
        for turn in range(30):
            settings = EngineSettings(mode=MODES[turn % 4], min_confidence=0.2)
            messages.append(Message("user", prompts()[turn].prompt))
            request = greedy(settings, tuple(messages), 12)
            events = opened.generate(request)
            if turn % 5 == 3:
                for _ in range(4):
                    next(events)
                events.close()  # type: ignore[attr-defined]
                messages = messages[: max(1, len(messages) - 4)]
                continue
            found = []
            for event in events:
                found.append(event)
                if turn % 7 == 5 and len(found) == 6:
                    opened.cancel()
            messages.append(Message("assistant", text_of(found)))
            if opened.count_tokens(messages) > 700:
                messages = []
            if turn == 9:
                after_ten = process.memory_info().rss, process.num_threads()
        assert after_ten is not None
        grown = process.memory_info().rss - after_ten[0]
        assert grown < 20_000_000
        ends = time.monotonic() + 20
        while process.num_threads() > after_ten[1]:  # OpenMP's threads of a drafter outlive it for a moment
            assert time.monotonic() < ends


def test_tokens_may_be_left_early(runtime: Runtime) -> None:
    with closing(runtime.generate_tokens(greedy(FORCED))) as tokens:  # type: ignore[type-var]
        first, *_ = next(tokens)
    assert next(iter(runtime.generate_tokens(greedy())))[0] == first


@pytest.mark.parametrize("mode", MODES)
def test_a_request_may_refuse_what_is_cached(runtime: Runtime, mode: Mode) -> None:
    request = greedy(EngineSettings(mode=mode, min_confidence=0.2), max_tokens=12)
    text, _ = answer(runtime, request)
    again, end = answer(runtime, replace(request, reuses_cache=False))
    assert (again, end.summary.cached_tokens) == (text, 0)
