"""Prompts of MCP servers as commands: `/SERVER:PROMPT` puts a prompt of a server into the user's own.

`/SERVER:` lists the prompts of a server. Only these commands start it, never typing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from localspec.chat.commands.arguments import unquoted
from localspec.chat.commands.command import Argument, Command, CommandContext
from localspec.chat.commands.effects import Effect, Put, Say, Wait
from localspec.errors import UserError
from localspec.tools.mcp.descriptions import shown_line
from localspec.tools.mcp.names import prompt_names
from localspec.units import counted

if TYPE_CHECKING:
    from localspec.tools.mcp.listings import McpPrompt, PromptArgument
    from localspec.tools.mcp.server import McpServer

_SHOWN = 60  # characters of a description
_NAMED = 8  # prompts that a line names
_WORD = re.compile(r"""(?:(?P<name>[^\s="']+)=)?(?P<value>"[^"]*"|'[^']*'|\S+|)""")
_TYPED = re.compile(r"[^\s=\"']+")  # names that can be written before a `=`


def server_commands(servers: Mapping[str, McpServer]) -> Iterator[Command[str]]:
    """Yield a command for each server, and one for each of its prompts that is known; starts none."""
    for name, server in servers.items():
        yield server_command(name, server)
        for fit, prompt in _fit(server.known_prompts().answer or ()).items():
            about = shown_line(prompt.description, _SHOWN)
            command = server_command(name, server, fit)
            argument = replace(command.argument, hint=_hint(prompt), names=_typed_names(prompt))
            yield replace(command, argument=argument, on_screen=about, in_lines=about)


def server_command(name: str, server: McpServer, prompt: str = "") -> Command[str]:
    """Return the command for a prompt of a server, known or not, or the one that lists them."""
    about = f"list the prompts of the MCP server {shown_line(server.name, _SHOWN)}"

    def run(_context: CommandContext, words: str) -> Iterator[Effect]:
        if prompt:
            yield Wait(f"asking {name} for {prompt}", partial(_prompt, name, server, prompt, words))
        else:
            yield Wait(f"asking {name} for its prompts", partial(_listed, name, server))

    return Command(f"{name}:{prompt}", run, Argument("", str), about, about)


def read_arguments(prompt: McpPrompt, words: str) -> dict[str, str]:
    """Return the arguments of a prompt: `name=value`, and others in order, of which the last takes the rest.

    Raises `UserError` if some are missing, or there are too many.
    """
    known = [argument.name for argument in prompt.arguments]
    given: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        if found["name"] not in known:
            return found[0]
        given[found["name"]] = unquoted(found["value"])
        return ""

    rest = _WORD.sub(take, words).strip()
    for name in (name for name in known if name not in given):
        if not rest:
            break
        is_last = all(other in given or other == name for other in known)
        first = _WORD.match(rest)
        word = rest if is_last or first is None else first[0]
        given[name], rest = unquoted(word), rest[len(word) :].strip()
    usage = f"its arguments: {_hint(prompt) or 'none'}"
    if rest:
        raise UserError(f"there is no argument for `{shown_line(rest, 40)}`", usage)
    missing = [each for each in prompt.arguments if each.required and each.name not in given]
    if missing:
        raise UserError(f"it needs more: {', '.join(map(_described, missing))}", usage)
    return given


def _described(argument: PromptArgument) -> str:
    name = shown_line(argument.name, 40)
    return f"{name} ({argument.description})" if argument.description else name


def _prompt(server_name: str, server: McpServer, name: str, words: str, stop: Event) -> Put:
    """Ask a server for a prompt."""
    known = _fit(server.known_prompts().answer or ())
    prompt = known.get(name) or _named(server_name, name, _fit(server.prompts(stop)))
    text = server.prompt(prompt.name, read_arguments(prompt, words), stop)
    if not text.strip():
        raise UserError(f"the prompt {name} of {server_name} is empty")
    return Put(text, f"{server_name}:{name}")


def _named(server: str, name: str, prompts: Mapping[str, McpPrompt]) -> McpPrompt:
    by_name = {fit.casefold(): prompt for fit, prompt in prompts.items()}
    by_name |= {prompt.name: prompt for prompt in prompts.values()}
    if (found := by_name.get(name) or by_name.get(name.casefold())) is not None:
        return found
    close = get_close_matches(name, prompts, n=1)
    meant = f"; did you mean `{close[0]}`?" if close else ""
    raise UserError(f"{server} has no prompt `{shown_line(name, 60)}`{meant}", f"it has: {_names(prompts)}")


def _listed(name: str, server: McpServer, stop: Event) -> Say:
    prompts = _fit(server.prompts(stop))
    if not prompts:
        return Say(f"{name} has no prompts")
    return Say(f"{name} has {counted(len(prompts), 'prompt')}: {_names(prompts)}", is_long=True)


def _names(prompts: Mapping[str, McpPrompt]) -> str:
    shown = [f"{fit} {_hint(prompt)}".rstrip() for fit, prompt in [*prompts.items()][:_NAMED]]
    more = len(prompts) - len(shown)
    return ", ".join(shown) + f" and {more} others" * (more > 0) or "none"


def _fit(prompts: Sequence[McpPrompt]) -> dict[str, McpPrompt]:
    names = prompt_names(prompt.name for prompt in prompts)
    return {names[prompt.name]: prompt for prompt in prompts}


def _hint(prompt: McpPrompt) -> str:
    """Return the arguments of a prompt as a help page lists them."""
    names = ((shown_line(each.name, 24), each.required) for each in prompt.arguments)
    return " ".join(f"{name}=" if required else f"[{name}=]" for name, required in names)


def _typed_names(prompt: McpPrompt) -> dict[str, str]:
    return {each.name: each.description for each in prompt.arguments if _TYPED.fullmatch(each.name)}
