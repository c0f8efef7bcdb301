"""The runtime on the bundled pair: what it answers, how it stops, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import Cancelled, ContextFullError, ModelFileError, PairingError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.llama.vocabulary import Vocabulary
from localspec.tuning.trace import trace
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import RoundDone, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling
from tests.inference.runtimes import (
    FORCED,
    LONG_STORY,
    MODES,
    OFF,
    QUESTION,
    answer,
    end_of,
    greedy,
    open_pair,
)
from tests.llama import tiny


@pytest.fixture(scope="module")
def runtime(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone(demo_target: Path) -> Iterator[Runtime]:
    """The target without a draft model, and with little room."""
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=96, threads=1))) as opened:
        yield opened


def test_it_says_what_is_open(runtime: Runtime, demo_target_q8: Path, demo_draft: Path) -> None:
    assert runtime.draft is not None
    assert (runtime.target.path, runtime.draft.path) == (demo_target_q8, demo_draft)
    assert runtime.target.context == runtime.draft.context == 2048
    assert runtime.target.vocabulary == 8192
    assert runtime.notes == ()


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_greedy_answer(runtime: Runtime, mode: Mode) -> None:
    expected, _ = answer(runtime, greedy(OFF))
    for confidence in (None, 0.2):
        found, end = answer(runtime, greedy(EngineSettings(mode=mode, min_confidence=confidence)))
        assert found == expected
        assert "def " in found
        assert end.reason == "length"
        assert end.summary.tokens == 40


def test_rounds_text_and_summary_agree(runtime: Runtime) -> None:
    events = list(runtime.generate(greedy(FORCED)))
    rounds = [event.stats for event in events if isinstance(event, RoundDone)]
    summary = end_of(events).summary
    assert summary.rounds == len(rounds) - 1  # the first read the prompt
    assert summary.drafted == sum(stats.drafted for stats in rounds)
    assert summary.accepted == sum(stats.accepted for stats in rounds) > 0
    assert summary.tokens == sum(stats.accepted + 1 for stats in rounds)
    assert {stats.origin for stats in rounds[1:]} <= {DraftOrigin.FRESH, DraftOrigin.NONE}
    assert summary.prompt_tokens == runtime.count_tokens(QUESTION)
    pieces = [piece for event in events if isinstance(event, TextDelta) for piece in event.pieces]
    assert {piece.provenance for piece in pieces} >= {Provenance.TARGET, Provenance.ACCEPTED}
    parts = summary.verify_s + summary.draft_s + summary.wait_s + summary.python_s
    assert parts == pytest.approx(summary.decode_s)


def test_plain_sampling_repeats_with_its_seed(runtime: Runtime) -> None:
    request = Request(QUESTION, Sampling(temperature=1.5, top_k=0, top_p=1.0), OFF, 30, seed=7)
    first, _ = answer(runtime, request)
    assert answer(runtime, request)[0] == first
    assert answer(runtime, replace(request, seed=8))[0] != first
    unseeded = replace(request, sampling=replace(request.sampling, temperature=3.0), seed=None)
    assert len({answer(runtime, unseeded)[0] for _ in range(3)}) > 1


def test_speculative_sampling_repeats_with_its_seed(runtime: Runtime) -> None:
    request = Request(QUESTION, Sampling(temperature=1.0), FORCED, 30, seed=7)
    assert answer(runtime, request)[0] == answer(runtime, request)[0]


@pytest.mark.parametrize("mode", ["ngram", "sd", "ssd"])
def test_a_seed_stands_for_one_text_where_drafts_match(runtime: Runtime, mode: Mode) -> None:
    settings = EngineSettings(mode=mode, draft_length=4, acceptance="match")
    for seed in (7, -(2**63)):
        request = Request(QUESTION, Sampling(temperature=1.0), OFF, 30, seed=seed)
        expected = answer(runtime, request)[0]
        assert answer(runtime, replace(request, settings=settings))[0] == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_string_ends_the_answer_before_itself(runtime: Runtime, mode: Mode) -> None:
    whole, _ = answer(runtime, greedy())
    stop = whole[25:32]
    settings = EngineSettings(mode=mode, min_confidence=0.2)
    found, end = answer(runtime, replace(greedy(settings), stop=("never", stop)))
    assert found == whole[: whole.index(stop)]
    assert end.reason == "stop"
    assert end.summary.tokens < 40


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_a_limit_is_kept(runtime: Runtime, mode: Mode, limit: int) -> None:
    settings = EngineSettings(mode=mode, min_confidence=0.0)
    _, end = answer(runtime, greedy(settings, max_tokens=limit))
    assert (end.reason, end.summary.tokens) == ("length", limit)


def test_without_a_limit_the_model_ends_its_turn(runtime: Runtime) -> None:
    text, end = answer(runtime, greedy(max_tokens=None))
    assert end.reason == "stop"
    assert "<|im_end|>" not in text


@pytest.mark.parametrize("mode", ["off", "ngram"])
def test_the_end_of_the_context_ends_the_answer(alone: Runtime, mode: Mode) -> None:
    anything = Sampling(temperature=50.0, top_k=0, top_p=1.0, min_p=0.0)  # hardly ever the end of the turn
    request = Request("the sea the sea the sea", anything, EngineSettings(mode=mode), None, seed=1)
    _, end = answer(alone, request)
    assert end.reason == "context"
    assert end.summary.tokens + end.summary.prompt_tokens == 96


def test_a_prompt_that_is_too_long_says_by_how_much(alone: Runtime) -> None:
    too_long = alone.decode(alone.encode(LONG_STORY)[:120])
    size = len(alone.encode(too_long))
    events = alone.generate(greedy(prompt=too_long))
    with pytest.raises(ContextFullError) as caught:
        next(events)
    assert str(size) in caught.value.message
    assert f"by {size - 95} tokens" in caught.value.hint
    fitting = alone.decode(alone.encode(too_long)[:95])
    assert len(alone.encode(fitting)) == 95
    assert answer(alone, greedy(prompt=fitting))[1].summary.tokens == 1


@pytest.mark.parametrize(
    "prompt", ["the sea " * 10**6, (Message("user", "the sea " * 10**6),)], ids=["text", "conversation"]
)
def test_a_prompt_that_cannot_fit_is_rejected_before_its_tokens_are_counted(
    alone: Runtime, prompt: str | tuple[Message, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    tokenize = Vocabulary.tokenize

    def spy(self: Vocabulary, text: str, **options: bool) -> list[int]:
        counted.append(len(text))
        return tokenize(self, text, **options)

    monkeypatch.setattr(Vocabulary, "tokenize", spy)
    with pytest.raises(ContextFullError, match=r"at least [\d,]+ tokens, but the context has 96; shorten it"):
        next(alone.generate(greedy(prompt=prompt)))
    assert sum(counted) < 1000


def test_an_empty_prompt_is_rejected(alone: Runtime) -> None:
    with pytest.raises(UserError, match="empty"):
        list(alone.generate(greedy(prompt="")))


def test_penalties_look_at_the_answer_alone(alone: Runtime) -> None:
    asked = greedy(prompt="Four of them. Four of them. Four")
    harsh = replace(asked, sampling=Sampling(temperature=0.0, presence_penalty=10.0))
    said, penalised = (answer(alone, request)[0].split() for request in (asked, harsh))
    assert said[0] == penalised[0] == "of"
    assert said != penalised
    first = trace(alone, replace(harsh, max_tokens=1))
    assert first.tokens == trace(alone, replace(asked, max_tokens=1)).tokens


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": 0}, "Request: `max_tokens` has to be a whole number from 1 to 2147483647, not 0"),
        (
            {"seed": 2**63},
            f"Request: `seed` has to be a whole number from {-(2**63)} to {2**63 - 1}, not {2**63}",
        ),
        (
            {"sampling": Sampling(repetition_penalty=0)},
            "Request: `sampling.repetition_penalty` has to be a number from 0.01 to 10, not 0",
        ),
        (
            {"sampling": Sampling(temperature=float("nan"))},
            "Request: `sampling.temperature` has to be a number from 0 to 100, not nan",
        ),
        (
            {"settings": EngineSettings("ngram", saguaro_c=-1)},
            "Request: `settings.saguaro_c` has to be a number from 0 to 1, not -1",
        ),
        (
            {"settings": EngineSettings("guess")},  # type: ignore[arg-type]
            "Request: `settings.mode` has to be one of off, ngram, sd, ssd, not `guess`",
        ),
    ],
    ids=lambda value: value.split("`")[1] if isinstance(value, str) else "",
)
def test_what_cannot_be_is_rejected_by_name(alone: Runtime, change: dict[str, Any], words: str) -> None:
    request = replace(greedy(prompt="Hello"), **change)
    for generate in (alone.generate, alone.generate_tokens):
        with pytest.raises(UserError) as caught:
            next(generate(request))
        assert str(caught.value) == words
    with pytest.raises(UserError):
        trace(alone, request)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [1e-300, 5e-324, 1e-30, 1e-9])
@pytest.mark.parametrize("truncation", [{}, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"top_k": 200}])
def test_a_tiny_temperature_is_greedy(
    runtime: Runtime, mode: Mode, temperature: float, truncation: dict[str, Any]
) -> None:
    settings = EngineSettings(mode, min_confidence=0.2)
    expected, _ = answer(runtime, greedy(settings, max_tokens=12))
    sampling = Sampling(temperature=temperature, **truncation)
    assert answer(runtime, replace(greedy(settings, max_tokens=12), sampling=sampling))[0] == expected


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_mode_that_needs_a_draft_model_says_so(alone: Runtime, mode: Mode) -> None:
    with pytest.raises(UserError, match=f"mode {mode} needs a draft model") as caught:
        list(alone.generate(greedy(EngineSettings(mode=mode))))
    assert "-md" in caught.value.hint
    assert answer(alone, greedy(prompt="Hello", max_tokens=3))[1].summary.tokens


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_draft_may_be_longer_than_one_call_can_judge(runtime: Runtime, mode: Mode) -> None:
    expected, _ = answer(runtime, greedy(max_tokens=400))
    settings = EngineSettings(mode=mode, draft_length=256, min_confidence=0.0)
    assert answer(runtime, greedy(settings, max_tokens=400))[0] == expected


def test_the_stop_string_that_ends_an_answer_is_reported(runtime: Runtime) -> None:
    request = replace(greedy(), stop=("never", " "))
    assert end_of(list(runtime.generate(request))).stop_string == " "
    assert end_of(list(runtime.generate(greedy(max_tokens=2)))).stop_string is None


def test_control_tokens_show_in_an_answer_that_asks_for_them(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime._target_model, "end_tokens", frozenset[int]())  # the pair has no others
    ((mark, _),) = runtime.tokenize("<|im_start|>")
    request = replace(greedy(max_tokens=2), logit_bias=((mark, 1e4),))
    assert answer(runtime, request)[0] == ""
    assert answer(runtime, replace(request, shows_control=True))[0] == "<|im_start|>" * 2


def test_tokens_and_text_translate(runtime: Runtime) -> None:
    text = "def is_prime(n): return n > 1  # naïve ☃"
    assert runtime.decode(runtime.encode(text)) == text
    assert runtime.count_tokens(QUESTION) == len(runtime.encode(QUESTION))
    assert runtime.count_tokens(QUESTION) > len(runtime.encode(QUESTION[0].content))


@pytest.mark.parametrize("mode", MODES)
def test_scores_after_an_answer_are_those_of_the_tokens_alone(runtime: Runtime, mode: Mode) -> None:
    tokens = runtime.encode("Once upon a time there was a fox.")
    alone = [row.tolist() for row in runtime.score(tokens)]
    before = [token for token, *_ in runtime.generate_tokens(greedy(EngineSettings(mode=mode)))]
    assert [row.tolist() for row in runtime.score(tokens)] == alone
    after = [token for token, *_ in runtime.generate_tokens(greedy(EngineSettings(mode=mode)))]
    assert after == before


def test_scores_are_the_logits_that_greedy_decoding_follows(runtime: Runtime) -> None:
    prompt = runtime.encode(QUESTION)
    tokens = [token for token, *_ in runtime.generate_tokens(greedy())]
    best = [int(row.argmax()) for row in runtime.score([*prompt, *tokens])]
    assert len(best) == len(prompt) + len(tokens)
    assert best[len(prompt) - 1 : -1] == tokens
    assert [token for token, *_ in runtime.generate_tokens(greedy(FORCED))] == tokens


def test_tokens_say_where_they_come_from(runtime: Runtime) -> None:
    plain = list(runtime.generate_tokens(greedy()))
    assert {(provenance, hit) for _, provenance, hit in plain} == {(Provenance.TARGET, False)}
    settings = EngineSettings(mode="ssd", min_confidence=0.0)
    ahead = list(runtime.generate_tokens(greedy(settings, max_tokens=200)))
    assert all(hit for _, provenance, hit in ahead if provenance is Provenance.PREPARED)
    assert not any(hit for _, provenance, hit in ahead if provenance is Provenance.ACCEPTED)
    assert any(hit for *_, hit in ahead)


def test_settings_are_chosen_with_a_reason(runtime: Runtime, alone: Runtime) -> None:
    mine = EngineSettings(mode="off", draft_length=3, acceptance="match")
    settings, reason = runtime.choose_settings(mine)
    assert replace(settings, mode="off") == mine
    assert settings.mode in MODES
    assert "tokens/s" in reason
    settings, reason = alone.choose_settings()
    assert settings.mode == "ngram"
    assert "no draft model" in reason


@pytest.mark.parametrize("extra", [0, 40])
def test_a_draft_model_of_another_family_is_rejected(demo_target: Path, tmp_path: Path, extra: int) -> None:
    other = tiny.llama(tmp_path / "other.gguf", extra=extra)
    with pytest.raises(PairingError) as caught:
        Runtime.open(OpenPlan(ModelOptions(demo_target), ModelOptions(other)))
    assert caught.value.message
    assert "family" in caught.value.hint


def test_vocabularies_that_differ_in_one_token_are_rejected(tmp_path: Path) -> None:
    one, other = tiny.llama(tmp_path / "one.gguf"), tiny.llama(tmp_path / "other.gguf", change=100)
    with pytest.raises(PairingError, match="token 100"):
        Runtime.open(OpenPlan(ModelOptions(one), ModelOptions(other)))


def test_loading_reports_progress_and_can_be_cancelled(demo_target: Path, demo_draft: Path) -> None:
    heard: list[float] = []

    def until_the_second(fraction: float) -> bool:
        heard.append(fraction)
        return fraction < 0.6

    with pytest.raises(Cancelled):
        Runtime.open(
            OpenPlan(ModelOptions(demo_target), ModelOptions(demo_draft)), on_progress=until_the_second
        )
    assert heard == sorted(heard)
    assert 0.0 <= heard[0] < 0.5 < heard[-1] <= 1.0


def test_a_missing_file_and_a_tiny_context_are_rejected(demo_target: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        Runtime.open(OpenPlan(ModelOptions(demo_target), ModelOptions(tmp_path / "none.gguf")))
    with pytest.raises(UserError, match="too small"):
        Runtime.open(OpenPlan(ModelOptions(demo_target, context=8)))
