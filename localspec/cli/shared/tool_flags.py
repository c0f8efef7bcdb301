"""The flags about tools, which cost no start anything."""

from __future__ import annotations

import argparse
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from localspec.chat.resources import Resources, resources_named_in
from localspec.cli.shared.arguments import Parser

if TYPE_CHECKING:
    from localspec.chat.tool_use.kit import ToolKit


def add_tool_flags(parser: Parser) -> None:
    """Add which tools the model may call, and which of its calls need no question."""
    add = parser.add_argument_group("tools").add_argument
    about = "let the model call tools: files, run, web, time, calculate, and MCP servers by their names"
    add("--tools", metavar="NAMES", help=about)
    about = "allow the calls that a rule names, written as in config.toml: read_file, run_command:git status*"
    add("--yes", action="append", default=[], metavar="RULE", help=about)


class ToolsOfFlags:
    """The tools of one command, made when they are first needed."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Take which tools are on (`names`, None for no flag), and the rules."""
        given: str | None = args.tools
        self.names = None if given is None else [name for name in given.replace(",", " ").split() if name]
        self._rules: list[str] = args.yes
        self._kit: ToolKit | None = None

    def kit(self) -> ToolKit:
        """Return the tools of the working folder; raises UserError for a mistake in mcp.json."""
        if self._kit is None:
            from localspec.app.tools import tool_kit  # no start waits for it
            from localspec.storage.config import read_config
            from localspec.storage.paths import config_dir

            self._kit = tool_kit(read_config(config_dir() / "config.toml"), Path.cwd(), yes=self._rules)
        return self._kit

    def resources_named_in(self, text: str) -> Resources:
        """Return the resources of MCP servers that a text may name; they are waited for until Ctrl+C."""
        return resources_named_in(text, lambda: self.kit().servers, Event())

    def close(self) -> None:
        """End the servers that have been started."""
        if self._kit is not None:
            self._kit.close()
