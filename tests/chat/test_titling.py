"""The models name a new chat after its first answer: when they are idle, and where it reads as a title."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answering import AnswerSaved, Titling
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.chat.titling import title_grammar, title_in, titles_from
from localspec.demo import bundled_pair
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.storage.profiles import profiles
from localspec.types.events import FinishReason
from localspec.types.models import ModelOptions
from localspec.types.request import Request
from tests.scripted import Script, ScriptedModels, says

QUESTION = "Why is the sky blue, and not green?"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[ChatSession]:
    with Store(tmp_path / "chats.db") as store:
        session = ChatSession(store, profiles(Path("nowhere")).good, SessionRequest())
        session.shared.titles = True
        yield session


def answered(at: ChatSession, *scripts: Script) -> ScriptedModels:
    models = ScriptedModels(*scripts)
    at.chat.ask(QUESTION)
    list(at.answer(models))
    return models


def test_first_answer_names_the_chat_and_the_second_does_not(at: ChatSession) -> None:
    models = answered(at, says("Light is scattered."), says("The blue ", "sky"), says("more"))
    assert at.chat.info.title == at.store.chats()[0].title == "The blue sky"
    first, title = models.requests
    assert title.prompt[: len(first.prompt) + 1] == at.chat.prompt()  # so that the caches stay as they are
    assert title.settings.mode == "off"
    at.chat.ask("And red?")
    list(at.answer(models))
    assert len(models.requests) == 3


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (says("The sky the sky"), "repeats"),
        (says("It is The FI."), "says nothing"),
        (says("Cooking with cheese"), "is about something else"),
        (says("Why the sky is blue and green and wide"), "is long"),
        (says("..."), "has no letters"),
        (says("<think>The blue sky"), "is thinking"),
        (says("I see the sky,"), "is half a sentence"),
        (says(""), "is empty"),
        (says("The blue sky and", reason="length"), "is cut off"),
        (says("The blue", reason="cancelled"), "is cut short"),
    ],
)
def test_chat_keeps_its_first_words_where_the_title_looks_wrong(
    at: ChatSession, script: Script, reason: str
) -> None:
    answered(at, says("Light."), script)
    assert at.chat.info.title == QUESTION, reason


def test_models_that_write_no_title_choose_one_from_the_question(at: ChatSession) -> None:
    models = answered(at, says("Light."), says("I am not sure,"), says("Sky blue"))
    assert at.chat.info.title == "Sky blue"
    written, chosen = models.requests[1:]
    assert (written.grammar, chosen.prompt) == (None, written.prompt)
    assert chosen.grammar == title_grammar(("Sky blue",))
    assert chosen.sampling.temperature == 0


def test_nothing_else_is_taken_for_a_choice(at: ChatSession) -> None:
    answered(at, says("Light."), says(""), says("Green cheese"))
    assert at.chat.info.title == QUESTION


@pytest.mark.parametrize("reason", ["length", "circles"])
def test_answers_that_are_cut_off_have_a_title_too(at: ChatSession, reason: FinishReason) -> None:
    answered(at, says("Light is", reason=reason), says("The blue sky"))
    assert at.chat.info.title == "The blue sky"


@pytest.mark.parametrize(
    ("question", "some", "others"),
    [
        (
            "Write a Python function that removes duplicates from a list.",
            {"Python function", "Removes duplicates from a list"},
            {"A Python function", "Function that", "List"},
        ),
        ("What is the difference between TCP and UDP?", {"TCP and UDP"}, {"TCP and"}),
        ("How do I parse config.toml, and why?", {"Parse config.toml"}, set()),
        ("Explain `git rebase` (briefly)", {"Git rebase"}, {"Git rebase briefly"}),
        ("Warum ist der Himmel blau?", {"Himmel blau"}, set()),
        ("Photosynthesis?", {"Photosynthesis"}, set()),
        ("为什么天空是蓝色的？", {"为什么天空是蓝色的"}, set()),
    ],
)
def test_titles_in_a_question_are_whole_phrases(question: str, some: set[str], others: set[str]) -> None:
    found = titles_from(question)
    assert some <= {*found}
    assert not others & {*found}
    assert all(len(title) <= 48 and len(title.split()) <= 6 for title in found)


def test_a_long_question_is_looked_at_to_some_length_only() -> None:
    assert titles_from("???") == ()
    assert len(titles_from("word " * 100_000)) == 5  # of two to six words
    assert len(titles_from(" ".join(f"w{number}" for number in range(10_000)))) < 250


@pytest.mark.slow
def test_bundled_pair_finds_a_title_that_is_of_the_question(at: ChatSession) -> None:
    target, draft = bundled_pair()
    at.shared.request = replace(at.shared.request, answer=Request("", max_tokens=24, seed=1))
    questions = (
        "My sourdough starter smells like nail polish remover. What should I do?",
        "Explain how a heat pump can warm a house when it is freezing outside.",
        "How do I undo the last commit in git but keep the changes?",
    )
    with Runtime.open(OpenPlan(ModelOptions(target), ModelOptions(draft))) as pair:
        for question in questions:
            at.new()
            at.chat.ask(question)
            list(at.answer(pair))
            assert at.chat.info.title in titles_from(question)


def test_nobody_is_asked_where_a_title_is_not_wanted(at: ChatSession) -> None:
    at.queue.append("waits")
    assert len(answered(at, says("Light.")).requests) == 1
    at.queue.clear()
    at.new()
    assert len(answered(at, says("Li", reason="cancelled")).requests) == 1
    at.new()
    at.store.rename(at.chat.info.id, "mine")
    assert len(answered(at, says("Light.")).requests) == 1
    at.new()
    at.shared.titles = False
    assert len(answered(at, says("Light.")).requests) == 1


def test_title_that_a_user_gives_meanwhile_stays(at: ChatSession) -> None:
    at.chat.ask(QUESTION)
    for event in at.answer(ScriptedModels(says("Light."), says("The blue sky"))):
        if isinstance(event, Titling):
            at.store.rename(at.chat.info.id, "mine")
    at.chat.reload()
    assert at.chat.info.title == "mine"


def test_markdown_and_quotes_are_taken_off() -> None:
    assert title_in(" **The blue sky.**\n", QUESTION) == "The blue sky"
    assert title_in("<think></think>The blue sky", QUESTION) == "The blue sky"
    assert title_in("“Der blaue Himmel”", "Warum ist der Himmel blau?") == "Der blaue Himmel"


def test_next_question_finds_everything_in_the_cache(at: ChatSession) -> None:
    target, draft = bundled_pair()
    with Runtime.open(OpenPlan(ModelOptions(target), ModelOptions(draft))) as pair:
        at.chat.ask(QUESTION)
        assert any(isinstance(event, Titling) for event in at.answer(pair))
        read = pair.count_tokens(at.chat.prompt())
        at.chat.ask("And at night?")
        saved = [event for event in at.answer(pair) if isinstance(event, AnswerSaved)]
    assert saved[-1].record is not None
    assert saved[-1].record.summary.cached_tokens >= read - 8  # but for how the next answer begins
