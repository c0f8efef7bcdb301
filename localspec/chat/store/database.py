"""One SQLite file: opened with care, shared by threads, with errors that say what to do.

All threads share one connection behind one lock: statements take well under 0.1 s, so that waiting for each
other costs less than a connection for every thread of a pool, and nobody can meet a half-written chat.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from localspec.chat.store.search import search_text
from localspec.errors import StoreError
from localspec.storage.paths import PRIVATE_FILE, make_private_folder

MIGRATIONS = tuple(sorted(Path(__file__).parent.glob("*.sql")))
"""Each brings a database one version further, in statements that a blank line ends."""
BUSY_S = 5.0  # patience with another program that writes
_PRIMARY = 0xFF  # SQLite keeps the kind of an error in the low byte, the details above


def version_of(connection: sqlite3.Connection) -> int:
    """Return how many of the steps a database has behind it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Path] = MIGRATIONS) -> None:
    """Apply the steps that a database lacks, each in a transaction of its own.

    Foreign keys must be off: a step may have to build a table anew.
    """
    while version_of(connection) < len(migrations):
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            version = version_of(connection)  # another program may have been quicker
            if version < len(migrations):
                for statement in migrations[version].read_text(encoding="utf-8").split("\n\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version + 1}")


class Database:
    """An open database of conversations."""

    def __init__(self, path: Path | None) -> None:
        """Open the file, made and migrated where needed; raises StoreError and then leaves it as it was.

        Without a path everything is in memory, and gone at the end.
        """
        self.path = path or Path(":memory:")
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        try:
            if path is not None:
                _create(path)
        except OSError as error:
            raise StoreError(f"cannot open the chats in `{path}`: {error.strerror or error}") from error
        with _explained(self.path):
            connection = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(connection, self.path)
            except BaseException:
                connection.close()
                raise
        self._connection = connection
        self._presence: int | None = None
        self.was_alone = path is not None and self._announce(path.parent)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Hold one unchanging view of the database."""
        return self._transaction("BEGIN")

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Change the database: everything in the block is kept, or, after an error, nothing."""
        return self._transaction("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._presence is not None:
                os.close(self._presence)
                self._presence = None

    def _announce(self, folder: Path) -> bool:
        """Share a lock that the system takes back when this program ends; tell whether nobody else has it."""
        if sys.platform == "win32":
            return False
        import fcntl

        try:
            self._presence = os.open(folder, os.O_RDONLY)
            with suppress(BlockingIOError):
                fcntl.flock(self._presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(self._presence, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
            fcntl.flock(self._presence, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # a disk without locks
            pass
        return False

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._lock, _explained(self.path):
            if self._connection is None:
                raise StoreError(f"the chats in `{self.path}` are closed")
            with self._connection as connection:
                connection.execute(begin)
                yield connection


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
