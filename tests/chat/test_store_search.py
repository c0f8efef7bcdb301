from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.messages import SearchHit
from localspec.chat.store import Store

HOSTILE = [
    "",
    " ",
    '"',
    '""',
    '"a',
    "*",
    "a*",
    "-a",
    "^a",
    "a:b",
    "text:a",
    "AND",
    "OR",
    "NOT a",
    "NEAR(a b)",
    "a AND (b",
    "(" * 500,
    "a " * 5000,
    "a" * 100_000,
    "'; DROP TABLE chats; --",
    "\0",
    "a\0b",
    "\ud800",
    "😀",
    "é\u0301\u0301",
    "\u0301",
    "日" * 1000,
    "{a b}",
    "a + b",
    "\\",
    "½ ² Ⅷ",
    "\U0001fae0\u200d",
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as opened:
        yield opened


def say(store: Store, *texts: str, title: str = "untitled") -> int:
    chat = store.new_chat(title).id
    for text in texts:
        store.add(chat, None, "user", text)
    return chat


def marked(hit: SearchHit) -> list[str]:
    return [hit.excerpt[start:end] for start, end in hit.marks]


def found(store: Store, query: str) -> list[str]:
    return [hit.excerpt for hit in store.search(query)]


@pytest.mark.parametrize(
    ("text", "query", "marks"),
    [
        ("The quick brown fox", "quick fox", ["quick", "fox"]),
        ("The quick brown fox", "FOX qui", ["qui", "fox"]),
        ("The quick brown fox", "bro", ["bro"]),
        ("Ein Café in Ålesund", "cafe alesund", ["Café", "Ålesund"]),
        ("Ein cafe", "CAFÉ", ["cafe"]),
        ("written apart: cafe\u0301s", "cafés", ["cafe\u0301s"]),
        ("written apart: e\u0301lan vital", "élan", ["e\u0301lan"]),
        ("Élan vital", "e\u0301lan", ["Élan"]),
        ("今日は日本語を話します", "日本語", ["日本語"]),
        ("今日は日本語を話します", "本語 今日", ["今日", "本語"]),
        ("하고 학교", "학교", ["학교"]),
        ("학교에서 공부했다", "학교 공부", ["학교", "공부"]),
        ("Привет, мир", "МИР", ["мир"]),
        ("call foo_bar(x) in C++", "foo_bar", ["foo_bar"]),
        ("call foo_bar(x) in C++", "c++", ["C"]),
        ("call foo.bar(x)", '"foo bar"', ["foo.bar"]),
        ("don't panic", "don't", ["don't"]),
        ("the boiling point", '"boiling point" point', ["boiling point"]),
    ],
)
def test_what_is_found_and_marked(store: Store, text: str, query: str, marks: list[str]) -> None:
    chat = say(store, text)
    (hit,) = store.search(query)
    assert marked(hit) == marks
    assert (hit.excerpt, hit.chat.id, hit.message) == (text, chat, 1)


@pytest.mark.parametrize(
    "query",
    ["quick cat", "ick", "qui fox", "bro ", '"brown quick"', '"quick bro"', "the quick brown fo fox x"],
)
def test_what_is_not_found(store: Store, query: str) -> None:
    say(store, "The quick brown fox")
    assert store.search(query) == ()


def test_titles_come_first(store: Store) -> None:
    say(store, "llama llama llama llama")
    titled = say(store, "nothing", title="About a llama")
    first, second = store.search("llama")
    assert (first.chat.id, first.message, first.excerpt) == (titled, None, "About a llama")
    assert marked(first) == ["llama"]
    assert second.message == 1


def test_the_better_fit_comes_before_the_newer_one(store: Store) -> None:
    say(store, "llama")
    say(store, "a llama among " + "very many other words " * 40)
    say(store, *(["nothing of the kind"] * 20))
    assert [hit.message for hit in store.search("llama")] == [1, 2]


def test_of_equal_fits_the_newer_one_comes_first(store: Store) -> None:
    say(store, "a llama", "a llama", "a llama", title="one llama")
    say(store, "x", title="two llama")
    assert [(hit.chat.id, hit.message) for hit in store.search("llama")] == [
        (2, None),
        (1, None),
        (1, 3),
        (1, 2),
        (1, 1),
    ]
    assert len(store.search("llama", limit=3)) == 3
    assert store.search("llama", limit=0) == ()


def test_changes_are_found_and_what_they_replaced_is_not(store: Store) -> None:
    chat = say(store, "question", title="before")
    answer = store.add(chat, 1, "assistant", "", state="writing").id
    store.write(answer, "alpaca", "writing")
    assert found(store, "alpaca") == []
    store.write(answer, "alpaca", "complete")
    assert found(store, "alpaca") == ["alpaca"]
    store.write(answer, "alpaca and", "writing")
    store.write(answer, "vicuna", "stopped")
    assert (found(store, "alpaca"), found(store, "vicuna")) == ([], ["vicuna"])
    store.rename(chat, "after")
    assert (found(store, "before"), found(store, "after")) == ([], ["after"])
    store.delete(chat)
    assert (found(store, "after"), found(store, "vicuna")) == ([], [])
    store.restore(chat)
    assert (found(store, "after"), found(store, "vicuna")) == (["after"], ["vicuna"])
    with store._database.writing() as connection:
        for index in ("title_index", "message_index"):  # FTS5 compares its index with the tables
            connection.execute(f"INSERT INTO {index} ({index}, rank) VALUES ('integrity-check', 1)")


def test_empty_chats_are_not_found(store: Store) -> None:
    store.new_chat("llama")
    assert store.search("llama") == ()


def test_an_excerpt_shows_where_most_of_the_words_are(store: Store) -> None:
    far = "filler words " * 100
    say(store, f"llama here {far} then the\nllama\x07 met an alpaca {far} and a llama")
    (hit,) = store.search("llama alpaca")
    assert marked(hit) == ["llama", "alpaca"]
    assert "then the llama  met an alpaca filler" in hit.excerpt
    assert hit.excerpt.startswith("…")
    assert hit.excerpt.endswith("…")
    assert len(hit.excerpt) < 220


def test_a_long_text_without_spaces(store: Store) -> None:
    say(store, "本" * 1000 + "日" + "本" * 1000)
    (hit,) = store.search("日")
    assert marked(hit) == ["日"]
    assert len(hit.excerpt) < 220


@pytest.mark.parametrize("query", HOSTILE)
def test_no_query_is_an_error(store: Store, query: str) -> None:
    say(store, "a b c 日 é", title="a b")
    for hit in store.search(query):
        assert all(0 <= start < end <= len(hit.excerpt) for start, end in hit.marks)


def test_no_mixture_is_an_error(store: Store) -> None:
    say(store, "a b c 日本 é AND x")
    chance = random.Random(1)
    letters = "ab\"'*^:()-+{}\\ \0日é😀\u0301,.%_\u200b½Ⅷ\ud800"
    for _ in range(2000):
        store.search("".join(chance.choices(letters, k=chance.randint(1, 12))))
