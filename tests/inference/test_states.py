"""Hybrid models that are opened with few states: they get more when a mode drafts more, and say the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from localspec.decoding import loop
from localspec.errors import EngineError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import contexts
from localspec.inference.runtime import Runtime
from localspec.llama import recurrent
from localspec.llama.library import native
from localspec.models.shape import read_shape
from localspec.types.events import GenerationEvent, ModeChanged, RoundDone
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Request
from tests import made_models
from tests.inference.runtimes import LONG_STORY, OFF, answer, greedy, text_of
from tests.llama.test_recurrent import creating, without_snapshots

NGRAM = EngineSettings(mode="ngram", draft_length=2, min_confidence=0.0)
SD = EngineSettings(mode="sd", draft_length=5, min_confidence=0.0)
LONG_SD = EngineSettings(mode="sd", min_confidence=0.0, fallback="ngram")
SSD = EngineSettings(mode="ssd", draft_length=4, fan_out_budget=4, min_confidence=0.0)
PAIRS = ("small draft", "small draft, target without snapshots", "MTP head")


@contextmanager
def opened(target: Path, draft: Path | None, longest_draft: int | None = 0) -> Iterator[Runtime]:
    """Open models whose rounding does not hang on the order of cells, nor on the length of calls."""
    options = ModelOptions(
        target,
        2048,
        micro_batch=32,
        threads=1,
        kv_type_k="f32",
        kv_type_v="f32",
        flash_attention=False,
    )
    beside = None if draft is None else replace(options, path=draft)
    plan = OpenPlan(replace(options, longest_draft=longest_draft), beside, max_fan_out=4)
    with pytest.MonkeyPatch.context() as patched, Runtime.open(plan) as runtime:
        patched.setattr(loop, "READ_CHUNK", 32)  # from 64 tokens in a call on, the CPU rounds differently
        yield runtime


def snapshots(runtime: Runtime) -> int:
    count: int = native().llama_n_rs_seq(runtime._contexts.target.pointer)
    return count


@pytest.fixture(scope="module")
def small_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_models.attention(tmp_path_factory.mktemp("draft") / "draft.gguf")


@pytest.fixture(scope="module")
def plain(made_hybrid: Path) -> Iterator[Runtime]:
    with opened(made_hybrid, None) as runtime:
        yield runtime


@pytest.fixture(params=PAIRS)
def files(
    request: pytest.FixtureRequest, made_hybrid: Path, small_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    if "without" in request.param:
        monkeypatch.setattr(recurrent, "kept_states", without_snapshots)
    return made_hybrid, made_hybrid if "head" in request.param else small_draft


@pytest.fixture
def runtime(files: tuple[Path, Path]) -> Iterator[Runtime]:
    with opened(*files) as pair:
        yield pair


def expected(plain: Runtime, request: Request) -> str:
    text, _ = answer(plain, replace(request, settings=OFF, reuses_cache=False))
    return text


@pytest.mark.slow
def test_a_conversation_through_the_modes_is_not_read_again(
    runtime: Runtime, files: tuple[Path, Path], plain: Runtime
) -> None:
    """As much is found in the cache as with all states from the start."""
    talk, states = [Message("user", LONG_STORY[:600])], list[int]()
    with opened(*files, longest_draft=None) as usual:
        for settings in (OFF, NGRAM, SD, OFF, LONG_SD, SSD, OFF, NGRAM):
            request = greedy(settings, tuple(talk), 24)
            text, end = answer(runtime, request)
            assert text == expected(plain, request)
            assert end.summary.cached_tokens == answer(usual, request)[1].summary.cached_tokens
            states.append(runtime._contexts.target.max_draft)
            talk += [Message("assistant", text), Message("user", "And then?")]
    assert end.summary.cached_tokens > 100
    has_snapshots = not runtime._contexts.target.rereads
    assert states == ([0, 2, 5, 5, 8, 8, 8, 8] if has_snapshots else [0, *[8] * 7])
    assert snapshots(runtime) == (8 if has_snapshots else 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_between_the_modes_the_text_is_that_of_plain_decoding(
    runtime: Runtime, plain: Runtime, seed: int
) -> None:
    drawn, accepted = random.Random(seed), 0
    talks = [[Message("user", LONG_STORY[start : start + 200])] for start in (0, 300)]
    if drawn.random() < 0.5:
        runtime.keep_conversations(2**30)
    for _ in range(14):
        talk = drawn.choice(talks)
        mode = drawn.choice([OFF, NGRAM, SD, LONG_SD, SSD])
        settings = replace(mode, draft_length=drawn.randint(1, 8))
        request = greedy(settings, tuple(talk), drawn.randint(8, 40))
        cancelled_after = drawn.randint(1, 6) if drawn.random() < 0.3 else None
        events = list[GenerationEvent]()
        for event in runtime.generate(request):
            events.append(event)
            if len(events) == cancelled_after:
                runtime.cancel()
        text, whole = text_of(events), expected(plain, request)
        assert text == whole[: len(text)] if cancelled_after else text == whole
        accepted += sum(event.stats.accepted for event in events if isinstance(event, RoundDone))
        kept = text[: len(text) // 2] if drawn.random() < 0.2 else text
        talk += [Message("assistant", kept or "Well."), Message("user", drawn.choice(["Why?", "And then?"]))]
        if drawn.random() < 0.2:
            talk[-3:] = [Message("user", "Something else.")]
    assert accepted


def test_saved_conversations_continue_with_more_states(runtime: Runtime, plain: Runtime) -> None:
    runtime.keep_conversations(2**30)
    stories = [(Message("user", LONG_STORY[start : start + 600]),) for start in (0, 1000)]
    first, _ = answer(runtime, greedy(OFF, stories[0], 20))
    answer(runtime, greedy(OFF, stories[1], 20))
    answer(runtime, greedy(SD, stories[1], 20))
    talk = (*stories[0], Message("assistant", first), Message("user", "And then?"))
    text, end = answer(runtime, greedy(SD, talk, 20))
    assert text == expected(plain, greedy(SD, talk, 20))
    assert end.summary.cached_tokens > 100
    assert end.summary.accepted > 0


def test_a_head_starts_again_where_its_target_gets_more_states(made_hybrid: Path, plain: Runtime) -> None:
    with opened(made_hybrid, made_hybrid) as runtime:
        answer(runtime, greedy(SD))
        head = runtime._contexts.draft
        assert head is not None
        assert head.length() > 0
        runtime._contexts.allow_drafts(8)
        assert head.length() == 0
        text, end = answer(runtime, greedy(LONG_SD))
        assert text == expected(plain, greedy(LONG_SD))
        assert end.summary.accepted > 0


def test_models_opened_with_enough_states_keep_their_context(made_hybrid: Path) -> None:
    with opened(made_hybrid, None, longest_draft=None) as runtime:
        pointer = runtime._contexts.target.pointer
        answer(runtime, greedy(NGRAM))
        assert (runtime._contexts.target.pointer, snapshots(runtime)) == (pointer, 8)


def notes(runtime: Runtime, request: Request) -> tuple[str, list[tuple[str, str]]]:
    """Return an answer with its changes of mode."""
    events = list(runtime.generate(request))
    changes = [event for event in events if isinstance(event, ModeChanged)]
    return text_of(events), [(change.mode, change.reason) for change in changes]


@pytest.mark.parametrize("refused_by", ["the system", "llama.cpp"])
def test_with_little_memory_drafts_are_shorter_and_a_note_says_so_once(
    made_hybrid: Path, plain: Runtime, monkeypatch: pytest.MonkeyPatch, refused_by: str
) -> None:
    state, api = read_shape(made_hybrid).state_bytes, native()
    ngram = replace(NGRAM, draft_length=12)
    with opened(made_hybrid, None) as runtime:
        if refused_by == "the system":
            monkeypatch.setattr(contexts, "free_memory", lambda: 3 * state + 1)
        else:
            create = partial(creating, 4, api.llama_init_from_model)
            monkeypatch.setattr(api, "llama_init_from_model", create)
        text, changes = notes(runtime, greedy(ngram))
        assert text == expected(plain, greedy(ngram))
        allowed = 3 if refused_by == "the system" else 4
        assert changes == [("ngram", f"there is only enough memory for drafts of up to {allowed} tokens")]
        assert snapshots(runtime) == allowed
        assert notes(runtime, greedy(ngram)) == (text, [])
        assert notes(runtime, greedy(NGRAM)) == (text, [])  # which are shorter
        assert snapshots(runtime) == allowed


def test_without_memory_for_any_draft_answers_are_plain(
    made_hybrid: Path, small_draft: Path, plain: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(made_hybrid, small_draft) as runtime:
        monkeypatch.setattr(contexts, "free_memory", lambda: 0)
        for settings in (SD, SSD, NGRAM):
            text, changes = notes(runtime, greedy(settings))
            assert text == expected(plain, greedy(settings))
            assert changes == [("off", "there is not enough memory for drafts")]
            assert snapshots(runtime) == 0
        assert notes(runtime, greedy(OFF)) == (text, [])
        assert runtime._contexts.draft is not None
        assert runtime._contexts.draft.busy_s == 0


def test_a_text_that_could_not_be_saved_is_read_again(
    made_hybrid: Path, plain: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(made_hybrid, None) as runtime:
        answer(runtime, greedy(OFF))
        monkeypatch.setattr(recurrent.RecurrentContext, "save", lambda *_: None)
        text, end = answer(runtime, greedy(NGRAM))
        assert text == expected(plain, greedy(NGRAM))
        assert end.summary.cached_tokens == 0


def test_a_failure_that_closes_the_context_is_reported(
    made_hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(made_hybrid, None) as runtime:
        answer(runtime, greedy(OFF))
        api = native()
        monkeypatch.setattr(api, "llama_init_from_model", partial(creating, -1, api.llama_init_from_model))
        with pytest.raises(UserError):
            list(runtime.generate(greedy(NGRAM)))
        with pytest.raises(EngineError, match="is closed"):
            list(runtime.generate(greedy(NGRAM)))
