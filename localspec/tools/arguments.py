"""The arguments of our own tools: a dataclass is both the JSON schema that a model reads and the check.

A text in the annotation of a field describes it: `path: Annotated[str, "file to read"]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from localspec.errors import UserError
from localspec.values import InvalidValueError, Range, plain, read, shown

A = TypeVar("A")
_BOUNDLESS = 10**9  # from which a limit says nothing to a model
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def schema_of(kind: type) -> dict[str, Any]:
    """Return the JSON schema of a dataclass; a field without a default is required."""
    hints = get_type_hints(kind, include_extras=True)
    own = fields(kind)
    properties = {field.name: _property(hints[field.name]) for field in own}
    for field in own:
        if field.default is not MISSING and field.default not in (None, ()):
            properties[field.name]["default"] = plain(field.default)
    required = [field.name for field in own if field.default is field.default_factory is MISSING]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def read_arguments(kind: type[A], arguments: Mapping[str, object]) -> A:
    """Convert the arguments of a call; raises UserError that says which is wrong. null is no argument."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass
    unknown = next((name for name in arguments if name not in names), None)
    if unknown is not None:
        raise UserError(f"there is no argument {shown(unknown)}", f"arguments: {', '.join(names)}")
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        return read(kind, given)
    except InvalidValueError as error:
        raise UserError(f"`{error.place}` {error.demand}") from None


def _property(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - an annotation
    if get_origin(kind) is Annotated:
        base, *notes = get_args(kind)
        found = _property(base)
        for note in notes:
            if isinstance(note, str):
                found["description"] = note
            elif isinstance(note, Range):
                found["minimum"] = int(note.low)
                if note.high < _BOUNDLESS:
                    found["maximum"] = int(note.high)
        return found
    if get_origin(kind) in (UnionType, Union):  # with None
        return _property(next(part for part in get_args(kind) if part is not NoneType))
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": list(get_args(kind))}
    if get_origin(kind) is tuple:  # of any length
        return {"type": "array", "items": _property(get_args(kind)[0])}
    return {"type": _TYPES[kind]} if kind in _TYPES else schema_of(kind)
