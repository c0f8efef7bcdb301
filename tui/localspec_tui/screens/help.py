"""All keys and commands, and how to read what the screen shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.chat.commands import COMMANDS
from localspec_tui.keys import HelpEntry

_AREAS = {
    "app": "Everywhere",
    "chat": "Chat",
    "composer": "Writing",
    "queue": "Waiting prompts",
    "transcript": "Reading",
    "message": "A message",
    "sidebar": "Chats",
    "status": "Status line",
    "timeline": "Timeline",
    "log": "Log",
}
_FIGURES = (
    ("SSD", "the draft model guesses ahead while the target model checks what it guessed before"),
    ("SD", "the draft model guesses, then the target model checks"),
    ("N-gram, Plain", "guesses repeat the text; no guesses"),
    ("58.3 tok/s  ×1.9", "tokens per second, and how many times as fast as plain decoding was measured here"),
    ("acc 71%", "the share of guessed tokens that the target model accepted"),
    ("len 3.4", "tokens gained on average by one look of the target model, its own one included"),
    ("hit 82%", "the share of guesses that were ready before they were needed"),
    ("ctx 5.1k/32k", "tokens that the model reads with the next prompt, and how many it can read at most"),
)
_ORIGINS = (
    ("target, plain", "the target model wrote this itself"),
    ("accepted draft, underlined", "the draft model guessed it, and the target model agreed"),
    ("prepared draft, bold underlined", "such a guess that was ready ahead of time: a hit"),
    ("bonus, bold", "came free, after a guess that was accepted as a whole"),
)
_REMAPPING = (
    ("In config.toml", "[keys] gives what is named in grey above other keys, several with commas between"),
    ("For example", '"chat.new" = "ctrl+t"'),
)
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

    def __init__(self, entries: Sequence[HelpEntry]) -> None:
        super().__init__()
        self._entries = tuple(entries)

    def compose(self) -> ComposeResult:
        """Stack the groups."""
        with VerticalScroll(id="help") as frame:
            frame.border_title = "Help"
            frame.border_subtitle = "Esc closes"
            for title, lines in self._groups():
                yield Static(title, classes="title", markup=False)
                yield Static(_Lines(lines), classes="group")

    def on_mount(self) -> None:
        """Let the arrow keys scroll."""
        self.query_one("#help").focus()

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one("#help").scroll_relative(y=lines, animate=False)

    def _groups(self) -> Iterator[tuple[str, Sequence[_Line]]]:
        places = {area: place for place, area in enumerate(_AREAS)}
        entries = sorted(self._entries, key=lambda entry: (places.get(entry.area, len(places)), entry.area))
        for area, group in groupby(entries, key=lambda entry: entry.area):
            lines = [("  ".join(entry.keys), entry.description, entry.id) for entry in group]
            yield _AREAS.get(area, area.capitalize()), lines
        yield "Other keys", _REMAPPING
        yield "Commands", [(spec.usage, spec.description) for spec in COMMANDS]
        yield "The status line", _FIGURES
        yield "Who wrote a word, where origins are shown", _ORIGINS


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
