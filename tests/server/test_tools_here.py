"""Tools of MCP servers that run on the server's side: what clients see, send again, and cannot do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from localspec.chat.tool_use.answer_tools import ENOUGH, NO_MORE
from localspec.chat.tool_use.kit import ToolKit
from localspec.chat.tool_use.offer import NEXT
from localspec.errors import UserError
from localspec.server import opening
from localspec.server.application import LoggedApplication
from localspec.tools.tool import Arguments, Tool, ToolOutput
from localspec.types.request import Message, Request
from tests.chat.tool_models import MadeTools, judge, kit_of
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels
from tests.server.test_doors import connected, sent
from tests.server.test_tools import OPENAI_TOOL, call, openai_client
from tests.waiting import until

HERE: Any = {"type": "mcp", "server_label": "made", "require_approval": "never"}
CLIENTS: Any = {"type": "function", "function": OPENAI_TOOL}
FLAT: Any = {"type": "function", **OPENAI_TOOL}
USER: Any = [{"role": "user", "content": "Look!"}]


class ServerTools(MadeTools):
    """Tools whose source is a server."""

    def tools(self) -> Sequence[Tool]:
        return [replace(tool, source="made") for tool in super().tools()]


@dataclass
class Here:
    """A running server with tools, whose models write given texts."""

    served: Served
    models: TellingModels
    tools: ServerTools
    act: Callable[[str, Arguments, threading.Event], str | ToolOutput]

    def chat(self, *texts: str, **body: object) -> httpx2.Response:
        """Ask by `/v1/chat/completions`."""
        self.models.texts = list(texts)
        return self.served.chat(**{"messages": USER, "tools": [HERE]} | body)

    def respond(self, *texts: str, **body: object) -> httpx2.Response:
        """Ask by `/v1/responses`."""
        self.models.texts = list(texts)
        return self.served.post("/v1/responses", {"input": "Look!", "tools": [HERE]} | body)

    @property
    def prompts(self) -> list[Sequence[Message]]:
        """The conversations that the models were asked to go on with."""
        return [asked.prompt for asked in self.models.requests if not isinstance(asked.prompt, str)]

    @property
    def asked(self) -> list[Request]:
        """What the models were asked."""
        return self.models.requests


def requests(here: Here) -> int:
    """Return the number of requests that are being answered."""
    application = here.served.server.config.app
    assert isinstance(application, LoggedApplication)
    return sum(model.uses for model in application.models.all)


def look(path: str = "a", tool: str = "look") -> str:
    """Return a call as the models write it."""
    called = {"name": f"made__{tool}", "arguments": {"path": path}}
    return f"<tool_call>\n{json.dumps(called)}\n</tool_call>"


def offering(tools: ServerTools) -> ToolKit:
    """Return the kit of a server, which offers what it may run unasked."""
    return replace(kit_of(tools, most_rounds=4), offers=lambda tool: judge(tool, {}).leave == "allowed")


@pytest.fixture(scope="module")
def running() -> Iterator[Here]:
    models = TellingModels()
    effects: Any = {"made__look": "reads", "made__add": "reads", "made__ask": "runs", "forbidden": "runs"}

    def act(name: str, arguments: Arguments, stop: threading.Event) -> str | ToolOutput:
        return found.act(name, arguments, stop)

    tools = ServerTools(effects, act)
    with serving(lambda: models, kit=offering(tools)) as served:
        found = Here(served, models, tools, act)
        yield found


@pytest.fixture
def here(running: Here) -> Here:
    running.models.requests.clear()
    running.tools.ran.clear()
    running.served.lines.clear()
    running.models.reason = "stop"
    running.act = lambda _name, arguments, _stop: f"{arguments['path']} holds 7"
    return running


def test_a_call_runs_here_and_the_answer_goes_on(here: Here) -> None:
    reply = here.chat(f"I look.\n{look()}", "It holds 7.").json()
    (choice,) = reply["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "I look.\n\nIt holds 7.")
    assert "tool_calls" not in choice["message"]
    (ran,) = choice["message"]["mcp_calls"]
    assert (ran["server_label"], ran["name"], ran["output"]) == ("made", "look", "a holds 7")
    assert here.tools.ran == [("made__look", {"path": "a"})]
    _, _, said, result = here.prompts[1]
    assert (said.content, said.tool_calls[0].name) == ("I look.", "made__look")
    assert result.content == f"a holds 7\n\n{NEXT}"  # as in a chat
    assert result.tool_call_id == said.tool_calls[0].id
    assert reply["usage"]["prompt_tokens"] == 20  # of both messages
    assert reply["usage"]["completion_tokens"] == len(f"I look.\n{look()}It holds 7.")
    assert any("made__look of made, done, the rule reads" in line for line in here.served.lines)


def test_a_question_of_several_steps_is_not_split(here: Here) -> None:
    question = [{"role": "user", "content": "What is in a? Then look into b."}]
    reply = here.chat(look(), "It holds 7.", messages=question).json()
    assert reply["choices"][0]["message"]["content"] == "It holds 7."
    assert [prompt[-1].role for prompt in here.prompts] == ["user", "tool"]
    assert here.prompts[0][-1].content == "What is in a? Then look into b."


@pytest.mark.parametrize("ending", ["It holds 7.", call("Köln")], ids=["text", "a call of the client's"])
def test_clients_that_know_nothing_of_it_read_the_same_stream(here: Here, ending: str) -> None:
    here.models.texts = [f"<think>\nhm\n</think>\n\nI look.\n{look()}", f"<think>\nso\n</think>\n\n{ending}"]
    with openai_client(here.served.url) as client:
        asked: Any = {"model": "auto", "messages": USER, "tools": [HERE, CLIENTS]}
        with client.chat.completions.stream(**asked) as stream:
            streamed: Any = stream.get_final_completion().choices[0]
        here.models.texts = [
            f"<think>\nhm\n</think>\n\nI look.\n{look()}",
            f"<think>\nso\n</think>\n\n{ending}",
        ]
        whole: Any = client.chat.completions.create(**asked).choices[0]
        for choice in (streamed, whole):
            assert choice.message.content == "I look." + (
                "\n\nIt holds 7." if ending == "It holds 7." else ""
            )
            assert choice.message.reasoning_content == "hm\n\nso"
            names = [each.function.name for each in choice.message.tool_calls or ()]
            assert (choice.finish_reason, names) == (
                ("stop", []) if ending == "It holds 7." else ("tool_calls", ["weather"])
            )


def test_a_stream_says_what_runs(here: Here) -> None:
    lines = here.chat(look(), "Done.", stream=True).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    told = [(each["mcp_call"]["status"], each["mcp_call"]["output"]) for each in chunks if "mcp_call" in each]
    assert told == [("in_progress", None), ("completed", "a holds 7")]
    assert all(each["choices"][0]["delta"] == {} for each in chunks if "mcp_call" in each)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_stream_gives_signs_of_life_while_a_server_starts(
    here: Here, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(opening, "PREPARING_S", 0.01)
    monkeypatch.setattr(opening, "OPENING_S", 0.01)
    may_start = threading.Event()
    listed = here.tools.tools

    def tools() -> Sequence[Tool]:
        assert may_start.wait(20)
        return listed()

    monkeypatch.setattr(here.tools, "tools", tools)
    here.models.texts = ["Done."]
    body = {"messages": USER, "input": "Look!", "tools": [HERE], "stream": True}
    with here.served.client.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200
        pieces, heard = reply.iter_text(), ""
        while heard.count(": preparing the answer") < 2:
            heard += next(pieces)
        may_start.set()
        heard += "".join(pieces)
    assert "Done." in heard


def test_a_client_that_leaves_while_a_server_starts_is_not_answered(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "PREPARING_S", 0.01)
    may_start = threading.Event()

    def tools() -> Sequence[Tool]:
        assert may_start.wait(20)
        return []

    monkeypatch.setattr(here.tools, "tools", tools)
    body = {"messages": USER, "tools": [HERE], "stream": True}
    with here.served.client.stream("POST", "/v1/chat/completions", json=body) as reply:
        next(reply.iter_text())
    until(lambda: requests(here) == 0)
    may_start.set()
    here.models.texts = ["Here."]
    assert here.served.chat(messages=USER).json()["choices"][0]["message"]["content"] == "Here."
    assert len(here.asked) == 1


def test_a_response_has_items_of_what_ran_in_one_stream(here: Here) -> None:
    with openai_client(here.served.url) as client:
        here.models.texts = [f"I look.\n{look()}\n{look('b', 'add')}", "Both hold 7."]
        kinds, numbers, begun = list[str](), list[int](), list[int]()
        with client.responses.stream(model="auto", input="Look!", tools=[HERE]) as stream:
            for event in stream:
                kinds.append(event.type)
                numbers.append(event.sequence_number)
                if event.type == "response.output_item.added":
                    begun.append(event.output_index)
            response = stream.get_final_response()
        assert numbers == list(range(len(numbers)))
        assert begun == [0, 1, 2, 3, 4]
        once = ("created", "completed", "mcp_list_tools.completed")
        assert [kinds.count(f"response.{kind}") for kind in (*once, "mcp_call.completed")] == [1, 1, 1, 2]
        assert kinds.count("response.output_item.done") == kinds.count("response.output_item.added")
        here.models.texts = [f"I look.\n{look()}\n{look('b', 'add')}", "Both hold 7."]
        whole = client.responses.create(model="auto", input="Look!", tools=[HERE])
        for found in (response, whole):
            listed, said, one, two, last = (item.model_dump() for item in found.output)
            assert [tool["name"] for tool in listed["tools"]] == ["look", "add"]  # those that a rule allows
            assert (one["name"], one["output"], one["status"]) == ("look", "a holds 7", "completed")
            assert (two["arguments"], two["error"]) == ('{"path": "b"}', None)
            assert (said["content"][0]["text"], last["content"][0]["text"]) == ("I look.", "Both hold 7.")
            assert found.usage is not None
            assert found.usage.input_tokens == 20


def test_items_that_come_back_are_what_the_model_saw(here: Here) -> None:
    items = here.respond(f"I look.\n{look()}", "It holds 7.").json()["output"]
    seen = here.prompts[-1]
    here.respond("Still.", input=[*USER, *items, {"role": "user", "content": "And now?"}])
    assert here.prompts[-1][: len(seen)] == seen
    assert [each.content for each in here.prompts[-1][len(seen) :]] == ["It holds 7.", "And now?"]


def test_calls_of_both_kinds_in_one_message(here: Here) -> None:
    both = f"{look()}\n{call('Köln')}"
    items = here.respond(both, "never asked", tools=[HERE, FLAT]).json()["output"]
    assert [item["type"] for item in items] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert (items[1]["output"], items[2]["name"]) == ("a holds 7", "weather")
    assert len(here.asked) == 1
    (choice,) = here.chat(both, "never asked", tools=[HERE, CLIENTS]).json()["choices"]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("tool_calls", 1)


def test_the_rounds_end(here: Here) -> None:
    here.act = lambda _name, arguments, _stop: f"{arguments['path']} of {len(here.tools.ran)}"
    reply = here.chat(*(look(str(number)) for number in range(4)), "Enough.").json()
    assert reply["choices"][0]["message"]["content"] == "Enough."
    assert [len(request.tools) for request in here.asked] == [2, 2, 2, 2, 0]
    here.asked.clear()
    here.act = lambda *_: "the same"
    here.chat(look(), look(), "In circles.")
    assert [len(request.tools) for request in here.asked] == [2, 2, 0]


def test_a_call_after_the_rounds_is_shown_as_one_that_was_not_run(here: Here) -> None:
    items = here.respond(look(), look(), f"Once more. {look()}").json()["output"]
    assert [item["type"] for item in items] == ["mcp_list_tools", *["mcp_call"] * 2, "message", "mcp_call"]
    assert items[-2]["content"][0]["text"].strip() == "Once more."
    assert items[-1]["status"] == "failed"
    assert items[-1]["error"]["content"][0]["text"] == f"This was not run: {NO_MORE}."
    assert len(here.tools.ran) == 2
    assert here.prompts[-1][-1].content.endswith(ENOUGH)


def test_a_call_is_required_once(here: Here) -> None:
    here.chat(look(), "Done.", tool_choice="required")
    assert [request.grammar is not None for request in here.asked] == [True, False]
    here.asked.clear()
    one = {"type": "mcp", "server_label": "made", "name": "add"}
    here.respond(look("b", "add"), "Done.", tool_choice=one)
    grammar = here.asked[0].grammar
    assert grammar is not None
    assert "made__add" in grammar.text
    assert "made__look" not in grammar.text
    assert len(here.asked) == 2


def test_a_limit_counts_all_messages(here: Here) -> None:
    text = look()
    reply = here.chat(text, "12345", max_tokens=len(text) + 5).json()
    assert here.asked[1].max_tokens == 5
    assert reply["choices"][0]["finish_reason"] == "stop"
    reply = here.chat(text, "never asked", max_tokens=len(text)).json()
    assert reply["choices"][0]["finish_reason"] == "length"


def test_a_call_that_was_cut_does_not_run(here: Here) -> None:
    here.models.reason = "length"
    item = here.respond(look()[:-18]).json()["output"][-1]
    assert (item["type"], item["status"], here.tools.ran) == ("mcp_call", "incomplete", [])
    stream = here.respond(look()[:-18], stream=True).text
    assert stream.count("event: response.output_item.done") == stream.count("response.output_item.added\n")


def test_results_that_fill_the_context_end_the_answer(here: Here) -> None:
    here.act = lambda *_: "a " * 5_000
    reply = here.chat(look("a"), look("b"), look("c"), "never asked")
    assert len(here.asked) > 1
    assert (reply.status_code, reply.json()["choices"][0]["finish_reason"]) == (200, "length")


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (ToolOutput("no such file", is_error=True), "no such file"),
        (UserError("the MCP server `made` has ended"), "the MCP server `made` has ended"),
        (ValueError("odd"), "made__look failed: ValueError: odd"),
    ],
    ids=["an error", "a death", "a mistake"],
)
def test_what_fails_is_said_to_the_model_and_the_client(here: Here, act: object, said: str) -> None:
    def fail(*_: object) -> ToolOutput:
        if isinstance(act, Exception):
            raise act
        assert isinstance(act, ToolOutput)
        return act

    here.act = fail
    _, item, _ = here.respond(look(), "It failed.").json()["output"]
    assert (item["status"], item["output"]) == ("failed", None)
    assert item["error"] == {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": said}]}
    assert here.prompts[1][-1].content == f"{said}\n\n{NEXT}"


def test_arguments_that_do_not_fit_are_mended(here: Here) -> None:
    wrong = look().replace("path", "file")
    items = here.respond(wrong, look("b"), "Done.").json()["output"]
    assert [item.get("status") for item in items[1:]] == ["failed", "completed", "completed"]
    assert here.tools.ran == [("made__look", {"path": "b"})]


def test_a_tool_that_no_rule_allows_does_not_run(here: Here) -> None:
    content = here.chat(look("a", "ask")).json()["choices"][0]["message"]["content"]
    assert "made__ask" in content  # no call: the model was not told of such a tool
    assert here.tools.ran == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"allowed_tools": ["add"]}, ["made__add"]),
        ({"allowed_tools": {"tool_names": ["made__look"]}}, ["made__look"]),
        ({"allowed_tools": {"read_only": True}}, ["made__look", "made__add"]),
        ({"allowed_tools": []}, []),
        ({"server_url": "https://example.org/mcp"}, []),
        ({"connector_id": "connector_gmail"}, []),
        ({"server_label": None}, []),
    ],
)
def test_what_is_offered(here: Here, changes: dict[str, object], names: list[str]) -> None:
    reply = here.chat("Hello.", tools=[HERE | changes]).json()
    (request,) = here.asked
    assert [json.loads(tool)["function"]["name"] for tool in request.tools] == names
    elsewhere = "allowed_tools" not in changes
    assert bool(reply.get("warnings")) is elsewhere


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"server_label": "other"}, "no MCP server `other` is offered; offered: made"),
        ({"require_approval": "always"}, "not approved one by one"),
        ({"require_approval": {"never": {"tool_names": ["look"]}}}, "not approved one by one"),
        ({"allowed_tools": "look"}, "allowed_tools is not a list"),
        ({"allowed_tools": [1]}, "allowed_tools is not a list"),
    ],
)
def test_what_cannot_be_had_is_refused(here: Here, changes: dict[str, object], problem: str) -> None:
    reply = here.respond("never asked", tools=[HERE | changes])
    assert reply.status_code == 400
    assert problem in reply.json()["error"]["message"]
    assert here.asked == []


def test_a_tool_of_the_client_keeps_its_name(here: Here) -> None:
    own = {"type": "function", "function": OPENAI_TOOL | {"name": "made__look"}}
    reply = here.chat(look(), "never asked", tools=[HERE, own]).json()
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert here.tools.ran == []


def test_a_protocol_that_could_not_show_it_leaves_it_out(here: Here) -> None:
    here.models.texts = ["Hello."]
    asked: dict[str, object] = {"model": "auto", "messages": USER, "tools": [HERE], "stream": False}
    assert here.served.post("/api/chat", asked).status_code == 200
    assert [request.tools for request in here.asked] == [()]


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_stops_what_runs(here: Here, streams: bool) -> None:
    began, stopped = threading.Event(), threading.Event()

    def act(_name: str, _arguments: Arguments, stop: threading.Event) -> str:
        began.set()
        if stop.wait(20):
            stopped.set()
        return ""

    here.act = act
    here.models.texts = [look(), "never asked"]
    body = {"messages": USER, "tools": [HERE], "stream": streams}
    with connected(here.served) as client:
        client.sendall(sent(body))
        assert began.wait(20)
    assert stopped.wait(20)
    until(lambda: requests(here) == 0)
    assert len(here.asked) == 1


def test_without_the_flag_nothing_runs() -> None:
    models = TellingModels(texts=["Hello."])
    with serving(lambda: models) as served:
        reply = served.chat(messages=USER, tools=[HERE]).json()
    assert [request.tools for request in models.requests] == [()]
    assert "mcp are left out" in reply["warnings"][0]


def test_a_server_that_does_not_start_is_said(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Sequence[Tool]:
        raise UserError("the MCP server `made` did not answer within 30 s")

    monkeypatch.setattr(here.tools, "tools", fail)
    listed, said = here.respond("Hello.").json()["output"]
    assert "did not answer" in listed["error"]
    assert (listed["tools"], said["content"][0]["text"]) == ([], "Hello.")
    assert "did not answer" in here.chat("Hello.").json()["warnings"][0]


def test_several_answers_each_have_their_rounds(here: Here) -> None:
    texts = [look("a"), "One.", look("b"), "Two."]
    choices = here.chat(*texts, n=2, seed=1).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["One.", "Two."]
    assert [choice["message"]["mcp_calls"][0]["output"] for choice in choices] == ["a holds 7", "b holds 7"]


TOOLSET: Any = {"type": "mcp_toolset", "mcp_server_name": "made"}


def in_anthropic(here: Here, *texts: str, **body: object) -> httpx2.Response:
    """Ask by `/v1/messages`."""
    here.models.texts = list(texts)
    return here.served.post("/v1/messages", {"max_tokens": 999, "messages": USER, "tools": [TOOLSET]} | body)


def test_a_toolset_of_anthropic_s_protocol_runs_here_and_is_understood_again(here: Here) -> None:
    reply = in_anthropic(here, f"I look.\n{look()}", "It holds 7.").json()
    content, stop = reply["content"], reply["stop_reason"]
    assert [block["type"] for block in content] == ["text", "mcp_tool_use", "mcp_tool_result", "text"]
    _, use, result, last = content
    assert (use["server_name"], use["name"], use["input"]) == ("made", "look", {"path": "a"})
    assert result["tool_use_id"] == use["id"]
    assert (result["is_error"], result["content"][0]["text"]) == (False, "a holds 7")
    assert (last["text"], stop) == ("It holds 7.", "end_turn")
    seen = here.prompts[-1]
    again = [*USER, {"role": "assistant", "content": content}, {"role": "user", "content": "And now?"}]
    in_anthropic(here, "Still.", messages=again)
    assert here.prompts[-1][: len(seen)] == seen
    assert [each.content for each in here.prompts[-1][len(seen) :]] == ["It holds 7.", "And now?"]


def test_anthropic_s_package_reads_a_stream_of_what_ran(here: Here) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=here.served.url, api_key="none") as client:
        here.models.texts = [f"{look('a')}\n{look('b')}", "Both."]
        asked: Any = {"model": "auto", "max_tokens": 999, "messages": USER, "tools": [TOOLSET]}
        with client.beta.messages.stream(**asked) as stream:
            message = stream.get_final_message()
        kinds = ["mcp_tool_use", "mcp_tool_use", "mcp_tool_result", "mcp_tool_result", "text"]
        assert [block.type for block in message.content] == kinds
        assert message.content[1].input == {"path": "b"}
        assert message.content[3].content[0].text == "b holds 7"


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, ["made__look", "made__add"]),
        ({"configs": {"add": {"enabled": False}}}, ["made__look"]),
        ({"default_config": {"enabled": False}, "configs": {"add": {"enabled": True}}}, ["made__add"]),
        ({"default_config": {"enabled": False}, "configs": {"add": {}}}, []),
    ],
)
def test_a_toolset_switches_tools_on_and_off(here: Here, more: dict[str, object], names: list[str]) -> None:
    assert in_anthropic(here, "Well.", tools=[TOOLSET | more]).status_code == 200
    assert [json.loads(tool)["function"]["name"] for tool in here.asked[0].tools] == names


@pytest.mark.parametrize("item", ["made", "mcp/made", {"type": "plugin", "id": "mcp/made"}])
def test_integrations_of_lm_studio_name_servers(here: Here, item: object) -> None:
    reply = here.chat(look(), "It holds 7.", tools=[], integrations=[item]).json()
    assert reply["choices"][0]["message"]["mcp_calls"][0]["output"] == "a holds 7"
    plugin = {"type": "plugin", "id": "mcp/made", "allowed_tools": ["add"]}
    here.asked.clear()
    here.respond("Well.", tools=[], integrations=[plugin])
    assert [json.loads(tool)["function"]["name"] for tool in here.asked[0].tools] == ["made__add"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/v1/messages",
            {"mcp_servers": [{"type": "url", "url": "https://x.org", "name": "made"}]},
            "mcp_servers",
        ),
        ("/v1/messages", {"tools": [TOOLSET | {"mcp_server_name": "x"}]}, "tools[0].mcp_server_name"),
        ("/v1/messages", {"tools": [TOOLSET | {"configs": {"add": 1}}]}, "tools[0].configs.add"),
        (
            "/v1/chat/completions",
            {
                "integrations": [
                    {"type": "ephemeral_mcp", "server_label": "made", "server_url": "https://x.org"}
                ]
            },
            "integrations[0]",
        ),
        ("/v1/chat/completions", {"integrations": "mcp/made"}, "integrations"),
        ("/v1/responses", {"max_tool_calls": -1}, "max_tool_calls"),
    ],
)
def test_what_cannot_be_had_is_named(here: Here, path: str, body: dict[str, object], field: str) -> None:
    usual: dict[str, object] = {"messages": USER, "input": "Look!", "max_tokens": 9}
    reply = here.served.post(path, usual | body)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(field)
    assert not here.asked


def test_the_number_of_calls_is_limited(here: Here) -> None:
    both = f"{look('a')}\n{look('b')}"
    items = here.respond(look("0"), both, "Enough.", max_tool_calls=2).json()["output"]
    ran = [(item["status"], item["output"]) for item in items if item["type"] == "mcp_call"]
    assert ran == [("completed", "0 holds 7"), ("completed", "a holds 7"), ("failed", None)]
    assert [len(request.tools) for request in here.asked] == [2, 2, 0]
    here.asked.clear()
    here.respond("None.", max_tool_calls=0)
    assert [len(request.tools) for request in here.asked] == [0]
