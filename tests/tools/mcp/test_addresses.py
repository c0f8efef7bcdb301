"""Servers at addresses: streamable HTTP, its sessions, and what it may send."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.toolbox import McpTools
from tests.tools.mcp.made_http_server import serving
from tests.tools.mcp.serving import call, limit_calls, toolbox
from tests.waiting import once, until

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
pytestmark = pytest.mark.slow


def complaint(tools: McpTools) -> str:
    with pytest.raises(UserError) as caught:
        call(tools, text="hi")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("behaviour", ["good", "events"])
def test_tools_are_listed_and_called(behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    with serving(behaviour) as server:
        entry = ServerEntry(url=server.url, headers={"Authorization": "Bearer ${TOKEN}"})
        with toolbox(entry) as tools:
            assert [tool.name for tool in tools.tools()] == ["made__echo"]
            assert call(tools, text="hi").text == "hi"
            assert server.headers["authorization"] == "Bearer secret"
            assert server.headers["mcp-protocol-version"] == "2025-11-25"


@pytest.mark.parametrize("behaviour", ["good", "400"])
def test_a_session_that_the_server_forgot_is_opened_again_within_the_call(behaviour: str) -> None:
    with serving(behaviour) as server, toolbox(ServerEntry(url=server.url)) as tools:
        assert call(tools, text="one").text == "one"
        server.forget()
        assert call(tools, text="two").text == "two"
        assert server.sessions == 2


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("401", "the MCP server `made` answered with HTTP 401; write a token into `headers`"),
        ("404", "the MCP server `made` answered with HTTP 404; check the `url` in mcp.json"),
    ],
)
def test_an_address_that_refuses_is_one_line(behaviour: str, problem: str) -> None:
    with serving(behaviour) as server, toolbox(ServerEntry(url=server.url)) as tools:
        assert list(tools.tools()) == []
        assert list(tools.problems()) == [problem]


def test_an_address_where_nothing_listens_is_one_line() -> None:
    with serving() as server:
        url = server.url
    with toolbox(ServerEntry(url=url)) as tools:
        assert list(tools.tools()) == []
        assert tools.problems()[0].startswith("the MCP server `made` cannot be reached: ")


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("large", "sent more than 32 MiB and was ended"),
        ("endless events", "did not answer within 2 s; `call_seconds` in mcp.json allows more"),
        ("gzip", "sent compressed data that was not asked for"),
        ("text", "answered with an error: Unexpected content type: text/html"),
        ("500", "answered with HTTP 500"),
    ],
)
def test_an_answer_that_is_none_is_one_line_and_the_next_call_works(behaviour: str, problem: str) -> None:
    with serving(behaviour) as server, toolbox(ServerEntry(url=server.url, call_seconds=20.0)) as tools:
        assert tools.tools()
        limit_calls(tools.servers["made"], 2.0 if "answer within" in problem else 20.0)
        assert complaint(tools) == f"the MCP server `made` {problem}"
        limit_calls(tools.servers["made"], 20.0)
        server.behaviour = "good"
        assert call(tools, text="hi").text == "hi"


def test_a_server_that_goes_is_one_line_and_works_again_once_it_is_back() -> None:
    with serving() as server:
        tools = McpTools({"made": ServerEntry(url=server.url)}, Path())
        assert call(tools, text="hi").text == "hi"
    try:
        assert "the MCP server `made` " in complaint(tools)
        assert "the MCP server `made` cannot be reached" in complaint(tools)
    finally:
        tools.close()


def test_stop_ends_a_call_at_once_and_tells_the_server() -> None:
    stop = threading.Event()
    with serving("no answer") as server, toolbox(ServerEntry(url=server.url)) as tools:
        tools.tools()
        with once(server.called.is_set, stop.set):
            output = call(tools, stop=stop)
        assert (output.text, output.is_error) == ("the call was stopped", True)
        until(server.cancelled.is_set)
