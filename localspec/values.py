"""Typed values from JSON, TOML and Python: strict, within their ranges, and a complaint that says where.

A type's annotations are its whole description: `temperature: Annotated[float, Range(0, 100)]`.
Knows no files and no protocols.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum, EnumType
from functools import cache, partial
from math import nan
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Reader = Callable[[object], object]
Step = str | int  # the name of a member, or the place of an item
_TAG = "_type"  # names the class in an object that may be of several
_LARGEST = 2**53  # whole numbers beyond it are not exact in other programs' JSON, and too large for any size
_LONGEST_SHOWN = 40
# what may be wanted
TEXT = "a text"
ONE_LINE = "one line of plain text"


class Range(NamedTuple):
    """The least and the largest value of a number, written into its annotation."""

    low: float
    high: float

    def words(self, *, is_whole: bool) -> str:
        """Return the range as in "a whole number from 1 to 8"."""
        if is_whole:
            return f"a whole number from {int(self.low)} to {int(self.high)}"
        return f"a number from {self.low:g} to {self.high:g}"


class OneLine(NamedTuple):
    """A text without line breaks and control characters."""


Line = Annotated[str, OneLine()]


class InvalidValueError(ValueError):
    """A value is not of the type or range that its place needs.

    `wanted` names the expected kind, such as "a list"; it is empty if `problem` says something else.
    `value` is the wrong value, `MISSING` if there is none. `choices` are the allowed words, if one of some
    is expected.
    """

    choices: tuple[str, ...] = ()

    def __init__(
        self, problem: str, path: tuple[Step, ...] = (), wanted: str = "", value: object = MISSING
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path
        self.wanted = wanted
        self.value = value

    @property
    def place(self) -> str:
        """Return the path in words, as in `messages[3].role`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")

    @property
    def demand(self) -> str:
        """Return a message for the user with the expected and the actual value."""
        return f"has to be {self.wanted}, not {shown(self.value)}" if self.wanted else self.problem

    def within(self, step: Step) -> InvalidValueError:
        """Return the error with the step to the value that it was found in."""
        self.path = (step, *self.path)
        return self

    def __str__(self) -> str:
        return f"{self.place} {self.problem}" if self.path else self.problem


def read(kind: type[T], value: object, where: str = "") -> T:
    """Convert a value to type `kind`; raises InvalidValueError.

    Reads values of JSON and TOML, and instances. In an object for a dataclass, unknown members are ignored
    and missing ones take the default; `_type` names the one of a union of dataclasses. NaN is rejected, and
    without a range any number beyond 2^53. The error begins with `where` and the path.
    """
    try:
        return cast(T, _reader(cast(Hashable, kind))(value))
    except InvalidValueError as error:
        raise error.within(where) if where else error from None


def read_fields(kind: type, values: Mapping[str, object]) -> dict[str, Any]:
    """Return some fields of a dataclass, by name; raises InvalidValueError. Names are known already."""
    members = _members(kind)
    return {name: _inside(name, members[name][0], value) for name, value in values.items()}


def check(value: object) -> None:
    """Raise InvalidValueError for a dataclass made in Python that does not fit its own annotations."""
    _reader(cast(Hashable, type(value)))(value)


def range_of(kind: type, name: str) -> Range:
    """Return the range in the annotation of a dataclass's field."""
    return next(_ranges(_hints(kind)[name]))


def plain(value: object) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Convert to dictionaries, lists, texts and numbers, the inverse of `read`."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    return str(value) if isinstance(value, Path) else value


def tagged(value: object) -> dict[str, Any]:
    """Convert a dataclass as `plain` does, with its name as the tag of a union."""
    return {_TAG: type(value).__name__, **plain(value)}


def shown(value: object) -> str:
    """Return a value as a complaint shows it, cut to a short line."""
    is_line = isinstance(value, str) and value.isprintable()
    text = f"`{value}`" if is_line else repr(value) if isinstance(value, str) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


_hints = cache(partial(get_type_hints, include_extras=True))  # it takes as long as everything else
_NAMES: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    str: TEXT,
    bool: "true or false",
    bytes: "a text in base64",
    Path: TEXT,
    Literal: TEXT,
}
_SHAPES: dict[object, tuple[type, ...]] = {  # types of values that are accepted for a type, other than itself
    float: (float, int),
    bytes: (str, bytes),
    Path: (str, type(Path())),
    tuple: (list, tuple),
    Mapping: (dict,),
    Literal: (str,),
}


@cache
def _reader(kind: Any) -> Reader:  # noqa: ANN401 - types and other annotations
    """Return the reader of a type; cached, because a chat has thousands of records."""
    make = _MAKERS.get(get_origin(kind))
    if make is not None:
        return make(*get_args(kind))
    if isinstance(kind, EnumType):
        members = list[Enum](kind)
        return partial(_member, {each.value: each for each in members} | {each: each for each in members})
    if is_dataclass(kind):
        return partial(_object, cast(type, kind))
    return _READERS[kind]


def _annotated(kind: type, *notes: object) -> Reader:
    for note in notes:
        if isinstance(note, Range):
            return partial(_whole if kind is int else _number, note, note.words(is_whole=kind is int))
        if isinstance(note, OneLine):
            return _line
    return _reader(kind)


def _union(*parts: Any) -> Reader:  # noqa: ANN401 - types and other annotations
    """Return a reader of one of several types: their JSON differs, or a tag names a dataclass."""
    kinds = [part for part in parts if part is not NoneType]
    if len(kinds) == 1:
        one = _reader(kinds[0])
    elif all(map(is_dataclass, kinds)):
        one = partial(_tagged, {kind.__name__: _reader(kind) for kind in kinds}, tuple(kinds))
    else:
        shapes = {shape: _reader(kind) for kind in reversed(kinds) for shape in _shapes(kind)}
        one = partial(_chosen, shapes, " or ".join(map(_in_words, kinds)))
    return one if len(kinds) == len(parts) else partial(_optional, one)


def _literal(*words: str) -> Reader:
    return partial(_member, {word: word for word in words})


def _tuple(*parts: Any) -> Reader:  # noqa: ANN401 - types and other annotations
    if parts[-1] is Ellipsis:
        return partial(_column, _reader(parts[0]), parts[0] is int, _list_of(parts[0]))
    return partial(_row, tuple(map(_reader, parts)))


@cache
def _members(kind: type) -> Mapping[str, tuple[Reader, bool]]:
    """Return the reader of each field of a dataclass, and whether it is required."""
    hints = _hints(kind)
    return {
        field.name: (_reader(hints[field.name]), field.default is field.default_factory is MISSING)
        for field in fields(kind)
    }


def _mapping(_names: Any, kind: Any) -> Reader:  # noqa: ANN401 - types and other annotations
    """Return a reader of an object whose members all have one type, whatever their names."""
    return partial(_named, _reader(kind))


def _ranges(kind: Any) -> Iterator[Range]:  # noqa: ANN401 - an annotation
    if get_origin(kind) is Annotated:
        yield from (note for note in get_args(kind)[1:] if isinstance(note, Range))
    elif get_origin(kind) in (UnionType, Union):
        for part in get_args(kind):
            yield from _ranges(part)


def _misfit(wanted: str, value: object) -> InvalidValueError:
    return InvalidValueError(f"is not {wanted}", wanted=wanted, value=value)


def _inside(step: Step, read: Reader, value: object) -> object:
    try:
        return read(value)
    except InvalidValueError as error:
        raise error.within(step) from None


def _object(kind: type, value: object) -> object:
    members = _members(kind)  # only now, because a dataclass may contain its own type
    if type(value) is kind:
        value = {name: getattr(value, name) for name in members}
    if not isinstance(value, Mapping):
        raise _misfit("an object", value)
    found = {}
    for name, (read, is_required) in members.items():
        if name in value:
            try:
                found[name] = read(value[name])
            except InvalidValueError as error:
                raise error.within(name) from None
        elif is_required:
            raise InvalidValueError("is missing", (name,))
    return kind(**found)


def _tagged(readers: Mapping[str, Reader], kinds: tuple[type, ...], value: object) -> object:
    if isinstance(value, kinds):
        return readers[type(value).__name__](value)
    if not isinstance(value, Mapping):
        raise _misfit("an object", value)
    name = _inside(_TAG, partial(_member, {name: name for name in readers}), value.get(_TAG))
    return readers[cast(str, name)](value)


def _chosen(readers: Mapping[type, Reader], wanted: str, value: object) -> object:
    read = readers.get(type(value))
    if read is None:
        raise _misfit(wanted, value)
    return read(value)


def _optional(read: Reader, value: object) -> object:
    return None if value is None else read(value)


def _member(allowed: Mapping[object, object], value: object) -> object:
    try:
        return allowed[value]
    except (KeyError, TypeError):  # the latter of a list or an object
        words = tuple(word for word in allowed if isinstance(word, str))
        error = _misfit(f"one of {', '.join(words)}" if len(words) > 1 else words[0], value)
        error.choices = words
        raise error from None


def _column(read: Reader, of_wholes: bool, wanted: str, value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise _misfit(wanted, value)
    if of_wholes and {int}.issuperset(map(type, value)) and max(map(abs, value), default=0) <= _LARGEST:
        return tuple(value)  # the most frequent kind by far
    try:
        return tuple([read(item) for item in value])
    except InvalidValueError:  # only now is it worth counting
        return tuple([_inside(at, read, item) for at, item in enumerate(value)])


def _named(read: Reader, value: object) -> object:
    if not isinstance(value, Mapping):
        raise _misfit("an object", value)
    return {name: _inside(name, read, item) for name, item in value.items()}


def _row(readers: tuple[Reader, ...], value: object) -> tuple[object, ...]:
    if not isinstance(value, list | tuple) or len(value) != len(readers):
        raise _misfit(f"a list of {len(readers)}", value)
    pairs = zip(readers, value, strict=True)
    return tuple([_inside(at, read, item) for at, (read, item) in enumerate(pairs)])


def _whole(limits: Range, wanted: str, value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool) and limits.low <= value <= limits.high:
        return value
    raise _misfit(wanted, value)


def _number(limits: Range, wanted: str, value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = _as_float(value)
        if limits.low <= number <= limits.high:
            return number
    raise _misfit(wanted, value)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return nan


def _line(value: object) -> object:
    if isinstance(value, str) and value.isprintable():
        return value
    raise _misfit(ONE_LINE if isinstance(value, str) else TEXT, value)


def _plain(kind: type, value: object) -> object:
    if isinstance(value, kind):
        return value
    raise _misfit(_NAMES[kind], value)


def _unranged(kind: type[int | float], value: object) -> object:
    """Read a number without a range."""
    number = _as_float(value) if kind is float and type(value) is int else value
    if not isinstance(number, kind) or isinstance(number, bool):
        raise _misfit(_NAMES[kind], value)
    if abs(number) <= _LARGEST:  # which NaN is not
        return number
    raise _misfit(f"{_NAMES[kind]} of a sensible size", value)


def _path(value: object) -> object:
    return Path(cast(str, value)) if isinstance(value, str | Path) else _plain(str, value)


def _bytes(value: object) -> object:
    if isinstance(value, bytes):
        return value
    try:
        return b64decode(cast(str, value), validate=True)
    except (TypeError, ValueError):
        raise _misfit(_NAMES[bytes], value) from None


def _base(kind: Any) -> Any:  # noqa: ANN401 - an annotation
    """Return the base of an annotation: a class, or Literal."""
    return _base(get_args(kind)[0]) if get_origin(kind) is Annotated else get_origin(kind) or kind


def _in_words(kind: Any) -> str:  # noqa: ANN401 - an annotation
    base = _base(kind)
    return _list_of(get_args(kind)[0]) if base is tuple else _NAMES.get(base, "an object")


def _list_of(kind: object) -> str:
    return "a list of texts" if kind is str else "a list"


def _shapes(kind: Any) -> tuple[type, ...]:  # noqa: ANN401 - an annotation
    """Return the types of values that are accepted for a type."""
    base = cast(type, _base(kind))
    return (dict, base) if is_dataclass(base) else _SHAPES.get(base, (base,))


_READERS: dict[object, Reader] = {
    object: lambda value: value,
    int: partial(_unranged, int),
    float: partial(_unranged, float),
    str: partial(_plain, str),
    bool: partial(_plain, bool),
    bytes: _bytes,
    Path: _path,
}
_MAKERS: dict[object, Callable[..., Reader]] = {
    Annotated: _annotated,
    UnionType: _union,
    Union: _union,  # of a Literal or None
    Literal: _literal,
    tuple: _tuple,
    Mapping: _mapping,
}
