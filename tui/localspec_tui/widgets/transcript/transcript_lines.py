"""The small lines of the transcript: how much there is above and below, and that more has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.message import Message
from textual.widgets import Static

MoreWay = Literal["earlier", "later"]


class MoreLine(Static):
    """How many messages there are further up, or further down."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    MoreLine {
        width: 1fr;
        text-align: center;
        color: $text-muted;
        display: none;
        &:hover { text-style: underline; }
    }
    """

    @dataclass
    class Picked(Message):
        """The reader wants to see them."""

        way: MoreWay

    def __init__(self, way: MoreWay) -> None:
        super().__init__(markup=False)
        self._way: MoreWay = way

    def tell(self, number: int) -> None:
        """Tell how many there are; none hides the line."""
        arrow = "↑" if self._way == "earlier" else "↓"
        self.display = number > 0
        self.update(f"{arrow} {number:,} {self._way} {'message' if number == 1 else 'messages'}")

    def on_click(self) -> None:
        """Ask for them."""
        self.post_message(self.Picked(self._way))


class MoreHint(Static):
    """Text has come below what the reader sees."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    MoreHint {
        layer: above;
        dock: bottom;
        width: 100%;
        height: 1;
        text-align: center;
        background: $panel;
        color: $text;
        display: none;
    }
    """

    class Picked(Message):
        """The reader wants to see it."""

    def __init__(self) -> None:
        super().__init__("↓ more (End)", markup=False)

    def on_click(self) -> None:
        """Ask for it."""
        self.post_message(self.Picked())
