"""One of several answers side by side: its text as it is written, then its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from localspec.chat.comparison import Answer
from localspec.chat.live import LiveAnswer
from localspec.chat.live_stats import mode_name
from localspec.types import Mode
from localspec_tui.widgets.markdown.blocks import clean


class _Text(VerticalScroll, can_focus=False):
    """The text of the answer, which scrolls."""


class AnswerColumn(Vertical, can_focus=True):
    """An answer in one mode. `live` is fed by the thread that answers."""

    @dataclass
    class Kept(Message):
        """This answer is to stay shown."""

        message_id: int

    DEFAULT_CSS = """
    AnswerColumn {
        width: 1fr; height: 1fr;
        border: round $panel; border-title-color: $text; border-title-style: bold;
        padding: 0 1; background: $surface;
        &:focus { border: round $accent; }
        &:focus .answer-column--keep { color: $text; text-style: bold; }
        _Text { height: 1fr; scrollbar-size: 1 1; }
        .answer-column--figures { height: auto; margin-top: 1; }
        .answer-column--keep { height: 1; color: $text-muted; }
        .answer-column--keep:hover { text-style: underline; }
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "keep", "Keep this answer", id="compare.keep"),
        Binding("up", "scroll_text(-1)", "Up", show=False, id="compare.up"),
        Binding("down", "scroll_text(1)", "Down", show=False, id="compare.down"),
    ]

    def __init__(self, mode: Mode) -> None:
        super().__init__(id=f"mode-{mode}")
        self.mode = mode
        self.live = LiveAnswer()
        self.answer: Answer | None = None
        self._message_id: int | None = None
        self._written = ""
        self._complete = False
        self.border_title = Content(f"{mode_name(mode)}  waits")

    def compose(self) -> ComposeResult:
        """Return text, figures and the way to keep them."""
        with _Text():
            yield Static(classes="answer-column--text", markup=False)
        yield Static(classes="answer-column--figures", markup=False)
        yield Static(classes="answer-column--keep", markup=False)

    @property
    def message_id(self) -> int | None:
        """Return the message that holds this answer, None before it began."""
        return self._message_id

    def look(self) -> bool:
        """Show what has come; tell whether the answer is finished anew."""
        update = self.live.drain()
        if update.started is not None:
            self._message_id = update.started.id
            self._entitle("reads the question")
        if update.text:
            self._write(update.text)
        if update.finished is not None:
            self._complete = update.finished.reason != "cancelled"
        if update.error is not None:
            self._entitle("failed")
            self.show_figures([str(update.error) or type(update.error).__name__])
        if update.saved is None:
            return False
        self._message_id = update.saved.message.id
        self._entitle("" if self._complete else "stopped")
        if update.saved.record is not None:
            self.answer = Answer(self.mode, self._written, update.saved.record, self._complete)
        self.query_one(".answer-column--keep", Static).update("Enter keeps this answer")
        return True

    def show_figures(self, lines: Sequence[str]) -> None:
        """Show figures below the text."""
        self.query_one(".answer-column--figures", Static).update(Content("\n".join(lines)))

    def action_keep(self) -> None:
        """Ask for this answer to stay shown."""
        if self._message_id is not None:
            self.post_message(self.Kept(self._message_id))

    def action_scroll_text(self, lines: int) -> None:
        """Scroll the text."""
        self.query_one(_Text).scroll_relative(y=lines, animate=False)

    def on_click(self, event: events.Click) -> None:
        """Keep the answer if the line that says so is clicked."""
        if event.widget is not None and event.widget.has_class("answer-column--keep"):
            self.action_keep()

    def _write(self, text: str) -> None:
        """Append to the text, and follow it unless the reader scrolled back."""
        scroll = self.query_one(_Text)
        following = scroll.is_vertical_scroll_end
        self._written += text
        self.query_one(".answer-column--text", Static).update(Content(clean(self._written)))
        self._entitle("writes")
        if following:
            scroll.scroll_end(animate=False)

    def _entitle(self, state: str) -> None:
        self.border_title = Content(f"{mode_name(self.mode)}  {state}".rstrip())
