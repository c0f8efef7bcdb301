"""The SQLite file of all studies: made, opened, and read again after a kill.

It is Optuna's own format, so that optuna-dashboard opens it.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from localspec.errors import StoreError
from localspec.storage.paths import PRIVATE_FILE, make_private_folder
from localspec.tuning.run_folder import digest

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage

FAILURE = "failure"
_BUSY_S = 10.0  # patience with another program that writes


@dataclass(frozen=True, slots=True)
class StudyKey:
    """Which study: a title for people, and the digest of all evidence behind it; another is another study."""

    title: str
    digest: str

    def name(self, *details: object) -> str:
        """Return the study's name, which depends on further details too."""
        return f"{self.title} [{digest(self.digest, details, length=10)}]"


@contextmanager
def quiet() -> Iterator[None]:
    """Use parts of Optuna that may change with a release, as the tests of each release will tell."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


class StudyFile:
    """The file, open; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the file, made where it was missing; one that is damaged is set aside for a new one."""
        self.path = path
        with explained(path):
            try:
                self._storage = _opened(path)
            except _Unusable:
                path.replace(path.with_name(f"{path.name}.damaged"))
                for ending in ("-wal", "-shm"):
                    path.with_name(path.name + ending).unlink(missing_ok=True)
                self._storage = _opened(path)

    def study(self, name: str, *about: tuple[str, str]) -> Study:
        """Return a study that maximises tokens per second, made where it was missing."""
        import optuna

        with explained(self.path), quiet():
            study = optuna.create_study(
                storage=self._storage, study_name=name, direction="maximize", load_if_exists=True
            )
            if not study.user_attrs:
                study.set_metric_names(["tokens per second"])
                for title, text in about:
                    study.set_user_attr(title, text)
        return study

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._storage.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Unusable(Exception):  # noqa: N818 - the file, not the program
    """This is no file of studies, or one of another release of Optuna."""


def _opened(path: Path) -> RDBStorage:
    import optuna
    from optuna.storages import RDBStorage
    from sqlalchemy import event
    from sqlalchemy.exc import DatabaseError, OperationalError

    optuna.logging.disable_default_handler()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    _prepare(path)
    try:
        storage = RDBStorage(_url(path), {"connect_args": {"timeout": _BUSY_S}})
    except OperationalError:
        raise
    except (DatabaseError, RuntimeError) as error:
        raise _Unusable from error
    storage.engine.dispose()
    event.listen(storage.engine, "connect", _relax)
    return storage


def _url(path: Path) -> str:
    """Return where Optuna finds the file; it would fill in what stands in braces."""
    from sqlalchemy import URL

    address = URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
    return address.replace("{", "{{").replace("}", "}}")


def _prepare(path: Path) -> None:
    """Make the file private, and let others read while one writes."""
    make_private_folder(path.parent)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE_FILE))
    with closing(sqlite3.connect(path, _BUSY_S)) as connection:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise _Unusable
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise _Unusable from error


def _relax(connection: sqlite3.Connection, _: object) -> None:
    """Do not wait for the disk: a power cut may cost the last trials, never the file."""
    connection.execute("PRAGMA synchronous = NORMAL")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the file into a `StoreError`."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OSError, sqlite3.Error, StorageInternalError, SQLAlchemyError) as error:
        cause = error.__cause__ or error
        line = next(iter(str(cause).splitlines()), type(cause).__name__)
        raise StoreError(f"cannot keep the study in `{path}`: {line}") from error
