"""Turn JSON values into frozen dataclasses; every value is checked, and complaints say where it stands."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum, EnumType
from functools import cache, partial
from math import inf
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[object, str], object]
LARGEST = 2**53  # whole numbers beyond it are not exact in other programs' JSON, and too large for any size
_NAMES: dict[type, str] = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


class UnexpectedError(ValueError):
    """A value is not what belongs in its place."""


def checked(kind: type[T], value: object, where: str) -> T:
    """Return a value as what a field of type `kind` holds; raises UnexpectedError.

    Of an object for a dataclass, unknown members are ignored and missing ones take the default.
    """
    return cast(T, _reader(cast("Hashable", kind))(value, where))


@cache
def _reader(kind: Any) -> Reader:  # noqa: ANN401 - types, and what stands for them in annotations
    """Return what reads values of a type; made once, since a chat has thousands of records."""
    if kind in _NAMES:
        return partial(_plain, kind)
    origin = get_origin(kind)
    if origin is UnionType:
        (inner,) = (_reader(part) for part in get_args(kind) if part is not NoneType)
        return lambda value, where: None if value is None else inner(value, where)
    if origin is Literal:
        return partial(_member, {name: name for name in get_args(kind)})
    if origin is tuple:
        return partial(_column, get_args(kind)[0])
    if isinstance(kind, EnumType):
        return partial(_member, {each.value: each for each in list[Enum](kind)})
    hints = get_type_hints(kind)
    members = tuple(
        _Member(field.name, _reader(hints[field.name]), field.default is field.default_factory is MISSING)
        for field in fields(kind)
    )
    return partial(_object, kind, members)


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    read: Reader
    required: bool


def _object(kind: Callable[..., object], members: tuple[_Member, ...], value: object, where: str) -> object:
    if not isinstance(value, Mapping):
        raise UnexpectedError(f"{where} is not an object")
    found = {}
    for member in members:
        if member.name in value:
            found[member.name] = member.read(value[member.name], f"{where}.{member.name}")
        elif member.required:
            raise UnexpectedError(f"{where}.{member.name} is missing")
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


def _plain(kind: type, value: object, where: str) -> object:
    if kind is float and type(value) is int:
        value = float(value) if abs(value) <= LARGEST else inf
    if type(value) is not kind:
        raise UnexpectedError(f"{where} is not {_NAMES[kind]}")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:  # also of what is no number at all
        raise UnexpectedError(f"{where} is no number of a sensible size")
    return value
