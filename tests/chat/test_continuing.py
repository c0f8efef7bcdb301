from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from localspec.chat.answering import AnswerSaved
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import Cancelled, ContextFullError, EngineDied, UserError
from localspec.types.request import Message
from tests.chat.talk import answer_again, ask, kept, options
from tests.scripted import ScriptedModels, Step, says


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def chat(store: Store) -> OpenChat:
    chat = OpenChat(store, store.new_chat().id)
    chat.ask("one?")
    return chat


def continued(chat: OpenChat, *steps: Step, message: int | None = None) -> tuple[ScriptedModels, AnswerSaved]:
    models = ScriptedModels(says(*steps))
    *_, saved = chat.answer(models, options("sd"), continues=message or chat.path[-1].id)
    assert isinstance(saved, AnswerSaved)
    return models, saved


def test_a_stopped_answer_continues_where_it_ended(chat: OpenChat, store: Store) -> None:
    list(chat.answer(ScriptedModels(says("one two", reason="length")), options("ssd")))
    first = chat.record(chat.path[-1].id)
    models, saved = continued(chat, " three four")
    assert models.requests[0].prompt[-1] == Message("assistant", "one two")
    assert kept(chat, store) == ("one two three four", "complete")
    assert len(chat.path) == 2
    assert first is not None
    assert saved.record is not None
    assert sum(span.length for span in saved.record.spans) == len("one two three four")
    assert saved.record.spans[: len(first.spans) - 1] == first.spans[:-1]
    assert saved.record.summary.tokens == 2
    assert saved.record.mode == "sd"


def test_an_answer_that_a_user_edited_continues(chat: OpenChat) -> None:
    answer = answer_again(chat, "one two")
    chat.edit(answer.id, "uno ")
    _, saved = continued(chat, "due")
    assert saved.message.content == "uno due"
    assert saved.record is not None
    assert sum(span.length for span in saved.record.spans) == len("uno due")


@pytest.mark.parametrize("steps", [(ContextFullError("full"),), (Cancelled(),)])
def test_a_continuation_of_which_nothing_came_changes_nothing(
    chat: OpenChat, store: Store, steps: tuple[Step, ...]
) -> None:
    list(chat.answer(ScriptedModels(says("one two", reason="length")), options()))
    before = chat.record(chat.path[-1].id)
    with suppress(ContextFullError):
        continued(chat, *steps)
    assert kept(chat, store) == ("one two", "length")
    assert chat.record(chat.path[-1].id) == before


def test_only_answers_continue(chat: OpenChat) -> None:
    ask(chat, "two?", "2")
    with pytest.raises(UserError, match="only an answer"):
        continued(chat, "more", message=chat.path[0].id)


def test_an_answer_that_failed_continues(chat: OpenChat, store: Store) -> None:
    with pytest.raises(EngineDied):
        list(chat.answer(ScriptedModels(says("one ", EngineDied("gone"))), options()))
    continued(chat, "two")
    assert kept(chat, store) == ("one two", "complete")


def test_a_failed_continuation_keeps_both_parts(chat: OpenChat, store: Store) -> None:
    answer_again(chat, "one ")
    with pytest.raises(EngineDied):
        continued(chat, "two ", EngineDied("gone"))
    assert kept(chat, store) == ("one two ", "failed")


def test_an_answer_off_the_shown_branch_continues(chat: OpenChat) -> None:
    first = answer_again(chat, "one ")
    answer_again(chat, "other")
    models, saved = continued(chat, "two", message=first.id)
    assert saved.message.content == "one two"
    assert models.requests[0].prompt == (Message("user", "one?"), Message("assistant", "one "))
    assert chat.path[-1].content == "other"


def test_an_answer_that_continues_keeps_its_own_thinking(chat: OpenChat) -> None:
    answer_again(chat, "<think>\nhm\n</think>\n\none ")
    models, _ = continued(chat, "two")
    assert models.requests[0].prompt[-1] == Message("assistant", "<think>\nhm\n</think>\n\none ")
    assert chat.prompt()[-1].content == "one two"
