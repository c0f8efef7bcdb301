"""What an empty chat shows: whom one talks to, and what can be tried."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

TRIES = (
    ("Type below and press Enter.", ""),
    ("/", "commands, completed with Tab"),
    ("@notes.txt", "takes a file along"),
    ("Ctrl+K", "searches all chats"),
    ("F2", "shows which words the small model guessed"),
    ("F3", "shows how both models work together"),
    ("F4", "answers again in every mode, side by side"),
    ("F1", "all keys and commands"),
    ("/setup", "finds the right models for this machine"),
)


class Welcome(VerticalScroll, can_focus=False):
    """A short greeting in place of an empty transcript."""

    DEFAULT_CSS = """
    Welcome {
        align: center middle;
        & > Static { width: auto; max-width: 72; padding: 0 2; }
        & > .title { text-style: bold; color: $primary; margin-bottom: 1; }
        & > .models { color: $text-muted; margin-bottom: 1; }
    }
    """

    def compose(self) -> ComposeResult:
        """Return the greeting, the models and what to try."""
        yield Static("LocalSpec", classes="title", markup=False)
        yield Static("", classes="models", markup=False)
        width = max(len(key) for key, what in TRIES if what)
        lines = (f"{key:<{width}}  {what}" if what else f"{key}\n" for key, what in TRIES)
        yield Static("\n".join(lines), markup=False)

    def introduce(self, text: str) -> None:
        """Say whom one talks to."""
        self.query_one(".models", Static).update(text)
