"""All keys and commands, and how to read what the screen shows."""

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
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.chat.commands import COMMANDS, CommandSpec
from localspec_tui.keys import HelpEntry
from localspec_tui.widgets.footer import KeyFooter

_KEYS_WIDTH = 30
_Line = tuple[str, str] | tuple[str, str, str]
"""What is explained, and how; after keys the name of their binding, which may be empty."""


class HelpScreen(ModalScreen[None]):
    """Show help; `entries` come from `collect`, asked before this screen is pushed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss(None)", "Close the help", id="help.close"),
        Binding("down,j", "scroll(1)", "Down", id="help.down"),
        Binding("up,k", "scroll(-1)", "Up", id="help.up"),
    ]

    def __init__(self, entries: Sequence[HelpEntry], own: Sequence[CommandSpec] = ()) -> None:
        """Remember the keys, and the commands that the person has made."""
        super().__init__()
        self._own = own
        self._entries = tuple(entries)

    def compose(self) -> ComposeResult:
        """Stack the groups."""
        with VerticalScroll(id="help") as frame:
            frame.border_title = "Help"
            frame.border_subtitle = "Esc closes"
            for title, lines in self._groups():
                yield Static(title, classes="title", markup=False)
                yield Static(_Lines(lines), classes="group")
        yield KeyFooter()

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self.query_one("#help").focus()

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one("#help").scroll_relative(y=lines, animate=False)

    def _groups(self) -> Iterator[tuple[str, Sequence[_Line]]]:
        texts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
        areas = texts.pop("areas")
        places = {area: place for place, area in enumerate(areas)}
        entries = sorted(self._entries, key=lambda entry: (places.get(entry.area, len(places)), entry.area))
        for area, group in groupby(entries, key=lambda entry: entry.area):
            keys = [("  ".join(entry.keys), entry.description, entry.id) for entry in group]
            yield areas.get(area, area.capitalize()), keys
        texts["Commands"] = {spec.usage: spec.description for spec in (*COMMANDS, *self._own)}
        for title, lines in texts.items():
            yield title, tuple(lines.items())


@dataclass(frozen=True, slots=True)
class _Lines:
    """Two columns; the first takes less of a narrow screen."""

    lines: Sequence[_Line]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(width=min(_KEYS_WIDTH, options.max_width * 2 // 5), overflow="fold")
        table.add_column(ratio=1)
        for name, text, *ids in self.lines:
            words = Text(text[:1].upper() + text[1:])
            table.add_row(Text(name, "bold"), words.append(f"  {ids[0]}", "dim") if any(ids) else words)
        yield table
