"""Tags and folders: which chats they find, in the list, in a search and in the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.chat.chat_filter import completed, narrow, tags_of
from localspec.chat.export import chat_text, parse_all
from localspec.chat.messages import ChatInfo
from localspec.chat.store import Store
from localspec.chat.tree import Tree


def chat(number: int, title: str, folder: str = "") -> ChatInfo:
    return ChatInfo(number, title, 0.0, 0.0, messages=1, folder=folder)


CHATS = (
    chat(1, "#work #otter plans", "Book club"),
    chat(2, "#workshop tools", "Book"),
    chat(3, "#Work notes, see #39"),
    chat(4, "nothing", "Ärger"),
)


@pytest.mark.parametrize(
    ("title", "tags"),
    [
        ("#work a question", ["work"]),
        ("fix issue #39, C# and a#b ##x #", []),
        ("#c++ and #日本, #a-1 #a-1", ["c++", "日本", "a-1"]),
    ],
)
def test_a_tag_is_a_word_with_a_letter(title: str, tags: list[str]) -> None:
    assert list(tags_of(title)) == tags


@pytest.mark.parametrize(
    ("text", "found", "words"),
    [
        ("", [1, 2, 3, 4], ""),
        ("plans", [1, 2, 3, 4], "plans"),
        ("#wo", [1, 2, 3], ""),  # still being typed
        ("#WORK ", [1, 3], " "),
        ("#work #otter", [1], " "),
        ("#otter plans #work ", [1], " plans  "),
        ("in:book", [1, 2], ""),
        ("in:book ", [2], " "),
        ("in:Book club plans", [1], " plans"),
        ("IN:book club #work", [1], " "),
        ("in:ärg", [4], ""),
        ("#nothing", [1, 2, 3, 4], "#nothing"),  # no tag: words
        ("in:nowhere x", [1, 2, 3, 4], "in:nowhere x"),
        ("#39", [1, 2, 3, 4], "#39"),
        ("in: x", [1, 2, 3, 4], "in: x"),
        ("within:book", [1, 2, 3, 4], "within:book"),
    ],
)
def test_tags_and_folders_narrow_and_the_rest_is_words(text: str, found: list[int], words: str) -> None:
    left, rest = narrow(CHATS, text)
    assert ([each.id for each in left], rest) == (found, words)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("#ot", "#otter"),
        ("x #WO", "x #WOrk"),
        ("in:b", "in:book club"),
        ("in:book c", "in:book club"),
        ("in:", "in:Book club"),
        ("#otter", None),
        ("#otter ", None),
        ("ot", None),
    ],
)
def test_the_name_at_the_end_is_completed(text: str, whole: str | None) -> None:
    assert completed(CHATS, text) == whole


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(None) as opened:
        for title, text, folder in (
            ("#work boats", "about llamas", "Work"),
            ("trains", "about llamas, #include <x>", "Work"),
            ("#work planes", "about llamas", ""),
        ):
            number = opened.new_chat(title).id
            opened.add(number, None, "user", text)
            opened.set_folder(number, folder)
        yield opened


@pytest.mark.parametrize(
    ("query", "titles"),
    [
        ("in:work", ["trains", "#work boats"]),
        ("#work", ["#work planes", "#work boats"]),
        ("#work in:work", ["#work boats"]),
        ("llamas in:work", ["trains", "#work boats"]),
        ("#work llamas", ["#work planes", "#work boats"]),
        ("#include", ["trains"]),
        ("#work trains", []),
    ],
)
def test_a_search_is_narrowed(store: Store, query: str, titles: list[str]) -> None:
    assert [hit.chat.title for hit in store.search(query)] == titles


def test_a_folder_is_one_name_however_it_is_typed(store: Store) -> None:
    store.set_folder(3, "  wORK ")
    assert store.chat(3).folder == "Work"
    store.set_folder(3, "Home\x1b[2J\nsweet")
    assert store.folders() == ("Home[2J sweet", "Work")
    store.set_folder(3, "x" * 500)
    assert len(store.chat(3).folder) == 60
    store.set_folder(3, "")
    assert store.folders() == ("Work",)


def test_a_folder_is_renamed_joined_and_removed_without_losing_a_chat(store: Store) -> None:
    store.set_folded("Work", True)
    assert store.folded() == {"Work"}
    store.rename_folder("Work", "WORK")
    assert store.folders() == ("WORK",)
    assert store.folded() == frozenset()
    store.set_folder(3, "Home")
    store.rename_folder("Home", "work")
    assert [each.folder for each in store.chats()] == ["WORK"] * 3
    store.delete(1)
    store.rename_folder("WORK", "")
    store.restore(1)
    assert [each.folder for each in store.chats()] == [""] * 3


def test_tags_and_folder_survive_export_and_import(store: Store) -> None:
    (found,) = parse_all(chat_text(store, store.chat(1), "json"))
    with Store(None) as other:
        added = other.add_missing(*found).chat
        assert (added.title, added.folder) == ("#work boats", "Work")
        other.set_folder(added.id, "Mine")  # an import again does not move it
        assert other.add_missing(*found).chat.folder == "Mine"
    path = Tree.of(store.messages(1), None).path
    assert store.fork(store.chat(1), path, {}).folder == "Work"


def test_an_export_without_a_folder_and_one_with_a_hostile_name(store: Store) -> None:
    text = chat_text(store, store.chat(1), "json")
    (older,) = parse_all(text.replace(',"folder":"Work"', ""))
    name = '"folder":"\\u001b]0;x\\u0007\\ud800' + "y" * 999 + '"'
    (hostile,) = parse_all(text.replace('"folder":"Work"', name))
    with Store(None) as other:
        assert other.add_chat(*older).folder == ""
        folder = other.add_chat(*hostile).folder
        assert folder.isprintable()
        assert len(folder) == 60
        assert len(other.chats()) == 2
