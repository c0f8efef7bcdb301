"""Messages that are deleted with all below them, and restored; chats that begin with messages of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.messages import Attachment
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import KEPT_S, Store
from localspec.errors import StoreError, UserError
from tests.chat.sample_record import RECORD
from tests.chat.test_store import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Store:
    return Store(tmp_path / "chats.db", clock)


@pytest.fixture
def chat(store: Store) -> OpenChat:
    """Two exchanges, the second of which has two answers."""
    chat = OpenChat(store, store.new_chat().id)
    chat.ask("first question")
    chat.add(chat.tree.leaf, "assistant", "first answer")
    question = chat.ask("second question", [Attachment("notes.txt", "text")])
    for text in ("one answer", "another answer"):
        chat.write(chat.add(question.id, "assistant", "", state="writing").id, text, "complete", RECORD)
    return chat


def texts(chat: OpenChat) -> list[str]:
    return [message.content for message in chat.path]


def test_a_message_goes_with_all_below_it_and_comes_back(store: Store, chat: OpenChat) -> None:
    deleted = chat.delete(chat.path[2].id)
    assert deleted.count == 3
    assert texts(chat) == ["first question", "first answer"]
    again = OpenChat(store, chat.info.id)
    assert texts(again) == texts(chat)
    assert again.info.messages == 2
    assert store.deleted_messages() == deleted
    again.restore(deleted)
    assert texts(again) == ["first question", "first answer", "second question", "another answer"]
    assert again.path[2].attachments == (Attachment("notes.txt", "text"),)
    assert again.record(again.path[3].id) == RECORD
    assert store.deleted_messages() is None


def test_the_answer_beside_a_deleted_one_is_shown(chat: OpenChat) -> None:
    deleted = chat.delete(chat.path[-1].id)
    assert texts(chat)[-1] == "one answer"
    chat.delete(chat.path[-1].id)
    assert texts(chat)[-1] == "second question"
    chat.restore(deleted)
    assert texts(chat)[-1] == "another answer"


def test_another_branch_than_the_shown_one_is_deleted_without_moving(chat: OpenChat) -> None:
    other = chat.tree.siblings(chat.path[-1].id)[0]
    chat.delete(other)
    assert texts(chat)[-1] == "another answer"


def test_what_was_deleted_is_not_found_and_goes_for_good_after_a_while(
    store: Store, chat: OpenChat, tmp_path: Path, clock: Clock
) -> None:
    deleted = chat.delete(chat.path[0].id)
    assert chat.path == ()
    assert store.chats() == ()
    assert [hit.message for hit in store.search("question")] == []
    assert store.prompts() == ()
    store.close()
    clock.time += KEPT_S / 2
    with Store(tmp_path / "chats.db", clock) as opened:
        assert opened.deleted_messages() == deleted
    clock.time += KEPT_S
    with Store(tmp_path / "chats.db", clock) as opened:
        assert opened.deleted_messages() is None


def test_nothing_is_added_below_a_deleted_message(store: Store, chat: OpenChat) -> None:
    elsewhere = OpenChat(store, chat.info.id)
    chat.delete(chat.path[-1].id)
    with pytest.raises(StoreError, match="has no message"):
        elsewhere.ask("below it")


def test_a_fork_has_the_messages_up_to_one(store: Store, chat: OpenChat) -> None:
    store.pin(chat.info.id, True)
    forked = OpenChat(store, chat.fork(chat.path[-1].id).id)
    assert texts(forked) == texts(chat)
    assert forked.record(forked.path[-1].id) == RECORD
    assert forked.path[2].attachments == chat.path[2].attachments
    assert (forked.info.title, forked.info.pinned) == ("first question (fork)", False)
    shorter = OpenChat(store, chat.fork(chat.path[1].id).id)
    shorter.ask("another way")
    assert texts(shorter) == ["first question", "first answer", "another way"]
    assert texts(chat)[-1] == "another answer"


def test_an_answer_that_is_being_written_is_not_forked(chat: OpenChat) -> None:
    number = chat.add(chat.path[2].id, "assistant", "half", state="writing").id
    with pytest.raises(UserError, match="still being written"):
        chat.fork(number)
