"""The tools of chats on this computer: our own in a workspace, and those of MCP servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from localspec.chat.tool_use.consent import Verdict
from localspec.chat.tool_use.kit import ToolKit
from localspec.storage.config import Config
from localspec.storage.profiles import ToolGroup
from localspec.tools.choices import choose, chosen
from localspec.tools.mcp.entries import ServerEntry, mcp_file, read_servers
from localspec.tools.mcp.toolbox import McpTools
from localspec.tools.own import OwnTools
from localspec.tools.results import for_model
from localspec.tools.rules import ConsentRules, choice, consent, subject_of
from localspec.tools.tool import Arguments, Tool, Toolbox
from localspec.tools.workspace import Workspace

WORDS: dict[ToolGroup, str] = {
    "files": "read, find, search and change files of this folder",
    "run": "run commands in this folder",
    "web": "fetch pages of the web as text",
    "time": "tell the date and time",
    "calculate": "compute exactly",
}


def tool_kit(config: Config, folder: Path, *, yes: Sequence[str] = ()) -> ToolKit:
    """Return the tools that work in a folder; `yes` are rules that allow calls, beside those of config.toml.

    Starts no server. Raises `UserError` for a mistake in mcp.json.
    """
    workspace = Workspace(folder)
    own: dict[str, Toolbox] = {
        group: OwnTools(workspace, (group,), config.private_hosts, config.tools_denied) for group in WORDS
    }
    servers = {
        f"mcp:{name}" if name in own else name: McpTools({name: entry}, workspace.root)
        for name, entry in servers_in(mcp_file()).items()
    }
    boxes: dict[str, Toolbox] = {**own, **servers}
    words: dict[str, str] = dict(WORDS.items()) | words_of(servers)
    allowed = (*config.tools_allowed, *yes)
    return ToolKit(
        boxes,
        words,
        partial(_judged, workspace, allowed, config.tools_denied),
        partial(choose, workspace.root),
        for_model,
        partial(close_all, servers),
        steps=config.tool_steps,
        servers={name: server for box in servers.values() for name, server in box.servers.items()},
        waiting=lambda: [name for name, box in servers.items() if not box.is_running],
    )


def servers_in(file: Path) -> dict[str, ServerEntry]:
    """Return the servers of a file that are switched on; raises UserError with the line at fault."""
    return {name: entry for name, entry in read_servers(file).items() if not entry.disabled}


def words_of(servers: Iterable[str]) -> dict[str, str]:
    """Return a line for each server about its tools."""
    return {name: f"the MCP server {name}" for name in servers}


def close_all(servers: Mapping[str, McpTools]) -> None:
    """End servers with all that they started."""
    for server in servers.values():
        server.close()


def _judged(
    workspace: Workspace, allow: tuple[str, ...], deny: tuple[str, ...], tool: Tool, arguments: Arguments
) -> Verdict:
    """Apply the rules of config.toml, and those that were chosen for the workspace."""
    subject = subject_of(tool, arguments, workspace)
    found = consent(tool, subject, ConsentRules(allow, deny, chosen(workspace.root)))
    if found.answer == "allow":
        return Verdict("allowed", f"the rule {found.rule} allows it" if found.rule else "")
    if found.answer == "deny":
        return Verdict("refused", f"the rule {found.rule} of config.toml does not allow it")
    return Verdict("ask", always=choice(tool, subject))
