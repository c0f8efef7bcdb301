"""The tools that a server runs for its clients: our own in a workspace, and those of MCP servers.

No user can be asked about a call then, so only rules decide: those of config.toml, and the names in flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from localspec.app.tools import WORDS, close_all, servers_in, words_of
from localspec.chat.tool_use.consent import Verdict
from localspec.chat.tool_use.kit import ToolKit
from localspec.errors import UserError
from localspec.storage.config import Config
from localspec.tools.mcp.entries import ServerEntry, mcp_file
from localspec.tools.mcp.names import server_names
from localspec.tools.mcp.toolbox import McpTools
from localspec.tools.own import OwnTools
from localspec.tools.results import for_model
from localspec.tools.rules import ConsentRules, consent, may_be_allowed, subject_of
from localspec.tools.tool import Arguments, Tool, Toolbox
from localspec.tools.workspace import Workspace

OWN = "localspec"
"""The name of our own tools among those of MCP servers."""
ALL = "all"
_UNASKED = ("none", "reads", "fetches")  # effects of tools that the name of their group allows


def clients_kit(
    config: Config,
    folder: Path,
    servers: Sequence[str] = (),
    own: Sequence[str] = (),
    file: Path | None = None,
) -> ToolKit:
    """Return the tools that clients may use; starts no server.

    `servers` are MCP servers of mcp.json, or of `file`, each as a whole or only `SERVER.TOOL`, where * is any
    text; without names all of `file`. `own` are our own tools: single ones, groups, or `all`, but those that
    write or run something are among a group's only where a rule of config.toml allows some of their calls.
    A tool runs if it is named, or a rule of config.toml allows the call; a rule that denies goes before. What
    was chosen in chats is for their user alone. Raises `UserError` for a name that is not there, and for a
    mistake in the file.
    """
    workspace = Workspace(folder)
    wanted, rules = _servers(mcp_file() if file is None else file, servers, is_whole=file is not None)
    names, own_rules = _own(workspace, own)
    given = ConsentRules((*config.tools_allowed, *rules, *own_rules), config.tools_denied)
    started = {name: McpTools({name: entry}, workspace.root) for name, entry in wanted.items()}
    if names and OWN in started:
        raise UserError(f"the MCP server `{OWN}` has the name of our own tools", "call it otherwise")

    def offers(tool: Tool) -> bool:
        return (bool(tool.source) or tool.name in names) and may_be_allowed(tool, given)

    def kit_in(place: Workspace) -> ToolKit:
        tools = OwnTools(place, tuple(WORDS), config.private_hosts, config.tools_denied)
        ours: dict[str, Toolbox] = {OWN: tools} if names else {}
        return ToolKit(
            ours | started,
            {OWN: "LocalSpec's own tools"} | words_of(started),
            partial(_judged, place, given),
            lambda _rule: None,
            for_model,
            partial(close_all, started),
            offers=offers,
            within=lambda name: kit_in(workspace.within(name)),
        )

    return kit_in(workspace)


def _judged(workspace: Workspace, rules: ConsentRules, tool: Tool, arguments: Arguments) -> Verdict:
    found = consent(tool, subject_of(tool, arguments, workspace), rules)
    if found.answer == "allow":
        return Verdict("allowed", f"the rule {found.rule} allows it" if found.rule else "")
    why = f"the rule {found.rule} does not allow it" if found.rule else "no rule allows it"
    return Verdict("refused", why)


def _servers(file: Path, named: Sequence[str], *, is_whole: bool) -> tuple[dict[str, ServerEntry], list[str]]:
    """Return the servers that are named, or the whole file, and the rules that allow their tools."""
    if not named and not is_whole:
        return {}, []
    entries = servers_in(file)
    rules = list[str]()
    wanted = dict[str, ServerEntry]()
    for name in named or entries:
        server = next((each for each in entries if name == each or name.startswith(f"{each}.")), None)
        if server is None:
            known = ", ".join(entries) or "none"
            raise UserError(f"{file.name} has no server `{name}` that is switched on", f"it has: {known}")
        tool = name.removeprefix(server).removeprefix(".") or "*"
        rules.append(f"{server_names((server,))[server]}.{tool}")
        wanted[server] = entries[server]
    return wanted, rules


def _own(workspace: Workspace, named: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return our own tools that may be offered, and the rules that allow calls of them; raises UserError."""
    groups = {group: OwnTools(workspace, (group,)).tools() for group in WORDS}
    names = set[str]()
    rules = list[str]()
    for name in named:
        of_groups = [tool for group, tools in groups.items() if name in (group, ALL) for tool in tools]
        single = [tool for tools in groups.values() for tool in tools if tool.name == name]
        if not of_groups and not single:
            single_names = (tool.name for tools in groups.values() for tool in tools)
            known = dict.fromkeys((ALL, *groups, *single_names))  # some groups are called as their one tool
            raise UserError(f"there are no tools `{name}`", f"there are: {', '.join(known)}")
        names |= {tool.name for tool in (*of_groups, *single)}
        rules += [tool.name for tool in of_groups if tool.effect in _UNASKED]
        rules += [tool.name for tool in single]
    return names, rules
