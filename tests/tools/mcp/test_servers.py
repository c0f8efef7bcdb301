"""Servers in processes: whatever they do, a call ends in a result or in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from localspec.errors import UserError
from localspec.tools import guard
from localspec.tools.mcp import process
from localspec.tools.mcp.contents import ResourceContent
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.known import Known
from localspec.tools.mcp.toolbox import McpTools
from tests.tools.mcp.serving import NEVER, SCRIPT, call, limit_calls, made, toolbox
from tests.waiting import until

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
pytestmark = [pytest.mark.slow]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Check that each test ends the processes of its servers."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    before |= {shell.pid for shell in guard._guard}  # for all servers of this program
    until(lambda: not {child.pid for child in psutil.Process().children(recursive=True)} - before)


def complaint(tools: McpTools, name: str = "made__echo") -> str:
    with pytest.raises(UserError) as caught:
        call(tools, name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def logged(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def test_tools_are_listed_and_called() -> None:
    with toolbox(made()) as tools:
        (echo,) = tools.tools()
        assert (echo.name, echo.effect, echo.source) == ("made__echo", "runs", "made")
        assert echo.parameters["required"] == ["text"]
        assert tools.preview("made__echo", {"text": "hi"}) == ""
        assert call(tools, text="hi").text == "hi"
        assert tools.problems() == []


def test_nothing_starts_before_it_is_needed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with toolbox(made("good", log), other=made("good", log, disabled=True)) as tools:
        assert logged(log) == []
        assert call(tools, text="hi").text == "hi"
        assert logged(log).count("initialize") == 1
    assert complaint(tools, "none") == "no MCP server has a tool `none`"


def test_a_server_has_the_folder_and_little_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    entry = made("environment", env={"OWN": "${HF_TOKEN}"})
    with toolbox(entry, tmp_path) as tools:
        environment = json.loads(call(tools).text)
    assert environment["cwd"] == str(tmp_path)
    assert environment["OWN"] == "secret"
    assert "PATH" in environment
    assert "HF_TOKEN" not in environment


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("hangs", "the MCP server `made` did not start within 1 s; `start_seconds` in mcp.json allows more"),
        ("only prints", "did not start within 5 s; it wrote: error: no configuration"),
        ("dies at start", "the MCP server `made` ended (exit code 3): KeyError: 'TOKEN'"),
        ("floods", "the MCP server `made` sent more than 32 MiB and was ended"),
        ("other version", "cannot be used: Unsupported protocol version from the server: 1999-01-01"),
        ("no list", "the MCP server `made` sent a list of tools that is none"),
    ],
)
def test_a_server_that_does_not_start_is_one_line_beside_the_others(behaviour: str, problem: str) -> None:
    seconds = {"hangs": 1.0, "only prints": 5.0}.get(behaviour, 20.0)  # Python has to start before it prints
    entry = made(behaviour, start_seconds=seconds)
    with toolbox(entry, other=made()) as tools:
        assert [tool.name for tool in tools.tools()] == ["other__echo"]
        assert len(tools.problems()) == 1
        assert problem in tools.problems()[0]
        assert "\n" not in tools.problems()[0]


def test_a_start_that_failed_is_not_tried_at_every_list(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with toolbox(made("dies at start", log)) as tools:
        assert [list(tools.tools()) for _ in range(3)] == [[], [], []]
        assert logged(log).count("initialize") == 1


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (ServerEntry("no-such-program"), "there is no program `no-such-program`; install it"),
        (
            ServerEntry("npx -y server"),
            "there is no program `npx -y server`; write the program into `command`",
        ),
        (ServerEntry("/"), "cannot start `/`: "),
        (made(cwd="/no/such"), "cannot start in the folder `/no/such`: it does not exist"),
        (made(env={"A": "\0"}), "cannot start `"),
    ],
)
def test_what_cannot_be_started_is_named(entry: ServerEntry, problem: str) -> None:
    with toolbox(entry) as tools:
        assert list(tools.tools()) == []
        assert problem in tools.problems()[0]


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ("one line", "the MCP server `made` sent a message of more than 8 MiB and was ended"),
        ("flood in call", "the MCP server `made` sent more than 32 MiB and was ended"),
        ("dies", "the MCP server `made` ended (exit code 3): KeyError: 'TOKEN'"),
    ],
)
def test_a_server_that_ends_in_a_call_starts_again_at_the_next(
    tmp_path: Path, behaviour: str, problem: str
) -> None:
    log = tmp_path / "log"
    with toolbox(made(behaviour, log)) as tools:
        assert complaint(tools) == problem
        assert logged(log).count("initialize") == 1  # not in a loop
        assert complaint(tools) == problem
        assert logged(log).count("initialize") == 2


def test_a_call_after_the_last_answer_of_a_server_starts_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_LAST_S", 30.0)  # in which its end is not known yet
    with toolbox(made("answers and dies")) as tools:
        for text in ("one", "two", "three"):
            assert call(tools, text=text).text == text
            until(lambda: not tools.servers["made"].is_running)


def test_a_server_that_takes_too_much_memory_is_ended() -> None:
    with toolbox(made("memory", memory_mib=128)) as tools:
        assert "more than the limit of 128 MiB, `memory_mib` in mcp.json, and was ended" in complaint(tools)


def test_floods_on_standard_error_and_noise_on_standard_output_do_no_harm() -> None:
    for behaviour, text in (("errors", "fine"), ("prints", "hi"), ("no broken pipe", "hi")):
        with toolbox(made(behaviour)) as tools:
            assert call(tools, text="hi").text == text


def test_a_server_may_greet_with_less_than_the_protocol_wants() -> None:
    with toolbox(made("bare greeting")) as tools:
        assert call(tools, text="hi").text == "hi"
        assert list(tools.servers["made"].prompts()) == []


def test_a_call_of_a_megabyte_arrives() -> None:
    with toolbox(made()) as tools:
        assert call(tools, text="x" * 2**20).text.startswith("xxx")


def test_a_call_ends_by_its_limit_and_the_server_stays(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with toolbox(made("slow", log)) as tools:
        server = tools.servers["made"]
        assert server.tools()
        limit_calls(server, 0.3)
        assert "did not answer within 0.3 s; `call_seconds` in mcp.json" in complaint(tools)
        until(lambda: any("notifications/cancelled" in line for line in logged(log)))
        limit_calls(server, 20.0)
        assert call(tools, seconds=0).text == "at last"
        assert logged(log).count("initialize") == 1


def test_stop_ends_a_call_at_once(tmp_path: Path) -> None:
    log, stop = tmp_path / "log", threading.Event()
    with toolbox(made("slow", log)) as tools:
        tools.tools()
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append(call(tools, stop=stop)))
        thread.start()
        until(lambda: "tools/call" in logged(log))
        stop.set()
        thread.join()  # of a call of ten minutes
        assert (outputs[0].text, outputs[0].is_error) == ("the call was stopped", True)
        until(lambda: any("notifications/cancelled" in line for line in logged(log)))


def test_stop_ends_a_start_at_once() -> None:
    stop = threading.Event()
    with toolbox(made("hangs", start_seconds=600.0)) as tools:
        server = tools._servers["made"]
        outputs = []
        thread = threading.Thread(target=lambda: outputs.append(server.call("echo", {}, stop)))
        thread.start()
        until(lambda: server._connection is not None)
        stop.set()
        thread.join()
        assert outputs[0].is_error


def test_closing_ends_a_start_and_starts_nothing_more(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tools = McpTools({"made": made("hangs", log, start_seconds=600.0)}, Path())
    thread = threading.Thread(target=tools.tools)
    thread.start()
    until(lambda: "initialize" in logged(log))
    tools.close()
    thread.join()
    assert "the MCP server `made` was closed" in tools.problems()[0]
    assert list(tools.tools()) == []
    assert logged(log) == ["initialize"]


def test_a_server_that_ignores_everything_is_ended_after_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.tools.mcp.connection._PING_S", 0.2)
    with toolbox(made("hangs in call")) as tools:
        assert tools.tools()
        limit_calls(tools.servers["made"], 0.3)
        assert "did not answer within 0.3 s" in complaint(tools)
        connection = tools._servers["made"]._connection
        assert connection is not None
        until(lambda: not connection.is_open)
        assert "did not answer within 0.3 s" in complaint(tools)  # of a new process


def test_all_processes_of_a_server_end_with_it() -> None:
    with toolbox(made("children")) as tools:
        pids = [int(pid) for pid in call(tools).text.split()]
        assert len(pids) == 4
        assert not any(map(gone, pids))
    until(lambda: all(map(gone, pids)))


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_all_processes_end_with_the_program(end: str) -> None:
    code = f"""
import os
import signal
import sys
from pathlib import Path
from threading import Event
from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.toolbox import McpTools
tools = McpTools({{"made": ServerEntry(command=sys.executable, args=({str(SCRIPT)!r}, "children"))}}, Path())
print(tools.run("made__echo", {{}}, Event()).text, flush=True)
{end}
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert ended.stderr == ""
    *pids, without_environment, orphan = (int(pid) for pid in ended.stdout.split())
    until(lambda: all(gone(pid) for pid in (*pids, orphan)))
    if end:  # it left the group of its server, too, and so is out of the guard's reach
        os.kill(without_environment, signal.SIGKILL)
    until(lambda: gone(without_environment))


def test_a_changed_list_of_tools_is_followed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with toolbox(made("changes", log)) as tools:
        assert [tool.name for tool in tools.tools()] == ["made__echo"]
        call(tools)
        until(lambda: len(tools.tools()) == 2)
        before = logged(log).count("tools/list")
        tools.tools()
        assert logged(log).count("tools/list") == before  # asked only after a change


def test_a_server_without_the_old_handshake_is_spoken_to_in_the_newest_protocol(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with toolbox(made("newest", log)) as tools:
        assert [tool.name for tool in tools.tools()] == ["made__echo"]
        assert tools._servers["made"].greeting().protocol == "2026-07-28"
        until(lambda: "subscriptions/listen" in logged(log))
        assert call(tools).text == "changed"
        until(lambda: len(tools.tools()) == 2)


def test_a_server_that_asks_back_is_one_line() -> None:
    with toolbox(made("asks back")) as tools:
        assert complaint(tools) == "the MCP server `made` asks for input that LocalSpec cannot give"


def test_the_source_of_a_tool_is_the_beginning_of_its_name() -> None:
    with closing(McpTools({"my.files": made()}, Path())) as tools:
        assert [(tool.source, tool.name) for tool in tools.tools()] == [("my_files", "my_files__echo")]


def test_pages_are_followed_to_their_end() -> None:
    with toolbox(made("pages"), other=made("same page")) as tools:
        names = [tool.name for tool in tools.tools()]
        assert names == ["made__tool0", "made__tool1", "made__tool2", "other__echo"]
        assert tools.problems() == []


def test_wrong_tools_are_left_out_and_names_are_made_fit() -> None:
    with toolbox(made("wrong tools"), other=made()) as tools:
        listed = {tool.name: tool for tool in tools.tools()}
        assert {"made__echo", "other__echo", "made__no_schema", "made__ns_list_all", "made__big"} <= set(
            listed
        )
        assert len(tools.problems()) == 4
        evil = listed["made__evil___2Jname"]
        assert evil.description == "red etihw"
        assert len(json.dumps(dict(listed["made__big"].parameters))) <= 8000
        assert call(tools, "made__evil___2Jname", text="hi").text == "hi"


@pytest.mark.parametrize(
    ("behaviour", "text", "is_error"),
    [
        ("structured", '{"n": 1}', False),
        ("fails", "no such file", True),
        ("list as result", "a\nb", False),
        ("latin", "caf\ufffd", False),
    ],
)
def test_results_are_read_as_they_are_meant(behaviour: str, text: str, is_error: bool) -> None:
    with toolbox(made(behaviour)) as tools:
        output = call(tools)
        assert (output.text, output.is_error) == (text, is_error)


def test_a_result_that_breaks_the_tool_s_own_schema_is_shown() -> None:
    with toolbox(made("wrong tools")) as tools:
        assert call(tools, "made__output", text="no number").text == "no number"


def test_an_error_of_the_protocol_is_one_line() -> None:
    with toolbox(made("error")) as tools:
        assert complaint(tools) == "the MCP server `made` answered with an error: bad [31m arguments"


def test_an_answer_that_is_no_json_is_one_line_at_once() -> None:
    with toolbox(made("broken json")) as tools:
        assert complaint(tools) == "the MCP server `made` answered with an error: an answer that is no JSON"


def test_prompts_and_resources_are_listed_and_read() -> None:
    with toolbox(made()) as tools:
        server = tools.servers["made"]
        assert server.known_prompts() == Known()
        assert not server.is_running
        (prompt,) = server.prompts()
        assert server.known_prompts().answer == (prompt,)
        assert (prompt.server, prompt.name, prompt.description) == ("made", "review", "Review it")
        assert [(each.name, each.required) for each in prompt.arguments] == [("file", True)]
        assert server.prompt("review", {"file": "a.py"}, NEVER) == "Review a.py"
        (resource,) = server.resources()
        assert (resource.server, resource.uri, resource.name) == ("made", "note:one", "One")
        assert server.resource("note:one", NEVER).text == "the note"
        assert server.known_resource("note:one").answer == ResourceContent("the note")


def test_calls_of_several_threads_share_one_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with toolbox(made("good", log)) as tools:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda at=at: texts.append(call(tools, text=str(at)).text))
            for at in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(texts) == [str(at) for at in range(8)]
        assert logged(log).count("initialize") == 1
