"""How chats and messages lie in the tables."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from localspec.chat.messages import AnswerRecord, Attachment, ChatInfo, StoredMessage
from localspec.chat.store import record_codec
from localspec.errors import StoreError, UserError

MAX_TITLE = 200
_MAX_GIVEN = 60  # a title that nobody chose fits the sidebar
_UNSEEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_OF_MARKDOWN = re.compile(r"\s*(#+|[>*-])\s+(?=\S)")


def title_line(text: str) -> str:
    """Return a text as a title: one line without control characters."""
    return _UNSEEN.sub(" ", text).strip()[:MAX_TITLE].rstrip()


def title_of(message: StoredMessage) -> str:
    """Return the title that a chat takes from its first prompt."""
    lines = [*message.content.splitlines(), *(attachment.name for attachment in message.attachments)]
    first = next((line for line in lines if line.strip()), "")
    opening = _OF_MARKDOWN.match(first)
    return _shortened(title_line(first[opening.end() :] if opening else first))


def _shortened(title: str) -> str:
    if len(title) <= _MAX_GIVEN:
        return title
    cut = title[: _MAX_GIVEN - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > _MAX_GIVEN // 2 else cut).rstrip(" ,.;:") + "…"


CHAT_COLUMNS = (
    "chats.id, title, chats.created, updated, pinned, profile, system, leaf, draft, "
    "(SELECT count(*) FROM messages WHERE messages.chat = chats.id)"
)
_MESSAGE_COLUMNS = "id, chat, parent, role, content, created, state, dropped"


def chat_of(row: Sequence[Any]) -> ChatInfo:
    """Return the chat of a row of CHAT_COLUMNS."""
    number, title, created, updated, pinned, profile, system, leaf, draft, messages = row
    return ChatInfo(number, title, created, updated, bool(pinned), messages, profile, system, leaf, draft)


def read_messages(connection: sqlite3.Connection, where: str, number: int) -> tuple[StoredMessage, ...]:
    """Return messages with their attachments in the order of their numbers; `where` is a condition on one."""
    attached = defaultdict(list)
    for message, name, text in connection.execute(
        "SELECT message, attachments.name, text FROM attachments JOIN messages ON messages.id = message "
        f"WHERE messages.{where} ORDER BY message, position",
        (number,),
    ):
        attached[message].append(Attachment(name, text))
    rows = connection.execute(
        f"SELECT {_MESSAGE_COLUMNS} FROM messages WHERE {where} ORDER BY id",
        (number,),
    )
    return tuple(
        StoredMessage(
            id_, chat, parent, role, content, created, state, tuple(attached.get(id_, ())), bool(dropped)
        )
        for id_, chat, parent, role, content, created, state, dropped in rows
    )


def read_chat(connection: sqlite3.Connection, chat_id: int) -> ChatInfo:
    """Return a chat; raises UserError if there is none, or it was deleted."""
    query = f"SELECT deleted, {CHAT_COLUMNS} FROM chats WHERE id = ?"
    row = connection.execute(query, (chat_id,)).fetchone()
    if row is None:
        raise no_chat(chat_id)
    deleted, *columns = row
    if deleted is not None:
        raise UserError(
            f"chat {chat_id} was deleted", f"`localspec history restore {chat_id}` brings it back"
        )
    return chat_of(columns)


def first_title(connection: sqlite3.Connection, chat_id: int) -> str:
    """Return the title that a chat takes from its first prompt; empty without prompts."""
    messages = read_messages(connection, "chat = ?", chat_id)
    return next((title_of(message) for message in messages if message.role == "user"), "")


def no_chat(chat_id: int) -> UserError:
    """Return the complaint about a number that no chat has."""
    return UserError(f"there is no chat {chat_id}", "`localspec history` lists the chats with their numbers")


def require_message(connection: sqlite3.Connection, chat_id: int, message_id: int) -> None:
    """Raise StoreError unless a message belongs to a chat."""
    query = "SELECT 1 FROM messages WHERE chat = ? AND id = ?"
    if connection.execute(query, (chat_id, message_id)).fetchone() is None:
        raise StoreError(f"chat {chat_id} has no message {message_id}")


def change_chat(connection: sqlite3.Connection, chat_id: int, what: str, *values: object) -> None:
    """Set columns of a chat, deleted or not; raises UserError if there is none."""
    query = f"UPDATE chats SET {what} WHERE id = ?"
    if not connection.execute(query, (*values, chat_id)).rowcount:
        raise no_chat(chat_id)


def insert_chat(connection: sqlite3.Connection, chat: ChatInfo) -> int:
    """Add a chat without messages under a new number, and return that."""
    added = connection.execute(
        "INSERT INTO chats (title, created, updated, pinned, profile, system) VALUES (?, ?, ?, ?, ?, ?)",
        (
            title_line(storable(chat.title)),
            chat.created,
            chat.updated,
            chat.pinned,
            storable(chat.profile),
            None if chat.system is None else storable(chat.system),
        ),
    )
    return _new_number(added)


def insert_message(connection: sqlite3.Connection, message: StoredMessage) -> int:
    """Add a message under a new number, and return that."""
    added = connection.execute(
        "INSERT INTO messages (chat, parent, role, state, dropped, created, written, content) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            message.chat,
            message.parent,
            message.role,
            message.state,
            message.dropped,
            message.created,
            message.created,
            storable(message.content),
        ),
    )
    number = _new_number(added)
    connection.executemany(
        "INSERT INTO attachments VALUES (?, ?, ?, ?)",
        [(number, i, storable(a.name), storable(a.text)) for i, a in enumerate(message.attachments)],
    )
    return number


def keep_record(connection: sqlite3.Connection, message_id: int, record: AnswerRecord) -> None:
    """Store how an answer came about, in place of what was known before."""
    packed = record_codec.pack(record)
    connection.execute(
        "INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (message_id, packed.outline, packed.rounds)
    )


def storable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _new_number(added: sqlite3.Cursor) -> int:
    assert added.lastrowid is not None  # of an INSERT into a table with numbers
    return added.lastrowid
