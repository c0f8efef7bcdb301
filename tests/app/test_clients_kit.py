"""MCP servers that a server offers to its clients: which are there, and which of their tools may run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.app.client_tools import OWN, clients_kit
from localspec.errors import UserError
from localspec.storage.config import Config
from localspec.storage.paths import config_dir
from localspec.tools.choices import choose
from localspec.tools.tool import Tool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    servers = {name: {"command": "none"} for name in ("git", "my server", "off")}
    servers["off"]["disabled"] = True  # type: ignore[assignment]
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return tmp_path


def tool(source: str, name: str) -> Tool:
    return Tool(f"{source}__{name}", "", {}, "reads", source)


@pytest.mark.parametrize(
    ("named", "allow", "deny", "allowed"),
    [
        (["git"], (), (), {"log", "push"}),
        (["git.log"], (), (), {"log"}),
        (["git.l*"], (), (), {"log"}),
        (["git"], (), ("git.push",), {"log"}),
        (["git.log"], ("git.push",), (), {"log", "push"}),
        (["git.log"], ("git.push",), ("git.*",), set()),
    ],
)
def test_what_may_run(
    folder: Path, named: list[str], allow: tuple[str, ...], deny: tuple[str, ...], allowed: set[str]
) -> None:
    choose(folder, "git.push")  # in a chat, which counts for its user alone
    kit = clients_kit(Config(tools_allowed=allow, tools_denied=deny), folder, named)
    assert list(kit.boxes) == ["git"]
    verdicts = {name: kit.judge(tool("git", name), {}).leave for name in ("log", "push")}
    assert {name for name, leave in verdicts.items() if leave == "allowed"} == allowed
    assert "ask" not in verdicts.values()


def test_a_name_that_models_could_not_read(folder: Path) -> None:
    kit = clients_kit(Config(), folder, ["my server"])
    assert kit.judge(tool("my_server", "look"), {}).leave == "allowed"
    assert kit.judge(tool("git", "log"), {}).leave == "refused"


@pytest.mark.parametrize("name", ["nope", "off", "gi", "git2.log"])
def test_a_server_that_is_not_there(folder: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"mcp\.json has no server"):
        clients_kit(Config(), folder, [name])


READ = {"read_file", "list_folder", "find_files", "search_files"}


@pytest.mark.parametrize(
    ("own", "allow", "deny", "offered"),
    [
        (["files"], (), (), READ),
        (["files", "edit_file"], (), (), READ | {"edit_file"}),
        (["files"], ("write_file:docs/**",), (), READ | {"write_file"}),
        (["read_file"], ("write_file",), (), {"read_file"}),
        (["files"], (), ("read_*", "find_files:secret"), READ - {"read_file"}),
        (["run"], (), (), set()),
        (["run"], ("run_command:git status*",), (), {"run_command"}),
        (["run_command"], (), ("run_command",), set()),
        (["all"], (), (), READ | {"fetch_page", "time", "calculate"}),
        ([], ("*",), (), set()),
    ],
)
def test_what_writes_or_runs_something_is_named_by_itself(
    tmp_path: Path, own: list[str], allow: tuple[str, ...], deny: tuple[str, ...], offered: set[str]
) -> None:
    kit = clients_kit(Config(tools_allowed=allow, tools_denied=deny), tmp_path, own=own)
    assert set(kit.offered(list(kit.boxes)).owners) == offered


def test_a_rule_decides_about_each_call(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    choose(tmp_path, "search_files")  # in a chat, which counts for its user alone
    config = Config(tools_allowed=("write_file:docs/**",), tools_denied=("search_files:docs",))
    kit = clients_kit(config, tmp_path, own=["files"])
    assert kit.within is not None
    tools = {name: tool for name, (tool, _) in kit.offered([OWN]).owners.items()}
    inner = kit.within("docs")
    judged = [
        (kit, "write_file", "docs/a", "allowed"),
        (kit, "write_file", "a", "refused"),
        (kit, "write_file", "../docs/a", "refused"),
        (inner, "write_file", "a", "allowed"),
        (inner, "write_file", "../a", "refused"),
        (kit, "search_files", ".", "allowed"),
        (inner, "search_files", ".", "refused"),
    ]
    for each, name, path, leave in judged:
        assert each.judge(tools[name], {"path": path}).leave == leave, (name, path)


def test_servers_of_another_file_are_all_offered_unless_some_are_named(folder: Path) -> None:
    file = folder / "servers.json"
    file.write_text('{"mcpServers": {"a": {"command": "x", "timeout_ms": 500}, "b": {"command": "x"}}}')
    assert list(clients_kit(Config(), folder, file=file).boxes) == ["a", "b"]
    kit = clients_kit(Config(), folder, ["b"], ["time"], file)
    assert list(kit.boxes) == [OWN, "b"]
    with pytest.raises(UserError, match=r"servers\.json has no server `git`"):
        clients_kit(Config(), folder, ["git"], file=file)
    file.write_text('{"mcpServers": {"localspec": {"command": "x"}}}')
    with pytest.raises(UserError, match="has the name of our own tools"):
        clients_kit(Config(), folder, own=["time"], file=file)


@pytest.mark.parametrize("name", ["nothing", "file", "*"])
def test_a_tool_that_is_not_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"there are no tools `.*`; there are: all, files, run, .*edit_file"):
        clients_kit(Config(), tmp_path, own=["files", name])
