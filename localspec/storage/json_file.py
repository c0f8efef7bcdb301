"""JSON files of frozen dataclasses: values are checked, complaints say where."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from localspec.errors import StoreError, os_errors_as
from localspec.storage.paths import PRIVATE_FILE, make_private_folder, read_plain, write_atomically
from localspec.values import InvalidValueError, plain, read

T = TypeVar("T")


def warn(message: str, *values: object) -> None:
    """Log that a file is unusable."""
    import logging  # 5 ms that a mistake in the arguments does without

    logging.getLogger("localspec.storage").warning(message, *values)


@dataclass(frozen=True, slots=True)
class JsonFile(Generic[T]):
    """A file that holds one dataclass; it is written whole: if two programs write at once, one wins."""

    path: Path
    kind: type[T]
    schema: int = 0  # is in the file next to the fields, unless 0
    largest: int = 4 * 2**20
    is_sound: Callable[[T], bool] | None = None  # returns whether the values are consistent

    def load(self) -> T:
        """Return its value; raises OSError, ValueError or RecursionError."""
        value = json.loads(read_plain(self.path, self.largest).decode("utf-8"))
        if self.schema and isinstance(value, dict) and (schema := value.get("schema")) != self.schema:
            raise InvalidValueError(f"its schema is {schema}, and this program knows {self.schema}")
        found = read(self.kind, value, "the file")
        if self.is_sound is not None and not self.is_sound(found):
            raise InvalidValueError("its figures make no sense together")
        return found

    def read(self) -> T | None:
        """Return its value; None if it is missing or unusable, with the reason in the log."""
        try:
            return self.load()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            warn("%s cannot be used: %s", self.path, error)
            return None

    def write(self, value: T) -> None:
        """Write it, in a folder that only its owner can look into; raises StoreError."""
        self._make_folder()
        head = {"schema": self.schema} if self.schema else {}
        write_atomically(self.path, json.dumps(head | plain(value), indent=1) + "\n")

    @contextmanager
    def locked(self, patience_s: float) -> Iterator[None]:
        """Lock it against other programs; raises StoreError if another one holds it for too long."""
        from filelock import FileLock, Timeout  # 20 ms

        self._make_folder()
        try:
            with FileLock(self.path.with_suffix(".lock"), timeout=patience_s, mode=PRIVATE_FILE):
                yield
        except Timeout:
            raise StoreError(f"cannot write `{self.path}`: another program is using it") from None

    def _make_folder(self) -> None:
        with os_errors_as(f"cannot write `{self.path}`", StoreError):
            make_private_folder(self.path.parent)
