"""Tools and the other protocols, by their own clients: a loop of calls, streams that say the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from localspec.types.request import Message, ToolCall
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ABOUT = "Tells the weather."
OPENAI_TOOL = {"name": "weather", "description": ABOUT, "parameters": PARAMETERS}
TOOL: Any = {"type": "function", "function": OPENAI_TOOL}
USER = {"role": "user", "content": "Hi"}
CALL = {"function": {"name": "f"}}
QUESTION = "How is the weather?"
CITIES = ("Köln", 'a "b"', "c")
FINAL = "All are dry."


def call(city: str) -> str:
    arguments = json.dumps({"city": city}, ensure_ascii=False)
    return f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'


def weather(arguments: object) -> str:
    assert isinstance(arguments, dict)
    return f"dry in {arguments['city']}"


@pytest.fixture(scope="module")
def telling() -> Iterator[tuple[Served, TellingModels]]:
    models = TellingModels()
    with serving(lambda: models) as served:
        yield served, models


@pytest.fixture
def models(telling: tuple[Served, TellingModels]) -> TellingModels:
    _, models = telling
    models.requests.clear()
    models.texts = [*(f"<think>\nhm {city}\n</think>\n\nI look.\n{call(city)}" for city in CITIES), FINAL]
    models.stop_string = None
    return models


@pytest.fixture
def url(telling: tuple[Served, TellingModels]) -> str:
    return telling[0].url


def openai_client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def anthropic_client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


def chat(client: openai.OpenAI, *, streams: bool) -> str:
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        asked: dict[str, Any] = {"model": "auto", "messages": history, "tools": [TOOL]}
        if streams:
            with client.chat.completions.stream(**asked) as stream:
                choice: Any = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
        message = choice.message
        if not message.tool_calls:
            assert choice.finish_reason == "stop"
            return str(message.content)
        assert (choice.finish_reason, message.content) == ("tool_calls", "I look.")
        assert message.reasoning_content.startswith("hm ")
        calls = [{"id": each.id, "type": "function", "function": {"name": each.function.name,
                  "arguments": each.function.arguments}} for each in message.tool_calls]  # fmt: skip
        thought = {"reasoning_content": message.reasoning_content}
        history.append({"role": "assistant", "content": message.content, "tool_calls": calls, **thought})
        for each in message.tool_calls:
            told = weather(json.loads(each.function.arguments))
            history.append({"role": "tool", "tool_call_id": each.id, "content": told})


def messages(client: anthropic.Anthropic, *, streams: bool) -> str:
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    tool = {"name": "weather", "description": ABOUT, "input_schema": PARAMETERS}
    while True:
        asked: dict[str, Any] = {"model": "auto", "max_tokens": 500, "messages": history, "tools": [tool]}
        if streams:
            with client.messages.stream(**asked) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**asked)
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (6, 4)
        blocks = [block.model_dump(exclude_none=True) for block in message.content]
        if message.stop_reason != "tool_use":
            assert (message.stop_reason, len(blocks)) == ("end_turn", 1)
            return str(blocks[0]["text"])
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
        assert (blocks[0]["thinking"][:3], blocks[1]["text"]) == ("hm ", "I look.")
        result = {
            "type": "tool_result",
            "tool_use_id": blocks[2]["id"],
            "content": weather(blocks[2]["input"]),
        }
        history += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]


def responses(client: openai.OpenAI, *, streams: bool) -> str:
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        asked: dict[str, Any] = {
            "model": "auto",
            "input": history,
            "tools": [{"type": "function", **OPENAI_TOOL}],
        }
        if streams:
            with client.responses.stream(**asked) as stream:
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(**asked)
        assert (response.status, response.usage.total_tokens - response.usage.output_tokens) == (
            "completed",
            10,
        )
        items = [item.model_dump(exclude_none=True) for item in response.output]
        if items[-1]["type"] == "message":
            return str(response.output_text)
        assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
        assert items[1]["content"][0]["text"] == "I look."
        told = weather(json.loads(items[2]["arguments"]))
        history += [*items, {"type": "function_call_output", "call_id": items[2]["call_id"], "output": told}]


Loop = Callable[..., str]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("loop", "opened"), [(chat, openai_client), (messages, anthropic_client), (responses, openai_client)]
)
def test_a_client_calls_three_tools_in_a_loop(
    models: TellingModels, url: str, loop: Loop, opened: Callable[[str], Any], streams: bool
) -> None:
    with opened(url) as client:
        assert loop(client, streams=streams) == FINAL
    assert len(models.requests) == 4
    last = models.requests[-1]
    assert last.shows_control
    assert [json.loads(tool) for tool in last.tools] == [TOOL]
    assert isinstance(last.prompt, tuple)
    turns = [turn for turn in last.prompt if turn.role != "system"]
    assert turns[0] == Message("user", QUESTION)
    for number, city in enumerate(CITIES):
        asked, result = turns[1 + 2 * number : 3 + 2 * number]
        (called,) = asked.tool_calls
        assert called == ToolCall(called.id, "weather", json.dumps({"city": city}, ensure_ascii=False))
        assert asked.content == "I look."
        assert result == Message("tool", f"dry in {city}", tool_call_id=called.id)
        assert asked.thinking == f"hm {city}"


def test_of_calls_side_by_side_the_first_is_reported_where_one_is_wanted(
    models: TellingModels, url: str
) -> None:
    models.texts = [call("a") + call("b")]
    with openai_client(url) as client:
        for parallel in (True, False):
            asked: dict[str, Any] = {"model": "auto", "messages": [{"role": "user", "content": QUESTION}]}
            reply = client.chat.completions.create(**asked, tools=[TOOL], parallel_tool_calls=parallel)
            with client.chat.completions.stream(
                **asked, tools=[TOOL], parallel_tool_calls=parallel
            ) as stream:
                streamed = stream.get_final_completion()
            for choice in (reply.choices[0], streamed.choices[0]):
                calls: Any = choice.message.tool_calls
                assert [json.loads(each.function.arguments)["city"] for each in calls] == ["a", "b"][
                    : 1 + parallel
                ]


def test_without_tools_or_with_none_a_call_is_text(models: TellingModels, url: str) -> None:
    models.texts = [call("a")]
    with openai_client(url) as client:
        for more in ({}, {"tools": [TOOL], "tool_choice": "none"}):
            asked: dict[str, Any] = {
                "model": "auto",
                "messages": [{"role": "user", "content": QUESTION}],
                **more,
            }
            choice = client.chat.completions.create(**asked).choices[0]
            assert (choice.message.content, choice.message.tool_calls) == (call("a"), None)
            assert choice.finish_reason == "stop"
            assert models.requests[-1].tools == ()


def test_a_tool_of_which_only_the_name_is_known_is_whole_for_templates(
    models: TellingModels, url: str
) -> None:
    named = {"type": "function", "function": {"name": "now"}}
    asked: dict[str, Any] = {"model": "auto", "messages": [USER], "tools": [named]}
    with openai_client(url) as client:
        client.chat.completions.create(**asked)
    (tool,) = models.requests[-1].tools
    parameters = {"type": "object", "properties": {}}
    assert json.loads(tool)["function"] == {"name": "now", "description": "", "parameters": parameters}


def test_thinking_that_the_template_opens_stays_apart(models: TellingModels, url: str) -> None:
    models.opens, models.texts = "<think>\n", [f"hm\n</think>\n\nI look.\n{call('a')}"]
    asked: dict[str, Any] = {"model": "auto", "messages": [USER], "tools": [TOOL]}
    asked["extra_body"] = {"chat_template_kwargs": {"enable_thinking": True}}
    try:
        with openai_client(url) as client:
            with client.chat.completions.stream(**asked) as stream:
                told: list[Any] = [stream.get_final_completion(), client.chat.completions.create(**asked)]
            for message in (each.choices[0].message for each in told):
                assert (message.reasoning_content, message.content) == ("hm", "I look.")
                assert len(message.tool_calls) == 1
            models.texts = ["No tag."]
            asked["extra_body"] = {"chat_template_kwargs": {"enable_thinking": False}}
            reply = client.chat.completions.create(**asked)
            assert reply.choices[0].message.content == "No tag."
    finally:
        models.opens = ""


@pytest.mark.parametrize("text", ["hm, </think>\n\nI look.", "hm, and th", "</think>I look.", "hm</think>"])
def test_every_protocol_reports_thinking_that_the_template_opens(
    models: TellingModels, url: str, text: str
) -> None:
    models.opens, models.texts = "[THINK]\n", [text.replace("</think>", "[/THINK]")]
    thought, _, said = (part.strip() for part in text.partition("</think>"))
    try:
        with openai_client(url) as client:
            asked: Any = {"model": "auto", "messages": [USER]}
            chat = client.chat.completions.create(**asked)
            message: Any = chat.choices[0].message
            assert (getattr(message, "reasoning_content", ""), message.content) == (thought, said)
            items: Any = client.responses.create(model="auto", input="Hi").output
            parts = {item.type: item.content[0].text for item in items}
            assert (parts.get("reasoning", ""), parts.get("message", "")) == (thought, said)
        with anthropic_client(url) as other:
            body: Any = {"model": "auto", "max_tokens": 9, "messages": [USER]}
            blocks = other.messages.create(**body).content
            found = {block.type: getattr(block, block.type) for block in blocks}
            assert (found.get("thinking", ""), found.get("text", "")) == (thought, said)
    finally:
        models.opens = ""


ANALYSIS = "<|channel|>analysis<|message|>"


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        (f"{ANALYSIS}hm<|end|><|start|>assistant<|channel|>final<|message|>Four.", "hm", "Four."),
        (f"{ANALYSIS}hm, and", "hm, and", ""),
        ("<|channel|>final<|message|>Four.", "", "Four."),
        ("<|channel>thought\nhm<channel|>Four.", "hm", "Four."),
        ("I use `<|channel|>` here.", "", "I use `<|channel|>` here."),
    ],
)
def test_channels_are_known_without_tools(
    models: TellingModels, url: str, text: str, thought: str, said: str
) -> None:
    models.texts = [text]
    with openai_client(url) as client:
        asked: Any = {"model": "auto", "messages": [USER]}
        message: Any = client.chat.completions.create(**asked).choices[0].message
    assert (getattr(message, "reasoning_content", ""), message.content) == (thought, said)


def test_tokens_of_thinking_are_counted(models: TellingModels, url: str) -> None:
    models.texts = ["<think>hm</think>I look."]
    with openai_client(url) as client:
        asked: Any = {"model": "auto", "messages": [USER], "n": 2}
        usage = client.chat.completions.create(**asked).usage
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert usage.completion_tokens_details.reasoning_tokens == 2 * 10
        responded = client.responses.create(model="auto", input="Hi").usage
        assert responded is not None
        assert responded.output_tokens_details.reasoning_tokens == 10


def test_a_bare_text_has_no_thinking(models: TellingModels, url: str) -> None:
    models.texts = ["<think>hm</think>I look."]
    with openai_client(url) as client:
        assert client.completions.create(model="auto", prompt="Hi").choices[0].text == models.texts[0]


def test_a_stop_sequence_is_named(models: TellingModels, url: str) -> None:
    models.texts, models.stop_string = ["One"], "Two"
    with anthropic_client(url) as client:
        message = client.messages.create(
            model="auto", max_tokens=9, messages=[{"role": "user", "content": "Hi"}], stop_sequences=["Two"]
        )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Two")
    assert models.requests[-1].stop == ("Two",)


@pytest.mark.usefixtures("models")
def test_a_stream_of_messages_begins_with_the_tokens_of_the_prompt(url: str) -> None:
    body: Any = {"model": "auto", "max_tokens": 9, "messages": [USER], "system": "Be brief."}
    with anthropic_client(url) as client, client.messages.stream(**body) as stream:
        begun = next(iter(stream))
    assert begun.type == "message_start"
    assert (begun.message.usage.input_tokens, begun.message.usage.output_tokens) == (3, 0)


def test_settings_of_anthropic_clients_reach_the_models(models: TellingModels, url: str) -> None:
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    body: Any = {
        "model": "coding",
        "max_tokens": 7,
        "system": [cached],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, cached]}],
        "thinking": {"type": "disabled"},
    }
    with anthropic_client(url) as client:
        client.messages.create(
            **body, extra_body={"temperature": 0.5, "top_k": 3, "metadata": {"user_id": "1"}}
        )
        del body["max_tokens"]
        assert client.messages.count_tokens(**body).input_tokens == 5  # of which a word is one, here
    request = models.requests[-1]
    assert request.prompt == (Message("system", "Be brief."), Message("user", "Hi\nBe brief."))
    assert (request.max_tokens, request.sampling.temperature, request.sampling.top_k) == (7, 0.5, 3)
    assert dict(request.template_variables) == {"enable_thinking": False}


def test_settings_of_responses_clients_reach_the_models(models: TellingModels, url: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form: Any = {"type": "json_schema", "name": "it", "schema": schema, "strict": True}
    models.texts = ["Hello."]
    with openai_client(url) as client:
        response = client.responses.create(
            model="coding",
            input=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            instructions="Be kind.",
            max_output_tokens=7,
            temperature=0.5,
            text={"format": form},
        )
    assert (response.output_text, response.instructions) == ("Hello.", "Be kind.")
    request = models.requests[-1]
    instructions = (Message("system", "Be kind."), Message("system", "Be brief."))
    assert request.prompt == (*instructions, Message("user", "Hi"))
    assert (request.max_tokens, request.sampling.temperature) == (7, 0.5)
    assert request.grammar is not None
    assert (request.grammar.kind, json.loads(request.grammar.text)) == ("json_schema", schema)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/messages", {"messages": "Hi"}, "messages is not a list"),
        ("/v1/messages", {"messages": []}, "messages is missing or empty"),
        ("/v1/messages", {"messages": [USER], "tool_choice": {"type": "any"}}, "there are no tools"),
        ("/v1/responses", {"input": "Hi", "previous_response_id": "resp_1"}, "nothing is stored"),
        ("/v1/responses", {"instructions": "Hi"}, "input is missing or empty"),
        ("/v1/responses", {"input": "Hi", "tools": [{"type": "function"}]}, "has no name"),
        ("/v1/responses", {"input": ["Hi"]}, "input[0] is not an object"),
        ("/v1/chat/completions", {"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL], "tool_choice": "most"}, "tool_choice"),
        (
            "/v1/chat/completions",
            {"messages": [{**USER, "tool_calls": [{"function": {"name": "f"}}]}]},
            "assistant",
        ),
        ("/tokenize", {"content": 3}, "content"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/infill", {"input_prefix": "a"}, "input_suffix is missing"),
    ],
)
def test_invalid_requests_are_rejected_in_the_protocols_form(
    telling: tuple[Served, TellingModels], path: str, body: object, words: str
) -> None:
    reply = telling[0].post(path, body)
    assert reply.status_code == 400
    told = reply.json()
    assert words in told["error"]["message"]
    assert "\n" not in told["error"]["message"]
    assert told["error"]["type"] == "invalid_request_error"
    assert (told.get("type") == "error") == (path == "/v1/messages")


@pytest.mark.slow
def test_a_failure_in_a_stream_is_an_event_of_the_protocol(models: TellingModels, url: str) -> None:
    models.fails = True
    asked: dict[str, Any] = {"model": "auto", "messages": [USER]}
    try:
        with openai_client(url) as client, pytest.raises(openai.APIError, match="broken"):
            list(client.chat.completions.create(**asked, stream=True))
        with openai_client(url) as client:
            assert [event.type for event in client.responses.create(model="auto", input="Hi", stream=True)][
                -1
            ] == ("response.failed")
        with anthropic_client(url) as claude, pytest.raises(anthropic.APIStatusError, match="broken"):
            list(claude.messages.create(**asked, max_tokens=9, stream=True))
    finally:
        models.fails = False
