"""Values that a model writes as bare text between tags, as JSON of the types that a tool's schema admits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

from localspec.chat.calls.json_text import JsonText
from localspec.chat.calls.source import IncomingText
from localspec.llama.schemas.check import flaw
from localspec.llama.schemas.references import Place, References, SchemaError, is_object

_ALL = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
_PYTHON = {"True": ("boolean", "true"), "False": ("boolean", "false"), "None": ("null", "null")}
_DEEPEST = 50  # references may lead in a circle
_DEFINITIONS = ("$defs", "definitions")
ELEMENT = "item"
"""The name under which `Parameters.within` has the elements of a list."""


class Parameters:
    """The parameters of one tool, by its JSON schema."""

    def __init__(self, schema: object) -> None:
        """Find the properties, also of what the schema refers to."""
        self._schema: Mapping[str, Any] = schema if is_object(schema) else {}
        self._references = References(self._schema)
        self.properties: dict[str, tuple[object, Place]] = {}
        for part, place in self._parts(self._schema, self._references.root, _DEEPEST):
            found = part.get("properties")
            for key, each in found.items() if is_object(found) else ():
                self.properties.setdefault(key, (each, place))

    def as_json(self, key: str, text: str, *, is_text: bool | None = None) -> str:
        """Return the JSON of a parameter: a text where one is admitted and no other type fits.

        `is_text` says that it is one or that it is none, whatever the schema says.
        """
        schema, types = self._property(key)
        if is_text is not None:
            types = frozenset({"string"}) if is_text else (types - {"string"} or _ALL - {"string"})
        as_text = json.dumps(text, ensure_ascii=False)
        found = _other_than_text(text.strip(), types)
        if found in (None, "null"):
            return found or as_text
        if "string" in types and self._only_first_suits(schema, as_text, found):
            return as_text
        return found

    def admits(self, key: str, kind: str) -> bool:
        """Return whether a parameter may be of a type."""
        return kind in self._property(key)[1]

    def within(self, key: str) -> Parameters:
        """Return the members of a parameter by their names; the elements of a list are named `ELEMENT`."""
        inner = copy(self)
        inner.properties = {}
        schema, place = self.properties.get(key, (True, self._references.root))
        for part, at in self._parts(schema, place, _DEEPEST):
            found = {**(part["properties"] if is_object(part.get("properties")) else {})}
            if "items" in part:
                found.setdefault(ELEMENT, part["items"])
            for name, each in found.items():
                inner.properties.setdefault(name, (each, at))
        return inner

    @property
    def single_text(self) -> str | None:
        """The one parameter that a call needs, if it is a text."""
        required = self._schema.get("required") or list(self.properties)
        if not isinstance(required, list) or len(required) != 1 or required[0] not in self.properties:
            return None
        return str(required[0]) if self._property(required[0])[1] == {"string"} else None

    def _property(self, key: str) -> tuple[object, frozenset[str]]:
        """Return the schema of a parameter, and the types that it admits."""
        schema, place = self.properties.get(key, (True, self._references.root))
        return schema, self._types(schema, place, _DEEPEST)

    def _parts(self, schema: object, place: Place, steps: int) -> Iterator[tuple[Mapping[str, Any], Place]]:
        """Yield a schema, and those that it joins or refers to."""
        if not is_object(schema) or not steps:
            return
        place = place.within(schema)
        yield schema, place
        for name in ("allOf", "anyOf", "oneOf"):
            for part in _list(schema, name):
                yield from self._parts(part, place, steps - 1)
        if (target := self._target(schema, place)) is not None:
            yield from self._parts(*target, steps - 1)

    def _types(self, schema: object, place: Place, steps: int) -> frozenset[str]:
        """Return the names of the types that a schema admits."""
        if not is_object(schema) or not steps:
            return _ALL
        place = place.within(schema)
        types = _ALL
        if "type" in schema:
            given = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            named = {str(each) for each in given}
            types &= named | ({"integer"} if "number" in named else set())
            if schema.get("nullable") is True:  # OpenAPI's
                types |= {"null"}
        if "const" in schema or isinstance(schema.get("enum"), list):
            members = [schema["const"]] if "const" in schema else schema["enum"]
            types &= {_TYPES.get(type(each), "null") for each in members}
        for name in ("anyOf", "oneOf"):
            if parts := _list(schema, name):
                types &= frozenset().union(*(self._types(part, place, steps - 1) for part in parts))
        for part in _list(schema, "allOf"):
            types &= self._types(part, place, steps - 1)
        if (target := self._target(schema, place)) is not None:
            types &= self._types(*target, steps - 1)
        return types

    def _target(self, schema: Mapping[str, Any], place: Place) -> tuple[object, Place] | None:
        try:
            return self._references.follow(schema["$ref"], place) if "$ref" in schema else None
        except SchemaError:
            return None

    def _only_first_suits(self, schema: object, first: str, second: str) -> bool:
        """Return whether a schema, which admits both types, rejects the second of two values alone."""
        given = {name: self._schema[name] for name in _DEFINITIONS if name in self._schema}
        whole = {**given, **schema} if is_object(schema) else schema
        try:
            return not flaw(whole, json.loads(first)) and bool(flaw(whole, json.loads(second)))
        except SchemaError:
            return False


def _list(schema: Mapping[str, Any], name: str) -> list[object]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _other_than_text(text: str, types: frozenset[str]) -> str | None:
    """Return a value of one of the types as JSON, None if there is only a text."""
    kind, spelled = _PYTHON.get(text, ("", ""))
    if kind in types:
        return spelled
    value = parsed(text)
    if value is None and text[:1] in ("{", "["):
        text = _standard(text)
        value = parsed(text)
    if value is None:
        return None
    found = _TYPES.get(type(value[0]), "null")
    if isinstance(value[0], float) and value[0].is_integer() and "integer" in types:
        return text
    return text if found in types and found != "string" else None


def parsed(text: str) -> tuple[object] | None:
    """Return the value of standard JSON, None for what is none."""
    try:
        return (json.loads(text, parse_constant=_finite, parse_float=_finite),)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of JSON, or too large")
    return number


def _standard(text: str) -> str:
    """Return the standard form of JSON that a model has spelled in its own way."""
    source = IncomingText()
    source.add(text, more=False)
    return "".join(chunk or "" for chunk in JsonText(source).value())
