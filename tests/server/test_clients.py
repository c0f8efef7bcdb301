"""What coding agents send and expect that goes beyond the guides of their protocols."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from openai.types.responses import Response

from localspec.server import exchange
from localspec.types.events import GenerationEvent
from localspec.types.request import Message, Request, ToolCall
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels

USER = {"role": "user", "content": "Hi"}
WORD: Any = {"type": "object", "properties": {"language": {"type": "string"}}}
MCP: Any = {
    "type": "namespace",
    "name": "mcp__tiny",
    "description": "Tools in the mcp__tiny namespace.",
    "tools": [{"type": "function", "name": "secret", "description": "Tells it.", "parameters": WORD}],
}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin"'},
}
SHELL: Any = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}}
NEW = '*** Begin\n+ "ä"'


@pytest.fixture
def models() -> TellingModels:
    return TellingModels()


@pytest.fixture
def served(models: TellingModels) -> Iterator[Served]:
    with serving(lambda: models) as running:
        yield running


def called(name: str, **arguments: object) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def response(served: Served, *, streams: bool, **fields: object) -> Response:
    asked: Any = fields
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        if not streams:
            found: Response = client.responses.create(model="auto", **asked)
            return found
        with client.responses.stream(model="auto", **asked) as stream:
            return stream.get_final_response()


def last_two(models: TellingModels) -> tuple[Message, Message]:
    prompt = models.requests[-1].prompt
    assert not isinstance(prompt, str)
    return prompt[-2], prompt[-1]


@pytest.mark.parametrize("streams", [False, True])
def test_codex_calls_the_tools_of_mcp_servers(served: Served, models: TellingModels, streams: bool) -> None:
    models.texts = [called("mcp__tiny__secret", language="en"), "Zebra."]
    history: list[Any] = [USER]
    found = response(served, streams=streams, input=history, tools=[SHELL, MCP])
    offered = [json.loads(tool)["function"] for tool in models.requests[-1].tools]
    assert [tool["name"] for tool in offered] == ["shell", "mcp__tiny__secret"]
    assert (offered[1]["description"], offered[1]["parameters"]) == ("Tells it.", WORD)
    item: Any = found.output[0]
    assert (item.type, item.namespace, item.name) == ("function_call", "mcp__tiny", "secret")
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "zebra"}
    history += [item.model_dump(exclude_none=True), result]
    final = response(served, streams=streams, input=history, tools=[SHELL, MCP])
    assert final.output_text == "Zebra."
    asked, told = last_two(models)
    assert asked.tool_calls == (ToolCall(item.call_id, "mcp__tiny__secret", '{"language": "en"}'),)
    assert told == Message("tool", "zebra", tool_call_id=item.call_id)


@pytest.mark.parametrize("streams", [False, True])
def test_a_custom_tool_is_called_with_its_text(served: Served, models: TellingModels, streams: bool) -> None:
    models.texts = [called("apply_patch", input=NEW), "Done."]
    found = response(served, streams=streams, input=[USER], tools=[PATCH])
    (offered,) = (json.loads(tool)["function"] for tool in models.requests[-1].tools)
    assert offered["description"] == 'Edits files.\nThe input meets this lark grammar:\nstart: "*** Begin"'
    item: Any = found.output[0]
    assert (item.type, item.name, item.input) == ("custom_tool_call", "apply_patch", NEW)
    result = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Done"}
    response(served, streams=streams, input=[USER, item.model_dump(exclude_none=True), result], tools=[PATCH])
    asked, told = last_two(models)
    assert [json.loads(call.arguments) for call in asked.tool_calls] == [{"input": NEW}]
    assert told == Message("tool", "Done", tool_call_id=item.call_id)


def test_the_events_of_a_custom_call_have_its_text_alone(served: Served, models: TellingModels) -> None:
    models.texts = [called("apply_patch", input=NEW)]
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "auto", "input": "Hi", "tools": [PATCH], "stream": True}
        events: list[Any] = list(client.responses.create(**asked))
    steps = [event for event in events if event.type not in ("response.created", "response.in_progress")]
    begun, delta, done, ended, _ = steps
    assert (begun.type, begun.item.type, begun.item.input) == (
        "response.output_item.added",
        "custom_tool_call",
        "",
    )
    assert (delta.type, delta.delta) == ("response.custom_tool_call_input.delta", NEW)
    assert (done.type, done.input) == ("response.custom_tool_call_input.done", NEW)
    assert (ended.item.id, ended.item.input) == (begun.item.id, NEW)


class Halting(TellingModels):
    """Waits in the middle of an answer until it may go on."""

    goes_on = threading.Event()

    def _rounds(self, request: Request) -> Iterator[GenerationEvent]:
        events = list(super()._rounds(request))
        middle = len(events) - 6
        yield from events[:middle]
        self.goes_on.wait(20)
        yield from events[middle:]


@pytest.mark.slow
def test_a_custom_call_that_halts_shows_nothing_of_its_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "SILENCE_S", 0.02)
    models = Halting(texts=[called("apply_patch", input=NEW)])
    with (
        serving(lambda: models) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        client.responses.stream(model="auto", input="Hi", tools=[PATCH]) as stream,
    ):
        while next(stream).type != "response.output_item.added":
            pass
        beat = next(stream)
        models.goes_on.set()
        found: Any = stream.get_final_response().output[0]
    assert beat.type == "response.in_progress"
    (item,) = beat.response.model_dump()["output"]
    assert (item["status"], item["input"]) == ("in_progress", "")
    assert (found.status, found.input) == ("completed", NEW)


@pytest.mark.parametrize(
    ("choice", "names", "must"),
    [
        ({"type": "custom", "name": "apply_patch"}, ["shell", "mcp__tiny__secret", "apply_patch"], True),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "custom", "name": "apply_patch"}, {"type": "function", "name": "shell"}],
            },
            ["apply_patch", "shell"],
            False,
        ),
    ],
)
def test_such_tools_can_be_chosen(
    served: Served, models: TellingModels, choice: object, names: list[str], must: bool
) -> None:
    response(served, streams=False, input="Hi", tools=[SHELL, MCP, PATCH], tool_choice=choice)
    request = models.requests[-1]
    assert [json.loads(tool)["function"]["name"] for tool in request.tools] == names
    assert (request.grammar is not None) == must


def test_claude_code_hears_that_the_context_is_full(served: Served, models: TellingModels) -> None:
    models.reason = "context"
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        asked: Any = {"model": "auto", "max_tokens": 9_000, "messages": [USER]}
        message = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    assert message.stop_reason == streamed.stop_reason == "model_context_window_exceeded"


def test_litellm_tells_the_calls_of_an_ollama_stream_apart(served: Served, models: TellingModels) -> None:
    models.texts = [called("shell", a=1) + called("shell", a=2)]
    asked: Any = {"messages": [USER], "tools": [{"type": "function", "function": {"name": "shell"}}]}
    lines = [json.loads(line)["message"] for line in served.post("/api/chat", asked).text.splitlines()]
    calls = [call for line in lines for call in line.get("tool_calls", [])]
    assert [(call["index"], call["function"]["arguments"]) for call in calls] == [
        (0, {"a": 1}),
        (1, {"a": 2}),
    ]


def test_codex_loads_a_model_of_lm_studio_by_asking_nothing(served: Served) -> None:
    body = {"model": "auto", "input": "", "max_output_tokens": 1}
    assert served.post("/v1/responses", body).status_code == 200
    refused = served.post("/v1/responses", {**body, "input": []})
    assert (refused.status_code, "input is missing" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [USER], "max_completion_tokens": 9000}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 9000}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 9000}),
        ("/api/chat", {"messages": [USER], "options": {"num_predict": 9000}}),
    ],
)
def test_the_limit_of_a_client_lets_no_answer_repeat_itself(
    served: Served, models: TellingModels, path: str, body: dict[str, object]
) -> None:
    assert served.post(path, body).status_code == 200
    assert (models.requests[-1].max_tokens, models.requests[-1].ends_circles) == (9000, True)


def test_a_client_that_measures_gets_all_its_tokens(served: Served, models: TellingModels) -> None:
    for body in ({"max_tokens": 9000, "ignore_eos": True}, {}):
        assert served.chat(messages=[USER], **body).status_code == 200
        assert not models.requests[-1].ends_circles
