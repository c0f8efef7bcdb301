"""The base of all screens over the chat."""

from __future__ import annotations

from typing import TypeVar

from textual import events, on
from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """A screen over the chat, which closes once, and nothing else with it.

    What it shows is in one box of the class `frame`: all dialogs have the same place, width and style.
    """

    @on(events.Mount)
    def _say_how_to_close(self) -> None:
        for frame in self.query(".frame"):
            frame.border_subtitle = "Esc closes"

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close with a result, unless this is closed already.

        Keys may come faster than a screen closes. Textual would close the screen below for the second
        Escape, and end with an error for the third.
        """
        return super().dismiss(result) if self.is_active else AwaitComplete()
