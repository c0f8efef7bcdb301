"""Thinking on the bundled pair: where it begins and ends, and what holds only behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from localspec.chat.thinking import split
from localspec.decoding.text import TOKENS
from localspec.inference.runtime import Runtime
from localspec.llama.model import Model
from localspec.llama.vocabulary import LlamaDetokenizer
from localspec.types.events import (
    Finished,
    GenerationEvent,
    Paused,
    RoundDone,
    TextDelta,
    ThinkingOpened,
    TokensScored,
)
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Grammar, Message, Mode, Request, Trigger
from tests.inference.runtimes import GREEDY, MODES, end_of, open_pair, text_of
from tests.inference.thinking_pair import CLOSES, OPENS, thinking_pair

ASKED = (Message("user", "What is 12 plus 30?"),)
SCHEMA = Grammar(
    "json_schema",
    json.dumps({
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"enum": [1, 2]}},
        "required": ["name", "n"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_pattern": " ?"},  # in runs of blanks, tokens are almost equally likely
    }),
)  # fmt: skip


@pytest.fixture(scope="module")
def closes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """A pair whose prompts open thinking, with one token for the closing tag."""
    files = thinking_pair(tmp_path_factory.mktemp("closes"), "<think>\n", {CLOSES: "</think>"})
    with open_pair(*files) as opened:
        yield opened


@pytest.fixture(scope="module")
def spells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """One that spells its tags."""
    with open_pair(*thinking_pair(tmp_path_factory.mktemp("spells"), "[THINK]")) as opened:
        yield opened


@pytest.fixture(scope="module")
def hides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """One whose tags are control tokens, and that opens its thinking itself."""
    tokens = {OPENS: "[THINK]", CLOSES: "[/THINK]"}
    kind = gguf.TokenType.CONTROL
    with open_pair(*thinking_pair(tmp_path_factory.mktemp("hides"), "", tokens, kind)) as opened:
        yield opened


def request(mode: Mode = "off", max_tokens: int | None = 60, *, bias: float = 11.0) -> Request:
    """Return a request whose answer closes its thinking early, inside of drafts where the mode makes any."""
    settings, sampling = EngineSettings(mode, draft_length=8, min_confidence=0.0), GREEDY
    sampling = replace(sampling, frequency_penalty=10)
    return Request(ASKED, sampling, settings, max_tokens, logit_bias=((CLOSES, bias),))


def scored(events: list[GenerationEvent]) -> list[bytes]:
    return [score.data for event in events if isinstance(event, TokensScored) for score in event.scores]


@pytest.mark.slow
def test_a_prompt_that_opens_thinking_is_reported_before_the_text(closes: Runtime, spells: Runtime) -> None:
    for runtime, opening in ((closes, "<think>\n"), (spells, "[THINK]")):
        events = list(runtime.generate(request()))
        kinds = [type(event) for event in events]
        assert events[kinds.index(ThinkingOpened)] == ThinkingOpened(opening)
        assert kinds.count(ThinkingOpened) == 1
        assert kinds.index(ThinkingOpened) < kinds.index(TextDelta)
        shut = replace(request(max_tokens=4), template_variables=(("enable_thinking", False),))
        bare = replace(request(max_tokens=4), prompt=runtime.render(request()))
        for other in (shut, bare):
            assert not any(isinstance(event, ThinkingOpened) for event in runtime.generate(other))


@pytest.mark.parametrize(
    ("content", "opening"),
    [
        ("<think>\nhm", "<think>"),
        ("<THINK>hm</think> Four", None),
        ("The tag </think>, and", None),
        ("", "<think>\n"),
    ],
)
def test_an_answer_that_continues_may_be_inside_its_thinking(
    closes: Runtime, content: str, opening: str | None
) -> None:
    asked = replace(request(max_tokens=2), prompt=(*ASKED, Message("assistant", content)))
    told = [event.opening for event in closes.generate(asked) if isinstance(event, ThinkingOpened)]
    assert told == ([] if opening is None else [opening])


@pytest.mark.parametrize("mode", MODES)
def test_stop_strings_count_after_the_thinking(closes: Runtime, mode: Mode) -> None:
    whole = text_of(list(closes.generate(request(mode))))
    thought, tag, answer = whole.partition("</think>")
    stop = next(letter for letter in answer.strip()[3:] if letter in thought)
    events = list(closes.generate(replace(request(mode), stop=(stop, "</think>"))))
    said = answer.lstrip()
    blank = answer[: len(answer) - len(said)]
    assert text_of(events) == thought + tag + blank + said.partition(stop)[0]
    assert end_of(events).stop_string == stop
    bare = replace(request(mode), stop=(stop,), prompt=closes.render(request()))
    assert stop not in text_of(list(closes.generate(bare)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "bias", "has_thought"),
    [("Hi", 10.0, True), ("Who are you?", 10.0, True), ("Who are you?", 11.0, True), ("Hi", 13.0, False)],
)
def test_a_grammar_begins_after_the_thinking_in_every_mode(
    closes: Runtime, question: str, bias: float, has_thought: bool
) -> None:
    def asked(mode: Mode) -> Request:
        return replace(request(mode, bias=bias), prompt=(Message("user", question),), grammar=SCHEMA)

    (text,) = {text_of(list(closes.generate(asked(mode)))) for mode in MODES}
    thought, tag, answer = text.partition("</think>")
    assert bool(thought) is has_thought
    assert tag
    assert set(json.loads(answer)) == {"name", "n"}


def circling(runtime: Runtime, mode: Mode, max_tokens: int | None) -> Request:
    """Return a request whose answer writes one word for ever, where a grammar allows it."""
    ((word, _),) = runtime.tokenize(" wait")
    bias = ((word, 60.0), (CLOSES, -100.0))
    return replace(request(mode, max_tokens), sampling=GREEDY, logit_bias=bias)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "limit"), [("off", 600), ("ngram", 600), ("sd", 600), ("ssd", 600), ("off", None), ("sd", None)]
)
def test_thinking_in_a_circle_is_closed_and_the_answer_follows(
    closes: Runtime, spells: Runtime, mode: Mode, limit: int | None
) -> None:
    for runtime, tag in ((closes, "</think>"), (spells, "[/THINK]")):
        asked = replace(circling(runtime, mode, limit), grammar=SCHEMA, top_logprobs=0)
        events = list(runtime.generate(asked))
        finished = end_of(events)
        thought, found, answer = text_of(events).partition(tag)
        assert thought == f"{' wait' * TOKENS}\n"  # in every mode
        assert found
        assert set(json.loads(answer)) == {"name", "n"}
        assert finished.reason == "stop"
        tokens = scored(events)
        assert b"".join(tokens).decode() == text_of(events)
        behind = next(n for n in range(len(tokens)) if tag.encode() in b"".join(tokens[: n + 1])) + 1
        assert finished.summary.thinking_tokens == behind
        assert finished.summary.tokens == len(tokens) + 1  # and the end token
        assert sum(event.tokens for event in events if isinstance(event, RoundDone)) == len(tokens) + 1


@pytest.mark.parametrize("mode", MODES)
def test_a_turn_with_a_grammar_does_not_end_in_the_thinking(spells: Runtime, mode: Mode) -> None:
    """The model never closes it by itself, and ends its turn instead."""
    asked = request(mode)
    whole = list(spells.generate(asked))
    assert "[/THINK]" not in text_of(whole)
    assert end_of(whole).reason == "stop"
    events = list(spells.generate(replace(asked, grammar=SCHEMA)))
    thought, tag, answer = text_of(events).partition("\n[/THINK]")
    assert (thought, bool(tag)) == (text_of(whole), True)
    assert set(json.loads(answer)) == {"name", "n"}
    tokens = sum(event.tokens for event in events if isinstance(event, RoundDone))
    assert (end_of(events).reason, end_of(events).summary.tokens) == ("stop", tokens)
    short = list(spells.generate(replace(asked, grammar=SCHEMA, max_tokens=end_of(whole).summary.tokens)))
    assert (end_of(short).reason, end_of(short).summary.tokens) == ("length", end_of(whole).summary.tokens)


@pytest.mark.slow
def test_an_answer_in_a_circle_ends_as_it_would_without_thinking(spells: Runtime) -> None:
    finished = {}
    for limit in (700, None):
        events = list(spells.generate(circling(spells, "off", limit)))
        text, finished[limit] = text_of(events), end_of(events)
        assert text.count("[/THINK]") == 1
        assert text.endswith(" wait")
    assert (finished[700].reason, finished[700].summary.tokens) == ("length", 700)
    assert finished[None].reason == "circles"
    ignored = replace(circling(spells, "off", 300), ignores_circles=True)
    assert "[/THINK]" not in text_of(list(spells.generate(ignored)))


@pytest.mark.slow
def test_thinking_that_is_opened_again_and_again_is_closed_as_often(hides: Runtime) -> None:
    for limit, count, reason in ((800, 3, "length"), (None, 1, "circles")):
        asked = replace(request("sd", limit), logit_bias=((OPENS, 100.0),), sampling=GREEDY)
        events = list(hides.generate(asked))
        assert text_of(events).count("[/THINK]") == count
        assert end_of(events).reason == reason


@pytest.mark.slow
def test_closing_the_thinking_gets_along_with_pauses(spells: Runtime) -> None:
    asked = replace(circling(spells, "sd", 400), grammar=SCHEMA)
    whole = list(spells.generate(asked))
    events: list[GenerationEvent] = []
    running, rounds = spells.generate(asked), 0
    while not events or not isinstance(events[-1], Finished):
        event = next(running)
        if isinstance(event, Paused):
            list(spells.generate(request(max_tokens=3)))
            running = spells.resume(event.number)
            continue
        events.append(event)
        rounds += isinstance(event, RoundDone)
        if isinstance(event, RoundDone) and rounds % 5 == 0:
            spells.pause()
    assert text_of(events) == text_of(whole)
    assert [event for event in events if isinstance(event, ThinkingOpened)] == [ThinkingOpened("[THINK]")]
    for name in ("tokens", "thinking_tokens", "prompt_tokens"):
        assert getattr(end_of(events).summary, name) == getattr(end_of(whole).summary, name)


def pieces(runtime: Runtime, asked: Request) -> list[bytes]:
    return scored(list(runtime.generate(replace(asked, top_logprobs=0))))


@pytest.mark.parametrize("mode", MODES)
def test_thinking_is_closed_at_its_budget_and_the_answer_follows(
    closes: Runtime, spells: Runtime, mode: Mode
) -> None:
    for runtime, tag in ((closes, "</think>"), (spells, "[/THINK]")):
        free = replace(request(mode), logit_bias=((CLOSES, -100.0),))
        whole = pieces(runtime, free)
        for budget in (9, 14):  # the model repeats the opening tag
            asked = replace(free, thinking_budget=budget, grammar=SCHEMA, top_logprobs=0)
            events = list(runtime.generate(asked))
            thought, found, answer = text_of(events).partition(f"\n{tag}")
            assert (thought.encode(), bool(found)) == (b"".join(whole[:budget]), True)
            assert set(json.loads(answer)) == {"name", "n"}
            tokens = scored(events)
            behind = next(n for n in range(len(tokens)) if tag.encode() in b"".join(tokens[: n + 1])) + 1
            summary = end_of(events).summary
            assert (summary.thinking_tokens, summary.tokens) == (behind, len(tokens) + 1)  # and the end token


@pytest.mark.parametrize("mode", ["off", "ssd"])
def test_a_budget_that_thinking_keeps_changes_nothing(closes: Runtime, mode: Mode) -> None:
    whole = pieces(closes, request(mode))
    ends = whole.index(b"</think>")
    assert ends > 2
    for budget in (ends + 1, ends + 2, 1000, -1):
        assert pieces(closes, replace(request(mode), thinking_budget=budget)) == whole
    early = b"".join(pieces(closes, replace(request(mode), thinking_budget=ends - 1)))
    assert early.startswith(b"".join(whole[: ends - 1]) + b"\n</think>")


def test_a_budget_of_nothing_closes_thinking_where_it_opens(
    closes: Runtime, spells: Runtime, hides: Runtime
) -> None:
    for runtime, tag in ((closes, "</think>"), (spells, "[/THINK]")):
        for mode in MODES:
            events = list(runtime.generate(replace(request(mode, 30), thinking_budget=0, grammar=SCHEMA)))
            text = text_of(events)
            assert text.startswith(f"\n{tag}")
            assert text.count(tag) == 1
            assert any(isinstance(event, ThinkingOpened) for event in events)
    opens = replace(request("sd", 40), logit_bias=((OPENS, 16.0), (CLOSES, -100.0)), thinking_budget=0)
    text = text_of(list(hides.generate(opens)))
    assert text.startswith("[THINK]\n[/THINK]")


def test_a_closing_tag_that_the_model_repeats_is_no_answer(closes: Runtime) -> None:
    asked = replace(request("off", 30, bias=100.0), thinking_budget=0, grammar=SCHEMA, sampling=GREEDY)
    tokens = pieces(closes, asked)
    assert tokens.count(b"</think>") >= 1
    assert json.loads(b"".join(tokens).decode().rpartition("</think>")[2]).keys() == {"name", "n"}


def test_the_thinking_of_a_continued_answer_counts(closes: Runtime) -> None:
    thought = "<think>\nhm hm hm hm"
    asked = replace(request("sd", 40), prompt=(*ASKED, Message("assistant", thought)))
    asked = replace(asked, logit_bias=((CLOSES, -100.0),))
    before = len(closes.tokenize("\nhm hm hm hm"))
    whole = pieces(closes, asked)
    for budget in (before + 3, before, 1):
        tokens = pieces(closes, replace(asked, thinking_budget=budget))
        left = max(0, budget - before)
        assert b"".join(tokens).startswith(b"".join(whole[:left]) + b"\n</think>")
    answered = replace(asked, prompt=(*ASKED, Message("assistant", f"{thought}</think>\nFour")))
    assert pieces(closes, replace(answered, thinking_budget=1)) == pieces(closes, answered)


STORY = (Message("user", "Tell me a story."),)


def test_stop_strings_count_after_a_budget(closes: Runtime) -> None:
    free = replace(request("ssd"), prompt=STORY, logit_bias=(), thinking_budget=20)
    whole = text_of(list(closes.generate(free)))
    thought, tag, answer = whole.partition("\n</think>")
    stop = next(letter for letter in answer.strip()[3:] if letter in thought)
    events = list(closes.generate(replace(free, stop=(stop, "</think>"))))
    said = answer.lstrip()
    blank = answer[: len(answer) - len(said)]
    assert text_of(events) == thought + tag + blank + said.partition(stop)[0]
    assert end_of(events).stop_string == stop


def test_calls_follow_their_grammar_after_a_budget_and_not_before(closes: Runtime) -> None:
    call = Grammar("lark", 'start: /[ ]?[xyz]{3}[0-9]/ "!" REST\nREST: /(.|\\n)*/')
    triggers = (Trigger(r"(?P<name>[aeiot])\b", tuple((letter, call) for letter in "aeiot")),)
    free = replace(request(), prompt=STORY, logit_bias=(), thinking_budget=20)

    def written(mode: Mode) -> str:
        asked = replace(free, triggers=triggers, settings=request(mode).settings)
        return text_of(list(closes.generate(asked)))

    (text,) = {written(mode) for mode in MODES}
    thought, tag, answer = text.partition("\n</think>")
    assert (thought, bool(tag)) == (text_of(list(closes.generate(free))).partition("\n</think>")[0], True)
    assert re.search(r"[aeiot] ?[xyz]{3}[0-9]!", answer)


def test_a_budget_gets_along_with_pauses(spells: Runtime) -> None:
    asked = replace(request("ssd", 60), thinking_budget=11, grammar=SCHEMA)
    whole = list(spells.generate(asked))
    events: list[GenerationEvent] = []
    running = spells.generate(asked)
    while not events or not isinstance(events[-1], Finished):
        event = next(running)
        if isinstance(event, Paused):
            list(spells.generate(request(max_tokens=3)))
            running = spells.resume(event.number)
            continue
        events.append(event)
        if isinstance(event, RoundDone):
            spells.pause()
    assert text_of(events) == text_of(whole)
    assert end_of(events).summary.thinking_tokens == end_of(whole).summary.thinking_tokens


def test_a_bare_text_has_no_budget(closes: Runtime) -> None:
    bare = replace(request(), prompt=closes.render(request()))
    assert pieces(closes, replace(bare, thinking_budget=2)) == pieces(closes, bare)


def test_after_a_budget_channels_go_on_with_the_answer(tmp_path: Path) -> None:
    opening = "<|channel|>analysis<|message|>"
    final = "<|end|><|start|>assistant<|channel|>final<|message|>"
    tool = json.dumps({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})
    with open_pair(*thinking_pair(tmp_path, opening)) as runtime:
        asked = replace(request("sd"), thinking_budget=5)
        text = opening + text_of(list(runtime.generate(asked)))
        thought, answer = split(text)
        assert (thought.kind, answer.kind) == ("thinking", "answer")
        assert text.count(final) == 1
        calling = text_of(list(runtime.generate(replace(asked, tools=(tool,), shows_control=True))))
        assert "<|end|><|start|>assistant" in calling
        assert final not in calling


def test_tags_that_are_control_tokens_are_shown_in_a_conversation(hides: Runtime) -> None:
    bias = ((OPENS, 16.0), (CLOSES, 12.0))
    asked = replace(request("sd"), logit_bias=bias)
    events = list(hides.generate(asked))
    text = text_of(events)
    assert text.startswith("[THINK]")
    assert text.count("[/THINK]") == 1
    thinking = end_of(events).summary.thinking_tokens
    assert 2 < thinking < end_of(events).summary.tokens
    events = list(hides.generate(replace(asked, prompt=hides.render(asked))))
    assert "THINK" not in text_of(events)
    assert end_of(events).summary.thinking_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("marks", "shown"),
    [
        (("<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"), 3),
        (("<|end|>", "<|inner_prefix|>"), 0),  # other models end their turn so
        (("<|channel>", "<channel|>", "<|turn>"), 2),
        (("[THINK]", "[/THINK]", "[INST]"), 2),
        (("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>"), 2),
        (("<think>", "<|eot|>"), 0),
    ],
)
def test_of_control_tokens_a_conversation_shows_the_tags_of_thinking_alone(
    tmp_path: Path, marks: tuple[str, ...], shown: int
) -> None:
    tokens = dict(enumerate(marks, CLOSES))
    target, _ = thinking_pair(tmp_path, "", tokens, gguf.TokenType.CONTROL)
    with closing(Model.open(ModelOptions(target, gpu_layers=0))) as model:
        texts = [LlamaDetokenizer(model.vocabulary, thinking=True).feed(token) for token in tokens]
        assert texts == [text if number < shown else "" for number, text in enumerate(marks)]
        hidden = model.vocabulary.control_tokens & tokens.keys()  # llama.cpp takes some of them for text
        assert not any(map(LlamaDetokenizer(model.vocabulary).feed, hidden))
