"""Values between tags, which have no type of their own, get those of the tool's schema."""

from __future__ import annotations

import json

import pytest

from localspec.chat.calls.typed import Parameters

TEXT = {"type": "string"}
SCHEMA = {
    "$defs": {
        "Text": TEXT,
        "Whole": {"$ref": "#/$defs/Number"},
        "Number": {"type": "integer"},
        "Round": {"$ref": "#/$defs/Round"},
    },
    "properties": {
        "text": TEXT,
        "text or none": {"type": ["string", "null"]},
        "pydantic": {"anyOf": [TEXT, {"type": "null"}], "default": None},
        "referred": {"$ref": "#/$defs/Text"},
        "whole": {"$ref": "#/$defs/Whole"},
        "joined": {"allOf": [{"$ref": "#/$defs/Text"}], "description": "x"},
        "openapi": {"type": "string", "nullable": True},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "names": {"enum": ["1", "true", "a"]},
        "mixed": {"enum": ["1", 2, None]},
        "fixed": {"const": "7"},
        "list": {"type": "array", "items": TEXT},
        "object or text": {"oneOf": [{"type": "object"}, TEXT]},
        "small or text": {"type": ["integer", "string"], "maximum": 5},
        "any": {},
        "circle": {"$ref": "#/$defs/Round"},
        "nowhere": {"$ref": "https://example.org/x.json"},
    },
}


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "123", "123"), ("text", "true", "true"), ("text", ' {"a": 1} ', ' {"a": 1} '),
        ("text or none", "123", "123"), ("text or none", "1e5", "1e5"), ("text or none", "null", None),
        ("text or none", "None", None), ("text or none", "NaN", "NaN"),
        ("pydantic", "123", "123"), ("pydantic", "true", "true"), ("pydantic", "Infinity", "Infinity"),
        ("pydantic", "null", None), ("pydantic", "", ""),
        ("referred", "123", "123"), ("joined", "5", "5"), ("openapi", "5", "5"), ("openapi", "null", None),
        ("whole", "\n5\n", 5), ("whole", "5.0", 5.0), ("whole", "five", "five"),
        ("whole", "1" * 30, int("1" * 30)),
        ("number", "1e5", 1e5), ("number", "NaN", "NaN"), ("number", "1e999", "1e999"), ("number", "7", 7),
        ("flag", "True", True), ("flag", "false", False), ("flag", "yes", "yes"),
        ("names", "1", "1"), ("names", "true", "true"), ("mixed", "1", "1"), ("mixed", "2", 2),
        ("mixed", "null", None),
        ("fixed", "7", "7"),
        ("list", '["a", "b"]', ["a", "b"]), ("list", "['a', None]", ["a", None]), ("list", "a, b", "a, b"),
        ("object or text", '{"a": 1}', {"a": 1}), ("object or text", "[1]", "[1]"),
        ("object or text", "{a", "{a"),
        ("small or text", "3", 3), ("small or text", "30", "30"),
        ("any", "123", 123), ("any", "true", True), ("any", "a b", "a b"), ("any", '"a"', '"a"'),
        ("circle", "5", 5), ("nowhere", "5", 5), ("unknown", "5", 5),
    ],
)  # fmt: skip
def test_a_value_has_the_type_that_the_schema_admits(key: str, written: str, value: object) -> None:
    found = json.loads(Parameters(SCHEMA).as_json(key, written))
    assert (found, type(found)) == (value, type(value))


def test_a_tag_may_say_that_a_value_is_a_text() -> None:
    parameters = Parameters(SCHEMA)
    assert parameters.as_json("any", "5", is_text=True) == '"5"'
    assert parameters.as_json("text", "5", is_text=False) == "5"


def test_parameters_are_found_in_what_a_schema_joins() -> None:
    schema = {
        "allOf": [{"properties": {"a": TEXT}}, {"$ref": "#/$defs/More"}],
        "$defs": {"More": {"properties": {"b": TEXT}}},
    }
    assert Parameters(schema).as_json("a", "1") == Parameters(schema).as_json("b", "1") == '"1"'


@pytest.mark.parametrize(
    "broken", [None, True, [], {"properties": 3}, {"properties": {"a": 3}}, {"anyOf": 3, "type": 3}]
)
def test_schemas_that_are_none_admit_everything(broken: object) -> None:
    assert Parameters(broken).as_json("a", "x") == '"x"'
