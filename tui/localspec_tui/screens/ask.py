"""A question with two answers."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static


class AskScreen(ModalScreen[bool]):
    """Ask, and return whether the answer was yes; Escape means no."""

    DEFAULT_CSS = """
    AskScreen {
        align: center middle;
        & > Vertical {
            width: 60;
            max-width: 92%;
            height: auto;
            max-height: 90%;
            padding: 1 2;
            border: round $primary;
            background: $surface;
        }
        & #question { width: 100%; height: auto; margin-bottom: 1; }
        & Horizontal { height: auto; align-horizontal: right; }
        & Button { margin-left: 2; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="ask.yes"),
        Binding("n,escape", "answer(False)", "No", id="ask.no"),
        Binding("left,up", "app.focus_previous", "The answer before", id="ask.previous"),
        Binding("right,down", "app.focus_next", "The answer after", id="ask.next"),
    ]

    def __init__(self, question: str, yes: str = "Yes", no: str = "No") -> None:
        super().__init__()
        self._question = question
        self._yes = yes
        self._no = no

    def compose(self) -> ComposeResult:
        """Show the question over its answers."""
        with Vertical():
            yield Static(self._question, id="question", markup=False)
            with Horizontal():
                yield Button(f"{self._yes} (y)", variant="primary", id="yes")
                yield Button(f"{self._no} (n)", id="no")

    @on(Button.Pressed)
    def _button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Return the answer."""
        self.dismiss(answer)
