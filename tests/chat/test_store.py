"""Chats and messages; `test_store_files.py` breaks the file, `test_store_search.py` searches."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.messages import Attachment, ChatSettings
from localspec.chat.store import KEPT_S, Store
from localspec.errors import StoreError, UserError
from tests.chat.sample_record import RECORD


class Clock:
    """Tells the time that a test wants; every look costs a second."""

    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        self.time += 1
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def store(file: Path, clock: Clock) -> Iterator[Store]:
    with Store(file, clock) as opened:
        yield opened


def say(store: Store, text: str, chat: int | None = None) -> int:
    number = store.new_chat().id if chat is None else chat
    store.add(number, None, "user", text)
    return number


def titles(store: Store) -> list[str]:
    return [chat.title for chat in store.chats()]


def test_a_chat_is_listed_once_something_was_said(store: Store) -> None:
    chat = store.new_chat(profile="coding", system="Be brief.")
    assert store.chats() == ()
    assert store.chat(chat.id) == chat
    store.add(chat.id, None, "user", "Hello there")
    (listed,) = store.chats()
    assert (listed.title, listed.messages, listed.profile) == ("Hello there", 1, "coding")
    assert listed.system == "Be brief."
    assert listed.updated > listed.created


def test_the_tree_of_a_chat(store: Store) -> None:
    chat = store.new_chat().id
    question = store.add(chat, None, "user", "Q", attachments=[Attachment("a.py", "1"), Attachment("b", "2")])
    one = store.add(chat, question.id, "assistant", "A")
    other = store.add(chat, question.id, "assistant", "B", state="length")
    assert store.messages(chat) == (question, one, other)
    assert question.attachments == (Attachment("a.py", "1"), Attachment("b", "2"))
    assert (one.parent, other.parent, other.state) == (question.id, question.id, "length")
    assert store.chat(chat).leaf == other.id
    store.set_leaf(chat, one.id)
    store.set_dropped([question.id, one.id], dropped=True)
    store.set_dropped([one.id], dropped=False)
    assert store.chat(chat).leaf == one.id
    assert [message.dropped for message in store.messages(chat)] == [True, False, False]
    store.set_leaf(chat, None)
    assert store.chat(chat).leaf is None


def test_parents_and_leaves_belong_to_the_chat(store: Store) -> None:
    chat, other = store.new_chat().id, store.new_chat().id
    stranger = store.add(other, None, "user", "Q").id
    with pytest.raises(StoreError, match=f"chat {chat} has no message {stranger}"):
        store.add(chat, stranger, "assistant", "A")
    with pytest.raises(StoreError, match="has no message"):
        store.set_leaf(chat, stranger)
    assert store.messages(chat) == ()


def test_an_answer_is_saved_as_it_is_written(store: Store) -> None:
    chat = say(store, "Q")
    answer = store.add(chat, None, "assistant", "", state="writing")
    begun = store.chat(chat).updated
    store.write(answer.id, "Hel", "writing")
    assert store.chat(chat).updated == begun  # the list of chats does not change twice a second
    assert store.messages(chat)[1] == replace(answer, content="Hel")
    assert store.record(answer.id) is None
    before = store.chat(chat).updated
    store.write(answer.id, "Hello", "complete", RECORD)
    assert store.messages(chat)[1] == replace(answer, content="Hello", state="complete")
    assert store.record(answer.id) == RECORD
    assert store.outlines(chat) == {answer.id: replace(RECORD, rounds=())}
    assert store.chat(chat).updated > before
    store.write(answer.id, "Hello!", "stopped", replace(RECORD, seed=1))
    assert store.record(answer.id) == replace(RECORD, seed=1)
    with pytest.raises(StoreError, match="message 99 is gone"):
        store.write(99, "", "complete")


@pytest.mark.parametrize("back", [False, True])
def test_an_answer_whose_program_died_was_stopped(store: Store, file: Path, clock: Clock, back: bool) -> None:
    chat = say(store, "Q")
    answer = store.add(chat, None, "assistant", "Half a", state="writing").id
    with Store(file, clock) as other:
        assert other.messages(chat)[1].state == "writing"  # someone may still be at it
        clock.time += -3600 if back else 60
        assert other.messages(chat)[1].state == "stopped"
        assert [hit.message for hit in other.search("half")] == [answer]
    store.write(answer, "Half a loaf", "writing")  # it was alive after all, waiting for its first word
    assert store.messages(chat)[1].state == "writing"
    assert store.search("half") == ()


def test_an_answer_of_this_program_may_take_its_time(store: Store, clock: Clock) -> None:
    chat = say(store, "Q")
    store.add(chat, None, "assistant", "", state="writing")
    clock.time += 3600
    assert store.messages(chat)[1].state == "writing"


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("\n\n  Why   is\tthe sky blue?\nSecond line", "Why is the sky blue?"),
        ("## A heading", "A heading"),
        ("bell \x07 and \x1b[31mred", "bell and [31mred"),
        ("word " * 30, "word " * 10 + "word…"),
        ("字" * 80, "字" * 59 + "…"),
        ("---", "---"),
    ],
)
def test_the_first_prompt_gives_the_title(store: Store, prompt: str, title: str) -> None:
    chat = say(store, prompt)
    say(store, "something else", chat)
    assert titles(store) == [title]


def test_a_prompt_of_files_alone_takes_their_name(store: Store) -> None:
    chat = store.new_chat().id
    store.add(chat, None, "user", "", attachments=[Attachment("notes.txt", "...")])
    assert titles(store) == ["notes.txt"]


def test_titles_that_were_given_stay(store: Store) -> None:
    chat = store.new_chat("Chosen\nearly").id
    say(store, "First prompt", chat)
    assert titles(store) == ["Chosen early"]
    store.rename(chat, " Chosen later ")
    assert titles(store) == ["Chosen later"]
    store.rename(chat, " ")
    assert titles(store) == ["First prompt"]


def test_pinned_chats_come_first_and_then_the_newest(store: Store) -> None:
    first, second, third = (say(store, text) for text in ("one", "two", "three"))
    store.pin(second, True)
    store.add(first, None, "user", "again")
    assert [chat.id for chat in store.chats()] == [second, first, third]
    assert store.chats()[0].pinned
    store.pin(second, False)
    store.rename(third, "renaming is not news")
    assert [chat.id for chat in store.chats()] == [first, third, second]


def test_profile_and_system_prompt(store: Store) -> None:
    chat = say(store, "Q")
    store.set_profile(chat, "writing")
    store.set_system(chat, "")
    assert (store.chat(chat).profile, store.chat(chat).system) == ("writing", "")
    store.set_system(chat, None)
    assert store.chat(chat).system is None


def test_settings_of_a_chat_come_back_without_what_makes_no_sense(store: Store, file: Path) -> None:
    chat = store.new_chat().id
    assert store.chat(chat).settings == ChatSettings()
    store.set_settings(chat, ChatSettings(mode="sd", temperature=0.0, thinking=False))
    assert store.chat(chat).settings == ChatSettings(mode="sd", temperature=0.0, thinking=False)
    for stored, read in (
        ("nonsense", ChatSettings()),
        ('{"mode": "magic"}', ChatSettings()),
        ('{"temperature": 999, "top_p": 0.5}', ChatSettings()),
        ('{"top_p": 0.5, "unheard": 1}', ChatSettings(top_p=0.5)),
    ):
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE chats SET settings = ?", (stored,))
        assert store.chat(chat).settings == read


def test_deleting_can_be_undone(store: Store) -> None:
    chat = say(store, "Q")
    store.remember_chat(chat)
    store.delete(chat)
    assert (store.chats(), store.prompts(), store.last_chat()) == ((), (), None)
    assert [gone.id for gone in store.deleted()] == [chat]
    with pytest.raises(UserError, match=f"was deleted; `localspec history restore {chat}` restores it"):
        store.messages(chat)
    store.restore(chat)
    assert (titles(store), store.last_chat(), store.deleted()) == (["Q"], chat, ())


@pytest.mark.slow
def test_chats_deleted_long_ago_are_gone(file: Path, clock: Clock) -> None:
    with Store(file, clock) as store:
        chat, kept = say(store, "goodbye"), say(store, "welcome")
        parent = None
        for i in range(1500):  # deeper than SQLite follows references
            parent = store.add(chat, parent, "user" if i % 2 else "assistant", f"goodbye {i}").id
        store.write(store.add(chat, parent, "assistant", "").id, "goodbye", "complete", RECORD)
        store.delete(chat)
        store.delete(kept)
        clock.time += KEPT_S / 2
        store.delete(chat)  # a second time changes nothing
        store.restore(kept)
    clock.time += KEPT_S / 2 + 60
    with Store(file, clock) as store:
        assert (store.deleted(), titles(store)) == ((), ["welcome"])
        store.restore(kept)
        with pytest.raises(UserError, match="there is no chat"):
            store.restore(chat)
        with store._database.reading() as connection:
            for table in ("attachments", "records", "message_index WHERE message_index MATCH 'goodbye'"):
                assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


def test_empty_chats_leave_nothing_after(file: Path, clock: Clock) -> None:
    with Store(file, clock) as store:
        empty, used = store.new_chat("empty").id, store.new_chat("used").id
        store.remember_chat(empty)
        say(store, "Q", used)
    with Store(file, clock) as store:
        assert (titles(store), store.last_chat()) == (["used"], None)
        with pytest.raises(UserError):
            store.chat(empty)


@pytest.mark.parametrize(
    "action",
    [
        lambda store: store.chat(7),
        lambda store: store.messages(7),
        lambda store: store.add(7, None, "user", "Q"),
        lambda store: store.rename(7, "T"),
        lambda store: store.rename(7, ""),
        lambda store: store.pin(7, True),
        lambda store: store.delete(7),
        lambda store: store.restore(7),
        lambda store: store.set_leaf(7, None),
        lambda store: store.remember_chat(7),
    ],
)
def test_a_chat_that_is_not_there(store: Store, action: Callable[[Store], object]) -> None:
    with pytest.raises(UserError, match="there is no chat 7; `localspec history` lists"):
        action(store)


def test_earlier_prompts_are_different_and_the_newest_comes_first(store: Store) -> None:
    chat = say(store, "one")
    for text in ("two", " ", "one", "three"):
        say(store, text, chat)
    store.add(chat, None, "assistant", "an answer")
    assert store.prompts() == ("three", "one", "two")
    assert store.prompts(limit=2) == ("three", "one")


def test_where_the_user_left(store: Store, file: Path) -> None:
    assert store.last_chat() is None
    chat = say(store, "Q")
    store.remember_chat(chat)
    with Store(file) as other:
        assert other.last_chat() == chat
    store.remember_chat(None)
    assert store.last_chat() is None


def test_texts_come_back_as_they_were(store: Store) -> None:
    text = "zero \0 byte, \u2028, \r\n, 日本, 😀, e\u0301"
    chat = say(store, text)
    assert store.messages(chat)[0].content == text
    assert store.add(chat, None, "user", "half \ud83d, whole \ud83d\ude00").content == "half \ufffd, whole 😀"


def test_threads_share_a_store(store: Store) -> None:
    chats = [say(store, f"chat {i}") for i in range(4)]

    def work(chat: int) -> None:
        for i in range(25):
            store.write(store.add(chat, None, "assistant", "", state="writing").id, f"word {i}", "complete")
            store.search("word")

    threads = [threading.Thread(target=work, args=(chat,)) for chat in chats]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(store.messages(chat)) for chat in chats] == [26] * 4
    assert len(store.search("word", limit=200)) == 100
