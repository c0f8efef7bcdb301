"""The tools of chats on this computer: our own in a workspace, and those of MCP servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from localspec.chat.tool_use.consent import Verdict
from localspec.chat.tool_use.kit import ToolKit
from localspec.errors import UserError
from localspec.storage.config import Config
from localspec.storage.profiles import ToolGroup
from localspec.tools.choices import choose, chosen
from localspec.tools.mcp.entries import ServerEntry, mcp_file, read_servers
from localspec.tools.mcp.names import server_names
from localspec.tools.mcp.toolbox import McpTools
from localspec.tools.own import OwnTools
from localspec.tools.results import for_model
from localspec.tools.rules import ConsentRules, Subject, choice, consent, subject_of
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
        for name, entry in _entries().items()
    }
    boxes: dict[str, Toolbox] = {**own, **servers}
    words: dict[str, str] = dict(WORDS.items()) | _words(servers)
    allowed = (*config.tools_allowed, *yes)
    return ToolKit(
        boxes,
        words,
        partial(_judged, workspace, allowed, config.tools_denied),
        partial(choose, workspace.root),
        for_model,
        partial(_close, servers),
        servers={name: server for box in servers.values() for name, server in box.servers.items()},
        waiting=lambda: [name for name, box in servers.items() if not box.is_running],
    )


def clients_kit(config: Config, folder: Path, named: Sequence[str]) -> ToolKit:
    """Return the MCP servers that clients may use: each named, or only `SERVER.TOOL`, where * is any text.

    No user can be asked then, so a tool runs if it is named, or a rule of config.toml allows it; a rule that
    denies goes before. What was chosen in chats is for their user alone. Starts no server. Raises `UserError`
    for a name that is not in mcp.json, and for a mistake in that.
    """
    entries = _entries()
    rules = list[str]()
    wanted = dict[str, ServerEntry]()
    for name in named:
        server = next((each for each in entries if name == each or name.startswith(f"{each}.")), None)
        if server is None:
            known = ", ".join(entries) or "none"
            raise UserError(f"mcp.json has no server `{name}` that is switched on", f"it has: {known}")
        tool = name.removeprefix(server).removeprefix(".") or "*"
        rules.append(f"{server_names((server,))[server]}.{tool}")
        wanted[server] = entries[server]
    servers = {name: McpTools({name: entry}, folder) for name, entry in wanted.items()}
    given = ConsentRules((*config.tools_allowed, *rules), config.tools_denied)

    def judge(tool: Tool, _arguments: Arguments) -> Verdict:
        found = consent(tool, Subject(), given)
        if found.answer == "allow":
            return Verdict("allowed", f"the rule {found.rule} allows it")
        why = f"the rule {found.rule} does not allow it" if found.rule else "no rule allows it"
        return Verdict("refused", why)

    return ToolKit(servers, _words(servers), judge, lambda _rule: None, for_model, partial(_close, servers))


def _entries() -> dict[str, ServerEntry]:
    return {name: entry for name, entry in read_servers(mcp_file()).items() if not entry.disabled}


def _words(servers: Iterable[str]) -> dict[str, str]:
    return {name: f"the MCP server {name}" for name in servers}


def _close(servers: Mapping[str, McpTools]) -> None:
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
