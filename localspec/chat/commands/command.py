"""A slash command: its names, its argument, its key and its function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from localspec.chat.commands.effects import Effect

if TYPE_CHECKING:
    from localspec.chat.session import ChatSession
    from localspec.inference.interface import OpenModels

T = TypeVar("T")
Kind = Literal[
    "mode",
    "fixed-mode",
    "task",
    "profile",
    "model",
    "theme",
    "tag",
    "folder",
    "branch",
    "thinking",
    "compact",
    "beside",
    "code",
    "format",
    "file",
    "reference",
]
"""The source of completions for a word of an argument."""


@dataclass(frozen=True, slots=True)
class Argument(Generic[T]):
    """The argument of a command; `read` gets an empty text without one.

    `hint` is in brackets if the argument can be left out. `kinds` are those of its words; with `repeats`
    the first kind continues. `names`, with what they mean, can be given as `name=value`. `read` raises
    `UserError`.
    """

    hint: str
    read: Callable[[str], T]
    kinds: tuple[Kind, ...] = ()
    repeats: bool = False
    names: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_needed(self) -> bool:
        """Whether the command makes no sense without it."""
        return bool(self.hint) and not self.hint.startswith("[")


@dataclass(frozen=True, slots=True)
class CommandContext:
    """What a command works on; `models` is None while none are open; file names are relative to `folder`."""

    session: ChatSession
    models: OpenModels | None
    folder: Path


@dataclass(frozen=True, slots=True)
class CommandKey:
    """The keys of a command on the screen, as Textual writes them; `id` is their name in config.toml."""

    keys: str
    id: str
    label: str
    has_priority: bool = True


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A slash command.

    `on_screen` and `in_lines` are what the help of the screen and of `localspec chat` say; an empty text
    means that the command does not exist there. `run` may read and write files and the store, and raises
    `LocalSpecError`.
    """

    name: str
    run: Callable[[CommandContext, T], Iterable[Effect]]
    argument: Argument[T]
    on_screen: str = ""
    in_lines: str = ""
    aliases: tuple[str, ...] = ()
    key: CommandKey | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All that it can be called."""
        return (self.name, *self.aliases)

    def called_with(self, argument: str, typed: str = "") -> CommandCall:
        """Read an argument and return the call; raises `UserError`."""
        return CommandCall(self, self.argument.read(argument), typed)

    @property
    def usage(self) -> str:
        """The command with its argument, as a help page lists it."""
        return f"/{self.name} {self.argument.hint}".rstrip()


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command and the argument that was read for it; `typed` is what it was read from, if anything."""

    command: Command[Any]
    argument: Any
    typed: str = ""

    def effects(self, context: CommandContext) -> tuple[Effect, ...]:
        """Run the command and return what the front end has to do; raises `LocalSpecError`."""
        return tuple(self.command.run(context, self.argument))
