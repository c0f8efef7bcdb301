"""JSON schemas of requests: warnings about what was not enforced, in every protocol and in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels

SECRET = "xyzzy"
USER = {"role": "user", "content": "Hi"}
UNIQUE = {"type": "array", "uniqueItems": True, "description": SECRET}
NOT_ENFORCED = "the JSON schema of the answer is not enforced at #/uniqueItems; "
FORM = {"type": "json_schema", "json_schema": {"name": "it", "schema": UNIQUE}}


@pytest.fixture(scope="module")
def telling() -> Iterator[tuple[Served, TellingModels]]:
    models = TellingModels()
    with serving(lambda: models) as served:
        yield served, models


@pytest.fixture
def served(telling: tuple[Served, TellingModels]) -> Served:
    telling[0].lines.clear()
    return telling[0]


@pytest.fixture
def models(telling: tuple[Served, TellingModels]) -> TellingModels:
    telling[1].requests.clear()
    return telling[1]


def warnings(served: Served, path: str, body: dict[str, Any]) -> list[str]:
    """Return the warnings of a reply, which has to be the same as a stream."""
    whole = served.post(path, body).json()
    frames = served.post(path, {**body, "stream": True}).text.splitlines()
    events = [json.loads(line[6:]) for line in frames if line.startswith("data: {")]
    told = [event.get("response", event).get("warnings") for event in events]
    assert [each for each in told if each] == ([whole["warnings"]] if "warnings" in whole else [])
    return list(whole.get("warnings", ()))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER], "response_format": FORM}),
        ("/v1/completions", {"prompt": "Hi", "response_format": FORM}),
        ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_schema", "schema": UNIQUE}}}),
    ],
)
def test_a_warning_says_what_was_not_enforced_and_whether_it_is_met(
    served: Served, models: TellingModels, path: str, body: dict[str, Any]
) -> None:
    models.texts = [f'["{SECRET}", "{SECRET}"]']
    (warning,) = warnings(served, path, body)
    assert warning.startswith(f"{NOT_ENFORCED}its schema is not met at its top: ")
    models.texts = ["[1, 2]"]
    assert warnings(served, path, body) == [f"{NOT_ENFORCED}it is met"]
    logged = [line.split("  ", 1)[1] for line in served.lines if "warning" in line]
    start = "warning: a JSON schema is not enforced at 1 of its places; "
    assert logged == 2 * [f"{start}its schema is not met"] + 2 * [f"{start}it is met"]
    assert SECRET not in "".join(served.lines)


def test_a_schema_that_is_enforced_and_met_needs_no_warning(served: Served, models: TellingModels) -> None:
    models.texts = ["[1]"]
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": {"format": "url"}}}}
    assert warnings(served, "/v1/chat/completions", {"messages": [USER], "response_format": form}) == []


@pytest.mark.parametrize("text", ['{"a": [1', "12"])
def test_an_answer_that_was_cut_says_so(served: Served, models: TellingModels, text: str) -> None:
    models.texts, models.reason = [text], "length"
    try:
        form = {"type": "json_schema", "json_schema": {"schema": {}}}
        body = {"messages": [USER], "response_format": form}
        reply = served.chat(**body).json()
    finally:
        models.reason = "stop"
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["warnings"] == ["the JSON of the answer: it was cut before its end"]


@pytest.mark.parametrize("text", [f'{{"{SECRET}": 1, "{SECRET}": 2}}', f'[{{"{SECRET}": 1, "{SECRET}": 1}}]'])
def test_a_key_that_an_object_repeats_is_told(served: Served, models: TellingModels, text: str) -> None:
    models.texts = [text]
    form = {"type": "json_schema", "json_schema": {"schema": {}}}
    body = {"messages": [USER], "response_format": form}
    (warning,) = warnings(served, "/v1/chat/completions", body)
    assert warning == f'the JSON of the answer: an object repeats a key: "{SECRET}"'
    assert SECRET not in "".join(served.lines)


def test_a_schema_that_nothing_meets_is_refused_by_its_path(served: Served, models: TellingModels) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    reply = served.chat(messages=[USER], response_format=form)
    assert reply.status_code == 400
    assert "at #/properties/a: http://x/y is not in the schema itself" in reply.json()["error"]["message"]
    assert not models.requests


def tool(name: str, parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def called(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_no_tool_refuses_a_request_that_requires_a_call(served: Served, models: TellingModels) -> None:
    """As tools of other servers come, whose schemas their users cannot change."""
    tags = {"type": "object", "properties": {"tags": {"uniqueItems": True, "type": "array"}}}
    away = {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}
    tools = [tool("tag", tags), tool("go", away)]
    body = {"messages": [USER], "tools": tools, "tool_choice": "required"}
    models.texts = [called("tag", {"tags": [1, 1]})]
    (warning,) = warnings(served, "/v1/chat/completions", body)
    place = "#/properties/tags/uniqueItems"
    assert warning.startswith(
        f"the JSON schema of the arguments of tag is not enforced at {place}; its schema is not met at /tags"
    )
    models.texts = [called("go", {"a": 1})]
    (warning,) = warnings(served, "/v1/chat/completions", body)
    assert "of the arguments of go is not enforced at #/properties/a (http://x/y is not in" in warning
    assert "its schema cannot be checked" in warning
    request = models.requests[-1]
    given = [{"description": "", **each["function"]} for each in tools]
    assert [json.loads(text)["function"] for text in request.tools] == given
    assert request.grammar is not None
    assert "uniqueItems" not in request.grammar.text


def test_arguments_that_no_grammar_enforces_are_checked(served: Served, models: TellingModels) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    openai = {"messages": [USER], "tools": [tool("f", schema)]}
    claude = {"messages": [USER], "max_tokens": 9, "tools": [{"name": "f", "input_schema": schema}]}
    for path, body in (("/v1/chat/completions", openai), ("/v1/messages", claude)):
        models.texts = [called("f", {"n": 1})]
        assert warnings(served, path, body) == []
        models.texts = [called("f", {"n": "one"})]
        (warning,) = warnings(served, path, body)
        assert warning.startswith("the JSON of the arguments of f: its schema is not met at /n: ")
