"""`localspec mcp`: list, add, remove and test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from localspec.storage.paths import config_dir
from tests.cli.conftest import Invoke
from tests.tools.mcp.serving import SCRIPT


@pytest.fixture
def path() -> Path:
    return config_dir() / "mcp.json"


def test_without_servers_the_list_says_what_adds_one(invoke: Invoke, path: Path) -> None:
    outcome = invoke("mcp")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"there are none in {path}; `localspec mcp add --help` says how\n"
    assert json.loads(invoke("mcp", "--json").out)["servers"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["time", "--env", "TOKEN=${TOKEN}", "--", "uvx", "mcp-server-time"],
        ["--env", "TOKEN=${TOKEN}", "time", "uvx", "mcp-server-time"],
    ],
)
def test_a_command_is_added_listed_and_removed(invoke: Invoke, path: Path, words: list[str]) -> None:
    assert invoke("mcp", "add", *words).code == 0
    command = ["uvx", "mcp-server-time"]
    written = {"command": command[0], "args": command[1:], "env": {"TOKEN": "${TOKEN}"}}
    assert json.loads(path.read_text(encoding="utf-8")) == {"mcpServers": {"time": written}}
    assert path.stat().st_mode & 0o777 == 0o600
    outcome = invoke("mcp", "list")
    assert outcome.out.splitlines()[1].split() == ["time", "used", "runs", *command]
    assert invoke("mcp", "remove", "time").err == f"removed from {path}\n"
    assert json.loads(path.read_text(encoding="utf-8")) == {"mcpServers": {}}


def test_an_address_is_added_and_its_secrets_are_not_listed(invoke: Invoke) -> None:
    header = "Authorization=Bearer secret"
    assert invoke("mcp", "add", "far", "--url", "https://example.org/mcp", "--header", header).code == 0
    for output in (invoke("mcp").out, invoke("mcp", "--json").out):
        assert "https://example.org/mcp" in output
        assert "secret" not in output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["add", "x"], "name the command that starts the server, or its --url"),
        (
            ["add", "x", "--url", "http://a", "--", "b"],
            "name the command that starts the server, or its --url",
        ),
        (["add", "x", "--env", "TOKEN", "--", "b"], "`TOKEN` is not a name and a value; write NAME=VALUE"),
        (["add", "x", "--url", "ftp://a"], "the `url` of `x` is no http address"),
        (["remove", "x"], "has no server `x`; it has: none"),
        (["test", "x"], "has no server `x`; it has: none"),
        (["list", "--", "x"], "only `localspec mcp add` takes a command after --"),
        (["tset"], "`localspec mcp` has no command `tset`; did you mean `test`?"),
    ],
)
def test_a_mistake_is_one_line(invoke: Invoke, path: Path, words: list[str], complaint: str) -> None:
    outcome = invoke("mcp", *words)
    assert outcome.code == 2
    assert complaint in outcome.err.replace("\n  hint: ", "; ")
    assert not path.exists()


def test_a_mistake_in_the_file_is_told_with_its_line(invoke: Invoke, path: Path) -> None:
    path.write_text('{"mcpServers": {\n"x": {"command": 7}}}', encoding="utf-8")
    outcome = invoke("mcp")
    assert outcome.code == 2
    assert f"{path}, line 2: `mcpServers.x.command` has to be a text, not 7" in outcome.err


@pytest.mark.slow
def test_a_test_lists_what_a_server_offers(invoke: Invoke) -> None:
    pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
    invoke("mcp", "add", "made", "--", sys.executable, str(SCRIPT))
    outcome = invoke("mcp", "test", "made")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "made: made 1, protocol 2025-11-25"
    assert lines[2].startswith("  1 tool, about ")
    assert lines[3].split()[:2] == ["made__echo", "runs"]
    assert lines[4:] == ["  1 prompt", "    review  Review it", "  1 resource", "    note:one  One"]
    [server] = json.loads(invoke("mcp", "test", "--json").out)["servers"]
    [tool] = server["tools"]
    assert (tool["name"], tool["own_name"], tool["effect"]) == ("made__echo", "echo", "runs")
    assert 0 < tool["tokens"] < tool["characters"]


@pytest.mark.slow
def test_a_test_that_fails_ends_with_code_1(invoke: Invoke) -> None:
    pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
    invoke("mcp", "add", "bad", "--", "no-such-program")
    outcome = invoke("mcp", "test")
    assert outcome.code == 1
    assert outcome.out.startswith("bad: the MCP server `bad` cannot start: there is no program")
    [server] = json.loads(invoke("mcp", "test", "--json").out)["servers"]
    assert "no-such-program" in server["failure"]
