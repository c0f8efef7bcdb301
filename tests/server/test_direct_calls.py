"""Tools that clients list and call themselves: who may, in which folder, and what they get."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec.app.client_tools import clients_kit
from localspec.chat.tool_use.background import in_background
from localspec.chat.tool_use.kit import ToolKit
from localspec.server.application import AccessPolicy
from localspec.storage.config import Config
from localspec.tools.tool import Arguments, ToolOutput
from tests.chat.tool_models import MadeTools, kit_of
from tests.server.running import Served, serving
from tests.server.telling_models import TellingModels
from tests.server.test_tools_here import ServerTools

OWN = ("all", "edit_file", "write_file", "run_command")
PAGE = "https://example.org"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("workspace")
    (root / "src").mkdir()
    (root / "src" / "a.txt").write_text("one\ntwo\ntwo\n")
    return root


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    """A server with our own tools, and a page that may use its models."""
    policy = AccessPolicy(origins=frozenset({PAGE}))
    config = Config(tools_denied=("read_file:secret*",))
    with serving(TellingModels, policy, kit=clients_kit(config, folder, own=OWN)) as running:
        yield running


def call(
    served: Served, tool: str, headers: dict[str, str] | None = None, **params: object
) -> httpx2.Response:
    return served.post("/tools", {"tool": tool, "params": params}, headers)


def test_tools_are_listed_with_their_schemas(served: Served) -> None:
    listed = {each["tool"]: each for each in served.client.get("/tools").json()}
    assert len(listed) == 10
    writes = {name for name, each in listed.items() if each["permissions"]["write"]}
    assert writes == {"edit_file", "write_file", "run_command"}
    function = listed["read_file"]["definition"]["function"]
    assert (function["name"], function["parameters"]["required"]) == ("read_file", ["path"])
    assert served.client.get("/v1/tools").json() == list(listed.values())


@pytest.mark.parametrize(
    ("tool", "params", "wanted"),
    [
        ("calculate", {"expression": "6*7"}, {"plain_text_response": "42"}),
        ("read_file", {"path": "src/a.txt"}, {"plain_text_response": "one\ntwo\ntwo\n"}),
        (
            "read_file",
            {"path": "src/a.txt", "start_line": 2, "end_line": 2},
            {"plain_text_response": "two\n"},
        ),
        (
            "read_file",
            {"path": "src/a.txt", "from_line": 3, "append_loc": True},
            {"plain_text_response": "3\ttwo"},
        ),
        ("file_glob_search", {"path": "src", "include": "*.txt"}, {"matches": 1}),
        ("find_files", {"type": "dir"}, {"entries": [{"path": "src", "type": "dir"}]}),
        ("grep_search", {"path": ".", "pattern": "two"}, {"matches": 2}),
        ("exec_shell_command", {"command": "echo 1; exit 3"}, {"exit_code": 3}),
    ],
)
def test_a_call_is_run(served: Served, tool: str, params: dict[str, Any], wanted: dict[str, object]) -> None:
    reply = call(served, tool, **params).json()
    assert {name: reply[name] for name in wanted} == wanted


def test_files_are_written_and_edited_in_several_places(served: Served, folder: Path) -> None:
    assert call(served, "write_file", path="b.txt", content="1\n2\n3\n").json()["bytes"] == 6
    edits = [{"old_text": "1", "new_text": "one"}, {"old_text": "3", "new_text": "three"}]
    assert call(served, "edit_file", path="b.txt", edits=edits).json()["edits_applied"] == 2
    assert (folder / "b.txt").read_text() == "one\n2\nthree\n"
    more = [{"old_text": "2\nthree", "new_text": "x"}, {"old_text": "three", "new_text": "y"}]
    reply = call(served, "edit_file", path="b.txt", edits=more)
    assert (reply.status_code, "overlap" in reply.json()["error"]) == (200, True)
    assert (folder / "b.txt").read_text() == "one\n2\nthree\n"


def test_a_long_file_is_replaced_once_it_was_read(served: Served, folder: Path) -> None:
    (folder / "src" / "long.txt").write_text("line\n" * 30)
    inside = {"x-tool-cwd": "src"}
    refused = call(served, "write_file", inside, path="long.txt", content="x\n").json()
    assert "30 lines, and you have not read all of it; read_file shows it" in refused["error"]
    call(served, "read_file", inside, path="long.txt")
    assert call(served, "write_file", inside, path="long.txt", content="x\n").json()["bytes"] == 2


@pytest.mark.parametrize(
    ("tool", "params", "problem"),
    [
        ("list_folder", {"path": "../../etc"}, "is outside of the workspace"),
        ("read_file", {}, '"path" is a required property'),
        ("edit_file", {"path": "src/a.txt", "old_text": "two", "new_text": "2"}, "is not unique"),
        ("edit_file", {"path": "src/a.txt", "edits": ["x"]}, "its schema is not met"),
        ("run_command", {"command": ""}, "`command` is empty"),
    ],
)
def test_a_call_that_fails_says_why(served: Served, tool: str, params: dict[str, Any], problem: str) -> None:
    reply = call(served, tool, **params)
    assert reply.status_code == 200
    assert problem in reply.json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"tool": "none"}, 404, "there is no tool none"),
        ({"params": {}}, 400, "tool is missing"),
        ({"tool": "time", "params": []}, 400, "params is not an object"),
        (
            {"tool": "read_file", "params": {"path": "secret.txt"}},
            403,
            "secret* does not allow it",
        ),
        ({"tool": "read_file", "params": {"path": "secret.txt"}, "stream": True}, 403, "does not allow it"),
    ],
)
def test_what_is_not_run_is_refused(served: Served, body: object, status: int, problem: str) -> None:
    reply = served.post("/tools", body)
    assert (reply.status_code, problem in reply.json()["error"]["message"]) == (status, True)


def test_paths_count_from_the_folder_that_the_client_works_in(served: Served, folder: Path) -> None:
    for name in ("src", str(folder / "src")):
        reply = call(served, "read_file", {"x-tool-cwd": name}, path="a.txt")
        assert reply.json()["plain_text_response"].startswith("one")
    reply = call(served, "run_command", {"x-tool-cwd": "src"}, command="pwd")
    assert reply.json()["plain_text_response"] == str(folder / "src")
    assert call(served, "read_file", {"x-tool-cwd": "/etc"}, path="passwd").status_code == 400
    assert call(served, "run_command", {"x-tool-runtime": "docker:x"}, command="pwd").status_code == 501


def test_a_command_is_heard_while_it_runs(served: Served, folder: Path) -> None:
    wait = "until [ -e go ]; do :; done"
    body = {"tool": "run_command", "params": {"command": f"echo 1; {wait}; echo 2; exit 3"}, "stream": True}
    with served.client.stream("POST", "/tools", json=body) as reply:
        lines = (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))
        assert next(lines) == {"chunk": "1\n"}
        (folder / "go").touch()
        *chunks, done = lines
    assert "".join(each["chunk"] for each in chunks) == "2\n\n[exit code: 3]"
    assert done == {"done": True, "exit_code": 3}
    sum_of = {"tool": "calculate", "params": {"expression": "6*7"}, "stream": True}
    assert served.post("/tools", sum_of).text.count('data: {"chunk":"42"}\n\ndata: {"done":true}\n\n') == 1


@pytest.mark.parametrize("where", [{"Origin": PAGE}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}])
def test_pages_of_others_have_no_tools_even_if_they_may_ask_the_models(
    served: Served, where: dict[str, str]
) -> None:
    assert call(served, "time", where).status_code == 403
    assert served.client.get("/tools", headers=where).status_code == 403
    asked = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "mcp", "server_label": "localspec"}],
    }
    if where.get("Origin") == PAGE:
        reply = served.post("/v1/chat/completions", asked, where)
        assert (reply.status_code, "no MCP server `localspec`" in reply.text) == (400, True)
    assert call(served, "time", {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_without_the_flags_there_are_no_tools() -> None:
    with serving(TellingModels, AccessPolicy("key")) as bare:
        assert bare.client.get("/tools").status_code == 401
        key = {"X-Api-Key": "key"}
        assert bare.client.get("/tools", headers=key).json() == []
        reply = call(bare, "time", key)
        assert (reply.status_code, "see --tools and --mcp" in reply.text) == (403, True)


def made(act: Callable[[str, Arguments, threading.Event], str | ToolOutput]) -> tuple[MadeTools, ToolKit]:
    tools = ServerTools({"made__look": "reads"}, act)
    return tools, kit_of(tools)


def test_tools_of_servers_have_the_names_of_llama_server_and_ours() -> None:
    tools, kit = made(lambda _name, arguments, _stop: f"{arguments['path']} holds 7")
    with serving(TellingModels, kit=kit) as served:
        (listed,) = served.client.get("/tools").json()
        assert (listed["tool"], listed["type"]) == ("made_look", "mcp")
        for name in ("made_look", "made__look"):
            assert call(served, name, path="a").json() == {"plain_text_response": "a holds 7"}
    assert tools.ran == [("made__look", {"path": "a"})] * 2


def test_a_server_that_fails_says_so_beside_the_others() -> None:
    tools, kit = made(lambda *_: "")
    tools.troubles = ["the MCP server `made` ended (exit code 1)"]
    tools.effects = {}
    with serving(TellingModels, kit=kit) as served:
        assert served.client.get("/tools").json() == []
        reply = call(served, "made_look", path="a")
        assert (reply.status_code, reply.json()) == (200, {"error": tools.troubles[0]})
        assert call(served, "other_look", path="a").status_code == 404
    assert len([line for line in served.lines if "ended (exit code 1)" in line]) == 1


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("ends", ["client", "server"])
def test_a_call_stops_with_its_client_and_with_the_server(ends: str, streams: bool) -> None:
    began = threading.Event()
    stopped = threading.Event()

    def act(_name: str, _arguments: Arguments, stop: threading.Event) -> ToolOutput:
        began.set()
        if stop.wait(20):
            stopped.set()
        return ToolOutput("")

    _, kit = made(act)
    body = {"tool": "made_look", "params": {"path": "a"}, "stream": streams}
    with serving(TellingModels, kit=kit) as served, httpx2.Client(timeout=20) as client:
        impatient = httpx2.Timeout(20, read=0.5 if ends == "client" else 20)
        asking = in_background(
            lambda: client.post(f"{served.url}/tools", json=body, timeout=impatient), "asking"
        )
        assert began.wait(20)
        if ends == "server":
            served.server.should_exit = True
            assert "the server ends" in asking.result(20).text
        else:
            assert isinstance(asking.exception(20), httpx2.ReadTimeout)
        assert stopped.wait(20)
