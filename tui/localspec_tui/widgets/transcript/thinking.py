"""What a model thought before it answered: one line, unfolded on demand."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Static

from localspec_tui.widgets.markdown.answer_text import AnswerText


class ThinkingHead(Static):
    """The line that stays when the thinking is folded."""

    ALLOW_SELECT = False

    class Picked(Message):
        """The line was clicked."""

    def on_click(self) -> None:
        """Ask to fold or unfold."""
        self.post_message(self.Picked())


class ThinkingView(Vertical, can_focus=True):
    """A thinking block, folded unless somebody wants to read it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,space", "unfold", "Unfold thinking", id="thinking.toggle", show=False)
    ]
    DEFAULT_CSS = """
    ThinkingView {
        height: auto;
        margin-bottom: 1;
        color: $text-muted;
        & > ThinkingHead { text-style: italic; }
        & > AnswerText { display: none; padding-left: 2; }
        &.-unfolded > AnswerText { display: block; }
        &:focus > ThinkingHead { text-style: italic reverse; }
    }
    """

    unfolded: reactive[bool] = reactive(False, init=False)

    def __init__(self, text: str = "", *, closed: bool = True, unfolded: bool = False) -> None:
        super().__init__()
        self._head = ThinkingHead()
        self._prose = AnswerText()
        self._text = ""
        self._shown = 0  # so many characters have been given to the prose
        self._words = 0
        self._complete = closed
        self.append(text)
        self.unfolded = unfolded

    @property
    def text(self) -> str:
        """Return the whole of the thinking."""
        return self._text

    def compose(self) -> ComposeResult:
        """Lay out the line and the text."""
        yield self._head
        yield self._prose

    def append(self, text: str) -> None:
        """Take more of it; a folded text only counts its words."""
        joined = bool(self._text and text) and not (self._text[-1].isspace() or text[0].isspace())
        self._words += len(text.split()) - joined
        self._text += text
        self._refresh()

    def close(self) -> None:
        """Take note that it came to its end."""
        if not self._complete:
            self._complete = True
            self._refresh()

    async def finish(self, text: str) -> None:
        """Take the whole of it: no more comes."""
        self._words = len(text.split())
        self._text, self._complete = text, True
        if self._shown:
            self._shown = len(text)
            await self._prose.finish(text)
        self._refresh()

    def watch_unfolded(self) -> None:
        """Show or hide the text."""
        self.set_class(self.unfolded, "-unfolded")
        self._refresh()

    def action_unfold(self) -> None:
        """Fold or unfold."""
        self.unfolded = not self.unfolded

    def on_thinking_head_picked(self, event: ThinkingHead.Picked) -> None:
        """Fold or unfold on a click on the line."""
        event.stop()
        self.action_unfold()

    def _refresh(self) -> None:
        if self.unfolded and self._shown < len(self._text):
            self._prose.append(self._text[self._shown :])
            self._shown = len(self._text)
        count = f"{self._words:,} {'word' if self._words == 1 else 'words'}"
        doing = "Thinking" if self._complete else "Thinking ..."
        self._head.update(Content(f"{doing}, {count}  {'▾' if self.unfolded else '▸'}"))
