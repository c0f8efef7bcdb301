"""One SQLite file: opened with care, shared by threads, with errors that say what to do.

All threads share one connection behind one lock: statements take well under 0.1 s, so that waiting for each
other costs less than a connection for every thread of a pool, and nobody can meet a half-written chat.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from localspec.chat.store.search import search_text
from localspec.errors import StoreError
from localspec.storage.paths import PRIVATE_FILE, make_private_folder

Migration = Callable[[sqlite3.Connection], None]

# `search_text` is a function that the connection brings along; see `search.py`.
# The indexes of the text are "external content": they hold no second copy of it.
_M001 = (
    """CREATE TABLE chats (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        title TEXT NOT NULL,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0,
        profile TEXT NOT NULL,
        system TEXT,
        leaf INTEGER,
        deleted REAL
    )""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        chat INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        parent INTEGER,
        role TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        state TEXT NOT NULL,
        dropped INTEGER NOT NULL DEFAULT 0,
        created REAL NOT NULL,
        written REAL NOT NULL,
        content TEXT NOT NULL,
        UNIQUE (chat, id),
        FOREIGN KEY (chat, parent) REFERENCES messages (chat, id)
    )""",
    "CREATE INDEX messages_by_parent ON messages (chat, parent)",
    "CREATE INDEX messages_under_way ON messages (written) WHERE state = 'writing'",
    """CREATE TABLE attachments (
        message INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        name TEXT NOT NULL,
        text TEXT NOT NULL,
        PRIMARY KEY (message, position)
    )""",
    """CREATE TABLE records (
        message INTEGER PRIMARY KEY REFERENCES messages (id) ON DELETE CASCADE,
        outline BLOB NOT NULL,
        rounds BLOB NOT NULL
    )""",
    """CREATE TABLE remembered (
        only INTEGER PRIMARY KEY CHECK (only = 1),
        chat INTEGER REFERENCES chats (id) ON DELETE SET NULL
    )""",
    "CREATE VIEW titles_to_index AS SELECT id, search_text(title) AS text FROM chats",
    """CREATE VIEW messages_to_index AS
        SELECT id, search_text(content) AS text FROM messages WHERE state <> 'writing'""",
    """CREATE VIRTUAL TABLE title_index USING fts5 (
        text, content='titles_to_index', content_rowid='id', prefix='1 2 3',
        tokenize='unicode61 remove_diacritics 2'
    )""",
    """CREATE VIRTUAL TABLE message_index USING fts5 (
        text, content='messages_to_index', content_rowid='id', prefix='1 2 3',
        tokenize='unicode61 remove_diacritics 2'
    )""",
    """CREATE TRIGGER chat_added AFTER INSERT ON chats BEGIN
        INSERT INTO title_index (rowid, text) VALUES (new.id, search_text(new.title));
    END""",
    """CREATE TRIGGER chat_renamed AFTER UPDATE OF title ON chats WHEN old.title <> new.title BEGIN
        INSERT INTO title_index (title_index, rowid, text) VALUES ('delete', old.id, search_text(old.title));
        INSERT INTO title_index (rowid, text) VALUES (new.id, search_text(new.title));
    END""",
    """CREATE TRIGGER chat_purged AFTER DELETE ON chats BEGIN
        INSERT INTO title_index (title_index, rowid, text) VALUES ('delete', old.id, search_text(old.title));
    END""",
    """CREATE TRIGGER message_added AFTER INSERT ON messages WHEN new.state <> 'writing' BEGIN
        INSERT INTO message_index (rowid, text) VALUES (new.id, search_text(new.content));
    END""",
    """CREATE TRIGGER message_written AFTER UPDATE OF content, state ON messages
    WHEN (old.state <> 'writing' OR new.state <> 'writing')
        AND (old.content <> new.content OR (old.state = 'writing') <> (new.state = 'writing'))
    BEGIN
        INSERT INTO message_index (message_index, rowid, text)
            SELECT 'delete', old.id, search_text(old.content) WHERE old.state <> 'writing';
        INSERT INTO message_index (rowid, text)
            SELECT new.id, search_text(new.content) WHERE new.state <> 'writing';
    END""",
    """CREATE TRIGGER message_purged AFTER DELETE ON messages WHEN old.state <> 'writing' BEGIN
        INSERT INTO message_index (message_index, rowid, text)
            VALUES ('delete', old.id, search_text(old.content));
    END""",
)


def m001_chats_and_messages(connection: sqlite3.Connection) -> None:
    """Create chats, messages, records and the indexes of their text."""
    for statement in _M001:
        connection.execute(statement)


def m002_unsent_text(connection: sqlite3.Connection) -> None:
    """Keep with each chat what was being written."""
    connection.execute("ALTER TABLE chats ADD COLUMN draft TEXT NOT NULL DEFAULT ''")


MIGRATIONS: tuple[Migration, ...] = (m001_chats_and_messages, m002_unsent_text)


def version_of(connection: sqlite3.Connection) -> int:
    """Return how many of the steps a database has behind it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection, migrations: tuple[Migration, ...] = MIGRATIONS) -> None:
    """Apply the steps that a database lacks, each in a transaction of its own.

    Foreign keys must be off: a step may have to build a table anew.
    """
    while version_of(connection) < len(migrations):
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = version_of(connection)  # another program may have been quicker
            if version < len(migrations):
                migrations[version](connection)
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


BUSY_S = 5.0  # patience with another program that writes
_IN_MEMORY = ":memory:"
_PRIMARY = 0xFF  # SQLite keeps the kind of an error in the low byte, the details above


class Database:
    """An open database of conversations."""

    def __init__(self, path: Path | None) -> None:
        """Open the file, made and migrated where needed; raises StoreError and then leaves it as it was.

        Without a path everything is in memory, and gone at the end.
        """
        self.path = path or Path(_IN_MEMORY)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        try:
            if path is not None:
                _create(path)
        except OSError as error:
            raise StoreError(f"cannot open the chats in `{path}`: {error.strerror or error}") from error
        with _explained(self.path):
            connection = sqlite3.connect(self.path, BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                _prepare(connection, self.path)
            except BaseException:
                connection.close()
                raise
        self._connection = connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Hold one unchanging view of the database."""
        with self._transaction("BEGIN") as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Change the database: everything in the block is kept, or, after an error, nothing."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, _explained(self.path):
            connection = self._connection
            if connection is None:
                raise StoreError(f"the chats in `{self.path}` are closed")
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk ends the transaction by itself
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise


def _create(path: Path) -> None:
    """Make the file private before SQLite writes to it; the files beside it get its permissions."""
    make_private_folder(path.parent)
    try:
        # Only a file that is new may be opened: closing it again would drop the locks of another connection.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            with suppress(OSError):  # somebody else's file may still be readable
                path.chmod(path.stat().st_mode & PRIVATE_FILE)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = version_of(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the chats in `{path}` were written by a newer LocalSpec (schema {version}, this one knows "
            f"{len(MIGRATIONS)}); update LocalSpec, the file is unchanged"
        )
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == 0 and tables:
        raise StoreError(f"`{path}` is a database of another program; move it away, it is unchanged")
    connection.create_function("search_text", 1, search_text, deterministic=True)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    migrate(connection)
    connection.execute("PRAGMA foreign_keys = ON")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_explanation(error, path)) from error


def _explanation(error: sqlite3.Error, path: Path) -> str:
    kind = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    if kind == sqlite3.SQLITE_FULL:
        return f"no room left on the disk for the chats in `{path}`; free some space, nothing old is lost"
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"another program has kept the chats in `{path}` busy; close it or try again"
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"the chats in `{path}` are damaged ({error}); the file is left as it is: restore it from a "
            f"backup, try `sqlite3 {path.name} .recover`, or move it away to start anew"
        )
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return (
            f"cannot write the chats in `{path}`: {error}; check the permissions of the file and its folder"
        )
    return f"the chats in `{path}` cannot be used: {error}"
