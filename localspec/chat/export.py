"""Read an exported chat; nothing in it is taken on trust."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from localspec.chat.messages import AnswerRecord, Attachment, ChatInfo, Role, State, StoredMessage
from localspec.chat.store.record_codec import from_plain
from localspec.errors import UserError
from localspec.storage.json_file import UnexpectedError, checked

FORMAT = "localspec-chat"
SCHEMA = 1
MAX_MESSAGES = 100_000
MAX_CHARACTERS = 16 * 2**20  # of one text
_YEAR_9999 = 253_370_764_800.0  # begins: all of it no calendar of a zone further east would hold

Parsed = tuple[ChatInfo, tuple[StoredMessage, ...], dict[int, AnswerRecord]]


@dataclass(frozen=True, slots=True)
class _Chat:
    """What a file says of a chat."""

    title: str
    created: float
    updated: float
    pinned: bool = False
    profile: str = "general"
    system: str | None = None
    leaf: int | None = None


@dataclass(frozen=True, slots=True)
class _Message:
    """What a file says of a message, but for its record."""

    id: int
    parent: int | None
    role: Role
    content: str
    created: float
    state: State = "complete"
    attachments: tuple[Attachment, ...] = ()
    dropped: bool = False


def parse(text: str) -> Parsed:
    """Return the chat, messages and records of an exported chat, with the numbers that the file uses.

    Raises UserError with the place of the first thing that is wrong.
    """
    with _explained(""):
        return _parsed(json.loads(text))


def parse_all(text: str) -> Iterator[Parsed]:
    """Yield the chats of several exports that follow each other."""
    decoder, end, number = json.JSONDecoder(), 0, 0
    while number == 0 or end < len(text):
        number += 1
        with _explained(f"chat {number} of the file: " * (number > 1)):
            value, end = decoder.raw_decode(text, _skip_space(text, end))
            parsed = _parsed(value)
        yield parsed
        end = _skip_space(text, end)


def _skip_space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


@contextmanager
def _explained(where: str) -> Iterator[None]:
    try:
        yield
    except UnexpectedError as error:
        raise UserError(f"{where}not a chat that can be imported: {error}") from None
    except (ValueError, RecursionError) as error:
        words = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        hint = "only the JSON of `localspec history export` comes back"
        raise UserError(f"{where}not JSON: {words}", hint) from None


def _parsed(value: object) -> Parsed:
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise UnexpectedError(f'"format" is not "{FORMAT}"')
    schema = checked(int, value.get("schema"), "schema")
    if schema > SCHEMA:
        raise UserError(f"the file was written by a newer LocalSpec (schema {schema})", "update LocalSpec")
    if schema != SCHEMA:
        raise UnexpectedError(f"schema is {schema}, not {SCHEMA}")
    listed = value.get("messages")
    if not isinstance(listed, list):
        raise UnexpectedError("messages is not a list")
    if len(listed) > MAX_MESSAGES:
        raise UnexpectedError(f"there are {len(listed)} messages, more than {MAX_MESSAGES}")
    messages: dict[int, StoredMessage] = {}
    records: dict[int, AnswerRecord] = {}
    for i, item in enumerate(listed):
        message = _message(item, messages, f"messages[{i}]")
        messages[message.id] = message
        if isinstance(item, Mapping) and item.get("record") is not None:
            records[message.id] = from_plain(item["record"], f"messages[{i}].record")
    return _chat(value.get("chat"), messages), tuple(messages.values()), records


def _chat(value: object, messages: Mapping[int, StoredMessage]) -> ChatInfo:
    chat = checked(_Chat, value, "chat")
    _check_texts("chat", [chat.title, chat.profile, chat.system or ""])
    _check_time(chat.created, "chat.created")
    _check_time(chat.updated, "chat.updated")
    if chat.leaf is not None and chat.leaf not in messages:
        raise UnexpectedError(f"chat.leaf: there is no message {chat.leaf}")
    return ChatInfo(
        0, chat.title, chat.created, chat.updated, chat.pinned, len(messages), chat.profile, chat.system,
        chat.leaf,
    )  # fmt: skip


def _message(value: object, earlier: Mapping[int, StoredMessage], where: str) -> StoredMessage:
    found = checked(_Message, value, where)
    if found.id in earlier:
        raise UnexpectedError(f"{where}.id: there are two messages {found.id}")
    if found.parent is not None and found.parent not in earlier:
        raise UnexpectedError(f"{where}.parent: there is no message {found.parent} before this one")
    _check_time(found.created, f"{where}.created")
    _check_texts(where, [found.content, *(part for a in found.attachments for part in (a.name, a.text))])
    return StoredMessage(
        found.id, 0, found.parent, found.role, found.content, found.created,
        "stopped" if found.state == "writing" else found.state, found.attachments, found.dropped,
    )  # fmt: skip


def _check_texts(where: str, texts: Sequence[str]) -> None:
    if max(map(len, texts)) > MAX_CHARACTERS:
        raise UnexpectedError(f"{where} holds a text of more than {MAX_CHARACTERS} characters")


def _check_time(value: float, where: str) -> None:
    if not 0 <= value < _YEAR_9999:
        raise UnexpectedError(f"{where} is no moment that a calendar holds")
