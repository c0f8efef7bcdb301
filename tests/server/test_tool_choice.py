"""Which tools a model may call, must call, or never hears of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.types.request import Request
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels

HI: Any = [{"role": "user", "content": "Hi"}]
PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}}


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}


def flat(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": PARAMETERS}


FORMAT: Any = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(TellingModels) as running:
        yield running


def asked(served: Served, path: str, body: object) -> Request:
    """Return what the models are asked for a request."""
    reply = served.post(path, body)
    assert reply.status_code == 200, reply.text
    models = served.service.queue.models
    assert isinstance(models, TellingModels)
    return models.requests[-1]


def names(request: Request) -> list[str]:
    return [json.loads(tool)["function"]["name"] for tool in request.tools]


@pytest.mark.parametrize(
    ("path", "body", "others"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": HI,
                "tools": [{"type": "web_search"}, function("a"), {"type": "custom", "custom": {}}],
            },
            "custom, web_search",
        ),
        (
            "/v1/responses",
            {
                "input": "Hi",
                "tools": [{"type": "web_search"}, flat("a"), {"type": "mcp"}],
            },
            "mcp, web_search",
        ),
        (
            "/v1/messages",
            {
                "messages": HI,
                "tools": [
                    {"type": "bash_20250124", "name": "bash"},
                    {"name": "a", "input_schema": PARAMETERS},
                    {"type": "web_search_20250305", "name": "web_search"},
                ],
            },
            "bash_20250124, web_search_20250305",
        ),
    ],
)
def test_tools_of_other_types_are_left_out_and_logged_once(
    served: Served, path: str, body: object, others: str
) -> None:
    served.lines.clear()
    for _ in range(2):
        assert names(asked(served, path, body)) == ["a"]
    [line] = [line for line in served.lines if "left out" in line]
    warning = f"tools of the types {others} are left out: the models cannot call them"
    assert line.endswith(warning)
    assert served.post(path, body).json()["warnings"] == [warning]


def test_only_tools_of_other_types_are_none(served: Served) -> None:
    body: Any = {"messages": HI, "tools": [{"type": "web_search"}]}
    assert asked(served, "/v1/chat/completions", body).tools == ()
    assert served.chat(**body, tool_choice="required").status_code == 400


@pytest.mark.parametrize(("mode", "offered"), [("auto", ["b"]), ("required", ["b"])])
def test_some_tools_are_allowed(served: Served, mode: str, offered: list[str]) -> None:
    tools = [function("a"), function("b")]
    choice: Any = {"mode": mode, "tools": [{"type": "function", "function": {"name": "b"}}]}
    body = {"messages": HI, "tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}
    chat = asked(served, "/v1/chat/completions", body)
    flat_choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "b"}]}
    body = {"input": "Hi", "tools": [flat("a"), flat("b")], "tool_choice": flat_choice}
    for request in (chat, asked(served, "/v1/responses", body)):
        assert names(request) == offered
        assert (request.grammar is not None) == (mode == "required")
        if request.grammar is not None:
            assert '"b"' in request.grammar.text
            assert '"a"' not in request.grammar.text


@pytest.mark.parametrize(
    "choice",
    [
        {"mode": "auto", "tools": [{"type": "function", "function": {"name": "c"}}]},
        {"mode": "most", "tools": [function("a")]},
        {"mode": "auto", "tools": ["a"]},
    ],
)
def test_a_choice_of_what_there_is_not_is_refused(served: Served, choice: Any) -> None:  # noqa: ANN401
    wanted = {"type": "allowed_tools", "allowed_tools": choice}
    reply = served.chat(messages=HI, tools=[function("a")], tool_choice=wanted)
    assert reply.status_code == 400
    assert "tool_choice" in reply.json()["error"]["message"]


def test_a_model_may_call_before_it_answers_in_the_wanted_form(served: Served) -> None:
    body: Any = {"messages": HI, "tools": [function("a")], "response_format": FORMAT}
    free = asked(served, "/v1/chat/completions", body)
    assert free.grammar is not None
    assert (free.grammar.kind, "call" in free.grammar.text) == ("lark", True)
    closed = FORMAT["json_schema"]["schema"] | {"additionalProperties": False}
    assert f"| %json {json.dumps(closed)}" in free.grammar.text
    forced = asked(served, "/v1/chat/completions", body | {"tool_choice": "required"})
    assert forced.grammar is not None
    assert "| %json" not in forced.grammar.text
    never = asked(served, "/v1/chat/completions", body | {"tool_choice": "none"})
    assert never.grammar is not None
    assert never.grammar.kind == "json_schema"


@pytest.mark.parametrize(
    ("extra", "several"),
    [
        ({"tool_choice": "required"}, True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, False),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, False),
    ],
)
def test_a_required_call_may_be_several(served: Served, extra: Any, several: bool) -> None:  # noqa: ANN401
    request = asked(served, "/v1/chat/completions", {"messages": HI, "tools": [function("a")], **extra})
    assert request.grammar is not None
    assert ("call){0," in request.grammar.text) == several


ALIKE: Any = [
    ("/v1/chat/completions", {"messages": HI, "tools": [function("a")]}),
    ("/v1/responses", {"input": "Hi", "tools": [flat("a")]}),
    ("/v1/messages", {"messages": HI, "tools": [{"name": "a", "input_schema": PARAMETERS}]}),
    ("/api/chat", {"model": "auto", "messages": HI, "tools": [function("a")], "stream": False}),
]


@pytest.mark.parametrize(("path", "body"), ALIKE)
def test_a_call_that_a_model_may_make_follows_its_schema_at_every_path(
    served: Served, path: str, body: object
) -> None:
    request = asked(served, path, body)
    assert request.grammar is None
    found = [dict(trigger.grammars)["a"].text for trigger in request.triggers]
    assert len(found) == 2
    assert all('"city": {"type": "string"}' in text for text in found)


@pytest.mark.parametrize(
    "extra",
    [{"tools": []}, {"tool_choice": "none"}, {"tool_choice": "required"}, {"response_format": FORMAT}],
)
def test_no_grammar_begins_in_answers_without_calls_or_under_another(served: Served, extra: Any) -> None:  # noqa: ANN401
    body = {"messages": HI, "tools": [function("a")], **extra}
    assert asked(served, "/v1/chat/completions", body).triggers == ()


def test_a_schema_that_is_no_grammar_leaves_the_arguments_open_and_is_checked(served: Served) -> None:
    away = {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}
    tools = [function("a"), {"type": "function", "function": {"name": "away", "parameters": away}}]
    models = served.service.queue.models
    assert isinstance(models, TellingModels)
    models.texts = ['<tool_call>\n{"name": "away", "arguments": {"a": 1}}\n</tool_call>']
    reply = served.chat(messages=HI, tools=tools).json()
    grammar = dict(models.requests[-1].triggers[0].grammars)["away"].text
    assert '%json {"type": "object", "x-guidance"' in grammar
    (warning,) = reply["warnings"]
    assert warning.startswith("the JSON of the arguments of away: its schema cannot be checked")
