"""MCP servers that a server offers to its clients: which are there, and which of their tools may run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.app.tools import clients_kit
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
