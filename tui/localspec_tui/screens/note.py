"""A text laid over the chat, to be read and put away."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec_tui.widgets.markdown.blocks import clean


class NoteScreen(ModalScreen[None]):
    """Show a title and some lines."""

    DEFAULT_CSS = """
    NoteScreen {
        align: center middle;
        & > VerticalScroll {
            width: auto;
            max-width: 96%;
            height: auto;
            max-height: 90%;
            padding: 1 2;
            border: round $primary;
            border-title-style: bold;
            border-subtitle-color: $text-muted;
            background: $surface;
        }
        & Static { width: auto; max-width: 100%; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss(None)", "Put the note away", id="note.close"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._heading = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Frame the text."""
        with VerticalScroll() as frame:
            frame.border_title = self._heading
            frame.border_subtitle = "Esc closes"
            yield Static(clean(self._text), markup=False)
