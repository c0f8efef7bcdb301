"""The page of an empty chat: the models, and things to try."""

from __future__ import annotations

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Static

from localspec.app.fetching import Offer, Stage
from localspec.units import size

ROOM_FOR_BUTTONS = 50  # columns
PURPOSE = (
    "A small model guesses, the large one checks: the same answers, often faster. F1 explains every word."
)
TRIES = (
    ("/", "list commands; Tab completes them"),
    ("@notes.txt", "attach a file"),
    ("Ctrl+K", "search all chats"),
    ("F2, F3", "see which tokens were drafted, and both models at work"),
    ("F4", "answer in plain, speculative and SSD mode, side by side"),
    ("F8", "choose other models"),
)

_WORDS: dict[Stage, tuple[str, str]] = {  # on the button, and above it
    "offered": ("Download them", "Nothing is downloaded unless you ask for it, and you can chat meanwhile."),
    "fetching": ("Pause", "Downloading: {}"),
    "paused": ("Resume", "Paused: {}"),
    "here": ("Open them", "They are downloaded. Your chats stay as they are."),
}


class PairOffer(Vertical):
    """The best pair for this machine, and the next step to have it."""

    def compose(self) -> ComposeResult:
        """Yield the offer with its state, and two buttons."""
        yield Static("", markup=False)
        with Horizontal():
            yield Button("", id="fetch", variant="primary", compact=True, action="screen.command('fetch')")
            yield Button("Keep these for now", id="keep", compact=True)

    def show(self, offer: Offer, key: str) -> None:
        """Show how far it is; `key` does what the button does."""
        pair = offer.pair
        (does, how_far) = _WORDS[offer.stage]
        facts = [f"{size(pair.download_bytes)} to download"] if offer.stage == "offered" else []
        lines = (
            f"The best models for this machine:\n{pair.names}",
            "; ".join([*facts, f"{pair.speed} here", f"licence {pair.licences}"]),
            offer.problem or how_far.format(str(offer.progress).strip()),
        )
        self.query_one(Static).update("\n".join(lines))
        self.query_one("#fetch", Button).label = f"{'Try again' if offer.problem else does}  {key}"


class Welcome(VerticalScroll, can_focus=False):
    """A short greeting in place of an empty transcript."""

    def compose(self) -> ComposeResult:
        """Return the greeting, the models, what could be had instead, and what to try."""
        yield Static("LocalSpec", classes="title", markup=False)
        yield Static("", classes="models", markup=False)
        yield PairOffer(classes="hidden")
        yield Static(PURPOSE, classes="purpose", markup=False)
        yield Static("Type below and press Enter. You can also try:", markup=False)
        for keys, what in TRIES:
            with Horizontal(classes="try"):
                yield Static(keys, classes="keys", markup=False)
                yield Static(what, markup=False)

    def on_resize(self, event: events.Resize) -> None:
        """Put the buttons of the offer below each other where they have no room in a row."""
        self.set_class(event.size.width < ROOM_FOR_BUTTONS, "-narrow")

    def introduce(self, text: str) -> None:
        """Show the models' names."""
        self.query_one(".models", Static).update(text)

    def show_offer(self, offer: Offer | None, key: str) -> None:
        """Show the best pair for this machine, unless it is open or dismissed."""
        for shown in self.query(PairOffer):
            shown.set_class(offer is None, "hidden")
            if offer is not None:
                shown.show(offer, key)

    @on(Button.Pressed, "#keep")
    def _decline(self) -> None:
        self.query_one(PairOffer).remove()
