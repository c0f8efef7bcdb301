"""The models name a new chat after its first answer: when they are idle, and where it reads as a title."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answering import AnswerSaved, Titling
from localspec.chat.prompting import title_in
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.demo import bundled_pair
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime
from localspec.storage.profiles import profiles
from localspec.types.models import ModelOptions
from tests.scripted import Script, ScriptedModels, says

QUESTION = "Why is the sky blue, and not green?"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[ChatSession]:
    with Store(tmp_path / "chats.db") as store:
        session = ChatSession(store, profiles(Path("nowhere")).good, SessionRequest())
        session.titles = True
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
    at.titles = False
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
