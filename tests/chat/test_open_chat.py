from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.messages import Attachment
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import Cancelled, UserError
from localspec.types.models import PlainRate
from localspec.types.request import Message
from tests.chat.talk import answer_again, ask, options, texts
from tests.scripted import ScriptedModels, says


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def chat(store: Store) -> OpenChat:
    return OpenChat(store, store.new_chat().id)


def reopened(chat: OpenChat, store: Store) -> OpenChat:
    return OpenChat(store, chat.info.id)


def test_a_chat_is_what_was_asked_and_answered(chat: OpenChat, store: Store) -> None:
    ask(chat, "one?", "1")
    ask(chat, "two?", "2")
    for seen in (chat, reopened(chat, store)):
        assert texts(seen.path) == ["one?", "1", "two?", "2"]
        assert seen.info.title == "one?"


def test_an_empty_question_is_rejected_unless_it_brings_a_file(chat: OpenChat) -> None:
    with pytest.raises(UserError):
        chat.ask(" \n")
    chat.ask("", [Attachment("a.txt", "A")])
    with pytest.raises(UserError):
        chat.edit(ask(chat, "one?", "1").parent or 0, "")
    assert chat.path[0].attachments == (Attachment("a.txt", "A"),)


def test_a_second_answer_is_a_branch_next_to_the_first(chat: OpenChat, store: Store) -> None:
    first = ask(chat, "one?", "1")
    second = answer_again(chat, "uno")
    assert texts(chat.path) == ["one?", "uno"]
    shown = chat.shown()[-1]
    assert (shown.branch, shown.branches) == (2, 2)
    chat.switch(second.id, -1)
    assert chat.shown_one(second.id) == shown
    for seen in (chat, reopened(chat, store)):
        assert seen.path[-1].id == first.id
        assert seen.shown()[-1].branch == 1


def test_walking_stops_at_the_first_and_the_last_branch(chat: OpenChat) -> None:
    first = ask(chat, "one?", "1")
    last = answer_again(chat, "uno")
    chat.switch(last.id, 1)
    assert chat.path[-1].id == last.id
    chat.switch(last.id, -5)
    chat.switch(first.id, -1)
    assert chat.path[-1].id == first.id
    ask(chat, "two?", "2")
    chat.back_to(first.id)
    chat.switch(first.id, -1)
    assert chat.path[-1].id == first.id


def test_a_branch_is_left_and_found_again_where_it_was(chat: OpenChat) -> None:
    ask(chat, "one?", "1")
    older = ask(chat, "two?", "2")
    answer_again(chat, "zwei")
    chat.switch(chat.path[-1].id, -1)
    question = chat.path[0]
    edited = chat.edit(question.id, "uno?")
    assert texts(chat.path) == ["uno?"]
    chat.switch(edited.id, -1)
    assert chat.path[-1].id == older.id


def test_a_branch_that_was_never_shown_opens_at_its_newest_end(chat: OpenChat, store: Store) -> None:
    ask(chat, "one?", "1")
    newest = answer_again(chat, "uno")
    edited = chat.edit(chat.path[0].id, "eins?")
    fresh = reopened(chat, store)
    fresh.switch(edited.id, -1)
    assert fresh.path[-1].id == newest.id


def test_an_edited_question_keeps_its_files(chat: OpenChat) -> None:
    question = chat.ask("what?", [Attachment("a.txt", "A")])
    assert chat.edit(question.id, "why?").attachments == question.attachments


def test_an_edited_answer_is_a_user_s_own(chat: OpenChat) -> None:
    answer = ask(chat, "one?", "1")
    edited = chat.edit(answer.id, "one!")
    assert texts(chat.path) == ["one?", "one!"]
    assert chat.record(edited.id) is None
    assert chat.record(answer.id) is not None


def test_going_back_keeps_what_followed_as_a_branch(chat: OpenChat) -> None:
    answer = ask(chat, "one?", "1")
    later = ask(chat, "two?", "2")
    chat.back_to(answer.id)
    assert texts(chat.path) == ["one?", "1"]
    other = chat.ask("three?")
    chat.switch(other.id, -1)
    assert chat.path[-1].id == later.id


def test_the_system_prompt_is_the_chat_s_own_or_else_the_profile_s(chat: OpenChat, store: Store) -> None:
    chat.ask("one?")
    chat = OpenChat(store, chat.info.id, lambda profile: f"Be {profile}.")
    assert chat.prompt()[0] == Message("system", "Be general.")
    for own, expected in (("Rhyme.", [Message("system", "Rhyme.")]), ("", [])):
        store.set_system(chat.info.id, own)
        chat.reload()
        assert list(chat.prompt()) == [*expected, Message("user", "one?")]


def test_what_is_left_out_is_shown_and_not_sent(chat: OpenChat, store: Store) -> None:
    answer = ask(chat, "one?", "1")
    ask(chat, "two?", "2")
    chat.leave_out([answer.id])
    for seen in (chat, reopened(chat, store)):
        assert texts(seen.path) == ["one?", "1", "two?", "2"]
        assert [message.dropped for message in seen.path] == [True, True, False, False]
        assert [message.content for message in seen.prompt()] == ["two?", "2"]
    chat.leave_out([])
    assert len(chat.prompt()) == 4


def test_a_measured_plain_rate_makes_the_ratio_of_an_answer(chat: OpenChat, store: Store) -> None:
    answer = ask(chat, "count", *(f"{number} " for number in range(40)))
    assert "(x" not in chat.shown()[-1].label
    saved = chat.set_plain(answer.id, PlainRate(30, 10.0))
    assert saved.record is not None
    assert saved.message.content == answer.content
    for seen in (chat, reopened(chat, store)):
        assert "× plain" in seen.shown()[-1].label
    with pytest.raises(UserError):
        chat.set_plain(chat.path[0].id, PlainRate(30, 10.0))


@pytest.mark.parametrize("act", ["edit", "switch", "back_to", "set_plain"])
def test_messages_that_are_not_there_are_rejected(chat: OpenChat, act: str) -> None:
    arguments = {"edit": "x", "switch": 1, "set_plain": PlainRate(1, 1.0)}
    with pytest.raises(UserError, match="no message 99"):
        getattr(chat, act)(99, *([arguments[act]] if act in arguments else []))


def test_an_answer_of_which_nothing_came_gives_way_to_the_one_before(chat: OpenChat, store: Store) -> None:
    ask(chat, "one?", "1")
    list(chat.answer(ScriptedModels(says(Cancelled("stopped"))), options()))
    for seen in (chat, reopened(chat, store)):
        assert texts(seen.path) == ["one?", "1"]


def test_a_branch_that_ends_in_a_question_continues_to_its_answer(chat: OpenChat, store: Store) -> None:
    first = ask(chat, "one?", "1")
    answer_again(chat, "uno")
    chat.switch(chat.path[-1].id, -1)
    chat.back_to(chat.path[0].id)
    assert texts(reopened(chat, store).path) == ["one?", "uno"]
    chat.show_answer()
    assert chat.path[-1].id == first.id
    chat.back_to(first.id)
    ask(chat, "two?")
    chat.back_to(first.id)
    chat.show_answer()
    assert chat.path[-1].id == first.id


def test_a_message_of_another_branch_can_be_gone_to(chat: OpenChat, store: Store) -> None:
    first = ask(chat, "one?", "1")
    ask(chat, "two?", "2")
    chat.edit(chat.path[0].id, "eins?")
    chat.go_to(first.id)
    assert texts(chat.path) == ["one?", "1", "two?", "2"]
    chat.go_to(first.id)  # it is shown: nothing moves
    chat.go_to(99)
    for seen in (chat, reopened(chat, store)):
        assert texts(seen.path) == ["one?", "1", "two?", "2"]


def test_reading_a_chat_again_keeps_the_branch_that_is_shown(chat: OpenChat, store: Store) -> None:
    ask(chat, "one?", "1")
    other = reopened(chat, store)  # of another program
    ask(other, "two?", "2")
    store.rename(chat.info.id, "Numbers")
    chat.reload()
    assert chat.info.title == "Numbers"
    assert texts(chat.path) == ["one?", "1"]


def test_an_empty_answer_that_something_follows_stays(chat: OpenChat, store: Store) -> None:
    number, question = chat.info.id, chat.ask("one?")
    empty = store.add(number, question.id, "assistant", "", state="stopped")
    store.add(number, empty.id, "user", "two?")
    assert texts(reopened(chat, store).path) == ["one?", "", "two?"]
