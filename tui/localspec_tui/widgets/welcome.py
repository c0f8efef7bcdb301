"""What an empty chat shows: whom one talks to, and what can be tried."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Static

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


class SetupOffer(Vertical):
    """What a first start offers: larger models than those that came along."""

    def compose(self) -> ComposeResult:
        """Return the offer and its two answers."""
        yield Static("These models came along and are small; larger ones know and can do more.", markup=False)
        with Horizontal():
            yield Button("Find models for this machine", id="set-up", variant="primary", compact=True)
            yield Button("Keep these for now", id="keep", compact=True)

    @on(Button.Pressed)
    async def _answered(self, event: Button.Pressed) -> None:
        if event.button.id == "set-up":
            await self.run_action("screen.command('setup')")
        self.remove()


class Welcome(VerticalScroll, can_focus=False):
    """A short greeting in place of an empty transcript."""

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

    def offer_setup(self) -> None:
        """Offer to find larger models, as long as nobody has answered."""
        self.mount(SetupOffer(), after=self.query_one(".models"))
