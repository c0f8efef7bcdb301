"""One SQLite file: opened with care, shared by threads, with errors that have a hint.

All threads share one connection and one lock. Statements take well under 0.1 s, so waiting costs less than a
connection for every thread, and no thread sees a half-written chat.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path

from localspec.chat.store.search import search_text
from localspec.errors import StoreError
from localspec.storage.paths import NOT_WRITABLE, PRIVATE_FILE, elsewhere, make_private_folder

MIGRATIONS = tuple(sorted(Path(__file__).parent.glob("*.sql")))
"""Each step upgrades a database by one version; blank lines separate its statements."""
BUSY_S = 5.0  # patience with another program that writes
_REFUSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
_PRIMARY = 0xFF  # SQLite keeps the kind of an error in the low byte, the details above


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a database: the number of steps applied."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def migrate(connection: sqlite3.Connection, migrations: Sequence[Path] = MIGRATIONS) -> None:
    """Apply the missing steps, each in its own transaction.

    Foreign keys must be off: a step may have to rebuild a table.
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

    def __init__(self, path: Path | None, *, to_read: bool = False) -> None:
        """Open the file, made and migrated where needed; raises StoreError and then leaves it as it was.

        Without a path everything is in memory, and gone at the end. A file that may not be written is copied
        into memory `to_read` it.
        """
        self.path = path or Path(":memory:")
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._is_copy = False
        with _explained(self.path):
            try:
                self._connection = _opened(path)
            except (OSError, sqlite3.OperationalError) as error:
                if path is None or not to_read or not _may_not_write(error):
                    raise
                self._connection = _copied(path)
                self._is_copy = True
        self._presence: int | None = None
        self.was_alone = path is not None and self._announce(path.parent)

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """Hold one unchanging view of the database."""
        return self._transaction("BEGIN")

    def writing(self) -> AbstractContextManager[sqlite3.Connection]:
        """Change the database in one transaction: after an error, nothing in the block is saved."""
        return self._transaction("BEGIN IMMEDIATE")

    def fill_file(self, *, patiently: bool = False) -> bool:
        """Move the write-ahead log into the file, and return whether all of it was moved.

        Readers can prevent that; with `patience` they are waited for as long as writers.
        """
        if self._is_copy:
            return not _size(f"{self.path}-wal")
        how = "FULL" if patiently else "PASSIVE"
        with self._lock, suppress(sqlite3.Error):  # what was written is safe where it is
            if self._connection is not None:
                query = f"PRAGMA wal_checkpoint({how})"
                was_hindered, pages, moved = self._connection.execute(query).fetchone()
                return pages == moved and not was_hindered
        return False

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
        """Share a lock that ends with this program; return whether no other program has it."""
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


def _opened(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        _create(path)
    connection = _connect(path or ":memory:")
    try:
        _prepare(connection, path or Path(":memory:"))
    except BaseException:
        connection.close()
        raise
    return connection


def _copied(path: Path) -> sqlite3.Connection:
    """Return a copy in memory of a read-only file; an empty one without a file."""
    copy = _connect(":memory:")
    try:
        if path.exists():
            _copy(path, copy)
        _prepare(copy, path)
    except BaseException:
        copy.close()
        raise
    return copy


def _copy(path: Path, into: sqlite3.Connection) -> None:
    """Copy a read-only database; raises StoreError if its write-ahead log cannot be read."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(_connect(address)) as connection:
            connection.backup(into)
    except sqlite3.OperationalError as error:
        if not _may_not_write(error):
            raise
        if _size(f"{path}-wal"):  # SQLite would pass over it
            raise StoreError(
                f"the latest chats of `{path}` are in `{path.name}-wal`, which cannot be read where nothing "
                "may be written; copy both files into a folder of yours, and name that in LOCALSPEC_DATA_DIR"
            ) from error
        with closing(_connect(f"{address}&immutable=1")) as connection:
            connection.backup(into)


def _connect(path: Path | str) -> sqlite3.Connection:
    is_address = str(path).startswith("file:")
    return sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=is_address
    )


def _size(file: str) -> int:
    with suppress(OSError):
        return Path(file).stat().st_size
    return 0


def _may_not_write(error: OSError | sqlite3.Error) -> bool:
    if isinstance(error, OSError):
        return error.errno in NOT_WRITABLE
    return _kind(error) in _REFUSED


def _create(path: Path) -> None:
    """Make the file private before SQLite writes to it; SQLite gives its other files the same permissions."""
    make_private_folder(path.parent)
    try:
        # Only a file that is new may be opened: closing it again would drop the locks of another connection.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            with suppress(OSError):  # another user's file may still be readable
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


def _kind(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"cannot open the chats in `{path}`: {error.strerror or error}"
        raise StoreError(f"{what}{elsewhere(path, error)}") from error
    except sqlite3.Error as error:
        raise StoreError(_explanation(error, path)) from error


def _explanation(error: sqlite3.Error, path: Path) -> str:
    kind = _kind(error)
    if kind == sqlite3.SQLITE_FULL:
        return f"no space left on the disk for the chats in `{path}`; free some space, nothing old is lost"
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"another program is using the chats in `{path}`; close it or try again"
    if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"the chats in `{path}` are damaged ({error}); the file is left as it is: restore it from a "
            f"backup, try `sqlite3 {path.name} .recover`, or move it away to start again"
        )
    if kind in _REFUSED:
        return (
            f"cannot write the chats in `{path}`: {error}; check the permissions of the file and its folder"
        )
    return f"the chats in `{path}` cannot be used: {error}"
