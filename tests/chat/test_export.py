from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.chat import export as importing
from localspec.chat.export import to_json, to_markdown
from localspec.chat.headings import when
from localspec.chat.messages import (
    AnswerRecord,
    Attachment,
    ChatInfo,
    ChatSettings,
    Span,
    State,
    StoredMessage,
)
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import UserError
from localspec.types.drafts import Provenance
from tests.chat.sample_record import RECORD

CHAT = ChatInfo(1, "Llamas", created=0.0, updated=5.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as opened:
        yield opened


@pytest.fixture
def chat(store: Store) -> ChatInfo:
    """A chat with two branches, attachments and a record."""
    chat = store.new_chat('Llamas 日本 "quoted"', profile="coding", system="Be brief.").id
    question = store.add(chat, None, "user", "What is it?", attachments=[Attachment("a.py", "x = 1\n")])
    one = store.add(chat, question.id, "assistant", "A llama.", state="writing")
    store.write(one.id, "A llama.", "length", RECORD)
    store.add(chat, question.id, "assistant", "An alpaca.\u2028😀")
    store.set_leaf(chat, one.id)
    store.set_dropped([question.id], dropped=True)
    store.pin(chat, True)
    store.set_settings(chat, ChatSettings(mode="sd", temperature=0.5))
    return store.chat(chat)


def import_json(store: Store, text: str) -> ChatInfo:
    return store.add_chat(*importing.parse_all(text)[0])


def exported(store: Store, chat: ChatInfo) -> str:
    messages = store.messages(chat.id)
    return to_json(chat, messages, {m.id: record for m in messages if (record := store.record(m.id))})


def message(text: str, state: State = "complete", *attachments: Attachment) -> StoredMessage:
    return StoredMessage(1, 1, None, "user", text, 0.0, state, attachments)


def test_markdown_says_who_said_what() -> None:
    path = [message("What is it?"), replace(message("A llama.\n"), role="assistant")]
    text = to_markdown(replace(CHAT, system="Be brief."), path)
    assert text == (
        f"# Llamas\n\n{when(0.0)}\n\n## System prompt\n\nBe brief.\n\n"
        "## You\n\nWhat is it?\n\n## Assistant\n\nA llama.\n"
    )
    assert to_markdown(replace(CHAT, title=""), []).startswith("# Untitled\n")


@pytest.mark.parametrize(
    ("state", "mark"),
    [
        ("stopped", "(stopped)"),
        ("length", "length"),
        ("context", "context was full"),
        ("circles", "repeated itself"),
        ("failed", "error"),
    ],
)
def test_markdown_marks_what_is_not_complete(state: State, mark: str) -> None:
    heading = to_markdown(CHAT, [replace(message("Hi", state), dropped=True)]).splitlines()[4]
    assert mark in heading
    assert heading.endswith("(left out)")


@pytest.mark.parametrize(
    ("text", "fence"), [("plain", "```"), ("a ``` b", "````"), ("`````\n", "``````"), ("", "```")]
)
def test_a_fence_is_longer_than_any_inside(text: str, fence: str) -> None:
    attached = message("See:", "complete", Attachment("notes `1`\n.md", text))
    lines = text.rstrip("\n").split("\n")
    assert to_markdown(CHAT, [attached]).split("\n")[8:] == [
        "`notes '1' .md`",
        "",
        fence + "md",
        *lines,
        fence,
        "",
    ]


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("```py\nx", "```py\nx\n```"),
        ("~~~~\nx\n~~~", "~~~~\nx\n~~~\n~~~~"),
        ("```\nx\n```", "```\nx\n```"),
        ("```\nx\n````", "```\nx\n````"),
        ("```py\n```py\n```", "```py\n```py\n```"),
        ("```inline``` only", "```inline``` only"),
        ("> ```\n> x", "> ```\n> x"),
        ("1. a\n\n   ```\n   x", "1. a\n\n   ```\n   x"),
    ],
)
def test_a_block_left_open_does_not_swallow_the_rest(text: str, closed: str) -> None:
    assert to_markdown(CHAT, [message(text)]).endswith(f"## You\n\n{closed}\n")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("<think>\nhm\n\n```\nx\n</think>\n\nFour.\n", "> **Thinking**\n>\n> hm\n>\n> ```\n> x\n\nFour."),
        ("[THINK]hm, and th", "> **Thinking**\n>\n> hm, and th"),
        ("The tag\n</think> ends it.", "The tag\n</think> ends it."),
    ],
)
def test_thinking_is_set_apart(text: str, written: str) -> None:
    answer = replace(message(text, "stopped"), role="assistant")
    assert to_markdown(CHAT, [answer]).endswith(f"## Assistant (stopped)\n\n{written}\n")
    assert f"## You\n\n{text.strip()}\n" in to_markdown(CHAT, [message(text)])


def test_times_that_no_calendar_holds() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", when(0.0))
    assert when(1e300) == ""


def test_a_chat_comes_back_as_it_was(store: Store, chat: ChatInfo, tmp_path: Path) -> None:
    text = exported(store, chat)
    with Store(tmp_path / "other.db") as other:  # its numbers begin again
        back = import_json(other, text)
        assert exported(other, back) == text
        assert back == chat
    again = import_json(store, text)
    assert again.id != chat.id
    assert [m.content for m in store.messages(again.id)] == [m.content for m in store.messages(chat.id)]
    assert store.record(again.leaf or 0) == RECORD
    assert len(store.search("alpaca")) == 2


OLD, SPAN = "hm, yes\n</think>\n\nFour.", Span(23, Provenance.ACCEPTED)


def test_old_answers_get_the_tag_that_their_prompt_opened_and_new_ones_keep_what_they_say(
    store: Store, chat: ChatInfo
) -> None:
    parent, two = store.messages(chat.id)[0].id, replace(RECORD, spans=(SPAN,))
    answer = store.add(chat.id, parent, "assistant", OLD, state="writing")
    store.write(answer.id, OLD, "complete", two)
    asked = store.add(chat.id, answer.id, "user", OLD)
    text = exported(store, chat)
    for is_old in (True, False):
        value = {name: each for name, each in json.loads(text).items() if not (is_old and name == "tagged")}
        back = import_json(store, json.dumps(value))
        found = {message.role: message for message in store.messages(back.id)[-2:]}
        record = store.record(found["assistant"].id)
        assert record is not None
        assert found["user"].content == OLD
        assert found["assistant"].content == ("<think>\n" + OLD if is_old else OLD)
        assert record.spans == ((Span(8, Provenance.TARGET), SPAN) if is_old else (SPAN,))
        assert store.outlines(back.id)[found["assistant"].id].spans == record.spans
    assert asked.content == OLD


def test_an_answer_under_way_comes_back_stopped(store: Store, chat: ChatInfo) -> None:
    store.add(chat.id, None, "assistant", "so far", state="writing")
    back = import_json(store, exported(store, store.chat(chat.id)))
    assert [m.state for m in store.messages(back.id)] == ["complete", "length", "complete", "stopped"]


def test_fields_of_newer_programs_are_ignored_and_optional_ones_may_lack(store: Store) -> None:
    value = {
        "format": "localspec-chat",
        "schema": 1,
        "chat": {"title": "T", "created": 0, "updated": 1, "mood": "good"},
        "messages": [{"id": 1, "parent": None, "role": "user", "content": "Q", "created": 2, "likes": 5}],
    }
    back = import_json(store, json.dumps(value))
    assert (back.title, back.profile) == ("T", "general")
    assert store.messages(back.id)[0].content == "Q"
    assert [message.content for message in OpenChat(store, back.id).path] == ["Q"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda v: v.pop("format"), '"format" is not "localspec-chat"'),
        (lambda v: v.update(schema=2), r"newer LocalSpec \(schema 2\); update"),
        (lambda v: v.update(schema=0), "schema is 0, not 1"),
        (lambda v: v.update(schema="1"), "schema is not a whole number"),
        (lambda v: v.pop("chat"), "chat is not an object"),
        (lambda v: v["chat"].pop("title"), "chat.title is missing"),
        (lambda v: v["chat"].update(title=5), "chat.title is not a text"),
        (lambda v: v["chat"].update(system=5), "chat.system is not a text"),
        (lambda v: v["chat"].update(pinned=1), "chat.pinned is not true or false"),
        (lambda v: v["chat"].update(created=-1), "chat.created is not a valid time"),
        (lambda v: v["chat"].update(updated=1e15), "chat.updated is not a valid time"),
        (lambda v: v["chat"].update(updated=253_402_300_799), "chat.updated is not a valid time"),
        (lambda v: v["chat"].update(updated=10**400), "chat.updated is not a number of a sensible size"),
        (lambda v: v["chat"].update(leaf=77), "chat.leaf: there is no message 77"),
        (lambda v: v.update(messages={}), "messages is not a list"),
        (lambda v: v["messages"].append(5), r"messages\[3\] is not an object"),
        (lambda v: v["messages"][1].update(role="god"), r"messages\[1\].role is not one of user, assistant"),
        (lambda v: v["messages"][1].update(state="odd"), r"messages\[1\].state is not one of writing"),
        (lambda v: v["messages"][1].update(content=None), r"messages\[1\].content is not a text"),
        (lambda v: v["messages"][1].update(id=v["messages"][0]["id"]), r"messages\[1\].id: there are two"),
        (
            lambda v: v["messages"][0].update(parent=v["messages"][1]["id"]),
            r"messages\[0\].parent: there is no",
        ),
        (
            lambda v: v["messages"][1].update(parent=v["messages"][1]["id"]),
            r"messages\[1\].parent: there is no",
        ),
        (lambda v: v["messages"][0].update(created=float("inf")), r"messages\[0\].created is not a number"),
        (lambda v: v["messages"][0]["attachments"][0].pop("text"), r"attachments\[0\].text is missing"),
        (lambda v: v["messages"][0].update(attachments="x"), r"messages\[0\].attachments is not a list"),
        (lambda v: v["messages"][1]["record"].update(seed={}), r"messages\[1\].record.seed is not a whole"),
        (lambda v: v["messages"][1].update(record=[]), r"messages\[1\].record is not an object"),
    ],
)
def test_a_wrong_file_says_where_and_adds_nothing(
    store: Store, chat: ChatInfo, change: Callable[[dict[str, Any]], object], complaint: str
) -> None:
    value = json.loads(exported(store, chat))
    change(value)
    with pytest.raises(UserError, match=complaint):
        import_json(store, json.dumps(value))
    assert len(store.chats()) == 1


@pytest.mark.parametrize(
    "text", ["", "junk", "[1]", "null", '"x"', "{", "[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "NaN"]
)
def test_what_is_not_a_chat_at_all(store: Store, text: str) -> None:
    with pytest.raises(UserError, match=r"not JSON|not a chat|is empty"):
        import_json(store, text)


def test_sizes_are_bounded(store: Store, chat: ChatInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    text = exported(store, chat)
    monkeypatch.setattr(importing, "MAX_CHARACTERS", 10)
    with pytest.raises(UserError, match=r"messages\[0\] has a text of more than 10 characters"):
        import_json(store, text)
    monkeypatch.setattr(importing, "MAX_MESSAGES", 2)
    with pytest.raises(UserError, match="there are 3 messages, more than 2"):
        import_json(store, text)


def test_halves_of_characters_are_replaced(store: Store) -> None:
    half: dict[int, AnswerRecord] = {}
    text = to_json(CHAT, [message("x")], half).replace('"x"', '"\\ud83d"')
    assert store.messages(import_json(store, text).id)[0].content == "\ufffd"
