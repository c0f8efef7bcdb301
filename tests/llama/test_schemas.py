"""JSON schemas in two halves: the grammar admits every valid value, and what it does not enforce is named."""

from __future__ import annotations

import copy
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from llguidance import LLMatcher

from localspec.llama.schemas.check import flaw
from localspec.llama.schemas.references import SchemaError
from localspec.llama.schemas.split import split
from tests.benchmarks.json_schema_suite import Written
from tests.llama.emitted_schemas import EMITTED

NODE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"minimum": 0}}}
    },
}
ONE_OF_TWO = {
    "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    "$defs": {
        name: {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]}
        for name in "ab"
    },
}
OLD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "properties": {"a": {"$ref": "#/definitions/x", "maxLength": 1}},
    "definitions": {"x": {"type": "string"}},
}
ALL_OF = {
    "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "integer"}}}],
    "$defs": {"base": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
}


@pytest.mark.parametrize(
    ("schema", "unenforced", "good", "bad"),
    [
        ({"format": "url"}, (), ["x", 1], []),
        ({"type": "string", "format": "date"}, (), ["2026-01-02"], ["x"]),
        ({"type": "array", "uniqueItems": True}, ("#/uniqueItems",), [[1, 2]], [{}]),
        ({"items": {"not": {"const": 1}}}, ("#/items/not",), [[2], {}], []),
        ({"if": {"const": 1}, "then": {"minimum": 2}}, ("#/if",), [5], []),
        ({"propertyNames": {"enum": ["a"]}, "additionalProperties": {"const": 1}}, (), [{"a": 1}],
         [{"b": 1}, {"a": 2}]),
        ({"propertyNames": {"pattern": "^a"}, "additionalProperties": {"const": 1}, "type": "object"}, (),
         [{"ab": 1}, {}], [{"b": 1}, {"ab": 2}]),
        ({"propertyNames": {"pattern": "^(?=a)"}, "type": "object"}, ("#/propertyNames",), [{"a": 1}], [1]),
        ({"propertyNames": {"maxLength": 1}, "type": "object"}, ("#/propertyNames",), [{"a": 1}], [1]),
        ({"type": "string", "pattern": "^(?=a)"}, ("#/pattern",), ["a"], [1]),
        ({"type": "string", "pattern": "^a+$"}, (), ["aa"], ["b"]),
        ({"type": "number", "multipleOf": 0.123456789}, ("#/multipleOf",), [0.5], ["a"]),
        ({"type": "number", "maximum": 1e30}, ("#/maximum",), [5], ["a"]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ("#/oneOf",), [1, 2.5], [1.5]),
        (ONE_OF_TWO, (), [{"kind": "a"}], [{"kind": "c"}, {"kind": "a", "x": 1}]),
        ({"properties": {"a": True, "b": True}, "minProperties": 1}, ("#/minProperties",), [{"b": 1}],
         [{"c": 1}]),
        ({"patternProperties": {"a": {"const": 1}, "b": {"const": 2}}}, ("#/patternProperties",), [{"a": 1}],
         []),
        ({"properties": {"a": {"const": 1}}}, (), [{"a": 1}, {}, 3], [{"b": 1}, {"a": 2}]),
        ({"properties": {"a": True}, "additionalProperties": True}, (), [{"a": 1, "b": 2}], []),
        ({"type": "object", "properties": {}}, (), [{}], [{"a": 1}]),
        ({"type": "object"}, (), [{"a": 1}], [1]),
        (ALL_OF, (), [{"a": "x"}, {"a": "x", "b": 1}], [{"a": "x", "c": 1}, {"b": 1}]),
        ({**ALL_OF, "unevaluatedProperties": False}, ("#/unevaluatedProperties",), [{"a": "", "b": 1}],
         [{"b": 1}, {"a": "", "c": 1}]),
        (NODE, (), [{"next": {"n": 1}}], [{"next": {"n": -1}}, {"next": {"m": 1}}]),
        ({"$dynamicRef": "#n", "$dynamicAnchor": "n", "type": "string"}, ("#/$dynamicRef",), ["a"], [1]),
        ({"$ref": "#x", "$defs": {"x": {"$anchor": "x", "const": 1}}}, (), [1], [2]),
        ({"$id": "http://a/b", "$ref": "c", "$defs": {"c": {"$id": "c", "const": 1}}}, (), [1], [2]),
        (OLD, (), [{"a": "long"}], [{"a": 1}]),
        ({"items": [{"const": 1}], "additionalItems": False}, (), [[1], []], [[2], [1, 2]]),
        ({"minimum": 1, "exclusiveMinimum": True, "type": "integer"}, (), [2], [1]),
        ({"properties": {"a": {"items": [{"const": 1}]}, "b": {"$ref": "#/properties/a/items/0"}}}, (),
         [{"b": 1}], [{"b": 2}]),
        ({"items": {"properties": {"s": {"type": "string", "pattern": r"\S"}}}}, (), [[{"s": "a"}]],
         [[{"s": ""}]]),
        ({"type": "string", "pattern": r"^hello\!$"}, (), ["hello!"], ["hello"]),
        ({"type": "object", "properties": {"q": {"type": "string", "maxLength": 100_000}, "n": {}},
          "required": ["q"]}, (), [{"q": "a"}, {"q": "a", "n": 1}], [{"n": 1}]),
        ({"type": "string", "items": {"$ref": "#/$defs/x"},
          "$defs": {"x": {"type": "object", "required": [{}]}}}, (), ["a"], [[]]),
        (True, (), [1, "a", {"b": []}], []),
    ],
)  # fmt: skip
def test_the_grammar_admits_what_is_valid_and_names_what_it_leaves_out(
    schema: object, unenforced: tuple[str, ...], good: list[object], bad: list[object]
) -> None:
    found = split(schema)
    assert found.unenforced == unenforced
    written = Written(found.grammar)
    assert [value for value in good if not written.admits(value)] == []
    assert [value for value in bad if written.admits(value)] == []


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        (False, "#", "unsatisfiable"),
        ({"not": True}, "#", "unsatisfiable"),
        ({"$ref": "#"}, "#", "nothing that ends"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#", "nothing that ends"),
        ({"items": {"oneOf": [False, False]}, "minItems": 1, "type": "array"}, "#/items/oneOf/0", "false"),
        ({"type": "array", "minItems": 1, "items": {"minimum": 2, "maximum": 1, "type": "number"}},
         "#/items", "minimum (2) is greater"),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"items": {"type": "strin"}}}},
         "#/$defs/x/items", "strin"),
        ({"items": {"$ref": "http://x/y"}}, "#/items", "http://x/y is not in the schema itself"),
        ({"items": {"$ref": "#/$defs/x"}}, "#/items", "#/$defs/x is not in the schema itself"),
        ({"$dynamicRef": "#x"}, "#", "#x is not in the schema itself"),
        ({"properties": []}, "#/properties", "has to be an object"),
        ({"anyOf": {}}, "#/anyOf", "has to be a list"),
        ({"items": 3}, "#/items", "is an object, or true or false"),
        ({"type": "string", "minLength": "x"}, "#", "Expected positive integer for 'minLength'"),
    ],
)  # fmt: skip
def test_what_nothing_can_answer_and_what_points_elsewhere_is_refused_by_its_path(
    schema: object, path: str, reason: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        split(schema)
    assert (caught.value.path, reason in caught.value.reason) == (path, True), caught.value


def test_between_tokens_are_no_blank_lines_nor_long_blanks() -> None:
    matcher = Written(split({"type": "array"}).grammar)
    assert matcher.admits_text('[\n  {\n    "a": 1\n  }\n]')
    assert not matcher.admits_text("[\n\n1]")
    assert not matcher.admits_text("[  1]")
    assert not matcher.admits_text(f"[\n{' ' * 21}1]")


JUNK: tuple[Any, ...] = (None, True, 0, -1, 1.5, 10**400, "", "x", "#", "http://[", [], [1], {}, [[]], "^(")


def places(value: object) -> Iterator[tuple[Any, Any]]:
    """Yield the members of a JSON value: what holds each, and its name or number."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in list(pairs):
        yield value, step
        yield from places(child)


@pytest.mark.slow
def test_malformed_schemas_are_refused_or_taken_and_nothing_else() -> None:
    draw, refused = random.Random(1), 0
    for _ in range(300):
        schema = copy.deepcopy(draw.choice(EMITTED))
        for holder, step in draw.sample(found := list(places(schema)), k=min(1, len(found))):
            holder[step] = copy.deepcopy(draw.choice(JUNK))
        try:
            split(schema)
        except SchemaError:
            refused += 1
    assert 100 < refused < 250


def written_at_random(matcher: LLMatcher, draw: random.Random) -> bytes | None:
    """Return a text that a grammar admits, None if it became too long."""
    text = bytearray()
    while len(text) < 300:
        if matcher.is_accepting() and (matcher.is_stopped() or draw.random() < 0.5):
            return bytes(text)
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        may = [byte for byte in range(256) if bits >> byte & 1]
        ends = [byte for byte in may if byte in b'"]},:']  # or texts would be endless
        text.append(draw.choice(ends if ends and draw.random() < 0.4 else may))
        assert matcher.consume_token(text[-1])
    return None


def test_references_are_never_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        schema = {"not": {"$ref": f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"}}
        assert split(schema).unenforced == ("#/not",)
        for use in (lambda: split(schema["not"]), lambda: flaw(schema, 1)):
            with pytest.raises(SchemaError):
                use()
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=(a+)+$)b", r"^(\p{L}+)+$"])
def test_a_check_ends_whatever_the_pattern(pattern: str) -> None:
    assert flaw({"not": {"pattern": pattern}}, "a" * 5000 + "!") == ""


def test_no_emitted_schema_is_refused() -> None:
    refused = []
    for schema in EMITTED:
        try:
            split(schema)
        except SchemaError as error:
            refused.append((schema, error))
    assert refused == []
    assert len(EMITTED) > 200


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(EMITTED), 55))
def test_what_is_written_at_random_is_valid_where_all_is_enforced(first: int) -> None:
    draw, ended = random.Random(first), 0
    for schema in EMITTED[first : first + 55]:
        found = split(schema)
        matcher = Written(found.grammar).matcher
        texts = [written_at_random(matcher.deep_copy(), draw) for _ in range(2)]
        for text in texts if not found.unenforced else []:
            if text is not None:
                value = json.loads(text, parse_float=lambda number: min(float(number), 1e300))
                assert flaw(schema, value) == "", (schema, text)
                ended += 1
    assert ended > 40
