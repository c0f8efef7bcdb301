"""Tools that run here, on the server's side, for an answer: what a request asks for, and what it gets.

A client names servers of mcp.json that the user of this machine has offered (`serve --mcp`), or `localspec`,
which stands for our own tools (`serve --tools`). It can name no
address, so it cannot make this machine connect anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from starlette.requests import Request

from localspec.app.answer_json import Json
from localspec.app.client_tools import OWN
from localspec.chat.tool_use.background import in_background
from localspec.chat.tool_use.kit import OfferedTools, ToolKit
from localspec.errors import UserError
from localspec.server.blocks import ContentBlock
from localspec.server.messages import Function, an_object
from localspec.server.origins import is_foreign
from localspec.tools.tool import Tool, Toolbox

_READS = ("none", "reads", "fetches")


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as clients send it: a function, or those of an MCP server; others are left out."""

    type: str
    function: Function | None = None
    server_label: object = None  # of an MCP server, as are the next
    mcp_server_name: object = None  # Anthropic's word for it, as are the next two
    default_config: object = None
    configs: object = None
    allowed_tools: object = None
    require_approval: object = None
    server_url: object = None
    connector_id: object = None
    tunnel_id: object = None

    @property
    def is_elsewhere(self) -> bool:
        """Return whether it names an address to connect to."""
        return any(each is not None for each in (self.server_url, self.connector_id, self.tunnel_id))


@dataclass(frozen=True, slots=True)
class WantedServer:
    """A server that a request asks for, by its name in mcp.json; of its tools perhaps only some."""

    label: str
    only: Collection[str] | None = None
    besides: Collection[str] = ()  # tools that it does not ask for
    reads: bool = False

    def wants(self, tool: Tool) -> bool:
        """Return whether the request asks for a tool."""
        names = {tool.own_name, tool.name}
        is_named = (self.only is None or not names.isdisjoint(self.only)) and names.isdisjoint(self.besides)
        return is_named and (not self.reads or tool.effect in _READS)


@dataclass(frozen=True, slots=True)
class ListedServer:
    """The tools of a server that the model may call, or why it has none."""

    label: str
    tools: tuple[Tool, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ToolsHere:
    """The tools that run here for one answer."""

    kit: ToolKit
    servers: tuple[ListedServer, ...]
    offered: OfferedTools
    labels: Mapping[str, str] = field(default_factory=dict)  # of the server, by the name of the tool

    @property
    def problems(self) -> tuple[str, ...]:
        """Return a line for each server that has no tools for this answer."""
        return tuple(server.problem for server in self.servers if server.problem)

    def named(self, label: object, name: object = None) -> tuple[str, ...]:
        """Return the names of a server's tools, or of one of them, as the model knows them."""
        own = [tool for server in self.servers if server.label == label for tool in server.tools]
        return tuple(tool.name for tool in own if name in (None, tool.own_name, tool.name))

    def call(self, block: ContentBlock, id_: str, *, is_over: bool) -> Json:
        """Return a call as an item of `/v1/responses`; one that is over and was not run is incomplete."""
        run = block.run
        is_done = False
        failed = None
        status = "incomplete" if is_over else "in_progress"
        if run is not None:
            is_done = run.outcome == "done"
            status = "completed" if is_done else "failed"
        if run is not None and not is_done:
            content = [{"type": "text", "text": block.output}]
            failed = {"type": "mcp_tool_execution_error", "content": content}
        return {
            "id": id_,
            "type": "mcp_call",
            "status": status,
            "server_label": self.labels[block.name],
            "name": self.offered.owners[block.name][0].own_name,
            "arguments": block.text,
            "approval_request_id": None,
            "output": block.output if is_done else None,
            "error": failed,
        }


def listed(server: ListedServer, id_: str) -> Json:
    """Return the tools of a server as an item of `/v1/responses`."""
    tools = [
        {
            "name": tool.own_name,
            "description": tool.description,
            "input_schema": tool.parameters,
            "annotations": None,
        }
        for tool in server.tools
    ]
    head: Json = {"id": id_, "type": "mcp_list_tools", "server_label": server.label, "tools": tools}
    return {**head, "error": server.problem or None}


def kit_for(kit: ToolKit | None, request: Request) -> ToolKit | None:
    """Return the tools that the client of a request may have run: no page of another address gets our own."""
    if kit is None or not is_foreign(request):
        return kit
    return replace(kit, boxes={name: box for name, box in kit.boxes.items() if name != OWN})


def wanted_server(tool: ToolDefinition, kit: ToolKit, where: str) -> WantedServer | None:
    """Read a tool; None for one that is not of an MCP server, names none, or one by its address.

    Raises UserError for a server that is not offered here, and for calls that need approval.
    """
    is_toolset = tool.type == "mcp_toolset"
    label = tool.server_label
    field_name = "server_label"
    if is_toolset:
        label = tool.mcp_server_name
        field_name = "mcp_server_name"
    if tool.type not in ("mcp", "mcp_toolset") or not isinstance(label, str) or tool.is_elsewhere:
        return None
    if label not in kit.boxes:
        offered = ", ".join(kit.boxes) or "none"
        problem = f"{where}.{field_name}: no MCP server `{label[:40]}` is offered"
        raise UserError(problem, f"offered: {offered}")
    if is_toolset:
        return _toolset(tool, label, where)
    if tool.require_approval not in (None, "never"):
        hint = "send never: the user of this machine has chosen what may run"
        raise UserError(f"{where}.require_approval: calls are not approved one by one here", hint)
    allowed = tool.allowed_tools
    chosen = allowed if isinstance(allowed, dict) else {"tool_names": allowed}
    names = chosen.get("tool_names")
    if not isinstance(names, list | None) or not all(isinstance(name, str) for name in names or ()):
        raise UserError(f"{where}.allowed_tools is not a list of names")
    only = None if names is None else frozenset(names)
    return WantedServer(label, only, reads=chosen.get("read_only") is True)


def _toolset(tool: ToolDefinition, label: str, where: str) -> WantedServer:
    """Read which tools of a server Anthropic's `mcp_toolset` switches on; all of them if it says nothing."""
    usual = an_object(tool.default_config or {}, f"{where}.default_config").get("enabled") is not False
    configs = an_object(tool.configs or {}, f"{where}.configs")
    switched = {
        name: an_object(config, f"{where}.configs.{name}").get("enabled", usual) is not False
        for name, config in configs.items()
    }
    if usual:
        return WantedServer(label, besides=frozenset(name for name, is_on in switched.items() if not is_on))
    return WantedServer(label, frozenset(name for name, is_on in switched.items() if is_on))


async def tools_here(kit: ToolKit, wanted: Sequence[WantedServer], taken: Collection[str]) -> ToolsHere:
    """Return the tools that a request gets of these servers; starts those that do not run yet.

    A tool that no rule allows is not offered, because no user can be asked, nor is one whose name is taken by
    a tool of the client's.
    """
    servers = {each.label: each for each in wanted}
    begun = [in_background(partial(kit.offered, (label,)), "tools") for label in servers]
    found = await asyncio.gather(*map(asyncio.wrap_future, begun))
    lists = list[ListedServer]()
    owners = dict[str, tuple[Tool, Toolbox]]()
    labels = dict[str, str]()
    for server, offered in zip(servers.values(), found, strict=True):
        own = {
            name: (tool, box)
            for name, (tool, box) in offered.owners.items()
            if server.wants(tool) and name not in taken
        }
        problem = "" if own else "; ".join(offered.problems)
        lists.append(ListedServer(server.label, tuple(tool for tool, _ in own.values()), problem))
        owners |= own
        labels |= dict.fromkeys(own, server.label)
    return ToolsHere(kit, tuple(lists), OfferedTools(owners), labels)
