"""The user's own commands: `commands/NAME.md` next to config.toml is the command `/NAME`.

The file's text is the prompt. `$ARGUMENTS` is replaced by the argument, which is otherwise appended.
A heading in the first line (`# ...`) is the description and is not sent. Front matter is not sent either;
its `description` and `argument-hint` are used. The prompts of MCP servers join these commands.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat.attached_file import read_attachment
from localspec.chat.commands.arguments import unquoted
from localspec.chat.commands.command import Argument, Command, CommandCall, CommandContext
from localspec.chat.commands.effects import Ask, Effect
from localspec.chat.commands.parsing import AS_MESSAGE, server_in
from localspec.chat.commands.registry import SCREEN_NAMES
from localspec.chat.commands.servers import server_command, server_commands
from localspec.errors import LocalSpecError, UserError
from localspec.storage.paths import config_dir

if TYPE_CHECKING:
    from localspec.tools.mcp.server import McpServer

_ARGUMENTS = "$ARGUMENTS"
_SHOWN = 60  # characters of a prompt without a description
_NAME = re.compile(r"/([^\s/]+)(?=\s|$)")
_KEY = re.compile(r"([\w-]+)[ \t]*:(?:[ \t]+(.*)|$)")
_FOLDED = re.compile(r"[>|][0-9+-]*(?:[ \t]+#.*)?")  # in YAML: the text is in the lines below
_OF_FRONT_MATTER = re.compile(rf"{_KEY.pattern}|[ \t-]|#|$")


@dataclass(frozen=True, slots=True)
class OwnCommands:
    """The user's commands, and a line for each file that is not one."""

    commands: tuple[Command[str], ...] = ()
    problems: tuple[str, ...] = ()
    servers: Mapping[str, McpServer] = field(default_factory=dict)
    no_servers: str = ""  # why the servers are not known

    def parse(self, text: str) -> CommandCall | None:
        """Parse a text as one of the user's own commands; None for anything else.

        Raises UserError for a prompt of a server that is not there.
        """
        found = _NAME.match(text)
        if found is None:
            return None
        name = _composed(found[1])
        argument = text[found.end() :].strip()
        command = next((each for each in self.commands if each.name.lower() == name), None)
        if command is None:
            command = self._unlisted(found[1], text)
        return command.called_with(argument, text) if command else None

    def _unlisted(self, written: str, text: str) -> Command[str] | None:
        """Return the command for a prompt of a server that has not said which it has."""
        server, colon, prompt = written.partition(":")
        name = next((name for name in self.servers if colon and name.lower() == server.lower()), None)
        if name is not None:
            return server_command(name, self.servers[name], prompt)
        if (wanted := server_in(text)) is None:
            return None
        if self.no_servers:
            raise UserError(self.no_servers, AS_MESSAGE)
        close = get_close_matches(wanted.lower(), self.servers, n=1)
        meant = f"; did you mean `/{close[0]}:`?" if close else ""
        known = f"mcp.json has {', '.join(self.servers) or 'none'}"
        raise UserError(f"there is no MCP server `{wanted}`{meant}", f"{known}; {AS_MESSAGE}")


def may_be_own(text: str) -> bool:
    """Return whether a text begins with a command that LocalSpec does not have."""
    found = _NAME.match(text)
    return found is not None and found[1].lower() not in SCREEN_NAMES


def own_commands(servers_of: Callable[[], Mapping[str, McpServer]] = dict) -> OwnCommands:
    """Read the user's commands, and add those of MCP servers as far as they are known."""
    own = _own_files()
    try:
        servers = servers_of()
    except LocalSpecError as error:
        return replace(own, problems=(*own.problems, str(error)), no_servers=str(error))
    return OwnCommands((*own.commands, *server_commands(servers)), own.problems, servers)


def _own_files() -> OwnCommands:
    folder = config_dir() / "commands"
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".md")
    except FileNotFoundError:  # most people have none
        return OwnCommands()
    except OSError as error:
        return OwnCommands(problems=(f"cannot read the folder of commands {folder}: {error.strerror}",))
    found: dict[str, Command[str]] = {}
    problems: list[str] = []
    for path in files:
        try:
            command = _read(path)
            if command.name in found:
                raise UserError(f"another file is /{command.name} already")
        except UserError as error:
            problems.append(f"commands/{path.name} is not used: {error.message}")
        else:
            found[command.name] = command
    return OwnCommands(tuple(found.values()), tuple(problems))


def _composed(written: str) -> str:
    """Return the name of a command, however its letters are composed on the disk."""
    return unicodedata.normalize("NFC", written).lower()


def _read(path: Path) -> Command[str]:
    """Return the command that a file is; raises UserError."""
    name = _composed(path.stem)
    if name in SCREEN_NAMES:
        raise UserError(f"/{name} is a command already")
    if not all(unicodedata.category(sign)[0] in "LMN" or sign in "_-" for sign in name):
        raise UserError("its name may only contain letters, digits, dashes and underscores")
    known, text = _without_front_matter(read_attachment(str(path), path.parent).text.strip())
    first, _, rest = text.partition("\n")
    description = known.get("description", first)
    if first.startswith("# ") and "description" not in known:
        description = first[2:]
        text = rest.strip()
    if not text:
        raise UserError("it has no prompt")
    about = _shortened(description)
    hint = _shortened(known.get("argument-hint", "[TEXT]"))
    return Command(name, _asks(text), Argument(hint, str), about, about)


def _asks(template: str) -> Callable[[CommandContext, str], Iterator[Effect]]:
    """Return the function of a command with this template."""
    with_place = template if _ARGUMENTS in template else f"{template}\n\n{_ARGUMENTS}"

    def ask(_context: CommandContext, argument: str) -> Iterator[Effect]:
        yield Ask(with_place.replace(_ARGUMENTS, argument).rstrip())

    return ask


def _without_front_matter(text: str) -> tuple[dict[str, str], str]:
    """Return the values of the front matter of a text by key, and the text below it.

    Other programs read YAML there; only texts are understood, also over several indented lines.
    """
    lines = text.split("\n")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    inner = lines[1:end]
    if lines[0].rstrip() != "---" or not end or not all(map(_OF_FRONT_MATTER.match, inner)):
        return {}, text
    found: dict[str, str] = {}
    key = ""
    for line in inner:
        if line[:1].isspace() and key:
            found[key] = f"{found[key]} {line.strip()}".strip()
        elif name := _KEY.match(line):
            key = name[1].lower()
            value = (name[2] or "").strip()
            found[key] = "" if _FOLDED.fullmatch(value) else unquoted(value)
    return {key: value for key, value in found.items() if value}, "\n".join(lines[end + 1 :]).strip()


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1].rstrip()}…"
