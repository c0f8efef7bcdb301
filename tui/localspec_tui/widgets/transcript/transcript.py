"""The conversation as it is read, and as it is being written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual.app import ComposeResult
from textual.message import Message
from textual.widgets import Static

from localspec.chat.messages import Shown, Span
from localspec.types import TextPiece
from localspec_tui.widgets.origins import OriginLegend, Shares, count
from localspec_tui.widgets.transcript.window import MessageWindow


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


class Transcript(MessageWindow):
    """The messages of a chat, the last of which may still be growing."""

    DEFAULT_CSS = """
    Transcript {
        height: 1fr;
        layers: base above;
        scrollbar-gutter: stable;
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - as in Textual
        super().__init__(id=id, classes=classes)
        self._live_spans: list[Span] = []
        self._hint = MoreHint()
        self._legend = OriginLegend()

    def compose(self) -> ComposeResult:
        """Lay out the lines around the messages."""
        yield from super().compose()
        yield self._hint
        yield self._legend

    async def show(self, items: Sequence[Shown], at: int | None = None) -> None:
        """Show a chat from its end, or around one of its messages, which is then marked."""
        self._live_spans = list(items[-1].spans) if items else []
        await super().show(items, at)
        self._refresh_legend()

    async def add(self, item: Shown) -> None:
        """Show one more message at the end."""
        self._live_spans = list(item.spans)
        await super().add(item)
        self._refresh_legend()

    async def replace(self, item: Shown) -> None:
        """Show a message as it is now."""
        await super().replace(item)
        self._refresh_legend()

    def stream(self, text: str, pieces: Sequence[TextPiece]) -> None:
        """Add to the last message, which is being written."""
        if not self._items:
            return
        item = self._items[-1]
        self._items[-1] = replace(item, message=replace(item.message, content=item.message.content + text))
        self._live_spans += [Span(len(piece.text), piece.provenance) for piece in pieces]
        if view := self._views.get(item.message.id):
            view.append(text, pieces)
        if text and not self.following:
            self._hint.display = True
        self._refresh_legend()

    async def end_stream(self, item: Shown) -> None:
        """Show the last message in its final form."""
        await self.replace(item)

    def selected_message(self) -> int | None:
        """Return the message that has the focus."""
        return next((number for number, view in self._views.items() if view.has_focus_within), None)

    def on_more_hint_picked(self, event: MoreHint.Picked) -> None:
        """Go to the end."""
        event.stop()
        self.follow()

    def moved(self) -> None:
        """Take the hint away from a reader who has come to the end."""
        if self.following:
            self._hint.display = False
        super().moved()

    def written(self, index: int) -> Shown:
        """Return a message as it is to be shown, with the origins of what has come of it."""
        item = super().written(index)
        if item.message.state == "writing" and index == len(self._items) - 1:
            return replace(item, spans=tuple(self._live_spans))
        return item

    def watch_origins(self) -> None:
        """Show the answers in the other way."""
        self._legend.display = self.origins
        self._refresh_legend()
        self.run_worker(self._look(), group="looks", exclusive=True)

    def watch_thinking(self) -> None:
        """Fold or unfold the thinking."""
        self.run_worker(self._look(), group="looks", exclusive=True)

    def room_below(self) -> int:
        """Return the height of the legend."""
        return self._legend.outer_size.height if self._legend.display else 0

    async def _look(self) -> None:
        async with self._moving:
            for view in reversed(list(self._views.values())):
                await view.body.look(self._looks)

    def _refresh_legend(self) -> None:
        if not self.origins:
            return
        for item in reversed(self._items):
            if item.message.role == "assistant":
                live = item is self._items[-1] and not item.spans
                self._legend.show(Shares.of(count(self._live_spans if live else item.spans)))
                return
