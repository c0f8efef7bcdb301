"""`localspec mcp`: list, add, remove and test MCP servers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from localspec import units
from localspec.cli.shared.arguments import Parser, add_json_flag, verb_parser, with_command
from localspec.cli.shared.console import (
    FAILURE,
    SUCCESS,
    ConsoleStatus,
    at_fence,
    print_json,
    print_result,
    say,
)
from localspec.errors import UserError
from localspec.tools.mcp.descriptions import shown_line
from localspec.tools.mcp.entries import ServerEntry, add_server, mcp_file, read_servers, remove_server
from localspec.tools.mcp.examination import ExaminedServer, ExaminedTool, examine

_HEADINGS = ("NAME", "STATE", "EFFECT", "FROM")


def parser() -> Parser:
    """Return the parser of `localspec mcp`."""
    result = verb_parser(
        "mcp",
        "MCP servers give models tools, prompts and resources. They are listed in mcp.json, next to "
        "config.toml, in the format of Claude Desktop, Cursor and LM Studio. Without a command, list them.",
    )
    commands = result.add_subparsers(metavar="COMMAND", dest="command")

    def add(name: str, help_: str, more: str = "") -> Parser:
        description = f"{help_[0].upper()}{help_[1:]}.{more}"
        command: Parser = commands.add_parser(name, help=help_, description=description, allow_abbrev=False)
        add_json_flag(command.add_argument)
        return command

    add("list", "list the servers, and where they come from")
    adding = add(
        "add",
        "add a server to mcp.json",
        " ${VARIABLES} are filled in when the server starts, so that secrets need not be in the file. "
        "Example: localspec mcp add time -- uvx mcp-server-time",
    )
    adding.add_argument("name", metavar="NAME")
    adding.add_argument(
        "words", metavar="COMMAND", nargs="*", help="what starts it; after -- if it has flags"
    )
    adding.add_argument("--url", metavar="URL", default="", help="address of a server on a network, instead")
    adding.add_argument(
        "--env", metavar="NAME=VALUE", action="append", default=[], help="variable that it gets"
    )
    adding.add_argument(
        "--header", metavar="NAME=VALUE", action="append", default=[], help="header for --url"
    )
    adding.add_argument("--replace", action="store_true", help="write over a server of this name")
    add("remove", "take a server out of mcp.json").add_argument("name", metavar="NAME")
    testing = add(
        "test",
        "start servers, list what they offer, and stop them",
        " Without a name, test all that are not disabled.",
    )
    testing.add_argument("names", metavar="NAME", nargs="*")
    return result


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    words, command = at_fence(argv)
    args = parser().parse_args(with_command("mcp", words, _COMMANDS, lambda _: f"try {', '.join(_COMMANDS)}"))
    if command and args.command != "add":
        raise UserError("only `localspec mcp add` takes a command after --", "see `localspec mcp --help`")
    args.started_by = [*getattr(args, "words", ()), *command]
    return _COMMANDS[args.command](args, mcp_file())


def _list(args: argparse.Namespace, path: Path) -> int:
    servers = read_servers(path)
    value = {"path": str(path), "servers": [_entry_json(*item) for item in servers.items()]}
    rows = [(name, _state(entry), _effects(entry), entry.origin) for name, entry in servers.items()]
    print_result(value, units.columns([_HEADINGS, *rows]) if rows else [], as_json=args.json, escaped=True)
    if not args.json:
        say(
            f"they are in {path}"
            if rows
            else f"there are none in {path}; `localspec mcp add --help` says how"
        )
    return SUCCESS


def _entry_json(name: str, entry: ServerEntry) -> dict[str, object]:
    """Return an entry for programs, without the values of variables and headers, which may be secret."""
    return {
        "name": name,
        "command": [entry.command, *entry.args] if entry.command else [],
        "url": entry.url,
        "env": list(entry.env),
        "headers": list(entry.headers),
        "disabled": entry.disabled,
        "effect": entry.effect,
        "effects": dict(entry.effects),
    }


def _state(entry: ServerEntry) -> str:
    return "disabled" if entry.disabled else "used"


def _effects(entry: ServerEntry) -> str:
    return f"{entry.effect}, {units.counted(len(entry.effects), 'other')}" if entry.effects else entry.effect


def _add(args: argparse.Namespace, path: Path) -> int:
    if bool(args.started_by) == bool(args.url):
        raise UserError(
            "name the command that starts the server, or its --url", "see `localspec mcp add --help`"
        )
    members: dict[str, object] = {"url": args.url} if args.url else {"command": args.started_by[0]}
    if args.started_by[1:]:
        members["args"] = args.started_by[1:]
    for name, given in (("env", args.env), ("headers", args.header)):
        if given:
            members[name] = dict(map(_pair, given))
    add_server(path, args.name, members, replacing=args.replace)
    if args.json:
        print_json({"name": args.name, "path": str(path)})
    else:
        say(f"added to {path}; `localspec mcp test {args.name}` starts it and lists its tools")
    return SUCCESS


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UserError(f"`{text}` is not a name and a value", "write NAME=VALUE")
    return name.strip(), value


def _remove(args: argparse.Namespace, path: Path) -> int:
    remove_server(path, args.name)
    if args.json:
        print_json({"name": args.name, "path": str(path)})
    else:
        say(f"removed from {path}")
    return SUCCESS


def _test(args: argparse.Namespace, path: Path) -> int:
    servers = read_servers(path)
    for name in args.names:
        if name not in servers:
            raise UserError(f"{path} has no server `{name}`", f"it has: {', '.join(servers) or 'none'}")
    names = args.names or [name for name, entry in servers.items() if not entry.disabled]
    examined = []
    for name in dict.fromkeys(names):
        with ConsoleStatus() as status:
            status.update(f"starting {name}")
            found = examine(name, servers[name], Path.cwd())
        examined.append(found)
        if not args.json:
            print_result({}, _report(found), as_json=False)
    if args.json:
        print_json({"path": str(path), "servers": list(map(_server_json, examined))})
    elif not examined:
        say(f"there are none in {path}; `localspec mcp add --help` says how")
    return FAILURE if any(found.failure for found in examined) else SUCCESS


def _server_json(found: ExaminedServer) -> dict[str, object]:
    tools = [asdict(tool) | {"tokens": tool.tokens} for tool in found.tools]
    return asdict(found) | {"tools": tools}


def _report(found: ExaminedServer) -> Iterator[str]:
    if found.failure:
        yield f"{found.name}: {found.failure}"
        return
    tokens = sum(tool.tokens for tool in found.tools)
    yield f"{found.name}: {found.server or 'without a name'}, protocol {found.protocol}"
    yield f"  started in {units.short(found.start_s)}, listed in {units.short(found.lists_s)}"
    yield f"  {units.counted(len(found.tools), 'tool')}, about {units.number(tokens)} tokens of a prompt"
    yield from (f"    {line}" for line in units.columns([_row(tool) for tool in found.tools]))
    yield from _named(found)
    yield from (f"  {problem}" for problem in found.problems)


def _row(tool: ExaminedTool) -> tuple[str, ...]:
    says = f"says: {', '.join(tool.hints)}" if tool.hints else ""
    return (tool.name, tool.effect, f"{tool.characters} characters", says)


def _named(found: ExaminedServer) -> Iterator[str]:
    if found.prompts:
        yield f"  {units.counted(len(found.prompts), 'prompt')}"
        yield from (f"    {shown_line(prompt.name)}  {prompt.description}" for prompt in found.prompts)
    if found.resources:
        yield f"  {units.counted(len(found.resources), 'resource')}"
        yield from (f"    {shown_line(resource.uri)}  {resource.name}" for resource in found.resources)


_COMMANDS: dict[str, Callable[[argparse.Namespace, Path], int]] = {
    "list": _list,
    "add": _add,
    "remove": _remove,
    "test": _test,
}
