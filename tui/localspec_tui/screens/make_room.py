"""Choose what to leave out of a conversation that fills the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, SelectionList, Static
from textual.widgets.selection_list import Selection

from localspec.chat.prompting import Exchange
from localspec_tui.widgets.markdown.blocks import clean

COMFORTABLE = 0.6  # of the context, to be filled at most after making room


def proposed(exchanges: Sequence[Exchange], size: int) -> tuple[int, ...]:
    """Return which exchanges to leave out: those left out already, then the oldest until the rest fits.

    The last exchange is what the conversation is about and stays.
    """
    out = {index for index, exchange in enumerate(exchanges) if exchange.dropped}
    for index in range(len(exchanges) - 1):
        if staying(exchanges, out) <= COMFORTABLE * size:
            break
        out.add(index)
    return tuple(sorted(out))


def staying(exchanges: Sequence[Exchange], out: set[int]) -> int:
    """Return the tokens of the exchanges that are not left out."""
    return sum(exchange.tokens for index, exchange in enumerate(exchanges) if index not in out)


class MakeRoomScreen(ModalScreen[tuple[int, ...] | None]):
    """A list of exchanges; the checked ones are left out. Returns the ids of all their messages."""

    DEFAULT_CSS = """
    MakeRoomScreen {
        align: center middle;
        #make-room {
            width: 90%; max-width: 100; height: auto; max-height: 90%;
            border: round $accent; border-title-color: $text; border-title-style: bold;
            padding: 0 2; background: $surface;
        }
        SelectionList { height: auto; max-height: 14; margin: 1 0; border: none; padding: 0; }
        SelectionList:focus { border: none; }
        #make-room-sum { text-style: bold; }
        .make-room--note { color: $text-muted; }
        Horizontal { height: auto; align-horizontal: right; margin-top: 1; }
        Button { margin-left: 2; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", "Apply", priority=True, id="make-room.apply"),
        Binding("escape", "leave", "Leave as it is", id="make-room.leave"),
    ]

    def __init__(self, exchanges: Sequence[Exchange], size: int) -> None:
        super().__init__()
        self._exchanges = tuple(exchanges)
        self._context_size = size

    def compose(self) -> ComposeResult:
        """Return the list, what it comes to, and the two ways out."""
        chosen = set(proposed(self._exchanges, self._context_size))
        with Vertical(id="make-room") as box:
            box.border_title = "Make room in the context"
            yield Static("Checked exchanges are not sent to the model any more.")
            yield SelectionList[int](
                *(
                    Selection(_line(exchange, out=index in chosen), index, index in chosen)
                    for index, exchange in enumerate(self._exchanges)
                )
            )
            yield Static(id="make-room-sum")
            yield Static(
                "What is left out stays visible in the chat, and can come back at any time.",
                classes="make-room--note",
            )
            with Horizontal():
                yield Button("Apply  Enter", id="make-room-apply", variant="primary", compact=True)
                yield Button("Leave as it is  Esc", id="make-room-leave", compact=True)

    def on_mount(self) -> None:
        """Show what the proposal comes to."""
        self._add_up()
        self.query_one(SelectionList).focus()

    @property
    def _out(self) -> set[int]:
        return set(self.query_one(SelectionList).selected)

    @on(SelectionList.SelectedChanged)
    def _add_up(self) -> None:
        exchanges = self.query_one(SelectionList)
        for index, exchange in enumerate(self._exchanges):
            exchanges.replace_option_prompt_at_index(index, _line(exchange, out=index in self._out))
        stay = staying(self._exchanges, self._out)
        sent = sum(exchange.tokens for exchange in self._exchanges if not exchange.dropped)
        freed = sent - stay
        verb = "frees" if freed >= 0 else "takes back"
        text = f"{verb} {abs(freed):,} of {self._context_size:,} tokens; {stay:,} stay"
        self.query_one("#make-room-sum", Static).update(text)

    @on(Button.Pressed, "#make-room-apply")
    def action_apply(self) -> None:
        """Leave the checked exchanges out."""
        if isinstance(self.focused, Button) and self.focused.id == "make-room-leave":
            self.dismiss(None)
            return
        out = self._out
        self.dismiss(
            tuple(
                id_ for index, exchange in enumerate(self._exchanges) if index in out for id_ in exchange.ids
            )
        )

    @on(Button.Pressed, "#make-room-leave")
    def action_leave(self) -> None:
        """Change nothing."""
        self.dismiss(None)


def _line(exchange: Exchange, *, out: bool) -> Content:
    """Return an exchange in one line; words say what the check mark says by colour."""
    question = " ".join(clean(exchange.question).strip().partition("\n")[0].split()) or "(no text)"
    word = "stays out" if out and exchange.dropped else "leave out" if out else "stays"
    return Content.assemble(
        (f"{'comes back' if exchange.dropped and not out else word:<10} ", "bold" if out else ""),
        f"{exchange.tokens:>7,} tokens  ",
        Content(question).truncate(60, ellipsis=True),
    )
