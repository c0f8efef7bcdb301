"""mcp.json: the shape that other programs share, its mistakes, and its rewriting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.tools.mcp.entries import ServerEntry, add_server, read_servers, remove_server

SHARED = """{
  "mcpServers": {
    "files": {
      "command": "npx",
      "args": ["-y", "@modelcontextprotocol/server-filesystem", "${HOME}"],
      "env": {"TOKEN": "${TOKEN}", "MODE": "${MODE:-quick}"},
      "timeout": 60,
      "autoApprove": ["read_file"],
      "url": null
    },
    "remote": {
      "type": "http",
      "url": "https://example.org/mcp",
      "headers": {"Authorization": "Bearer ${env:TOKEN}"},
      "disabled": true
    }
  },
  "theme": {"of": "another program"}
}
"""


def mcp_json(folder: Path, text: str) -> Path:
    path = folder / "mcp.json"
    path.write_text(text, encoding="utf-8")
    return path


def one(text: str) -> str:
    return f'{{"mcpServers": {{\n"x": {text}\n}}}}'


def test_the_shared_shape_is_read(tmp_path: Path) -> None:
    servers = read_servers(mcp_json(tmp_path, SHARED))
    assert list(servers) == ["files", "remote"]
    assert servers["files"].command == "npx"
    assert servers["files"].effect == "runs"
    assert servers["remote"].disabled
    assert servers["remote"].origin == "https://example.org/mcp"
    assert read_servers(tmp_path / "none.json") == {}


def test_variables_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.setenv("MODE", "")  # counts as missing, as in a shell
    servers = read_servers(mcp_json(tmp_path, SHARED))
    files = servers["files"].resolved("files", tmp_path)
    assert files.env == {"TOKEN": "secret", "MODE": "quick"}
    assert files.args[-1] == str(Path.home())
    assert files.cwd == str(tmp_path)
    assert servers["remote"].resolved("remote", tmp_path).headers == {"Authorization": "Bearer secret"}
    folder = ServerEntry(command="x", args=("${workspaceFolder}",)).resolved("x", tmp_path)
    assert folder.args == (str(tmp_path),)


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    with pytest.raises(UserError, match="the MCP server `s` needs the environment variable `TOKEN`; set it"):
        ServerEntry(command="x", env={"A": "${TOKEN}"}).resolved("s", tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            one('{"command": "a",\n"env": {\n"PORT": 80}}'),
            "line 4: `mcpServers.x.env.PORT` has to be a text, not 80",
        ),
        (one('{"command": "a", "args": "-y"}'), "line 2: `mcpServers.x.args` has to be a list of texts"),
        (one('{"command": ["a"]}'), "line 2: `mcpServers.x.command` has to be a text"),
        (one("{}"), "line 2: `x` has no `command` and no `url`"),
        (one('{"command": "a",\n"url": "http://b"}'), "line 3: `x` has a `command` and a `url`"),
        (one('{"url": "http://b",\n"type": "sse"}'), "line 3: `x` is of type `sse`"),
        (one('{"url": "ws://b"}'), "line 2: the `url` of `x` is no http address"),
        (
            one('{"command": "a",\n"effect": "reed"}'),
            "line 3: `mcpServers.x.effect` has to be one of none",
        ),
        (one('{"command": "a",\n"effects": {"t": 1}}'), "line 3: `mcpServers.x.effects.t` has to be one of"),
        (
            one('{"command": "a", "start_seconds": 0}'),
            "line 2: `mcpServers.x.start_seconds` has to be a",
        ),
        ('{\n"mcpServers": []}', "line 2: `mcpServers` has to be an object"),
        ('{\n"servers": {}}', "line 2: `servers` is VS Code's name; call it `mcpServers`"),
        ('{"mcpServers": {\n"": {"command": "a"}}}', "line 2: '' is not a name"),
    ],
)
def test_a_mistake_is_told_with_file_and_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = mcp_json(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_servers(path)
    assert f"{path}, {complaint}" in str(caught.value)


def test_what_other_programs_wrote_stays(tmp_path: Path) -> None:
    path = mcp_json(tmp_path, SHARED)
    add_server(path, "time", {"command": "uvx", "args": ["mcp-server-time"]})
    remove_server(path, "remote")
    before, after = json.loads(SHARED), json.loads(path.read_text(encoding="utf-8"))
    del before["mcpServers"]["remote"]
    before["mcpServers"]["time"] = {"command": "uvx", "args": ["mcp-server-time"]}
    assert after == before
    assert list(after["mcpServers"]) == ["files", "time"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_with_a_mistake_is_not_written_over(tmp_path: Path) -> None:
    path = mcp_json(tmp_path, one('{"command": 1}'))
    with pytest.raises(UserError, match="has to be a text"):
        add_server(path, "y", {"command": "b"})
    assert path.read_text(encoding="utf-8") == one('{"command": 1}')


def test_a_server_is_replaced_only_if_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "below" / "mcp.json"
    add_server(path, "x", {"command": "a"})
    with pytest.raises(UserError, match="has a server `x` already"):
        add_server(path, "x", {"command": "b"})
    add_server(path, "x", {"command": "b"}, replacing=True)
    assert read_servers(path) == {"x": ServerEntry(command="b")}
    with pytest.raises(UserError, match="has no server `z`; it has: x"):
        remove_server(path, "z")


def test_effects_come_from_the_user_alone() -> None:
    entry = ServerEntry(command="a", effect="fetches", effects={"now": "none"})
    assert (entry.effect_of("now"), entry.effect_of("other")) == ("none", "fetches")


def test_a_limit_in_the_words_of_llama_server(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    servers = {
        "a": {"command": "x", "timeout_ms": 500},
        "b": {"command": "x", "timeout_ms": 500, "call_seconds": 9},
    }
    path.write_text(json.dumps({"mcpServers": servers}))
    assert [entry.call_seconds for entry in read_servers(path).values()] == [0.5, 9]
