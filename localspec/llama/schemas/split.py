"""JSON schemas in two halves: what a grammar enforces as an answer is written, and what only a check finds.

llguidance refuses a schema with any keyword that it cannot express. Here such keywords are left out of the
grammar and named, so that the grammar admits every valid answer, and the finished answer can be checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from localspec.llama.schemas.keywords import (
    APPLIED,
    CHECKED,
    COUNTS,
    DYNAMIC,
    IN_PLACE,
    LISTS,
    MAPS,
    NUMBERS,
    PLAIN,
    SINGLE,
    STRINGS,
    is_idle,
    is_one_application,
    list_of,
    modern,
    whole,
)
from localspec.llama.schemas.known_properties import KnownProperties
from localspec.llama.schemas.references import JsonObject, Place, References, Schema, SchemaError, is_object

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# Between JSON's tokens, as llama.cpp has it, but no blank lines: some models would write them for ever.
SPACING: JsonCompileOptions = {"whitespace_pattern": r"( |\n[ \t]{0,20})?"}

_FOLLOWED = 2  # references, to see whether options are disjoint
_NAMING = frozenset({"enum", "pattern", "type", "title", "description"})
# llguidance can intersect some of each, but not all.
_HARD_TO_MERGE = frozenset({"minProperties", "maxProperties", "patternProperties", "pattern", "multipleOf"})


@dataclass(frozen=True, slots=True)
class SplitSchema:
    """The grammar's half of a schema, and the places of the keywords that it does not enforce."""

    grammar: JsonObject
    unenforced: tuple[str, ...]


def split(schema: object) -> SplitSchema:
    """Split a schema; raises SchemaError for what nothing can answer, and for what points elsewhere.

    Objects with `properties` have no others in the grammar, unless the schema says something about others.
    """
    try:
        for left_out in (frozenset[str](), _HARD_TO_MERGE, _HARD_TO_MERGE | {"allOf"}):
            splitter = _Splitter(schema, left_out)
            found = splitter.split()
            error = _error(found.grammar)
            if not error or _is_unsatisfiable(error):
                break
        if error:
            raise SchemaError(*splitter.place_of_error(found.grammar, "#", error))
        if not _can_end(found.grammar):
            raise SchemaError("#", "unsatisfiable: nothing that ends can meet it")
    except RecursionError:
        raise SchemaError("#", "it is nested too deeply") from None
    except ValueError as wrong:
        raise SchemaError("#", str(wrong)) from None
    return found


def _error(schema: Schema) -> str:
    """Return llguidance's complaint about a schema; empty if there is none."""
    from llguidance import LLMatcher

    text = json.dumps(schema if is_object(schema) else {"anyOf": [schema]})
    grammar = LLMatcher.grammar_from_json_schema(text, overrides=SPACING)
    is_wrong, complaints = LLMatcher.validate_grammar_with_warnings(grammar)
    return complaints[0] if is_wrong else ""


def _is_unsatisfiable(error: str) -> bool:
    return "nsatisfiable" in error


def _is_beyond(schema: JsonObject) -> bool:
    """Return whether a schema is more than llguidance can express."""
    error = _error(schema)
    return bool(error) and not _is_unsatisfiable(error)


@lru_cache(256)
def _is_beyond_alone(kind: str, keyword: str, value: object) -> bool:
    """Return whether a keyword is more than llguidance can express for values of a kind."""
    return _is_beyond({"type": kind, keyword: value})


class _Splitter:
    """Builds the grammar's half of one schema: flat, with references only to definitions of its own."""

    def __init__(self, root: object, left_out: frozenset[str]) -> None:
        self._root = root
        self._left_out = left_out
        self._references = References(root)
        self._unenforced: dict[str, None] = {}
        self._definitions: dict[str, Schema] = {}
        self._names: dict[tuple[str, str, bool], str] = {}  # of definitions, by reference
        self._paths: dict[str, str] = {}  # of definitions, by name
        self._looked_at: set[str] = set()  # paths, for the place of an error
        self._alternatives: list[tuple[Place, list[Schema]]] = []  # of each `oneOf`

    def split(self) -> SplitSchema:
        """Return both halves."""
        part = self._part(self._root, self._references.root, closes=True)
        if part is False:
            raise SchemaError("#", "unsatisfiable: nothing can meet it")
        for place, options in self._alternatives:
            if not self._are_disjoint(options):
                self._leave(place)
        grammar = dict(part) if is_object(part) else {}
        if self._definitions:
            grammar["$defs"] = self._definitions
        if is_object(self._root) and "x-guidance" in self._root:  # llguidance's own settings
            grammar["x-guidance"] = self._root["x-guidance"]
        return SplitSchema(grammar, tuple(self._unenforced))

    def place_of_error(self, part: Schema, path: str, error: str) -> tuple[str, str]:
        """Return the path of the innermost part that llguidance refuses, and why."""
        self._looked_at.add(path)
        for where, child in self._children(part, path):
            reason = "" if where in self._looked_at else _error(self._complete(child))
            if reason and _is_unsatisfiable(reason) == _is_unsatisfiable(error):
                return self.place_of_error(child, where, reason)
        return path, error

    def _children(self, part: Schema, path: str) -> Iterator[tuple[str, Schema]]:
        if not isinstance(part, dict):
            return
        if "$ref" in part:
            name = _definition(part)
            yield self._paths[name], self._definitions[name]
        for keyword in MAPS:
            for name, child in part.get(keyword, {}).items():
                yield f"{path}/{keyword}/{name}", child
        one_of = {place.path for place, _ in self._alternatives}
        for keyword in ("prefixItems", "allOf", "anyOf"):
            for number, child in enumerate(part.get(keyword, ())):
                was = "oneOf" if keyword == "anyOf" and f"{path}/oneOf" in one_of else keyword
                yield f"{path}/{was}/{number}", child
        for keyword in SINGLE:
            if keyword in part:
                yield f"{path}/{keyword}", part[keyword]

    def _complete(self, part: Schema) -> Schema:
        """Return a part with the definitions to which it refers."""
        return {**part, "$defs": self._definitions} if is_object(part) and self._definitions else part

    def _are_disjoint(self, options: list[Schema]) -> bool:
        """Return whether llguidance can tell that no value is one of several options."""
        return not _is_beyond({"oneOf": [self._inlined(option, _FOLLOWED) for option in options]})

    def _inlined(self, part: Schema, depth: int) -> Schema:
        """Return a part that admits no less, without references: followed to a depth, and dropped there."""
        if not is_object(part):
            return part
        if "$ref" in part:
            return self._inlined(self._definitions[_definition(part)], depth - 1) if depth else True
        inlined = dict(part)
        for keyword in part.keys() & {*MAPS}:
            inlined[keyword] = {name: self._inlined(each, depth) for name, each in part[keyword].items()}
        for keyword in part.keys() & {*LISTS}:
            inlined[keyword] = [self._inlined(each, depth) for each in part[keyword]]
        for keyword in part.keys() & {*SINGLE}:
            inlined[keyword] = self._inlined(part[keyword], depth)
        return inlined

    def _leave(self, place: Place) -> None:
        """Note that the grammar does not enforce what stands at a place."""
        self._unenforced[place.path] = None

    def _part(self, schema: object, place: Place, *, closes: bool) -> Schema:
        """Return the grammar's half of a part; `closes` if it alone says which properties a value has."""
        if isinstance(schema, bool):
            return schema
        if not is_object(schema):
            raise SchemaError(place.path, "a JSON schema is an object, or true or false")
        place = place.within(schema)
        schema = self._with_names(modern(schema, place), place)
        if "not" in schema and schema["not"] in (True, {}):
            return False
        passes = closes and is_one_application(schema)
        part: JsonObject = {}
        for keyword, value in schema.items():
            self._add(part, keyword, value, place, closes=passes)
        if not passes and (closes or schema.get("unevaluatedProperties") is False):
            self._close(part, schema, place)
        self._open_what_is_beyond(part, place)
        return part

    def _with_names(self, schema: JsonObject, place: Place) -> JsonObject:
        """Return a schema that says by `properties`, or a pattern of them, which names are allowed.

        Others than lists and patterns of names stay as they are.
        """
        names = schema.get("propertyNames")
        if is_object(names) and "$ref" in names:
            names, place = self._references.follow(names["$ref"], place)
        if not is_object(names) or names.keys() - _NAMING or schema.keys() & {*APPLIED, *MAPS}:
            return schema
        allowed = schema.get("additionalProperties", True)
        listed = names.get("enum")
        pattern = names.get("pattern")
        if isinstance(listed, list) and pattern is None:
            found: JsonObject = {"properties": {name: allowed for name in listed if isinstance(name, str)}}
        elif (
            isinstance(pattern, str) and listed is None and not _is_beyond_alone("string", "pattern", pattern)
        ):
            found = {"patternProperties": {pattern: allowed}}
        else:
            return schema
        rest = {name: value for name, value in schema.items() if name != "propertyNames"}
        return {**rest, **found, "additionalProperties": False}

    def _add(self, part: JsonObject, keyword: str, value: object, place: Place, *, closes: bool) -> None:
        """Add what a keyword means to a part, or note that it is not enforced."""
        where = place.inside(keyword)
        if keyword in self._left_out:
            self._leave(where)
        elif keyword in (*PLAIN, *COUNTS):
            part[keyword] = whole(value)
        elif keyword in (*NUMBERS, *STRINGS):
            self._add_bound(part, keyword, value, where)
        elif keyword == "format":  # an annotation, unless it is known
            if isinstance(value, str) and not _is_beyond_alone("string", keyword, value):
                part[keyword] = value
        elif keyword in MAPS:
            part[keyword] = self._parts_of_map(value, where)
        elif keyword in LISTS:
            self._add_list(part, keyword, value, where, closes=closes)
        elif keyword in SINGLE:
            part[keyword] = self._part(value, where, closes=True)
        elif keyword == "$ref":
            part |= self._reference(value, place, closes=closes)
        elif keyword in DYNAMIC:
            self._references.follow(value, place)
            self._leave(where)
        elif keyword in CHECKED and not is_idle(keyword, value):
            self._leave(where)

    def _parts_of_map(self, value: object, where: Place) -> JsonObject:
        if not is_object(value):
            raise SchemaError(where.path, "it has to be an object")
        return {name: self._part(child, where.inside(name), closes=True) for name, child in value.items()}

    def _add_list(self, part: JsonObject, keyword: str, value: object, where: Place, *, closes: bool) -> None:
        """Add the halves of a list of schemas; `oneOf` becomes `anyOf`."""
        if not isinstance(value, list):
            raise SchemaError(where.path, "it has to be a list")
        inner = closes or keyword not in IN_PLACE
        children = [
            self._part(child, where.inside(number), closes=inner) for number, child in enumerate(value)
        ]
        if keyword == "oneOf":
            self._alternatives.append((where, children))
            keyword = "anyOf"
        if keyword in part:
            part["allOf"] = [*part.get("allOf", ()), {keyword: children}]
        else:
            part[keyword] = children

    def _add_bound(self, part: JsonObject, keyword: str, value: object, where: Place) -> None:
        """Add a bound of numbers or texts, if llguidance can express it."""
        value = whole(value)
        kinds = ("string",) if keyword in STRINGS else ("integer", "number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_right = isinstance(value, str) if keyword == "pattern" else is_number
        if is_right and any(_is_beyond_alone(kind, keyword, value) for kind in kinds):
            self._leave(where)
        else:
            part[keyword] = value

    def _reference(self, reference: object, place: Place, *, closes: bool) -> JsonObject:
        key = (place.base, str(reference), closes)
        if key not in self._names:
            contents, target = self._references.follow(reference, place)
            name = self._names[key] = str(len(self._names))
            self._paths[name] = target.path
            self._definitions[name] = self._part(contents, target, closes=closes)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _close(self, part: JsonObject, schema: JsonObject, place: Place) -> None:
        """Allow an object no properties but those that its schema, and what that applies, know."""
        others = {name: value for name, value in schema.items() if name != "unevaluatedProperties"}
        known = KnownProperties(self._references, others, place)
        if known.is_open or not known.has_properties:
            return
        properties = part.setdefault("properties", {})
        for name in known.names:
            properties.setdefault(name, True)
        part["additionalProperties"] = False

    def _open_what_is_beyond(self, part: JsonObject, place: Place) -> None:
        """Take out bounds and patterns of properties that llguidance cannot express together."""
        alike = {"type": "object", "properties": dict.fromkeys(part.get("properties", {}), True)}
        counts = part.keys() & {"minProperties", "maxProperties"}
        bounds = {name: part[name] for name in (*counts, "required") if name in part}
        if counts and _is_beyond({**alike, **bounds}):
            for name in sorted(counts):
                del part[name]
                self._leave(place.inside(name))
        patterns = dict.fromkeys(part.get("patternProperties", {}), True)
        if patterns and _is_beyond({**alike, "patternProperties": patterns}):
            del part["patternProperties"]
            self._leave(place.inside("patternProperties"))
            part.pop("additionalProperties", None)
        elif (
            "patternProperties" in self._left_out
            and place.inside("patternProperties").path in self._unenforced
        ):
            part.pop("additionalProperties", None)


def _definition(part: JsonObject) -> str:
    """Return the name of the definition to which a part refers."""
    return str(part["$ref"]).removeprefix("#/$defs/")


def _can_end(grammar: JsonObject) -> bool:
    """Return whether any finite text can meet the grammar's half of a schema."""
    definitions = grammar.get("$defs", {})
    ending = set[str]()
    while True:
        found = {name for name, each in definitions.items() if _ends(each, ending.__contains__)}
        if found == ending:
            return _ends(grammar, ending.__contains__)
        ending = found


def _ends(part: Schema, is_ending: Callable[[str], bool]) -> bool:
    """Return whether a finite text can meet a part, if only some definitions can be met by one."""
    if isinstance(part, bool):
        return True  # llguidance knows better what is unsatisfiable
    needed = list[Schema](part.get("allOf", ()))
    if part.get("type") == "object":
        names = [name for name in list_of(part.get("required")) if isinstance(name, str)]
        needed += [part.get("properties", {}).get(name, True) for name in names]
    elif part.get("type") == "array":
        first = part.get("prefixItems", [])
        least = part.get("minItems")
        count = least if isinstance(least, int) else 0
        needed += first[:count] + ([part.get("items", True)] if count > len(first) else [])
    options = part.get("anyOf")
    return (
        all(_ends(each, is_ending) for each in needed)
        and (options is None or not options or any(_ends(each, is_ending) for each in options))
        and ("$ref" not in part or is_ending(_definition(part)))
    )
