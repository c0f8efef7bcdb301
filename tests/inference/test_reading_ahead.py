"""Reading ahead: only the wait for the first token changes, whenever the reading is ended."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.reading_ahead import whole_words
from localspec.decoding.prefixes import common_prefix
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.types.events import ReadAhead
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Grammar, Message, Mode, Request
from tests import made_models
from tests.inference.runtimes import LONG_STORY, MODES, QUESTION, answer, greedy, open_pair

TEMPLATES = Path(__file__).parents[1] / "llama" / "templates"
PIECES = [
    "word",
    " ",
    "\n",
    "\n\n",
    "don't",
    "\u00fcber",
    "\u4f60\u597d",
    "<",
    "|>",
    ".",
    "```",
    "\t",
    "17",
    "(x)",
]
NOTHING_TYPED = Message("user", "")
SYSTEM = Message("system", LONG_STORY[:600])
FILE = f"File notes.txt:\n```\n{LONG_STORY[:1200]}\n```\n\n"
SETTINGS = {mode: EngineSettings(mode=mode, draft_length=4, min_confidence=0.2) for mode in MODES}


def read(runtime: Runtime, request: Request, chunks: int | None = None) -> list[ReadAhead]:
    """Read ahead, to the end or for some chunks."""
    found = []
    with closing(runtime.read_now(request, lambda: True)) as events:
        for event in events:
            found.append(event)
            if len(found) == chunks:
                break
    return found


@pytest.fixture(scope="module")
def pair(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


@pytest.fixture(scope="module")
def eagle(demo_target_q8: Path, made_eagle3: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, made_eagle3) as opened:
        yield opened


@pytest.fixture(scope="module")
def hybrid(made_hybrid: Path) -> Iterator[Runtime]:
    with open_pair(made_hybrid, made_hybrid) as opened:
        yield opened


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(
        made_models.windowed(tmp_path_factory.mktemp("w") / "windowed.gguf"), demo_draft
    ) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("opened", ["pair", "eagle", "hybrid", "windowed"])
def test_greedy_text_is_the_same_whenever_reading_ends(
    opened: str, mode: Mode, request: pytest.FixtureRequest
) -> None:
    runtime: Runtime = request.getfixturevalue(opened)
    question = (SYSTEM, Message("user", f"{FILE}What is this about? Say it in one sentence."))
    asked = greedy(SETTINGS[mode], question, 24)
    expected, first = answer(runtime, replace(asked, reuses_cache=False))
    _, second = question
    begun = replace(asked, prompt=(SYSTEM, replace(second, content=f"{FILE}What is this")))
    for chunks in (1, 2, 5, None):
        runtime._engine.forget()
        progress = read(runtime, begun, chunks)
        assert [event.tokens for event in progress] == sorted(event.tokens for event in progress)
        found, end = answer(runtime, asked)
        assert found == expected
        assert end.summary.prompt_tokens == first.summary.prompt_tokens
    assert end.summary.cached_tokens >= progress[-1].total - 2 * 16  # a state's way back is in steps
    assert progress[-1].tokens == progress[-1].total > 0.8 * end.summary.prompt_tokens


@pytest.mark.slow
@pytest.mark.parametrize("opened", ["pair", "eagle", "hybrid", "windowed"])
@pytest.mark.parametrize("mode", ["off", "sd", "ssd"])
def test_what_was_read_of_a_question_that_changes_costs_nothing_before_it(
    opened: str, mode: Mode, request: pytest.FixtureRequest
) -> None:
    runtime: Runtime = request.getfixturevalue(opened)
    asked = greedy(SETTINGS[mode], (SYSTEM, *QUESTION), 16)
    expected, _ = answer(runtime, replace(asked, reuses_cache=False))
    runtime._engine.forget()
    before = read(runtime, replace(asked, prompt=(SYSTEM, NOTHING_TYPED)))[-1].total
    for typed in (FILE, LONG_STORY[:300]):
        read(runtime, replace(asked, prompt=(SYSTEM, Message("user", typed))))
    found, end = answer(runtime, asked)
    assert found == expected
    assert end.summary.cached_tokens >= before - 2 * 16


@pytest.mark.slow
@pytest.mark.parametrize("opened", ["pair", "hybrid", "windowed"])
@pytest.mark.parametrize("answered", [10, 60, 200])
def test_a_question_that_changes_is_no_slower_than_without_reading_ahead(
    opened: str, answered: int, request: pytest.FixtureRequest
) -> None:
    engine = request.getfixturevalue(opened)._engine
    state = engine.drafters.state
    assert state is not None

    def numbers(count: int, step: int) -> list[int]:
        return [step * number % 250 + 7 for number in range(count)]

    first = numbers(600, 11)
    spoken = [*first, *numbers(answered, 13)]
    begun = [*spoken, *numbers(5, 17)]  # as a template goes on after an answer
    engine.forget()
    list(engine.decoder._read(first))
    engine._settled, engine._is_unsent = len(first), False
    for token in spoken[len(first) :]:
        engine.decoder._evaluate([token], 1)
    for typed in ([], numbers(800, 19), numbers(100, 23)):
        list(engine.read_ahead([*begun, *typed], len(begun), 64, drafts=True))
    asked = [*begun, *numbers(30, 29)]
    list(engine.decoder._read(asked))
    assert engine.decoder.reused >= len(spoken)
    assert state.model.rewindable(common_prefix(state.cached_tokens(), asked)) >= len(spoken)


@pytest.mark.slow
def test_an_answer_is_read_as_the_next_turn_shows_it(pair: Runtime) -> None:
    asked = greedy(SETTINGS["sd"], QUESTION, 32)
    text, _ = answer(pair, asked)
    spoken = (*QUESTION, Message("assistant", text))
    progress = read(pair, replace(asked, prompt=(*spoken, NOTHING_TYPED)))[-1]
    later = replace(asked, prompt=(*spoken, Message("user", "Thanks. And for even numbers?")))
    _, end = answer(pair, later)
    assert end.summary.cached_tokens == progress.total


@pytest.mark.slow
def test_the_draft_model_has_read_it_too(pair: Runtime) -> None:
    asked = greedy(SETTINGS["sd"], (SYSTEM, Message("user", FILE)), 8)
    pair._engine.forget()
    total = read(pair, asked)[-1].total
    assert pair._engine.drafters.state is not None
    assert len(pair._engine.drafters.state.cached_tokens()) == total
    pair._engine.forget()
    read(pair, replace(asked, settings=SETTINGS["off"]))
    assert not pair._engine.drafters.state.cached_tokens()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "Tell me", "caf\u00e9 \U0001f600 ", "def f(x):\n    return", "a" * 50])
def test_what_is_read_begins_every_prompt_that_continues_it(pair: Runtime, text: str) -> None:
    earlier = (SYSTEM, *QUESTION, Message("assistant", "Yes."))
    asked = greedy(prompt=(*earlier, Message("user", text)))
    read_tokens, settled = pair._common_beginning(asked)
    base = pair.encode((*earlier, NOTHING_TYPED))
    assert len(base) - 16 < settled <= len(base)
    for more in (" more", "\nmore", " 17", " \U0001f600"):
        whole = pair.encode((*earlier, Message("user", text + more)))
        assert whole[: len(read_tokens)] == read_tokens
        assert len(read_tokens) > len(base) - 16


@pytest.mark.slow
@pytest.mark.parametrize("template", ["last_system", "llama2", "mistral", "thinks"])
def test_under_every_template_all_but_a_token_or_two_of_what_is_read_stays(
    demo_target: Path, template: str
) -> None:
    options = ModelOptions(demo_target, context=2048, chat_template=TEMPLATES / f"{template}.jinja")
    source, earlier = random.Random(5), (Message("user", "Hi"), Message("assistant", "Yes."))
    with Runtime.open(OpenPlan(options)) as runtime:
        for _ in range(40):
            typed, later = ("".join(source.choices(PIECES, k=count)) for count in (14, 4))
            begun = whole_words(typed)
            found, settled = runtime._common_beginning(greedy(prompt=(*earlier, Message("user", begun))))
            whole = runtime.encode((*earlier, Message("user", typed + later)))
            assert 0 < settled <= len(found)
            assert common_prefix(found, whole) >= len(found) - 2


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "is_read"), [(0, False), (2**30, True)])
def test_another_conversation_never_loses_its_cache(
    demo_target_q8: Path, demo_draft: Path, limit: int, *, is_read: bool
) -> None:
    with open_pair(demo_target_q8, demo_draft) as runtime:
        runtime.keep_conversations(limit)
        first = greedy(SETTINGS["off"], (SYSTEM, *QUESTION), 8)
        other = greedy(SETTINGS["off"], (Message("user", FILE),), 8)
        answer(runtime, first)
        assert bool(read(runtime, other)) is is_read
        _, end = answer(runtime, first)
        assert end.summary.cached_tokens == end.summary.prompt_tokens - 1


@pytest.mark.slow
def test_a_grammar_holds_after_reading_ahead(pair: Runtime) -> None:
    schema = Grammar("json_schema", '{"type": "object", "properties": {"n": {"type": "integer"}}}')
    asked = replace(greedy(SETTINGS["ssd"], (SYSTEM, *QUESTION), 24), grammar=schema)
    expected, _ = answer(pair, replace(asked, reuses_cache=False))
    pair._engine.forget()
    read(pair, asked)
    assert answer(pair, asked)[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize("call", [0, 3, 8])
@pytest.mark.parametrize("side", ["target", "draft"])
@pytest.mark.parametrize("opened", ["pair", "eagle", "hybrid", "windowed"])
def test_greedy_text_is_the_same_after_a_native_call_was_stopped(
    opened: str, side: str, call: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime: Runtime = request.getfixturevalue(opened)
    asked = greedy(SETTINGS["sd"], (SYSTEM, Message("user", FILE)), 16)
    expected, _ = answer(runtime, replace(asked, reuses_cache=False))
    runtime._engine.forget()
    whole = read(runtime, asked)[-1].total
    runtime._engine.forget()
    context = getattr(runtime._contexts, side)
    decode: Callable[..., int] = context._decode
    calls = 0

    def stopping(*arguments: object) -> int:
        nonlocal calls
        calls += 1
        if calls == call + 1:  # now that nothing in Python can notice it
            runtime.cancel()
        return decode(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(context, "_decode", stopping)
        read(runtime, asked)
    assert calls == call + 1
    if side == "target":
        assert runtime._contexts.target.length() < whole
    found, end = answer(runtime, asked)
    assert found == expected
    assert end.reason == "length"


@pytest.mark.slow
def test_a_cancel_ends_it_without_an_error_and_what_is_read_stays(pair: Runtime) -> None:
    asked = greedy(SETTINGS["off"], (SYSTEM, Message("user", FILE)), 8)
    pair._engine.forget()
    found = []
    for event in pair.read_now(asked, lambda: True):
        found.append(event)
        pair.cancel()
    assert len(found) == 1
    _, end = answer(pair, asked)
    assert end.summary.cached_tokens == found[0].tokens


def test_a_conversation_without_messages_is_read_as_it_is(pair: Runtime) -> None:
    pair._engine.forget()
    assert read(pair, greedy(prompt=()))[-1].total == len(pair.encode(()))


def test_nothing_is_read_once_it_is_not_wanted(pair: Runtime) -> None:
    pair._engine.forget()
    assert list(pair.read_now(greedy(), lambda: False)) == []
    assert pair._contexts.target.length() == 0
