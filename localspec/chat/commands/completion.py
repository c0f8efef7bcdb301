"""How Tab completes commands, their arguments, and the files that a prompt names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.chat.attachments import Completion, complete_path, complete_reference, reference_at_end
from localspec.chat.commands.arguments import CHOICES
from localspec.chat.commands.command import Command, Kind
from localspec.chat.commands.registry import ON_SCREEN, SCREEN_NAMES
from localspec.chat.completed_resource import complete_resource

if TYPE_CHECKING:
    from localspec.tools.mcp.server import McpServer

Choices = Callable[[Kind], Sequence[str]]
"""Gives the names that exist of a kind: `profile`, `model`, `theme`, `tag` or `folder`."""
_PATHS: dict[Kind, Callable[[str, Path], tuple[Completion, ...]]] = {
    "file": complete_path,
    "reference": complete_reference,
}
_TO_THE_END: tuple[Kind, ...] = ("profile", "model", "theme", "folder", *_PATHS)  # names that may hold spaces


def complete_input(
    text: str,
    choices: Choices,
    folder: Path,
    own: Iterable[Command[Any]] = (),
    servers: Mapping[str, McpServer] = {},
) -> tuple[Completion, ...]:
    """Return completions of a text at its end; reads the folders that it names.

    `own` are the user's own commands; of `servers`, resources can be attached.
    """
    word = _word_at_end(text) if text.startswith("/") else None
    if word is not None and word[0] in _PATHS:
        at = word[1]
        complete = _PATHS[word[0]]
    elif commands := complete_command(text, choices, own):
        return commands
    elif (begun := reference_at_end(text)) is not None:
        resources = complete_resource(text[begun:], servers)
        if resources and ":" in text[begun:]:
            return tuple(replace(offer, start=begun) for offer in resources)
        files = complete_reference(text[begun:], folder)
        return tuple(replace(offer, start=begun) for offer in (*files, *resources))
    else:
        return ()
    return tuple(replace(offer, start=at) for offer in complete(text[at:], folder))


def complete_command(text: str, choices: Choices, own: Iterable[Command[Any]] = ()) -> tuple[Completion, ...]:
    """Return completions of a command; none for a message or a file name.

    `own` are the user's own commands.
    """
    if not text.startswith("/") or "\n" in text:
        return ()
    if " " not in text:
        return tuple(_names(text[1:].lower(), own))
    word = _word_at_end(text)
    if word is None:
        return tuple(_argument_names(text, own))
    if word[0] in _PATHS:
        return ()
    kind, start = word
    known = CHOICES.get(kind) or dict.fromkeys(choices(kind), "")
    typed = text[start:].lower()
    used = text[:start].lower().split()
    return tuple(
        Completion(name, name, description, start)
        for name, description in known.items()
        if name.lower().startswith(typed) and name not in used
    )


def _word_at_end(text: str) -> tuple[Kind, int] | None:
    """Return the kind of the last word of a command and its start, None if it cannot be completed."""
    name, gap, typed = text.removeprefix("/").partition(" ")
    command = SCREEN_NAMES.get(name.lower())
    if command is None or not gap or not command.argument.kinds or "\n" in text:
        return None
    kinds = command.argument.kinds
    if kinds[0] in _TO_THE_END:
        return kinds[0], len(text) - len(typed.lstrip())
    words = typed.lstrip().split(" ")
    start = len(text) - len(words[-1])
    if command.argument.repeats:
        return kinds[0], start
    return (kinds[len(words) - 1], start) if len(words) <= len(kinds) else None


def _argument_names(text: str, own: Iterable[Command[Any]]) -> Iterator[Completion]:
    """Yield the arguments that can still be given by their names."""
    name = text[1:].partition(" ")[0].lower()
    start = text.rfind(" ") + 1
    names = next((command.argument.names for command in own if command.name.lower() == name), {})
    for each, about in names.items():
        if f"{each}=".startswith(text[start:]) and f" {each}=" not in text[:start]:
            yield Completion(f"{each}=", f"{each}=", about, start)


def _names(typed: str, own: Iterable[Command[Any]]) -> Iterator[Completion]:
    for command in (*ON_SCREEN, *own):
        for name in command.names:
            is_prompt = not name.endswith(":") and ":" in name  # of which a server may have hundreds
            if name.lower().startswith(typed) and (not is_prompt or ":" in typed):
                hint = command.argument.hint
                yield Completion(
                    f"/{name} " if hint else f"/{name}", f"/{name} {hint}".rstrip(), command.on_screen
                )
                break  # an alias is offered only to who types it
