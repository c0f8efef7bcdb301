"""What an empty chat shows: whom one talks to, and what can be tried."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Static

from localspec.app.fetching import Offer, Stage
from localspec.units import size

TRIES = (
    ("Type below and press Enter.", ""),
    ("/", "commands, completed with Tab"),
    ("@notes.txt", "takes a file along"),
    ("Ctrl+K", "searches all chats"),
    ("F2", "shows which words the small model guessed"),
    ("F3", "shows how both models work together"),
    ("F4", "answers again in every mode, side by side"),
    ("F1", "all keys and commands"),
)


_DOES: dict[Stage, str] = {
    "offered": "Fetch them",
    "fetching": "Pause",
    "paused": "Go on",
    "here": "Open them",
}


class PairOffer(Vertical):
    """The best pair for this machine, and the next step to have it."""

    def compose(self) -> ComposeResult:
        """Return what it is and how far it is here, and two answers."""
        yield Static("", markup=False)
        with Horizontal():
            yield Button("", id="fetch", variant="primary", compact=True, action="screen.command('fetch')")
            yield Button("Keep these for now", id="keep", compact=True)

    def show(self, offer: Offer, key: str) -> None:
        """Show how far it is; `key` does what the button does."""
        pair, stage = offer.pair, offer.stage
        lines = ["The best models for this machine:", pair.names]
        facts = [f"{pair.speed} here" if pair.placement else "", f"licence {pair.licences}"]
        if stage == "offered":
            facts.insert(0, f"{size(pair.download_bytes)} to fetch")
        lines.append("; ".join(facts))
        lines.append(offer.problem or how_far(offer))
        self.query_one(Static).update("\n".join(lines))
        self.query_one("#fetch", Button).label = f"{_DOES[stage]}  {key}"


def how_far(offer: Offer) -> str:
    """Return how far a pair is here, in a line."""
    done = str(offer.progress).strip()
    return {
        "offered": "Nothing is fetched unless you ask for it, and you can chat meanwhile.",
        "fetching": f"Fetching: {done}",
        "paused": f"Paused: {done}",
        "here": "They are here. Your chats stay as they are.",
    }[offer.stage]


def brief(offer: Offer) -> str:
    """Return how far a pair is here, in two words, while something else is looked at."""
    share = offer.progress.done / max(1, offer.progress.total)
    return {"fetching": f"fetching {share:.0%}", "paused": f"paused {share:.0%}"}.get(offer.stage, "")


class Welcome(VerticalScroll, can_focus=False):
    """A short greeting in place of an empty transcript."""

    def compose(self) -> ComposeResult:
        """Return the greeting, the models, what could be had instead, and what to try."""
        yield Static("LocalSpec", classes="title", markup=False)
        yield Static("", classes="models", markup=False)
        yield PairOffer(classes="hidden")
        width = max(len(key) for key, what in TRIES if what)
        lines = (f"{key:<{width}}  {what}".rstrip() for key, what in TRIES)
        yield Static("\n".join(lines), markup=False)

    def introduce(self, text: str) -> None:
        """Say whom one talks to."""
        self.query_one(".models", Static).update(text)

    def show_offer(self, offer: Offer | None, key: str) -> None:
        """Show the best pair for this machine, unless it is open, or nobody wants to know."""
        for shown in self.query(PairOffer):
            shown.set_class(offer is None, "hidden")
            if offer is not None:
                shown.show(offer, key)

    @on(Button.Pressed, "#keep")
    def _decline(self) -> None:
        self.query_one(PairOffer).remove()
