"""The saved conversations, in SQLite: chats, their trees of messages, and the records of answers.

Safe to use from several threads and several programs at once. Texts are saved unchanged, except for halves
of surrogate pairs, which UTF-8 cannot represent. Failures raise StoreError, a missing chat UserError.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from localspec.chat.chat_filter import narrow
from localspec.chat.messages import (
    AddedChat,
    AnswerRecord,
    Attachment,
    ChatInfo,
    ChatSettings,
    DeletedMessages,
    Outcome,
    Role,
    SearchHit,
    State,
    StoredMessage,
    ToolRun,
)
from localspec.chat.store import record_codec
from localspec.chat.store.database import Database
from localspec.chat.store.search import excerpt, parse
from localspec.chat.store.tool_codec import pack_calls, pack_run, unpack_calls, unpack_run
from localspec.chat.untagged import record_with_opening_tag, with_opening_tag
from localspec.errors import StoreError, UserError
from localspec.safe_text import safe_line
from localspec.types.request import ToolCall
from localspec.values import read

KEPT_S = 30 * 24 * 3600.0  # seconds for which a deleted chat can be restored, and an empty one stays
DEAD_AFTER_S = 10.0  # an answer is saved every half second; a program that has not for so long is gone
MAX_TITLE = 200
MAX_FOLDER = 60
_MAX_GIVEN = 60  # length of a generated title, which fits the sidebar
_OF_MARKDOWN = re.compile(r"\s*(#+|[>*-])\s+(?=\S)")
_EMPTY = "draft = '' AND NOT EXISTS (SELECT 1 FROM messages WHERE chat = chats.id)"
_LISTED = (
    "chats.deleted IS NULL AND EXISTS ("
    "SELECT 1 FROM messages WHERE messages.chat = chats.id AND messages.deleted IS NULL)"
)
_DEAD = "state = 'writing' AND abs(written - ?) > ?"  # also of a clock that was set back
_SHOWN = """
    WITH RECURSIVE branch (id, parent) AS (
        SELECT messages.id, parent FROM messages
        WHERE messages.id = coalesce(leaf, (
            SELECT max(messages.id) FROM messages WHERE chat = chats.id AND messages.deleted IS NULL))
        UNION ALL
        SELECT messages.id, messages.parent FROM messages JOIN branch ON messages.id = branch.parent)
    SELECT count(*) FROM branch"""
_CHAT_COLUMNS = (
    "chats.id, title, chats.created, updated, pinned, "
    "(SELECT count(*) FROM messages WHERE messages.chat = chats.id AND messages.deleted IS NULL), "
    f"profile, system, leaf, draft, chats.deleted, ({_SHOWN}), chats.settings, folder"
)
_UNTAGGED = "CASE WHEN tagged THEN NULL ELSE content END"
_RECORDS = "records JOIN messages ON messages.id = message"
_AMONG = "(?2 IS NULL OR {} IN (SELECT value FROM json_each(?2)))"
# Relevance is rounded, so among about equally good texts the newest comes first.
_TITLES = f"""
    SELECT title, NULL, {_CHAT_COLUMNS} FROM title_index JOIN chats ON chats.id = title_index.rowid
    WHERE title_index MATCH ? AND {_LISTED} AND {_AMONG.format("chats.id")}
    ORDER BY round(bm25(title_index), 1), updated DESC LIMIT ?"""
_MESSAGES = f"""
    WITH found AS (
        SELECT rowid AS id, round(bm25(message_index), 1) AS relevance FROM message_index
        WHERE message_index MATCH ? AND rowid NOT IN (
            SELECT messages.id FROM messages JOIN chats ON chats.id = chat
            WHERE chats.deleted IS NOT NULL OR messages.deleted IS NOT NULL OR NOT {_AMONG.format("chat")})
        ORDER BY relevance, id DESC LIMIT ?)
    SELECT content, found.id, {_CHAT_COLUMNS} FROM found
    JOIN messages ON messages.id = found.id JOIN chats ON chats.id = messages.chat
    ORDER BY relevance, found.id DESC"""
_SUMMARIES = f"""
    SELECT summaries.text, message, {_CHAT_COLUMNS} FROM summary_index
    JOIN summaries ON message = summary_index.rowid
    JOIN messages ON messages.id = message JOIN chats ON chats.id = messages.chat
    WHERE summary_index MATCH ? AND {_LISTED} AND {_AMONG.format("chats.id")}
    ORDER BY round(bm25(summary_index), 1), message DESC LIMIT ?"""


class Store:
    """The conversations in one file."""

    def __init__(
        self, path: Path | None, now: Callable[[], float] = time.time, *, to_read: bool = False
    ) -> None:
        """Open the file, made where it was missing, and drop what was deleted long ago.

        Without a path nothing outlasts the store. One `to_read` opens also a file that may not be written, of
        which it forgets the changes.
        """
        self._now = now
        self._writing: set[int] = set()  # answers that this very program is writing
        self._begun: set[int] = set()  # chats of this program; dropped in the end if nothing was said
        self._is_saved = path is not None
        self._database = Database(path, to_read=to_read)
        try:
            self._tidy()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        begun = [(number,) for number in self._begun]
        self._begun = set()
        with suppress(StoreError):  # leftovers are removed when they are old
            if begun:
                with self._database.writing() as connection:
                    connection.executemany(f"DELETE FROM chats WHERE id = ? AND {_EMPTY}", begun)
        self._database.close()

    @property
    def is_saved(self) -> bool:
        """Return whether chats outlast the store."""
        return self._is_saved

    def new_chat(self, title: str = "", profile: str = "general", system: str | None = None) -> ChatInfo:
        """Begin a chat; it is listed once it has a message."""
        now = self._now()
        with self._database.writing() as connection:
            number = _insert_chat(connection, ChatInfo(0, title, now, now, profile=profile, system=system))
            self._begun.add(number)
            return _read_chat(connection, number)

    def chats(self) -> tuple[ChatInfo, ...]:
        """Return the chats with messages: pinned ones first, then the newest."""
        return self._list(f"{_LISTED} ORDER BY pinned DESC, updated DESC, id DESC")

    def unsent(self) -> tuple[ChatInfo, ...]:
        """Return the chats that have only unsent text, the newest first."""
        return self._list(f"deleted IS NULL AND draft <> '' AND NOT ({_LISTED}) ORDER BY id DESC")

    def deleted(self) -> tuple[ChatInfo, ...]:
        """Return the deleted chats, the last one first."""
        return self._list(f"deleted IS NOT NULL AND NOT ({_EMPTY}) ORDER BY deleted DESC, id DESC")

    def chat(self, chat_id: int) -> ChatInfo:
        """Return one chat; raises UserError if there is none, or it was deleted."""
        with self._database.reading() as connection:
            return _read_chat(connection, chat_id)

    def rename(self, chat_id: int, title: str) -> None:
        """Give a chat another title; an empty one takes that of the first prompt."""
        with self._database.writing() as connection:
            new = title_line(_storable(title))
            if not new:
                prompts = (m for m in _read_messages(connection, "chat = ?", chat_id) if m.role == "user")
                new = next(map(title_of, prompts), "")
            _change_chat(connection, chat_id, "title = ?", new)
        self._database.fill_file()

    def pin(self, chat_id: int, pinned: bool) -> None:
        """Pin a chat at the top of the list, or unpin it."""
        self._change(chat_id, "pinned = ?", pinned)

    def set_folder(self, chat_id: int, name: str) -> None:
        """Move a chat to a folder, which is made where it is missing; without a name, out of its folder."""
        with self._database.writing() as connection:
            _change_chat(connection, chat_id, "folder = ?", _folder(connection, name))

    def rename_folder(self, name: str, new: str) -> None:
        """Give a folder another name, perhaps that of another one, which it joins; an empty one removes it.

        All its chats stay.
        """
        with self._database.writing() as connection:
            is_same = name.casefold() == new.casefold()
            new = title_line(_storable(new))[:MAX_FOLDER] if is_same else _folder(connection, new)
            connection.execute("UPDATE chats SET folder = ? WHERE folder = ?", (new, name))
            connection.execute("DELETE FROM folded WHERE folder = ?", (name,))

    def folders(self) -> tuple[str, ...]:
        """Return the names of the folders with chats that are listed."""
        with self._database.reading() as connection:
            query = f"SELECT DISTINCT folder FROM chats WHERE folder <> '' AND {_LISTED}"
            return tuple(sorted((name for (name,) in connection.execute(query)), key=str.casefold))

    def set_folded(self, folder: str, is_folded: bool) -> None:
        """Note whether a folder is folded in the list."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM folded WHERE folder = ?", (folder,))
            if is_folded:
                _insert(connection, "folded", folder=folder)

    def folded(self) -> frozenset[str]:
        """Return the folders that are folded in the list."""
        with self._database.reading() as connection:
            return frozenset(name for (name,) in connection.execute("SELECT folder FROM folded"))

    def set_profile(self, chat_id: int, name: str) -> None:
        """Choose the profile of a chat."""
        self._change(chat_id, "profile = ?", name)

    def set_system(self, chat_id: int, text: str | None) -> None:
        """Set a chat's own system prompt; None uses that of its profile."""
        self._change(chat_id, "system = ?", text)

    def set_settings(self, chat_id: int, settings: ChatSettings) -> None:
        """Save a chat's own settings."""
        self._change(chat_id, "settings = ?", json.dumps(settings.settled))

    def set_draft(self, chat_id: int, text: str) -> None:
        """Save the unsent text of a chat."""
        self._change(chat_id, "draft = ?", text)

    def set_unread(self, chat_id: int, outcome: Outcome | None) -> None:
        """Note how an answer ended that was not yet seen, or that it has been seen."""
        self._change(chat_id, "unread = ?", outcome or "")

    def unread(self) -> dict[int, Outcome]:
        """Return the outcomes of answers that were not yet seen, by chat."""
        with self._database.reading() as connection:
            found = connection.execute("SELECT id, unread FROM chats WHERE unread <> '' AND deleted IS NULL")
            return {chat: "failed" if outcome == "failed" else "answered" for chat, outcome in found}

    def set_leaf(self, chat_id: int, leaf: int | None) -> None:
        """Show the branch that ends with this message."""
        with self._database.writing() as connection:
            if leaf is not None:
                _require_message(connection, chat_id, leaf)
            _change_chat(connection, chat_id, "leaf = ?", leaf)

    def delete(self, chat_id: int) -> None:
        """Move a chat to the bin; `restore` undoes that, until the store is opened 30 days later."""
        self._change(chat_id, "deleted = coalesce(deleted, ?)", self._now())

    def restore(self, chat_id: int) -> None:
        """Restore a deleted chat."""
        self._change(chat_id, "deleted = ?", None)

    def delete_messages(self, chat_id: int, message_ids: Sequence[int], leaf: int | None) -> DeletedMessages:
        """Move a message and all below it to the bin, and show the branch that ends in `leaf`."""
        now = self._now()
        with self._database.writing() as connection:
            changes = [(now, chat_id, number) for number in message_ids]
            connection.executemany("UPDATE messages SET deleted = ? WHERE chat = ? AND id = ?", changes)
            _change_chat(connection, chat_id, "leaf = ?", leaf)
        return DeletedMessages(chat_id, now, len(message_ids), message_ids[0])

    def deleted_messages(self) -> DeletedMessages | None:
        """Return the messages that were deleted last, but for those of deleted chats; None without any."""
        query = (
            "SELECT chat, messages.deleted, count(*), min(messages.id) FROM messages "
            "JOIN chats ON chats.id = chat WHERE messages.deleted IS NOT NULL AND chats.deleted IS NULL "
            "GROUP BY chat, messages.deleted ORDER BY messages.deleted DESC LIMIT 1"
        )
        with self._database.reading() as connection:
            row = connection.execute(query).fetchone()
        return None if row is None else DeletedMessages(*row)

    def restore_messages(self, deleted: DeletedMessages) -> None:
        """Restore messages that were deleted together, and show the branch that they are in."""
        with self._database.writing() as connection:
            connection.execute(
                "UPDATE messages SET deleted = NULL WHERE chat = ? AND deleted = ?",
                (deleted.chat, deleted.time),
            )
            _change_chat(connection, deleted.chat, "leaf = ?", deleted.first)

    def messages(self, chat_id: int) -> tuple[StoredMessage, ...]:
        """Return all messages, oldest first; unfinished answers of dead programs are `stopped`."""
        dead = self._bury()
        with self._database.reading() as connection:
            _read_chat(connection, chat_id)
            found = _read_messages(connection, "chat = ?", chat_id)
        return tuple(replace(m, state="stopped") if m.id in dead else m for m in found) if dead else found

    def add(
        self,
        chat_id: int,
        parent: int | None,
        role: Role,
        content: str,
        *,
        state: State = "complete",
        attachments: Sequence[Attachment] = (),
    ) -> StoredMessage:
        """Add a message below `parent` and show its branch; the first prompt gives its chat a title."""
        now = self._now()
        return self._add(StoredMessage(0, chat_id, parent, role, content, now, state, tuple(attachments)))

    def add_result(self, chat_id: int, parent: int, content: str, run: ToolRun) -> StoredMessage:
        """Add the result of a call below `parent` and show its branch."""
        return self._add(StoredMessage(0, chat_id, parent, "tool", content, self._now(), run=run))

    def _add(self, message: StoredMessage) -> StoredMessage:
        with self._database.writing() as connection:
            chat = _read_chat(connection, message.chat)
            if message.parent is not None:
                _require_message(connection, message.chat, message.parent)
            number = _insert_message(connection, message)
            title = chat.title or (title_of(message) if message.role == "user" else "")
            values = (number, message.created, title)
            _change_chat(connection, message.chat, "leaf = ?, updated = ?, title = ?", *values)
            (stored,) = _read_messages(connection, "id = ?", number)
        if message.state == "writing":
            self._writing.add(number)
        elif message.role != "user":
            self._database.fill_file()
        return stored

    def write(
        self,
        message_id: int,
        content: str,
        state: State,
        record: AnswerRecord | None = None,
        calls: Sequence[ToolCall] = (),
    ) -> None:
        """Save an answer in progress; cheap enough for twice a second."""
        now = self._now()
        with self._database.writing() as connection:
            record = record or _read_record(connection, message_id, "NOT tagged")
            changed = connection.execute(
                "UPDATE messages SET content = ?, state = ?, written = ?, tagged = 1, calls = ? WHERE id = ?",
                (_storable(content), state, now, pack_calls(calls), message_id),
            )
            if not changed.rowcount:
                raise StoreError(f"message {message_id} is gone from the chats in `{self._database.path}`")
            if record is not None:
                _keep_record(connection, message_id, record)
            if state != "writing":
                connection.execute(
                    "UPDATE chats SET updated = ? WHERE id = (SELECT chat FROM messages WHERE id = ?)",
                    (now, message_id),
                )
        if state == "writing":
            self._writing.add(message_id)
        else:
            self._writing.discard(message_id)
            self._database.fill_file()

    def set_dropped(self, message_ids: Iterable[int], dropped: bool) -> None:
        """Leave messages out of the prompt, or include them again."""
        with self._database.writing() as connection:
            changes = [(dropped, number) for number in message_ids]
            connection.executemany("UPDATE messages SET dropped = ? WHERE id = ?", changes)

    def set_summary(self, message_id: int, text: str) -> None:
        """Let a text stand for a message and all those before it; an empty one removes that."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM summaries WHERE message = ?", (message_id,))
            if text:
                _insert(connection, "summaries", message=message_id, text=text)
        self._database.fill_file()

    def record(self, message_id: int) -> AnswerRecord | None:
        """Return the record of an answer, None if it has none."""
        with self._database.reading() as connection:
            return _read_record(connection, message_id)

    def outlines(self, chat_id: int) -> dict[int, AnswerRecord]:
        """Return the records of a chat's answers, by message and without their rounds."""
        with self._database.reading() as connection:
            found = connection.execute(
                f"SELECT message, {_UNTAGGED}, outline FROM {_RECORDS} WHERE chat = ?", (chat_id,)
            ).fetchall()
        records = ((message, _unpacked(text, outline)) for message, text, outline in found)
        return {message: record for message, record in records if record is not None}

    def search(self, query: str, limit: int = 50) -> tuple[SearchHit, ...]:
        """Search for all the words: best hits first; titles before messages, summaries last.

        The last word may be the beginning of one. Tags and a folder, as in `chat_filter`, narrow the search;
        alone they find chats.
        """
        chats = self.chats() if "#" in query or "in:" in query.lower() else ()
        left, rest = narrow(chats, query)
        expression, words = parse(rest)
        if limit <= 0 or not (words or rest != query):
            return ()
        if not words:
            return tuple(SearchHit(chat, None, chat.title) for chat in left[:limit])
        among = json.dumps([chat.id for chat in left]) if rest != query else None
        with self._database.reading() as connection:
            rows = connection.execute(_TITLES, (expression, among, limit)).fetchall()
            for others in (_MESSAGES, _SUMMARIES):
                if len(rows) < limit:
                    rows += connection.execute(others, (expression, among, limit - len(rows))).fetchall()
        return tuple(
            SearchHit(_chat_of(chat), message, *excerpt(text, words)) for text, message, *chat in rows
        )

    def prompts(self, limit: int = 200) -> tuple[str, ...]:
        """Return the different prompts of all chats, newest first."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT content FROM messages JOIN chats ON chats.id = chat "
                "WHERE role = 'user' AND chats.deleted IS NULL AND messages.deleted IS NULL "
                "ORDER BY messages.id DESC"
            )
            seen: dict[str, None] = {}
            while len(seen) < limit and (row := found.fetchone()) is not None:
                if row[0].strip():
                    seen.setdefault(row[0])
        return tuple(seen)

    def last_chat(self, *, beside: bool = False) -> int | None:
        """Return the chat that was open last, or the one beside it, if it is still there."""
        table = "beside" if beside else "remembered"
        with self._database.reading() as connection:
            query = f"SELECT chat FROM {table} JOIN chats ON chats.id = chat WHERE deleted IS NULL"
            row = connection.execute(query).fetchone()
        return row[0] if row else None

    def remember_chat(self, chat_id: int | None, *, beside: bool = False) -> None:
        """Note which chat is open, or open beside that, for the next start."""
        table = "beside" if beside else "remembered"
        with self._database.writing() as connection:
            if chat_id is not None:
                _read_chat(connection, chat_id)
            connection.execute(f"INSERT OR REPLACE INTO {table} VALUES (1, ?)", (chat_id,))

    def add_chat(
        self, chat: ChatInfo, messages: Sequence[StoredMessage], records: Mapping[int, AnswerRecord]
    ) -> ChatInfo:
        """Add a whole chat from elsewhere under new numbers; parents must come before their children."""
        with self._database.writing() as connection:
            return _insert_whole(connection, chat, messages, records)

    def fork(
        self, chat: ChatInfo, messages: Sequence[StoredMessage], records: Mapping[int, AnswerRecord]
    ) -> ChatInfo:
        """Add a chat that begins now with messages of another one."""
        now = self._now()
        title = f"{chat.title} (fork)" if chat.title else ""
        leaf = messages[-1].id
        forked = replace(chat, title=title, created=now, updated=now, pinned=False, leaf=leaf)
        return self.add_chat(forked, messages, records)

    def add_missing(
        self, chat: ChatInfo, messages: Sequence[StoredMessage], records: Mapping[int, AnswerRecord]
    ) -> AddedChat:
        """Add a chat as `add_chat` does, or only its new messages if it exists.

        It exists if a chat began at the same time with the same message. Its shown branch stays, unless the
        new messages continue it.
        """
        with self._database.writing() as connection:
            there = _same_chat(connection, chat, messages)
            if there is None:
                return AddedChat(_insert_whole(connection, chat, messages, records), True, len(messages))
            count = _insert_missing(connection, there, chat.leaf, messages, records)
            return AddedChat(_read_chat(connection, there), False, count)

    def fill_file(self) -> bool:
        """Write everything into the one file, and return whether that succeeded.

        SQLite keeps the latest changes in a second file, `chats.db-wal`, which a copy would lack.
        """
        return self._database.fill_file(patiently=True)

    def _change(self, chat_id: int, what: str, value: object) -> None:
        with self._database.writing() as connection:
            _change_chat(connection, chat_id, what, value)

    def _list(self, which: str) -> tuple[ChatInfo, ...]:
        with self._database.reading() as connection:
            query = f"SELECT {_CHAT_COLUMNS} FROM chats WHERE {which}"
            return tuple(map(_chat_of, connection.execute(query)))

    def _tidy(self) -> None:
        """Drop what was deleted long ago; on a full disk that can wait."""
        self._bury(-1.0 if self._database.was_alone else DEAD_AFTER_S)
        before = self._now() - KEPT_S
        old = f"deleted < ? OR (updated < ? AND {_EMPTY})"
        with suppress(StoreError):
            with self._database.reading() as connection:
                found = connection.execute(
                    f"SELECT 1 FROM chats WHERE {old} UNION SELECT 1 FROM messages WHERE deleted < ?",
                    (before, before, before),
                ).fetchone()
            if found is None:
                return
            with self._database.writing() as connection:
                connection.execute(f"DELETE FROM chats WHERE {old}", (before, before))
                connection.execute("DELETE FROM messages WHERE deleted < ?", (before,))

    def _bury(self, after_s: float = DEAD_AFTER_S) -> Collection[int]:
        """Mark unfinished answers of dead programs as stopped; return them even if saving that fails."""
        limits = (self._now(), after_s)
        with self._database.reading() as connection:
            found = connection.execute(f"SELECT id FROM messages WHERE {_DEAD}", limits).fetchall()
        dead = {number for (number,) in found} - self._writing
        if dead:
            change = f"UPDATE messages SET state = 'stopped' WHERE id = ? AND {_DEAD}"
            with suppress(StoreError), self._database.writing() as connection:
                connection.executemany(change, [(number, *limits) for number in dead])
        return dead


def title_line(text: str) -> str:
    """Return a text as a title: one line without control characters."""
    return " ".join(safe_line(text).split())[:MAX_TITLE].rstrip()


def title_of(message: StoredMessage) -> str:
    """Return the title that a chat takes from its first prompt."""
    lines = [*message.content.splitlines(), *(attachment.name for attachment in message.attachments)]
    first = next((line for line in lines if line.strip()), "")
    opening = _OF_MARKDOWN.match(first)
    title = title_line(first[opening.end() :] if opening else first)
    if len(title) <= _MAX_GIVEN:
        return title
    cut = title[: _MAX_GIVEN - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > _MAX_GIVEN // 2 else cut).rstrip(" ,.;:") + "…"


def _chat_of(row: Sequence[Any]) -> ChatInfo:
    number, title, created, updated, pinned, *rest, shown, settings, folder = row
    info = ChatInfo(number, title, created, updated, bool(pinned), *rest)
    return replace(info, settings=_settings_of(settings), shown=shown, folder=folder)


def _settings_of(text: str) -> ChatSettings:
    """Return a chat's own settings; none if they are invalid here."""
    with suppress(ValueError, RecursionError):
        return read(ChatSettings, json.loads(text))
    return ChatSettings()


def _read_messages(connection: sqlite3.Connection, where: str, number: int) -> tuple[StoredMessage, ...]:
    """Return messages with their attachments in the order of their numbers; `where` is a condition on one."""
    attached = defaultdict(list)
    for message, name, text in connection.execute(
        "SELECT message, attachments.name, text FROM attachments JOIN messages ON messages.id = message "
        f"WHERE messages.{where} AND deleted IS NULL ORDER BY message, position",
        (number,),
    ):
        attached[message].append(Attachment(name, text))
    columns = "id, chat, parent, role, content, created, state, dropped, tagged, summaries.text, calls, run"
    query = f"SELECT {columns} FROM messages LEFT JOIN summaries ON message = id WHERE {where}"
    rows = connection.execute(f"{query} AND deleted IS NULL ORDER BY id", (number,))
    found = []
    for id_, chat, parent, role, content, created, state, dropped, tagged, summary, calls, run in rows:
        text = content if tagged or role != "assistant" else with_opening_tag(content)
        message = StoredMessage(id_, chat, parent, role, text, created, state, tuple(attached[id_]))
        message = replace(message, dropped=bool(dropped), summary=summary or "")
        found.append(replace(message, calls=unpack_calls(calls), run=unpack_run(run)))
    return tuple(found)


def _read_record(connection: sqlite3.Connection, message_id: int, where: str = "true") -> AnswerRecord | None:
    query = f"SELECT {_UNTAGGED}, outline, rounds FROM {_RECORDS} WHERE message = ? AND {where}"
    row = connection.execute(query, (message_id,)).fetchone()
    return _unpacked(*row) if row else None


def _unpacked(untagged: str | None, outline: bytes, rounds: bytes | None = None) -> AnswerRecord | None:
    """Return a record as it is stored; `text` is the message if it may lack its thinking tag."""
    record = record_codec.unpack(outline, rounds)
    return record if record is None or untagged is None else record_with_opening_tag(record, untagged)


def _read_chat(connection: sqlite3.Connection, chat_id: int) -> ChatInfo:
    """Return a chat; raises UserError if there is none, or it was deleted."""
    query = f"SELECT {_CHAT_COLUMNS} FROM chats WHERE id = ?"
    row = connection.execute(query, (chat_id,)).fetchone()
    if row is None:
        raise _no_chat(chat_id)
    chat = _chat_of(row)
    if chat.deleted is not None:
        raise UserError(f"chat {chat_id} was deleted", f"`localspec history restore {chat_id}` restores it")
    return chat


def _no_chat(chat_id: int) -> UserError:
    return UserError(f"there is no chat {chat_id}", "`localspec history` lists the chats with their numbers")


def _require_message(connection: sqlite3.Connection, chat_id: int, message_id: int) -> None:
    query = "SELECT 1 FROM messages WHERE chat = ? AND id = ? AND deleted IS NULL"
    if connection.execute(query, (chat_id, message_id)).fetchone() is None:
        raise StoreError(f"chat {chat_id} has no message {message_id}")


def _change_chat(connection: sqlite3.Connection, chat_id: int, what: str, *values: object) -> None:
    """Set columns of a chat, deleted or not; raises UserError if there is none."""
    query = f"UPDATE chats SET {what} WHERE id = ?"
    if not connection.execute(query, (*_stored(values), chat_id)).rowcount:
        raise _no_chat(chat_id)


def _insert_chat(connection: sqlite3.Connection, chat: ChatInfo) -> int:
    values = {name: getattr(chat, name) for name in ("created", "updated", "pinned", "profile", "system")}
    values["settings"] = json.dumps(chat.settings.settled)
    values["folder"] = _folder(connection, chat.folder)
    return _insert(connection, "chats", title=title_line(_storable(chat.title)), **values)


def _folder(connection: sqlite3.Connection, name: str) -> str:
    """Return the name of a folder: as it is written already, if it exists."""
    wanted = title_line(_storable(name))[:MAX_FOLDER].rstrip()
    known = (folder for (folder,) in connection.execute("SELECT DISTINCT folder FROM chats"))
    return next((folder for folder in known if folder.casefold() == wanted.casefold()), wanted)


def _insert_whole(
    connection: sqlite3.Connection,
    chat: ChatInfo,
    messages: Sequence[StoredMessage],
    records: Mapping[int, AnswerRecord],
) -> ChatInfo:
    number = _insert_chat(connection, chat)
    new_ids: dict[int, int] = {}
    for message in messages:
        parent = None if message.parent is None else new_ids[message.parent]
        new_ids[message.id] = _insert_message(connection, replace(message, chat=number, parent=parent))
    for message_id, record in records.items():
        _keep_record(connection, new_ids[message_id], record)
    _change_chat(connection, number, "leaf = ?", None if chat.leaf is None else new_ids[chat.leaf])
    return _read_chat(connection, number)


def _same_chat(
    connection: sqlite3.Connection, chat: ChatInfo, messages: Sequence[StoredMessage]
) -> int | None:
    """Return the chat that began at the same time with the same message; of several the fullest."""
    wanted = Counter(map(_said, messages))
    found = list[tuple[int, int]]()
    query = "SELECT id FROM chats WHERE created = ? AND deleted IS NULL"
    for (number,) in connection.execute(query, (chat.created,)).fetchall():
        there = _read_messages(connection, "chat = ?", number)
        if [*map(_said, messages[:1])] == [*map(_said, there[:1])]:
            found.append(((wanted & Counter(map(_said, there))).total(), number))
    return max(found)[1] if found else None


def _insert_missing(
    connection: sqlite3.Connection,
    number: int,
    leaf: int | None,
    messages: Sequence[StoredMessage],
    records: Mapping[int, AnswerRecord],
) -> int:
    """Add the messages that a chat lacks below their parents; return how many."""
    there = {(each.parent, _said(each)): each.id for each in _read_messages(connection, "chat = ?", number)}
    new_ids: dict[int, int] = {}
    added: dict[int, int | None] = {}  # new messages, with the parent of each
    for message in messages:
        parent = None if message.parent is None else new_ids[message.parent]
        known = there.get((parent, _said(message)))
        if known is None:
            known = _insert_message(connection, replace(message, chat=number, parent=parent))
            added[known] = parent
            if message.id in records:
                _keep_record(connection, known, records[message.id])
        new_ids[message.id] = known
    if added:
        _change_chat(connection, number, "updated = max(updated, ?)", max(each.created for each in messages))
        _show_continued(connection, number, None if leaf is None else new_ids[leaf], added)
    return len(added)


def _show_continued(
    connection: sqlite3.Connection, number: int, leaf: int | None, added: Mapping[int, int | None]
) -> None:
    """Show the new messages up to `leaf` if they continue the shown branch."""
    above = leaf
    while above is not None and above in added:
        above = added[above]
    if above == _read_chat(connection, number).leaf:
        _change_chat(connection, number, "leaf = ?", leaf)


def _said(message: StoredMessage) -> tuple[object, ...]:
    """Return the identity of a message within its chat, the same in every store."""
    files = tuple((file.name, _storable(file.text)) for file in message.attachments)
    return message.role, message.created, _storable(message.content), files, pack_calls(message.calls)


def _insert_message(connection: sqlite3.Connection, message: StoredMessage) -> int:
    columns = ("chat", "parent", "role", "state", "dropped", "created", "content")
    values = {name: getattr(message, name) for name in columns}
    of_tools = {"calls": pack_calls(message.calls), "run": pack_run(message.run)}
    number = _insert(connection, "messages", written=message.created, tagged=True, **values, **of_tools)
    for position, file in enumerate(message.attachments):
        _insert(connection, "attachments", message=number, position=position, name=file.name, text=file.text)
    if message.summary:
        _insert(connection, "summaries", message=number, text=message.summary)
    return number


def _insert(connection: sqlite3.Connection, table: str, **values: object) -> int:
    marks = ", ".join("?" * len(values))
    query = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})"
    number = connection.execute(query, _stored(values.values())).lastrowid
    assert number is not None  # of an INSERT
    return number


def _keep_record(connection: sqlite3.Connection, message_id: int, record: AnswerRecord) -> None:
    packed = record_codec.pack(record)
    connection.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (message_id, *packed))


def _storable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which UTF-8 cannot represent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _stored(values: Iterable[object]) -> list[object]:
    return [_storable(value) if isinstance(value, str) else value for value in values]
