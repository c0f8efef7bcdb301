"""A text to change: a message, a system prompt, or, on one line, a title."""

from __future__ import annotations

from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static, TextArea

from localspec_tui.keys import key_of, take_key
from localspec_tui.widgets.markdown.blocks import clean


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


class EditArea(TextArea):
    """A text area whose keys take effect in the order in which they were typed."""

    async def on_key(self, event: events.Key) -> None:
        """Leave to the screen what it binds."""
        await take_key(event, self.screen, self)


class EditScreen(ModalScreen[str | None]):
    """Edit a text, and return it; None if it is to stay as it was.

    A changed text is given up only at the second Escape. With `single_line`, Enter saves.
    """

    DEFAULT_CSS = """
    EditScreen {
        align: center middle;
        & > Vertical {
            width: 92%;
            max-width: 120;
            height: 85%;
            border: round $primary;
            border-title-style: bold;
            background: $surface;
            padding: 0 1;
        }
        &.-single-line > Vertical { height: auto; }
        & TextArea {
            border: none;
            padding: 0;
            background: transparent;
            scrollbar-size-vertical: 1;
            &:focus { border: none; }
            & .text-area--cursor-line { background: transparent; }
        }
        &.-single-line TextArea { height: 1; scrollbar-size: 0 0; }
        & #hint { height: auto; margin-top: 1; color: $text-muted; }
        & #hint.-warning { color: $text-warning; text-style: bold; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s,ctrl+enter", "save", "Save", id="edit.save"),
        Binding("enter", "save_line", "Save a single line", id="edit.save_line"),
        Binding("escape", "leave", "Leave as it was", id="edit.leave"),
    ]

    def __init__(self, title: str, text: str, *, single_line: bool = False) -> None:
        super().__init__(classes="-single-line" if single_line else None)
        self._title = title
        self._text = text
        self._single_line = single_line
        self._area = EditArea(text, id="text", highlight_cursor_line=False, soft_wrap=not single_line)
        self._area.match_cursor_bracket = False
        self._hint = Static(id="hint", markup=False)
        self._warned = False

    def compose(self) -> ComposeResult:
        """Frame the text, with the keys below it."""
        with Vertical() as frame:
            frame.border_title = self._title.replace("[", "\\[")
            yield self._area
            yield self._hint

    def on_mount(self) -> None:
        """Start at the end of the text."""
        self._area.move_cursor(self._area.document.end)
        self._area.focus()
        self._show_hint()

    def _show_hint(self) -> None:
        save = key_of(self, "edit.save_line" if self._single_line else "edit.save")
        leave = key_of(self, "edit.leave")
        self._hint.set_class(self._warned, "-warning")
        if self._warned:
            self._hint.update(f"The text has changed. {save} saves it, {leave} again gives the change up.")
        else:
            self._hint.update(f"{save} saves   {leave} leaves it as it was")

    @on(TextArea.Changed)
    def _text_changed(self, event: TextArea.Changed) -> None:
        event.stop()
        if self._warned:
            self._warned = False
            self._show_hint()

    def on_paste(self, event: events.Paste) -> None:
        """Keep what the text area has taken to itself."""
        event.stop()

    def action_save(self) -> None:
        """Return the text."""
        text = self._area.text
        self.dismiss(" ".join(text.split()) if self._single_line else text)

    def action_save_line(self) -> None:
        """Return a text of one line."""
        self.action_save()

    def action_leave(self) -> None:
        """Return nothing; ask for a second Escape where something would be lost."""
        if self._area.text != self._text and not self._warned:
            self._warned = True
            self._show_hint()
        else:
            self.dismiss(None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let Enter break lines where there can be several."""
        return self._single_line if action == "save_line" else True
