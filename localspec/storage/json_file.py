"""JSON files of frozen dataclasses: values are checked, complaints say where."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from enum import Enum, EnumType
from functools import cache, partial
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from localspec.errors import StoreError, in_words
from localspec.storage.paths import PRIVATE_FILE, make_private_folder, read_plain, write_atomically

T = TypeVar("T")
Reader = Callable[[object, str], object]
LARGEST = 2**53  # whole numbers beyond it are not exact in other programs' JSON, and too large for any size
_NAMES: dict[type, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class UnexpectedError(ValueError):
    """A value is not what belongs in its place."""


def warn(message: str, *values: object) -> None:
    """Tell the log of a file that is of no use."""
    import logging  # 5 ms that a mistake in the arguments does without

    logging.getLogger("localspec.storage").warning(message, *values)


@dataclass(frozen=True, slots=True)
class JsonFile(Generic[T]):
    """A file that holds one dataclass; it is written whole: of two programs that write at once, one wins."""

    path: Path
    kind: type[T]
    schema: int = 0  # stands in the file beside the fields, 0 in none
    largest: int = 4 * 2**20
    is_sound: Callable[[T], bool] | None = None  # tells whether the figures make sense together

    def load(self) -> T:
        """Return what it holds; raises OSError, ValueError or RecursionError."""
        value = json.loads(read_plain(self.path, self.largest).decode("utf-8"))
        if self.schema and isinstance(value, dict) and (schema := value.get("schema")) != self.schema:
            raise UnexpectedError(f"its schema is {schema}, and this program knows {self.schema}")
        found = checked(self.kind, value, "the file")
        if self.is_sound is not None and not self.is_sound(found):
            raise UnexpectedError("its figures make no sense together")
        return found

    def read(self) -> T | None:
        """Return what it holds; None where there is none, or none of use, and the log tells why."""
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
        whole = head | asdict(cast(Any, value))
        write_atomically(self.path, json.dumps(whole, indent=1) + "\n")

    @contextmanager
    def locked(self, patience_s: float) -> Iterator[None]:
        """Keep other programs from changing it meanwhile; raises StoreError where one does for too long."""
        from filelock import FileLock, Timeout  # 20 ms

        self._make_folder()
        try:
            with FileLock(self.path.with_suffix(".lock"), timeout=patience_s, mode=PRIVATE_FILE):
                yield
        except Timeout:
            raise StoreError(f"cannot write `{self.path}`: another program holds it") from None

    def _make_folder(self) -> None:
        with in_words(f"cannot write `{self.path}`", StoreError):
            make_private_folder(self.path.parent)


def checked(kind: type[T], value: object, where: str) -> T:
    """Return a value as what a field of type `kind` holds; raises UnexpectedError.

    Of an object for a dataclass, unknown members are ignored and missing ones take the default.
    """
    return cast(T, _reader(cast("Hashable", kind))(value, where))


@cache
def _reader(kind: Any) -> Reader:  # noqa: ANN401 - types, and what stands for them in annotations
    """Return what reads values of a type; made once, since a chat has thousands of records."""
    if kind in _NAMES or kind is object:
        return partial(_plain, kind)
    origin = get_origin(kind)
    if origin in (UnionType, Union):  # the latter of a Literal or None
        (inner,) = (_reader(part) for part in get_args(kind) if part is not NoneType)
        return lambda value, where: None if value is None else inner(value, where)
    if origin is Literal:
        return partial(_member, {name: name for name in get_args(kind)})
    if origin is tuple:
        *members, last = get_args(kind)
        return partial(_column, *members) if last is Ellipsis else partial(_row, (*members, last))
    if isinstance(kind, EnumType):
        return partial(_member, {each.value: each for each in list[Enum](kind)})
    return partial(_whole, *get_args(kind)[1]) if origin is Annotated else _reader_of_members(kind)


def _reader_of_members(kind: Any) -> Reader:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind, include_extras=True)
    parts = tuple(
        (field.name, _reader(hints[field.name]), field.default is field.default_factory is MISSING)
        for field in fields(kind)
    )
    return partial(_object, kind, parts)


def _object(
    kind: Callable[..., object], members: tuple[tuple[str, Reader, bool], ...], value: object, where: str
) -> object:
    if not isinstance(value, Mapping):
        raise UnexpectedError(f"{where} is not an object")
    found = {}
    for name, read, is_required in members:
        if name in value:
            found[name] = read(value[name], f"{where}.{name}")
        elif is_required:
            raise UnexpectedError(f"{where}.{name} is missing")
    return kind(**found)


def _member(allowed: Mapping[str, object], value: object, where: str) -> object:
    if not isinstance(value, str) or value not in allowed:
        raise UnexpectedError(f"{where} is none of {', '.join(allowed)}")
    return allowed[value]


def _column(kind: type, value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise UnexpectedError(f"{where} is not a list")
    if kind is int and {int}.issuperset(map(type, value)) and max(map(abs, value), default=0) <= LARGEST:
        return tuple(value)  # the most frequent kind by far
    read = _reader(kind)
    try:
        return tuple([read(item, where) for item in value])
    except UnexpectedError:  # only now is it worth counting
        return tuple([read(item, f"{where}[{i}]") for i, item in enumerate(value)])


def _row(kinds: tuple[type, ...], value: object, where: str) -> tuple[object, ...]:
    if not isinstance(value, list) or len(value) != len(kinds):
        raise UnexpectedError(f"{where} is not a list of {len(kinds)}")
    return tuple(
        _reader(kind)(item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _whole(low: int, high: int, value: object, where: str) -> object:
    if type(value) is not int:
        raise UnexpectedError(f"{where} is not {_NAMES[int]}")
    if not low <= value <= high:
        raise UnexpectedError(f"{where} is no number of a sensible size")
    return value


def _plain(kind: type, value: object, where: str) -> object:
    if kind is object:
        return value
    if kind is float and type(value) is int:
        value = float(value) if abs(value) <= LARGEST else inf
    if type(value) is not kind:
        raise UnexpectedError(f"{where} is not {_NAMES[kind]}")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:  # also of what is no number at all
        raise UnexpectedError(f"{where} is no number of a sensible size")
    return value
