"""The runtime on the bundled pair: changes of mode, continued answers, and early cancels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.decoding import fallback
from localspec.decoding.measure import measure
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import LatencyModel
from localspec.errors import Cancelled, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import contexts
from localspec.inference.runtime import Runtime
from localspec.types.events import GenerationEvent, ModeChanged, RoundDone
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.inference.runtimes import (
    FORCED,
    MODES,
    QUESTION,
    answer,
    end_of,
    greedy,
    measuring,
    open_pair,
    text_of,
)
from tests.llama import tiny

AHEAD = EngineSettings(mode="ssd", draft_length=4, min_confidence=0.2)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plain decoding seem to be much faster than anything, and judge after a few tokens."""
    monkeypatch.setattr(fallback.PlainCost, "at", lambda *_: 1e-9)
    monkeypatch.setattr(fallback, "MANY_TOKENS", 8)
    monkeypatch.setattr(fallback, "MANY_S", 0.0)
    monkeypatch.setattr(fallback, "LOSS_S", 0.0)
    monkeypatch.setattr(fallback, "FIRST_PATIENCE", 20)


def changes_of(events: list[GenerationEvent]) -> list[Mode]:
    return [event.mode for event in events if isinstance(event, ModeChanged)]


@pytest.mark.usefixtures("losing")
def test_changes_of_mode_leave_a_greedy_answer_as_it_is(demo_target_q8: Path, demo_draft: Path) -> None:
    with open_pair(demo_target_q8, demo_draft) as fresh:
        expected, plain = answer(fresh, greedy(max_tokens=200))
        request = replace(greedy(AHEAD, max_tokens=200), steps_down=True)
        events = list(fresh.generate(request))
        assert text_of(events) == expected
        changes = changes_of(events)
        assert changes[0] == "sd"
        assert len(changes) > 2  # it is tried again
        summary = end_of(events).summary
        assert (summary.tokens, summary.prompt_tokens) == (plain.summary.tokens, plain.summary.prompt_tokens)
        assert summary.rounds == sum(isinstance(event, RoundDone) for event in events) - 1

        again = list(fresh.generate(replace(request, seed=2)))
        assert text_of(again) == expected
        kept = changes[-1]
        assert (changes_of(again)[0] == kept) if kept != "ssd" else again
        untouched = list(fresh.generate(replace(request, steps_down=False)))
        assert changes_of(untouched) == []
        assert text_of(untouched) == expected


@pytest.mark.usefixtures("losing")
def test_a_limit_counts_the_tokens_of_all_modes(runtime: Runtime) -> None:
    expected, _ = answer(runtime, greedy(max_tokens=50))
    events = list(runtime.generate(replace(greedy(AHEAD, max_tokens=50), steps_down=True)))
    end = end_of(events)
    assert changes_of(events)
    assert (text_of(events), end.reason, end.summary.tokens) == (expected, "length", 50)


@pytest.mark.usefixtures("losing")
def test_sampled_answers_with_changes_of_mode_continue_to_their_limit(runtime: Runtime) -> None:
    request = Request(QUESTION, Sampling(temperature=1.3), AHEAD, 60, seed=5, steps_down=True)
    events = list(runtime.generate(request))
    assert changes_of(events)
    end = end_of(events)
    assert end.reason == "stop" or end.summary.tokens == 60


def test_a_cancel_between_two_modes_ends_the_answer(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(greedy(AHEAD, max_tokens=200), steps_down=True)
    expected, _ = answer(runtime, greedy(max_tokens=200))
    events: list[GenerationEvent] = []
    with monkeypatch.context() as patched:
        patched.setattr(fallback.PlainCost, "at", lambda *_: 1e-9)
        patched.setattr(fallback, "LOSS_S", 0.0)
        patched.setattr(fallback._Rounds, "surely_lose", True)  # however a busy machine's rounds vary
        for event in runtime.generate(request):
            events.append(event)
            if isinstance(event, ModeChanged):
                runtime.cancel()
    assert end_of(events).reason == "cancelled"
    assert expected.startswith(text_of(events))
    assert answer(runtime, greedy(max_tokens=200))[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize("cut", [25, 26, 27, 30, 36, 60, 71, 72, 73])
@pytest.mark.parametrize("settings", [EngineSettings(mode="off"), FORCED])
def test_a_partial_answer_is_continued_where_it_stopped(
    runtime: Runtime, cut: int, settings: EngineSettings
) -> None:
    whole, _ = answer(runtime, greedy(max_tokens=60))
    partial = whole[:cut]
    prompt = (*QUESTION, Message("assistant", partial))
    text = runtime.decode(runtime.encode(prompt))
    assert text.endswith("assistant\n" + partial.rstrip(" "))
    found, end = answer(runtime, greedy(settings, prompt, max_tokens=20))
    assert end.summary.tokens == 20
    whole_words = whole[cut - 1].isspace() or not whole[cut].isalnum() or not whole[cut - 1].isalnum()
    if whole_words:
        assert whole[cut:].startswith(found[:10])
    assert (partial + found)[cut - 1 : cut + 1].count(" ") < 2 or "    " in whole[cut - 4 : cut + 4]


def test_a_continued_answer_reads_only_its_seam(runtime: Runtime) -> None:
    text, first = answer(runtime, greedy(max_tokens=40))
    _, end = answer(runtime, greedy(prompt=(*QUESTION, Message("assistant", text)), max_tokens=5))
    assert end.summary.cached_tokens >= first.summary.prompt_tokens + 37


def test_a_cancel_while_costs_are_measured(
    demo_target_q8: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()

    def endless(
        target: LanguageModel, draft: LanguageModel | None, _budget_s: float, *, together: bool, on_card: bool
    ) -> LatencyModel:
        started.set()
        return measure(target, draft, 1e9, together=together, on_card=on_card)

    def cancelling(opened: Runtime) -> threading.Thread:
        def cancel() -> None:
            assert started.wait(WAIT_S)
            opened.cancel()

        started.clear()
        thread = threading.Thread(target=cancel)
        thread.start()
        return thread

    monkeypatch.setattr("localspec.decoding.measure.PASSES", 10**9)
    with open_pair(demo_target_q8, demo_draft) as fresh:
        expected, _ = answer(fresh, greedy())
        with monkeypatch.context() as patched:
            patched.setattr(contexts, "measure", endless)
            for settings in (FORCED, AHEAD):
                thread = cancelling(fresh)
                events = list(fresh.generate(measuring(greedy(settings))))
                thread.join()
                end = end_of(events)
                assert (end.reason, end.summary.tokens, end.summary.cached_tokens) == ("cancelled", 0, 0)
            thread = cancelling(fresh)
            with pytest.raises(Cancelled):
                fresh.choose_settings()
            thread.join()
        assert "measure" not in {thread.name for thread in threading.enumerate()}
        monkeypatch.setattr("localspec.decoding.measure.PASSES", 1)
        assert fresh.choose_settings()[0].mode in MODES
        assert answer(fresh, greedy(AHEAD))[0] == expected


def test_a_refused_conversation_is_an_error_of_the_user(tmp_path: Path) -> None:
    refusing = "{% for m in messages %}{{ raise_exception('no ' ~ m.role) }}{% endfor %}"
    path = tiny.llama(tmp_path / "refusing.gguf", template=refusing)
    with (
        Runtime.open(OpenPlan(ModelOptions(path, context=64))) as opened,
        pytest.raises(UserError, match="no user"),
    ):
        list(opened.generate(greedy(prompt=(*QUESTION, Message("assistant", "So")))))
