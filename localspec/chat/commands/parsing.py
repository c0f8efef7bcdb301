"""Which command a text is, if it is one."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from difflib import get_close_matches
from typing import Any

from localspec.chat.commands.command import Command, CommandCall
from localspec.chat.commands.registry import SCREEN_NAMES
from localspec.errors import UserError

_NAME = re.compile(r"/([A-Za-z-]+)(?=\s|$)")  # `/usr/bin`, `/* comment` and `/ a` are text
_OF_SERVER = re.compile(r"/([A-Za-z][\w-]*:[\w.:-]*)(?=\s|$)")  # a prompt of an MCP server
AS_MESSAGE = "a space before the / makes it a message"


def name_in(text: str) -> str | None:
    """Return the name of the command that a text begins with, whether or not there is such a command."""
    found = _NAME.match(text)
    return found[1].lower() if found else None


def server_in(text: str) -> str | None:
    """Return the name of the MCP server whose prompt a text may call, whether or not it is there."""
    found = _OF_SERVER.match(text)
    return found[1].partition(":")[0] if found else None


def parse(text: str, known: Mapping[str, Command[Any]] = SCREEN_NAMES) -> CommandCall | None:
    """Return the command that a text is, None for a message; raises UserError for one that makes no sense."""
    found = _NAME.match(text)
    if found is None and text.rstrip() != "/":
        return None
    command = known.get(found[1].lower()) if found else None
    if found is None or command is None:
        written = found[0] if found else "/"
        close = get_close_matches(written[1:].lower(), known, n=1)
        meant = f"; did you mean `/{close[0]}`?" if close else ""
        raise UserError(f"there is no command `{written}`{meant}", f"/help lists them; {AS_MESSAGE}")
    argument = text[found.end() :].strip()
    if command.argument.is_needed and not argument:
        raise UserError(f"/{found[1]} needs more: {command.usage}")
    if argument and not command.argument.hint:
        raise UserError(f"nothing can follow /{found[1]}", AS_MESSAGE)
    return command.called_with(argument, text)


def as_message(text: str, known: Container[str] = SCREEN_NAMES.keys()) -> str:
    """Remove the space or second slash that keeps a message from being a command.

    Two slashes before any other word than the name of a command stay: they begin a comment in code.
    """
    found = _NAME.match(text, 1) or _OF_SERVER.match(text, 1)
    if found is None or not text.startswith((" ", "/")):
        return text
    return text[1:] if text[0] == " " or found[1].lower() in known else text


def as_typed(message: str, known: Container[str] = SCREEN_NAMES.keys()) -> str:
    """Escape a message so that it is not taken for a command; the inverse of `as_message`."""
    found = _NAME.match(message) or _OF_SERVER.match(message)
    if found is None:
        return message
    return f"/{message}" if found[1].lower() in known else f" {message}"
