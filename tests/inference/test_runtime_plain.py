"""The runtime on the bundled pair: speed of plain decoding, memory, and what the drafter does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.decoding.loop import Decoder
from localspec.decoding.measure import MIN_PLAIN_TOKENS, PLAIN_TOKENS
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import OpenModels
from localspec.inference.runtime import Runtime
from localspec.llama.context import Context
from localspec.types.candidates import Rows
from localspec.types.events import RoundDone
from localspec.types.models import ModelOptions, PlainRate
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.inference.runtimes import FORCED, MODES, OFF, QUESTION, answer, end_of, greedy, open_pair
from tests.llama import tiny

AHEAD = EngineSettings(mode="ssd", min_confidence=0.2)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


def test_a_runtime_is_open_models(runtime: Runtime) -> None:
    models: OpenModels = runtime
    assert models.target is runtime.target


@pytest.mark.parametrize("mode", MODES)
def test_plain_decoding_is_measured_after_an_answer_and_leaves_no_trace(runtime: Runtime, mode: Mode) -> None:
    request = greedy(EngineSettings(mode=mode, min_confidence=0.2), max_tokens=30)
    text, end = answer(runtime, request)
    rate = runtime.measure_plain()
    assert rate is not None
    assert rate.depth == end.summary.prompt_tokens + 30
    assert rate.tokens_per_s > 0
    follow_up = (*QUESTION, Message("assistant", text), Message("user", "Why?"))
    again = answer(runtime, replace(request, prompt=follow_up))[1].summary
    assert again.cached_tokens >= end.summary.prompt_tokens
    assert again.prompt_tokens - again.cached_tokens < 50


def test_the_rate_counts_every_second_of_plain_decoding(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(runtime, greedy())
    sizes: list[int] = []
    evaluate = Context.evaluate

    def slow(self: Context, tokens: list[int], logits: int = 1) -> Rows:
        sizes.append(len(tokens))
        return evaluate(self, tokens, logits)

    now = [0.0]

    def ticking() -> float:
        now[0] += 0.005  # each look at the clock takes a while
        return now[0]

    monkeypatch.setattr(Context, "evaluate", slow)
    monkeypatch.setattr("localspec.decoding.tally.time.perf_counter", ticking)
    rate = runtime.measure_plain()
    assert rate is not None
    assert set(sizes) == {1}
    assert MIN_PLAIN_TOKENS < len(sizes) <= PLAIN_TOKENS + 1
    assert rate.tokens_per_s < 200


def test_nothing_is_measured_without_an_answer_or_without_room(demo_target: Path, tmp_path: Path) -> None:
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=64, threads=1))) as opened:
        assert opened.measure_plain() is None
        anything = Sampling(temperature=50.0, top_k=0, top_p=1.0, min_p=0.0)
        assert len(list(opened.generate_tokens(Request("the sea", anything, OFF, 3, seed=1)))) > 1
        assert opened.measure_plain() is not None
        list(opened.score(opened.encode("another text")))
        assert opened.measure_plain() is None
        events = list(opened.generate(Request("the sea", anything, OFF, seed=1)))
        assert end_of(events).reason == "context"
        assert opened.measure_plain() is None
    with Runtime.open(OpenPlan(ModelOptions(tiny.recurrent(tmp_path / "recurrent.gguf")))) as opened:
        answer(opened, greedy(prompt="abc", max_tokens=4))
        assert opened.measure_plain() is not None
        answer(opened, greedy(prompt="abc", max_tokens=4))  # it has come back


def test_measuring_plain_decoding_can_be_cancelled(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = answer(runtime, greedy())
    calls, started, cancelled = [0], threading.Event(), threading.Event()
    evaluate = Context.evaluate

    def waiting(self: Context, tokens: list[int], logits: int = 1) -> Rows:
        calls[0] += 1
        if calls[0] == 3:
            started.set()
            assert cancelled.wait(WAIT_S)
        return evaluate(self, tokens, logits)

    def cancel() -> None:
        assert started.wait(WAIT_S)
        runtime.cancel()
        cancelled.set()

    found: list[PlainRate | None] = []
    thread = threading.Thread(target=cancel)
    thread.start()
    with monkeypatch.context() as patched:
        patched.setattr(Context, "evaluate", waiting)
        found.append(runtime.measure_plain())
    thread.join()
    assert found == [None]
    assert calls == [3]
    text, end = answer(runtime, greedy())
    assert (text, end.summary.prompt_tokens - end.summary.cached_tokens) == (expected, 1)
    assert runtime.measure_plain() is not None


def test_memory_is_reported_of_the_cpu(runtime: Runtime) -> None:
    (processor,) = runtime.memory()
    assert processor.device == "CPU"
    assert runtime.target.file_bytes < processor.used < processor.total


def test_what_the_draft_model_does_meanwhile_is_reported(runtime: Runtime) -> None:
    def rounds(settings: EngineSettings) -> list[RoundDone]:
        events = list(runtime.generate(greedy(settings, max_tokens=100)))
        return [event for event in events if isinstance(event, RoundDone)]

    ahead = [event.stats for event in rounds(AHEAD)]
    assert any(stats.ahead_s > 0 for stats in ahead)
    assert all(0 <= stats.ahead_s <= stats.verify_s for stats in ahead)
    assert {event.stats.ahead_s for event in rounds(FORCED)} == {0.0}


def test_the_cache_is_left_at_the_end_of_the_answer(runtime: Runtime) -> None:
    text, end = answer(runtime, greedy())
    runtime.measure_plain()
    decoder: Decoder = runtime._engine.decoder
    assert len(decoder._held) == end.summary.prompt_tokens + end.summary.tokens
    assert runtime.decode(decoder._held).endswith(text)
