"""Toolboxes of made servers, and what a test asks them."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from localspec.tools.mcp.entries import ServerEntry
from localspec.tools.mcp.server import McpServer
from localspec.tools.mcp.toolbox import McpTools
from localspec.tools.tool import ToolOutput

SCRIPT = Path(__file__).with_name("made_server.py")
NEVER = Event()


def made(behaviour: str = "good", *log: Path, **more: object) -> ServerEntry:
    """Return the entry of a made server that behaves so, and writes what it is asked into `log`."""
    arguments = (str(SCRIPT), behaviour, *map(str, log))
    values: dict[str, Any] = {"call_seconds": 20.0} | more
    return ServerEntry(command=sys.executable, args=arguments, **values)


def toolbox(entry: ServerEntry, folder: Path = Path(), **others: ServerEntry) -> closing[McpTools]:
    """Return a toolbox to be used in `with`; the first server is called `made`."""
    return closing(McpTools({"made": entry, **others}, folder))


def call(tools: McpTools, name: str = "made__echo", stop: Event = NEVER, **arguments: object) -> ToolOutput:
    return tools.run(name, arguments, stop)


def limit_calls(server: McpServer, seconds: float) -> None:
    """Limit what is asked from now on; what was asked before, as the list of tools, had its time."""
    server.entry = replace(server.entry, call_seconds=seconds)
