"""What servers say of their tools: harmless, of limited size, one wrong tool without harm to the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localspec.tools.mcp.descriptions import fitted_schema, offered_tools, shown_line, shown_text


def schema_of(schema: object) -> dict[str, Any]:
    tools, problems = offered_tools([{"name": "tool", "inputSchema": schema}])
    assert problems == []
    return dict(tools[0].parameters)


def big(count: int, **more: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            f"p{number}": {"type": "string", "description": "words " * 9} for number in range(count)
        },
        "required": [f"p{count - 1}"],
        "additionalProperties": False,
        **more,
    }


def test_control_sequences_and_hidden_characters_are_taken_away() -> None:
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "do harm")
    assert shown_text(f"red \x1b[31mtext\u202e{hidden}\u200b\ud800", 100) == "red text\\ud800"
    assert shown_line("a\nb\x1b[2J") == "a b[2J"
    assert shown_text("x" * 50, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    "schema", [None, {}, {"$schema": "http://json-schema.org/draft-07/schema#"}, {"type": None}]
)
def test_a_schema_that_says_nothing_takes_any_object(schema: object) -> None:
    assert schema_of(schema) == {"type": "object"}


def test_one_wrong_tool_does_not_hide_the_others() -> None:
    listed = [
        {"name": "good", "inputSchema": {"type": "object"}},
        {"name": "text", "inputSchema": {"type": "string"}},
        {"name": "list", "inputSchema": []},
        {"name": "number", "inputSchema": {"type": 7}},
        {"inputSchema": {}},
        None,
    ]
    tools, problems = offered_tools(listed)
    assert [tool.name for tool in tools] == ["good", "list"]
    assert len(problems) == 4
    assert 'the tool `text` is left out: its arguments are "string" instead of an object' in problems


def test_members_that_are_no_schemas_are_left_out() -> None:
    """A public server nests `required` in `properties`."""
    wrong = {"properties": {"coin": {"type": "string"}, "required": ["coin"]}, "required": True, "enum": 3}
    assert schema_of(wrong) == {"type": "object", "properties": {"coin": {"type": "string"}}}


def test_a_property_may_be_called_as_a_keyword_that_is_left_out() -> None:
    properties = {"title": {"type": "string", "title": "Title"}, "default": {"enum": ["a", None, 1]}}
    assert schema_of({"properties": properties})["properties"] == {
        "title": {"type": "string"},
        "default": {"enum": ["a", None, 1]},
    }


def test_names_of_arguments_that_no_model_should_write_are_left_out() -> None:
    names: dict[str, object] = {"ok": {}, "a\nb": {}, "x" * 500: {}, "\x1b[2J": {}, "": {}}
    assert schema_of({"properties": names, "required": list(names)}) == {
        "type": "object",
        "properties": {"ok": {}},
        "required": ["ok"],
    }


def test_a_deep_schema_ends() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"x": deep}, "anyOf": [deep]}
        deep["anyOf"] = deep["anyOf"][:1] if len(json.dumps(deep)) < 10_000 else []
    assert len(json.dumps(schema_of(deep))) < 9000


def test_a_schema_of_5000_properties_keeps_the_required_one() -> None:
    schema = schema_of(big(5000))
    assert len(json.dumps(schema)) <= 8000
    assert schema["required"] == ["p4999"]
    assert schema["properties"]["p4999"] == {"type": "string"}
    assert "additionalProperties" not in schema  # it has others


def test_words_are_lost_before_arguments() -> None:
    schema = big(20)
    fitted = fitted_schema(schema, len(json.dumps(schema)) // 2)
    assert len(fitted["properties"]) == 20
    assert fitted["additionalProperties"] is False
    assert "words" not in json.dumps(fitted)


def test_many_tools_share_a_budget() -> None:
    tools, problems = offered_tools([{"name": f"t{number}", "inputSchema": big(60)} for number in range(300)])
    assert len(tools) == 256
    assert sum(len(json.dumps(dict(tool.parameters))) for tool in tools) < 110_000
    assert problems == ["it has 300 tools: all after the first 256 are left out"]


def test_hints_of_a_server_are_words_only() -> None:
    annotations = {"readOnlyHint": True, "destructiveHint": "yes", "openWorldHint": True}
    tools, _ = offered_tools([{"name": "tool", "annotations": annotations}])
    assert tools[0].hints == ("read only", "uses the network")
