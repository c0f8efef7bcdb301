"""Chats as text: Markdown to read, JSON to keep and to bring back.

The JSON holds the whole tree. Its numbers are those of the store that wrote it; an import renumbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from localspec.chat.export import FORMAT, SCHEMA
from localspec.chat.messages import AnswerRecord, Attachment, ChatInfo, State, StoredMessage
from localspec.chat.store.record_codec import to_plain

_SPEAKERS = {"user": "You", "assistant": "Assistant"}
_STATES: dict[State, str] = {
    "writing": "still being written",
    "complete": "",
    "stopped": "stopped",
    "length": "ended at the length limit",
    "context": "ended as the context was full",
    "circles": "ended as it repeated itself",
    "failed": "broken off by an error",
}
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_TICKS = re.compile(r"`+")


def when(time_s: float) -> str:
    """Return a moment in local time, to the minute; empty if no calendar holds it."""
    try:
        return datetime.fromtimestamp(time_s, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return ""


def to_markdown(chat: ChatInfo, path: Sequence[StoredMessage]) -> str:
    """Return one branch of a chat as Markdown."""
    parts = [f"# {chat.title or 'Untitled'}", when(chat.created)]
    if chat.system:
        parts.append("## System prompt\n\n" + _closed(chat.system))
    for message in path:
        parts.extend(_message_parts(message))
    return "\n\n".join(part for part in parts if part) + "\n"


def to_json(chat: ChatInfo, messages: Sequence[StoredMessage], records: Mapping[int, AnswerRecord]) -> str:
    """Return a chat with all its branches as one line of JSON."""
    described = asdict(chat)
    del described["id"], described["messages"]
    value = {
        "format": FORMAT,
        "schema": SCHEMA,
        "chat": described,
        "messages": [_message_json(message, records.get(message.id)) for message in messages],
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _message_json(message: StoredMessage, record: AnswerRecord | None) -> dict[str, object]:
    value = asdict(message)
    del value["chat"]
    return value if record is None else {**value, "record": to_plain(record)}


def _message_parts(message: StoredMessage) -> Iterator[str]:
    marks = [_STATES[message.state]] * (message.state != "complete") + ["left out"] * message.dropped
    yield f"## {_SPEAKERS[message.role]}" + "".join(f" ({mark})" for mark in marks)
    yield _closed(message.content.strip("\n"))
    for attachment in message.attachments:
        yield _attached(attachment)


def _attached(attachment: Attachment) -> str:
    longest = max(map(len, _TICKS.findall(attachment.text)), default=0)
    fence = "`" * max(3, longest + 1)
    name = " ".join(attachment.name.replace("`", "'").split())
    ending = name.rpartition(".")[2] if "." in name else ""
    language = ending if ending.isalnum() else ""
    line_end = "" if attachment.text.endswith("\n") else "\n"
    return f"`{name}`\n\n{fence}{language}\n{attachment.text}{line_end}{fence}"


def _closed(text: str) -> str:
    """Close a block of code that an answer left open, so that it does not swallow what follows."""
    fence = ""
    for found in _FENCE.finditer(text):
        ticks, rest = found.groups()
        if not fence:
            fence = "" if ticks[0] == "`" and "`" in rest else ticks
        elif ticks.startswith(fence) and not rest.strip():
            fence = ""
    return f"{text}\n{fence}" if fence else text
