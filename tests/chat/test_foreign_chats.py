"""What users bring along from ChatGPT and Claude; the exports in exports/ are made up in their formats."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.chat import foreign
from localspec.chat.export import parse_all, read_chats
from localspec.chat.foreign.parts import LeftOut
from localspec.chat.messages import AddedChat, Attachment, ChatInfo, StoredMessage, WholeChat
from localspec.chat.store import Store
from localspec.errors import UserError
from tests.chat.sample_record import RECORD

EXPORTS = Path(__file__).with_name("exports")
CHATGPT, CLAUDE = EXPORTS / "chatgpt.json", EXPORTS / "claude.json"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def taken(path: Path) -> tuple[tuple[WholeChat, ...], dict[str, int]]:
    left_out: Counter[LeftOut] = Counter()
    chats = read_chats(path, left_out=left_out)
    return chats, {kind: count for kind, count in left_out.items() if count}


def branches(messages: tuple[StoredMessage, ...]) -> list[tuple[int, int | None, str, str]]:
    return [(each.id, each.parent, each.role, each.content) for each in messages]


def test_chatgpt_comes_with_its_branches() -> None:
    (trip, untitled), left_out = taken(CHATGPT)
    info, messages, records = trip
    assert (info.title, info.created, info.updated) == ("Trip in May", 1724000000.5, 1724000061.75)
    assert (info.pinned, info.leaf, records) == (True, 7, {})
    assert branches(messages) == [
        (1, None, "user", "Where to go in May?"),
        (2, 1, "assistant", "To Rome."),
        (3, 1, "assistant", "To Lisbon, by train. "),
        (4, 3, "user", "How long does that take?"),
        (5, 4, "assistant", "Two days,\nwith a night in Madrid."),
        (6, 5, "user", "And back?"),
        (7, 6, "assistant", "The same."),
        (8, None, "user", "Where was this taken?"),
        (9, 8, "assistant", "In Nazaré."),
    ]
    assert [each.state for each in messages if each.state != "complete"] == ["length", "stopped"]
    assert [each.created for each in messages[:2]] == [1724000001.25, 1724000003.5]
    info, messages, _ = untitled
    assert (info.title, info.created, info.updated) == ("Say hi", 1724200000.0, 1724200002.0)
    assert left_out == {
        "picture": 1,
        "file": 1,
        "thought": 1,
        "tool step": 2,
        "recording": 1,
        "empty chat": 1,
    }


def test_claude_comes_with_its_branches_and_the_text_of_files() -> None:
    (sorting, tapir), left_out = taken(CLAUDE)
    info, messages, _ = sorting
    assert (info.title, info.created, info.leaf) == ("Sorting", 1762070400.123456, 4)
    assert branches(messages) == [
        (1, None, "user", "Sort this list"),
        (2, 1, "assistant", "Sorted:\n\na, b"),
        (3, 1, "assistant", "a and b"),
        (4, 3, "user", "Thanks"),
    ]
    assert messages[0].attachments == (Attachment("list.csv", "b\na\n"), Attachment("pasted.txt", "pasted"))
    info, messages, _ = tapir
    assert info.title == "What is a tapir?"
    assert branches(messages) == [(1, None, "user", "What is a tapir?"), (2, 1, "assistant", "An animal.")]
    assert left_out == {"file": 1, "thought": 1, "tool step": 2, "unknown part": 1, "empty chat": 1}


def test_what_was_left_out_in_words() -> None:
    _, left_out = taken(CLAUDE)
    assert foreign.in_words(Counter(left_out)) == (  # type: ignore[arg-type]
        "1 empty chat, 1 file, 1 thought, 2 tool steps, 1 unknown part"
    )
    assert foreign.in_words(Counter()) == ""


@pytest.mark.parametrize("path", [CHATGPT, CLAUDE])
def test_what_came_is_kept_and_found(path: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        added = [store.add_missing(*chat) for chat in taken(path)[0]]
        assert [each.is_new for each in added] == [True, True]
        kept = store.messages(added[0].chat.id)
        first = taken(path)[0][0][1]
        assert [each.content for each in kept] == [each.content for each in first]
        assert [each.parent is None for each in kept] == [each.parent is None for each in first]
        assert store.search("lisbon" if path == CHATGPT else "sorted")


def test_one_conversation_alone_is_an_export_too() -> None:
    (one, *_) = json.loads(CHATGPT.read_text(encoding="utf-8"))
    ((info, messages, _),) = parse_all(json.dumps(one))
    assert (info.title, len(messages)) == ("Trip in May", 9)


def broken(change: Callable[[dict[str, Any]], object]) -> WholeChat:
    (one, *_) = json.loads(CHATGPT.read_text(encoding="utf-8"))
    change(one)
    (chat,) = parse_all(json.dumps(one))
    return chat


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one["mapping"]["client-created-root"].update(parent="v2"),  # all go round in a circle
        lambda one: one["mapping"]["q1"].update(parent="nowhere"),
        lambda one: [node.pop("children") for node in one["mapping"].values()],
        lambda one: one.update(current_node="nowhere"),
        lambda one: [
            node["message"].pop("recipient")
            for node in one["mapping"].values()
            if node["message"] and node["message"]["recipient"] == "all"
        ],
        lambda one: [
            node["message"]["content"].update(parts=None)
            for node in one["mapping"].values()
            if node["message"] and node["message"]["author"]["role"] == "tool"
        ],
        lambda one: [node.update(weather="fine") for node in one["mapping"].values()],
    ],
)
def test_a_tree_with_faults_loses_no_message(change: Callable[[dict[str, Any]], object]) -> None:
    _, messages, _ = broken(change)
    assert len(messages) == 9
    seen: set[int | None] = {None}
    for message in messages:  # parents come first
        assert message.parent in seen
        seen.add(message.id)


@pytest.mark.slow
@pytest.mark.parametrize("path", [CHATGPT, CLAUDE])
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_value_anywhere_is_read_or_passed_over(path: Path, data: st.DataObject) -> None:
    value = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(data.draw(st.integers(1, 4))):
        place: Any = value
        while isinstance(place, (dict, list)) and place:
            keys: list[Any] = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            if data.draw(st.booleans()) or not isinstance(place[key], (dict, list)):
                place[key] = data.draw(JSON)
                break
            place = place[key]
    left_out: Counter[LeftOut] = Counter()
    try:
        chats = parse_all(json.dumps(value), left_out=left_out)
    except UserError:  # of it all, no chat was left
        return
    with Store(None) as store:
        for chat in chats:
            store.add_missing(*chat)


def test_messages_without_metadata_come() -> None:
    node = {"message": {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["Hi"]}}}
    ((info, messages, _),) = parse_all(json.dumps([{"mapping": {"a": node}, "default_model_slug": "x"}]))
    assert (info.title, messages[0].content, messages[0].created) == ("Hi", "Hi", 0.0)


@pytest.mark.parametrize(
    "text",
    ["[]", '[{"uuid": "x", "docs": []}]', '{"messages": []}', '[{"full_name": "A", "uuid": "b"}]', "[[]]"],
)
def test_other_files_of_an_export_are_rejected_with_a_hint(text: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_all(text, "`users.json`")
    assert caught.value.message.startswith("`users.json`: not a chat that can be imported")
    assert "conversations.json of ChatGPT or Claude" in caught.value.hint


def test_a_zip_archive_is_to_be_unpacked(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("conversations.json", "[]" * 500 + "é" * 50)
        archive.writestr("picture.dat", bytes(range(256)))
    with pytest.raises(UserError, match=r"is a ZIP archive; unpack it, and import its conversations\.json"):
        read_chats(path)


def chat_of(created: float, *texts: str) -> WholeChat:
    messages = tuple(
        StoredMessage(n, 0, n - 1 or None, "user" if n % 2 else "assistant", text, created + n)
        for n, text in enumerate(texts, 1)
    )
    return ChatInfo(0, "T", created, created, leaf=len(texts)), messages, {}


def test_a_chat_is_there_if_one_began_at_its_time_with_its_message(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        first = store.add_missing(*chat_of(5.0, "a", "b"))
        assert (first.is_new, first.messages) == (True, 2)
        assert store.add_missing(*chat_of(5.0, "a", "b")) == AddedChat(first.chat, False, 0)
        store.rename(first.chat.id, "Mine")
        store.add(first.chat.id, 2, "user", "and on")
        again = store.add_missing(*chat_of(5.0, "a", "b"))
        assert (again.is_new, again.messages, again.chat.title) == (False, 0, "Mine")
        for other in (chat_of(6.0, "a", "b"), chat_of(5.0, "A", "b")):
            assert store.add_missing(*other).is_new
        store.delete(first.chat.id)
        assert store.add_missing(*chat_of(5.0, "a", "b")).is_new
        assert len(store.chats()) == 3


def shown(store: Store, chat: ChatInfo) -> list[str]:
    """Return the texts of the branch that a chat shows."""
    messages = {each.id: each for each in store.messages(chat.id)}
    texts, at = list[str](), store.chat(chat.id).leaf
    while at is not None:
        texts.append(messages[at].content)
        at = messages[at].parent
    return texts[::-1]


def test_an_export_that_has_grown_continues_its_chat(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        chat = store.add_missing(*chat_of(5.0, "a", "b")).chat
        grown = store.add_missing(*chat_of(5.0, "a", "b", "c", "d"))
        assert (grown.chat.id, grown.is_new, grown.messages) == (chat.id, False, 2)
        assert grown.growth() == '2 messages added to "T"'
        assert shown(store, chat) == ["a", "b", "c", "d"]
        assert grown.chat.updated == 9.0
        assert store.add_missing(*chat_of(5.0, "a", "b", "c", "d")).messages == 0
        assert store.add_missing(*chat_of(5.0, "a", "b")).messages == 0  # an older export takes nothing away
        assert shown(store, chat) == ["a", "b", "c", "d"]


def test_a_chat_that_was_continued_here_continues_showing_that(tmp_path: Path) -> None:
    with Store(tmp_path / "chats.db") as store:
        chat = store.add_missing(*chat_of(5.0, "a", "b")).chat
        store.add(chat.id, chat.leaf, "user", "mine")
        assert store.add_missing(*chat_of(5.0, "a", "b", "c")).messages == 1
        assert shown(store, chat) == ["a", "b", "mine"]
        parents = {each.content: each.parent for each in store.messages(chat.id)}
        assert parents["c"] == parents["mine"]


def test_a_branch_that_is_shown_elsewhere_is_added_and_not_shown(tmp_path: Path) -> None:
    info, messages, records = chat_of(5.0, "a", "b")
    other = replace(messages[1], id=3, content="B", created=8.0)
    with Store(tmp_path / "chats.db") as store:
        chat = store.add_missing(info, messages, records).chat
        added = store.add_missing(replace(info, leaf=3), (*messages, other), {3: RECORD})
        assert (added.is_new, added.messages) == (False, 1)
        assert shown(store, chat) == ["a", "b"]
        (new,) = [each for each in store.messages(chat.id) if each.content == "B"]
        assert store.record(new.id) == RECORD
        assert new.parent == store.messages(chat.id)[0].id
