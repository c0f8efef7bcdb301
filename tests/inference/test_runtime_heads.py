"""Answers that an EAGLE-3 head or an MTP head has drafted, on real models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import localspec
from localspec.errors import EngineError, PairingError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama.heads import HeadContext
from localspec.tuning.trace import trace
from localspec.types.candidates import FullRows, Rows
from localspec.types.events import Finished, ModeChanged, RoundDone, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import Acceptance, EngineSettings, Grammar, Message, Sampling
from tests.inference.runtimes import FORCED, OFF, QUESTION, answer, greedy, open_pair
from tests.made_models import eagle3

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def eagle(demo_target_q8: Path, made_eagle3: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, made_eagle3) as opened:
        yield opened


@pytest.fixture(scope="module")
def mtp(made_hybrid: Path) -> Iterator[Runtime]:
    with open_pair(made_hybrid, made_hybrid) as opened:
        yield opened


@pytest.fixture(params=["eagle", "mtp"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    opened: Runtime = request.getfixturevalue(request.param)
    return opened


SETTINGS = (
    FORCED,
    EngineSettings(mode="sd", draft_length=1, min_confidence=0.0),
    EngineSettings(mode="sd", draft_length=7, min_confidence=0.0),
    EngineSettings(mode="sd", draft_length=4, min_confidence=0.0, acceptance="match"),
    EngineSettings(mode="sd", draft_length=4, fallback="ngram", min_confidence=0.0),
)


@pytest.mark.parametrize("settings", SETTINGS, ids=range(len(SETTINGS)))
def test_greedy_text_is_that_of_plain_decoding(runtime: Runtime, settings: EngineSettings) -> None:
    expected, _ = answer(runtime, replace(greedy(OFF), reuses_cache=False))
    found, end = answer(runtime, replace(greedy(settings), reuses_cache=False))
    assert found == expected
    assert end.summary.accepted > 0
    assert end.summary.draft_s > 0


def test_several_tokens_of_a_draft_are_accepted(runtime: Runtime) -> None:
    deep = EngineSettings(mode="sd", draft_length=5, min_confidence=0.0)
    rounds = [
        event for event in runtime.generate(greedy(deep, max_tokens=80)) if isinstance(event, RoundDone)
    ]
    accepted = [round_.stats.accepted for round_ in rounds if round_.stats.drafted]
    assert max(accepted) >= 3  # the head continues from its own states
    assert sum(accepted) > len(accepted) / 2


def test_a_conversation_with_edits_and_other_modes_between(runtime: Runtime) -> None:
    talk = list(QUESTION)
    for turn, settings in enumerate((FORCED, OFF, FORCED, EngineSettings(mode="ngram"), FORCED)):
        request = greedy(settings, tuple(talk), 24)
        found, _ = answer(runtime, request)
        expected, _ = answer(runtime, replace(request, settings=OFF, reuses_cache=False))
        assert found == expected
        talk = [*talk, Message("assistant", found), Message("user", f"And then, number {turn}?")]
        if turn == 2:
            talk = [talk[0], Message("assistant", "Yes."), Message("user", "Tell me of a goat.")]


def test_a_cancelled_answer_leaves_the_head_clean(runtime: Runtime) -> None:
    expected, _ = answer(runtime, replace(greedy(OFF), reuses_cache=False))
    for _ in range(2):
        events = runtime.generate(greedy(FORCED))
        next(events)
        next(events)
        runtime.cancel()
        list(events)
    assert answer(runtime, greedy(FORCED))[0] == expected


def test_drafts_are_drawn_at_any_temperature(runtime: Runtime) -> None:
    warm = replace(greedy(FORCED, max_tokens=60), sampling=Sampling(temperature=0.8))
    _, end = answer(runtime, warm)
    assert 0 < end.summary.accepted < end.summary.drafted


def test_a_trace_reports_what_a_head_thinks_that_knows_its_targets_states(runtime: Runtime) -> None:
    traced = trace(runtime, greedy(OFF, max_tokens=80))
    assert (traced.draft_ids[:, 0] == traced.tokens).mean() > 0.2
    assert answer(runtime, greedy(FORCED))[0] == answer(runtime, greedy(OFF))[0]


def test_what_the_open_models_say_of_a_head(eagle: Runtime, mtp: Runtime) -> None:
    assert eagle.draft is not None
    assert "ssd" not in eagle.modes
    assert eagle.draft.name == "Made EAGLE-3 head"
    assert mtp.draft is not None
    assert mtp.draft.parameters < mtp.target.parameters / 10
    assert mtp.draft.name == "Made hybrid, its MTP head"


def test_prepared_drafts_are_asked_of_a_head_in_vain(eagle: Runtime) -> None:
    _, end = answer(eagle, greedy(replace(FORCED, mode="ssd")))
    assert end.summary.drafted > 0
    assert (end.summary.hits, end.summary.misses) == (0, 0)


def test_the_public_api_finds_a_head_in_the_targets_file(made_hybrid: Path) -> None:
    with localspec.open_pair(made_hybrid, context=512) as opened:
        assert opened.draft is not None
        assert opened.draft.path == made_hybrid


def test_a_head_of_another_target_opens_nothing(made_hybrid: Path, made_eagle3: Path) -> None:
    with pytest.raises(PairingError, match="reads layers 1, 3, 5 of its target, which has 4"):
        Runtime.open(OpenPlan(ModelOptions(made_hybrid), ModelOptions(made_eagle3)))


def test_heads_follow_a_grammar(runtime: Runtime) -> None:
    sum_ = Grammar("regex", r"(one|two|three)( plus (one|two|three)){3} makes (six|seven)\.")
    expected, _ = answer(runtime, replace(greedy(OFF), grammar=sum_, reuses_cache=False))
    for settings in (SETTINGS[2], SETTINGS[4]):
        found, end = answer(runtime, replace(greedy(settings), grammar=sum_, reuses_cache=False))
        assert (found, end.reason) == (expected, "stop")
        assert end.summary.accepted > end.summary.rounds


def spoilt_rows(head: HeadContext, tokens: Sequence[int], logits: int) -> Rows:
    """Give what a head gives whose weights are not numbers."""
    return FullRows(HeadContext._extend(head, tokens, logits).logits * np.nan)


def failed(*_: object) -> Rows:
    raise EngineError("llama.cpp failed to decode (code -3); its log says why")


@pytest.mark.parametrize(
    ("verb", "instead", "said"),
    [
        ("_extend", spoilt_rows, "returned logits that are not numbers"),
        ("_extend", failed, "failed: llama.cpp failed to decode (code -3); its log says why"),
        ("_read", failed, "failed: llama.cpp failed to decode (code -3); its log says why"),
    ],
)
@pytest.mark.parametrize("kind", ["eagle", "mtp"])
def test_a_head_that_fails_ends_drafting_and_not_the_answer(
    kind: str,
    verb: str,
    instead: Callable[..., Rows],
    said: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, _ = answer(request.getfixturevalue(kind), replace(greedy(OFF), reuses_cache=False))
    files = {"eagle": ("demo_target_q8", "made_eagle3"), "mtp": ("made_hybrid", "made_hybrid")}[kind]
    with open_pair(*map(request.getfixturevalue, files)) as opened:
        head = opened._contexts.draft
        assert head is not None
        monkeypatch.setattr(head, verb, partial(instead, head))
        for _ in range(2):
            events = [*opened.generate(greedy(FORCED))]
            changes = [event for event in events if isinstance(event, ModeChanged)]
            assert changes == [ModeChanged("off", f"the draft model {head.name} {said}")]
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            assert text == expected
        settings, reason = opened.choose_settings()
        assert settings.mode == "ngram"
        assert reason.startswith(changes[0].reason)


@pytest.mark.parametrize("acceptance", get_args(Acceptance))
@pytest.mark.parametrize("warmth", [0.0, 0.8])
def test_a_head_of_few_tokens_drafts_under_a_grammar_that_asks_for_others(
    demo_target_q8: Path,
    tmp_path_factory: pytest.TempPathFactory,
    warmth: float,
    acceptance: Acceptance,
) -> None:
    few = eagle3(tmp_path_factory.mktemp("few") / "few.gguf", drafted=2000)
    fields = '{"Zxq": {"type": "string", "maxLength": 9}, "year": {"type": "integer"}}'
    schema = f'{{"type": "object", "properties": {fields}, "required": ["Zxq", "year"]}}'
    settings = EngineSettings(mode="sd", min_confidence=0.0, acceptance=acceptance)
    request = replace(
        greedy(settings, max_tokens=60),
        sampling=Sampling(temperature=warmth),
        grammar=Grammar("json_schema", schema),
    )
    with open_pair(demo_target_q8, few) as opened:
        for seed in range(1 if warmth == 0 else 6):
            events = [*opened.generate(replace(request, seed=seed))]
            assert not [event for event in events if isinstance(event, ModeChanged)]
            end = events[-1]
            assert isinstance(end, Finished)
            assert end.summary.accepted > 0
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            if end.reason == "stop":
                assert {*json.loads(text)} >= {"Zxq", "year"}
            if warmth == 0:
                assert text == answer(opened, replace(request, settings=OFF))[0]
