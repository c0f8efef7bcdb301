"""All keys, commands and terms of the screen, filtered by typing."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from localspec.chat.chat_filter import is_found
from localspec.chat.commands.command import Command
from localspec.chat.commands.registry import ON_SCREEN
from localspec_tui.keys import HelpEntry, KeyFooter
from localspec_tui.screens.dialog import Dialog
from localspec_tui.widgets.explained import glossary
from localspec_tui.widgets.filtered_list import FilterLine

_KEYS_WIDTH = 30
_Line = tuple[str, str] | tuple[str, str, str]
"""What is explained, and how; after keys the name of their binding, which may be empty."""


class HelpScreen(Dialog[None]):
    """Show help; `entries` come from `collect`, asked before this screen is pushed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss(None)", "Close the help", id="help.close"),
        Binding("down,j", "scroll(1)", "Down", id="help.down"),
        Binding("up,k", "scroll(-1)", "Up", id="help.up"),
        Binding("f2", "toggle_names", "Names for config.toml", id="help.names"),
    ]

    def __init__(self, entries: Sequence[HelpEntry], own: Sequence[Command[str]] = ()) -> None:
        """Remember the keys, and the commands that the user has made."""
        super().__init__()
        self._own = own
        self._entries = tuple(entries)
        self._line = FilterLine("Type to find a key, a command or a word", self._narrow)
        self._shows_names = False

    def compose(self) -> ComposeResult:
        """Stack the groups."""
        with VerticalScroll(id="help", classes="frame") as frame:
            frame.border_title = "Help"
            yield self._line
            for title, lines in self._groups():
                yield _Group(title, lines)
        yield KeyFooter()

    def on_mount(self) -> None:
        """Give the input the focus."""
        self._line.focus()

    def action_toggle_names(self) -> None:
        """Show what the configuration calls each key, or hide it."""
        self._shows_names = not self._shows_names
        self._narrow()

    def _narrow(self) -> None:
        for group in self.query(_Group):
            group.narrow(self._line.value, shows_names=self._shows_names)
        self.query_one("#help").scroll_home(animate=False)

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one("#help").scroll_relative(y=lines, animate=False)

    def _groups(self) -> Iterator[tuple[str, Sequence[_Line]]]:
        texts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
        areas = texts.pop("areas")
        plain = texts.pop("plain")
        places = {area: place for place, area in enumerate(areas)}
        entries = sorted(self._entries, key=lambda entry: (places.get(entry.area, len(places)), entry.area))
        for area, group in groupby(entries, key=lambda entry: entry.area):
            described = ((entry, plain.get(entry.description, entry.description)) for entry in group)
            keys = [("  ".join(entry.keys), words, entry.id) for entry, words in described if words]
            yield areas.get(area, area.capitalize()), keys
        texts["Words"] = glossary()
        texts["Commands"] = {command.usage: command.on_screen for command in (*ON_SCREEN, *self._own)}
        for title, lines in texts.items():
            yield title, tuple(lines.items())


class _Group(Vertical):
    """A title and its matching lines."""

    def __init__(self, title: str, lines: Sequence[_Line]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._text = Static(_Lines(lines), classes="group")

    def compose(self) -> ComposeResult:
        yield Static(self._title, classes="title", markup=False)
        yield self._text

    def narrow(self, words: str, *, shows_names: bool) -> None:
        """Show the lines with all of these words, with the names of their bindings if they are wanted."""
        found = [line for line in self._lines if is_found(words, " ".join((self._title, *line)))]
        self.display = bool(found)
        self._text.update(_Lines(found, shows_names))


@dataclass(frozen=True, slots=True)
class _Lines:
    """Two columns; the first takes less of a narrow screen."""

    lines: Sequence[_Line]
    shows_names: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=min(_KEYS_WIDTH, options.max_width * 2 // 5), overflow="fold")
        table.add_column(ratio=1)
        for name, text, *ids in self.lines:
            words = Text(text[:1].upper() + text[1:])
            is_named = self.shows_names and any(ids)
            table.add_row(Text(name, "bold"), words.append(f"  {ids[0]}", "dim") if is_named else words)
        yield table
