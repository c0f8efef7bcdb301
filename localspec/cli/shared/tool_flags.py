"""The flags about tools, which cost no start anything."""

from __future__ import annotations

from localspec.cli.shared.arguments import Parser


def add_tool_flags(parser: Parser) -> None:
    """Add which tools the model may call, and which of its calls need no question."""
    add = parser.add_argument_group("tools").add_argument
    about = "let the model call tools: files, run, web, time, calculate, and MCP servers by their names"
    add("--tools", metavar="NAMES", help=about)
    about = "allow the calls that a rule names, written as in config.toml: read_file, run_command:git status*"
    add("--yes", action="append", default=[], metavar="RULE", help=about)
