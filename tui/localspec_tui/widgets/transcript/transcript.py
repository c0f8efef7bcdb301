"""The conversation as it is read, and as it is being written; only messages near the reader are widgets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import ClassVar, Final, Literal

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.layout import WidgetPlacement
from textual.reactive import Reactive, reactive
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.calls.pieces import Piece
from localspec.chat.messages import BranchMessage, Span
from localspec.chat.store.search import parse
from localspec.types.events import TextPiece
from localspec.types.request import ToolCall
from localspec_tui.widgets.markdown.prose import Prose, WordsFound
from localspec_tui.widgets.origins import OriginLegend
from localspec_tui.widgets.transcript.message import DisplayOptions, MessageView, SummaryToggled, prepare
from localspec_tui.workers import start_worker

_STEP_MESSAGES: Final = 10
_STEP_CHARACTERS: Final = 12_000
_MAX_MESSAGES: Final = 60
_MAX_CHARACTERS: Final = 96_000


@dataclass(frozen=True, slots=True)
class Window:
    """The messages from `first` up to `last`, without that; `sizes` are the characters of each message."""

    first: int = 0
    last: int = 0

    @classmethod
    def latest(cls, sizes: Sequence[int]) -> Window:
        """Return the end of a chat."""
        return cls(len(sizes), len(sizes)).earlier(sizes).earlier(sizes)

    @classmethod
    def around(cls, sizes: Sequence[int], index: int) -> Window:
        """Return a message with its separators."""
        return cls(index, index).earlier(sizes).later(sizes)

    def earlier(self, sizes: Sequence[int]) -> Window:
        """Return the window a step further up; by one message at least."""
        return Window(self.first - _step(sizes[: self.first][::-1]), self.last)

    def later(self, sizes: Sequence[int]) -> Window:
        """Return the window a step further down; by one message at least."""
        return Window(self.first, self.last + _step(sizes[self.last :]))

    def without_start(self, sizes: Sequence[int], seen: int) -> Window:
        """Return the window cut at its start if it has grown too large; message `seen` stays."""
        window = self
        while window.first < seen and window._is_large(sizes):
            window = Window(window.first + 1, window.last)
        return window

    def without_end(self, sizes: Sequence[int], seen: int) -> Window:
        """Return the window cut at its end if it has grown too large; message `seen` stays."""
        window = self
        while window.last > seen + 1 and window._is_large(sizes):
            window = Window(window.first, window.last - 1)
        return window

    def __contains__(self, index: int) -> bool:
        return self.first <= index < self.last

    def _is_large(self, sizes: Sequence[int]) -> bool:
        characters = sum(sizes[self.first : self.last])
        return self.last - self.first > _MAX_MESSAGES or characters > _MAX_CHARACTERS


def _step(sizes: Sequence[int]) -> int:
    """Return the number of next messages that make a step."""
    before = accumulate(sizes[:_STEP_MESSAGES], initial=0)
    return sum(total < _STEP_CHARACTERS for total, _ in zip(before, sizes[:_STEP_MESSAGES], strict=False))


class MoreLine(Static):
    """How many messages there are further up, or further down."""

    ALLOW_SELECT = False

    def tell(self, arrow: str, number: int, which: str) -> None:
        """Show the number of earlier messages; 0 hides the line."""
        self.display = number > 0
        self.update(f"{arrow} {number:,} {which} {'message' if number == 1 else 'messages'}")


class MoreHint(Static):
    """Text has come below what the reader sees."""

    ALLOW_SELECT = False


class Transcript(VerticalScroll, WordsFound, can_focus=False):
    """The messages of a chat, the last of which may still be growing.

    Widgets are created and removed as the reader moves. The end is followed until the reader scrolls away
    from it; then the same text stays in view. The position is set during layout, before anything is drawn,
    so nothing flickers when messages are added, removed or folded.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "go('next')", "Next message", id="message.next", show=False),
        Binding("k,up", "go('previous')", "Previous message", id="message.previous", show=False),
        Binding("g", "go('first')", "First message", id="message.first", show=False),
        Binding("G", "go('last')", "Last message", id="message.last", show=False),
    ]

    # Textual makes a second layout whenever this changes; the scrollbar asks for its own.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))

    origins: reactive[bool] = reactive(False, init=False)
    thinking: reactive[bool] = reactive(False, init=False)

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._rows: dict[Widget, Region] = {}
        self.following = True  # the end stays in view
        self._pinned: Widget | None = None  # stays in view, at this row of it
        self._pinned_row = 0
        self._has_grown = False  # at its end, since that was followed
        self._items: list[BranchMessage] = []
        self._covered: list[BranchMessage] = []  # by the summary, shown or not
        self._opened: set[int] = set()  # summaries, by their items
        self._window = Window()
        self._views: dict[int, MessageView] = {}
        self._earlier = MoreLine(markup=False)
        self._later = MoreLine(markup=False)
        self._hint = MoreHint("↓ more (End)", markup=False)
        self._legend = OriginLegend()
        self._moving = asyncio.Lock()
        self._looking_for_more = False

    def compose(self) -> ComposeResult:
        """Lay out the lines around the messages."""
        yield self._earlier
        yield self._later
        yield self._hint
        yield self._legend

    async def show(
        self, items: Sequence[BranchMessage], at: int | None = None, focus: int | None = None
    ) -> None:
        """Show a chat from its end, or around one of its messages, which is then marked.

        The message `focus` takes the place, and the focus if it has that, of the one shown there before.
        """
        async with self._moving:
            before = self._items
            self._items = self._unfolded(items, at)
            index = self._index(at if focus is None else focus)
            if focus is not None and self.following and index == len(items) - 1:
                index = None  # the end stays in view
            row = self._row_of(before[index]) if index is not None and index < len(before) else 0
            window = Window.latest(self._sizes)
            if index is not None and (at is not None or index not in window):
                window = Window.around(self._sizes, index)
            await self._open(window, focus)
            view = None if index is None else self._view(index)
            if view is not None and at is not None:
                view.add_class("-found")
            self._stay_at(view, row if at is None else 0)
        self._refresh_legend()

    def _unfolded(self, items: Sequence[BranchMessage], at: int | None) -> list[BranchMessage]:
        """Return the items to show: what was summarised only if it is unfolded, or looked for."""
        self._covered = [item for item in items if item.covered]
        summary = next((item.message.id for item in items if item.summarises), 0)
        if any(item.message.id == at for item in self._covered):
            self._opened.add(summary)
        return [item for item in items if summary in self._opened or not item.covered]

    @on(SummaryToggled)
    async def _toggle(self, event: SummaryToggled) -> None:
        """Show what a summary stands for, or hide it again."""
        event.stop()
        self._opened ^= {event.item_id}
        others = [item for item in self._items if not item.covered]
        await self.show([*self._covered, *others], focus=event.item_id)
        index = self._index(event.item_id)
        if event.item_id in self._opened and index is not None:  # so that the latest of them are seen
            self._stay_at(self._view(index), self.size.height // 2)

    async def add(self, item: BranchMessage) -> None:
        """Show one more message at the end."""
        async with self._moving:
            at_end = self.has_end()
            if self._items and (last := self._views.get(self._items[-1].message.id)):
                last.pass_on()
            self._items.append(item)
            if at_end:
                await self._grow(Window(self._window.first, len(self._items)))
                if self.following:
                    await self._prune(downwards=True)
            self._tell_more()
        self._refresh_legend()

    async def replace(self, item: BranchMessage) -> None:
        """Show a message as it is now."""
        async with self._moving:
            index = self._index(item.message.id)
            if index is not None:
                self._items[index] = item
                if view := self._views.get(item.message.id):
                    await view.finish(item)
        self._refresh_legend()

    def stream(self, text: str, pieces: Sequence[TextPiece]) -> None:
        """Add to the last message, which is being written."""
        if not self._items:
            return
        item = self._items[-1]
        spans = [Span(len(piece.text), piece.provenance) for piece in pieces]
        message = replace(item.message, content=item.message.content + text)
        self._items[-1] = replace(item, message=message, spans=(*item.spans, *spans))
        if view := self._views.get(item.message.id):
            view.body.append(text, pieces)
        self._has_grown = self._has_grown or bool(text)
        self._tell_growth()
        self._refresh_legend()

    def stream_calls(self, pieces: Sequence[Piece]) -> None:
        """Add to the calls of the last message, which is being written."""
        if not self._items or not pieces:
            return
        item = self._items[-1]
        calls = list(item.message.calls)
        for piece in pieces:
            if piece.id:
                calls.append(ToolCall(piece.id, piece.name, ""))
            if calls:
                calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + piece.text)
        self._items[-1] = replace(item, message=replace(item.message, calls=tuple(calls)))
        if view := self._views.get(item.message.id):
            view.show_calls(calls)

    def highlight(self, words: str) -> None:
        """Show words that were searched for wherever they are in the messages; none end that."""
        if patterns := tuple(parse(words)[1]) if words.strip() else self.words_found:
            self.words_found = patterns if words.strip() else ()
            for prose in self.query(Prose):
                prose.notify_style_update()
                prose.refresh()

    def follow(self) -> None:
        """Go to the end, and stay there while text comes."""
        if self.has_end():
            self._stay_at(None)
        else:
            last = len(self._items) - 1
            going = partial(self._go_to, last, at_end=True, focus=self.has_focus_within)
            start_worker(self, going, group="go", exclusive=True)

    def focus_last(self) -> None:
        """Give the focus to the last message."""
        self.focus_at(len(self._items) - 1)

    def focus_at(self, index: int) -> None:
        """Give the focus to the message at a place, counted from the first; there may be none."""
        if index not in range(len(self._items)):
            return
        view = self._views.get(self._items[index].message.id)
        if view is None:  # further away, or of a chat that is being opened
            self.screen.set_focus(None)  # no other widget is meant by the keys typed meanwhile
            start_worker(self, partial(self._go_to, index, focus=True), group="go", exclusive=True)
            return
        self.screen.set_focus(view, scroll_visible=False)
        if not (self.following and index == len(self._items) - 1):
            self.scroll_to_widget(view, animate=False, top=view.outer_size.height > self.size.height)

    def action_scroll_home(self) -> None:
        """Go to the very first message."""
        going = partial(self._go_to, 0, focus=self.has_focus_within)
        start_worker(self, going, group="go", exclusive=True)

    action_scroll_end = follow

    def on_click(self, event: events.Click) -> None:
        """Show more messages, or the end, where the reader asks for them.

        The message in focus loses that: the letters typed after a click are a prompt, not its commands.
        """
        if self.has_focus_within and self.screen.focused is not None:
            self.screen.focused.blur()
        if event.widget is self._hint:
            self.follow()
        elif event.widget in {self._earlier, self._later}:
            self._look_for_more(earlier=event.widget is self._earlier)

    def action_go(self, way: Literal["previous", "next", "first", "last"]) -> None:
        """Continue from the message in focus to another."""
        focused = (number for number, view in self._views.items() if view.has_focus_within)
        index = self._index(next(focused, None)) or 0
        last = len(self._items) - 1
        target = {"previous": index - 1, "next": index + 1, "first": 0, "last": last}[way]
        self.focus_at(min(max(target, 0), last))

    def moved(self) -> None:
        """Follow the end when the reader reaches it; load more messages near the end of the loaded ones."""
        self._tell_growth()
        if self._looking_for_more or not self._views:
            return
        page = max(1, self.size.height)
        if self._window.first > 0 and self.scroll_y < page:
            self._look_for_more(earlier=True)
        elif self._window.last < len(self._items) and self.scroll_y > self.max_scroll_y - page:
            self._look_for_more(earlier=False)

    def has(self, number: int) -> bool:
        """Return whether a message belongs to the chat that is shown."""
        return self._index(number) is not None

    def has_end(self) -> bool:
        """Return whether the last message is at hand."""
        return self._window.last == len(self._items)

    def watch_origins(self) -> None:
        """Show the answers in the other way."""
        self._legend.display = self.origins
        self._refresh_legend()
        start_worker(self, self._look, group="looks", exclusive=True)

    def watch_thinking(self) -> None:
        """Fold or unfold the thinking."""
        start_worker(self, self._look, group="looks", exclusive=True)

    async def _look(self) -> None:
        async with self._moving:
            for view in reversed(list(self._views.values())):
                await view.body.look(self._looks)

    def _refresh_legend(self) -> None:
        if not self.origins:
            return
        answers = (item for item in reversed(self._items) if item.message.role == "assistant")
        if latest := next(answers, None):
            self._legend.show(latest.spans)

    @property
    def _sizes(self) -> list[int]:
        return [len(item.message.content) for item in self._items]

    @property
    def _looks(self) -> DisplayOptions:
        return DisplayOptions(self.origins, self.thinking)

    def _view(self, index: int) -> MessageView:
        return self._views[self._items[index].message.id]

    def _index(self, number: int | None) -> int | None:
        """Return the position of a message in the chat."""
        indices = range(len(self._items) - 1, -1, -1)
        return next((index for index in indices if self._items[index].message.id == number), None)

    async def _open(self, window: Window, focus: int | None = None) -> None:
        """Show these messages in place of those shown."""
        views = await self._make(window.first, window.last)
        before = list(self._views.values())
        self._views = {}
        self._take(views, window)
        with self.app.batch_update():
            await self.mount_all(views, before=self._later)
            if focus in self._views and self.has_focus_within:
                self.screen.set_focus(self._views[focus], scroll_visible=False)
            for removal in [view.remove() for view in before]:
                await removal

    def _take(self, views: Sequence[MessageView], window: Window) -> None:
        self._views |= {view.item.message.id: view for view in views}
        self._window = window
        self._tell_more()
        if views and views[-1].item.message.id == self._items[-1].message.id:
            views[-1].append_missing(self._items[-1])

    async def _grow(self, window: Window) -> None:
        """Show the messages by which a larger window differs."""
        above = await self._make(window.first, self._window.first)
        below = await self._make(self._window.last, window.last)
        self._take([*above, *below], window)
        with self.app.batch_update():
            await self.mount_all(above, after=self._earlier)
            await self.mount_all(below, before=self._later)

    async def _make(self, first: int, last: int) -> list[MessageView]:
        items = self._items[first:last]
        looks = self._looks
        end = self._items[-1] if self._items else None
        prepared = await asyncio.to_thread(lambda: [prepare(item) for item in items])
        pairs = zip(items, prepared, strict=True)
        return [MessageView(item, done, looks, is_last=item is end) for item, done in pairs]

    async def _prune(self, *, downwards: bool) -> None:
        """Remove the widgets of messages far from the reader."""
        shown = range(self._window.first, self._window.last)
        seen = [index for index in shown if self._is_seen(index)]
        if not seen:
            return
        if downwards:
            self._window = self._window.without_start(self._sizes, seen[0])
        else:
            self._window = self._window.without_end(self._sizes, seen[-1])
        self._tell_more()
        stale = [index for index in shown if index not in self._window]
        for view in [self._views.pop(self._items[index].message.id) for index in stale]:
            await view.remove()

    def _is_seen(self, index: int) -> bool:
        view = self._view(index)
        return view.region.overlaps(self.region) or view.has_focus_within

    def _look_for_more(self, *, earlier: bool) -> None:
        self._looking_for_more = True
        start_worker(self, partial(self._step, earlier=earlier), group="more")

    async def _step(self, *, earlier: bool) -> None:
        try:
            async with self._moving:
                window = self._window.earlier(self._sizes) if earlier else self._window.later(self._sizes)
                if window != self._window:
                    await self._grow(window)
                    await self._prune(downwards=not earlier)
        finally:
            self._looking_for_more = False
        self.call_after_refresh(self.moved)

    async def _go_to(self, index: int, *, at_end: bool = False, focus: bool = False) -> None:
        async with self._moving:
            if not 0 <= index < len(self._items):
                return
            if index not in self._window:
                last = index == len(self._items) - 1
                if focus:
                    self.screen.set_focus(None)
                await self._open(Window.latest(self._sizes) if last else Window.around(self._sizes, index))
            view = self._view(index)
        self._stay_at(None if at_end else view)
        if focus and self.screen.focused is None:  # otherwise the user has begun to type
            self.screen.set_focus(view, scroll_visible=False)

    def _tell_growth(self) -> None:
        """Tell that text has come below what is seen."""
        self._has_grown = self._has_grown and not self.following
        is_below = self.scroll_y < self.max_scroll_y or not self.has_end()
        self._hint.display = self._has_grown and is_below

    def _tell_more(self) -> None:
        self._earlier.tell("↑", self._window.first, "earlier")
        self._later.tell("↓", len(self._items) - self._window.last, "later")

    # --- where the reader is ---

    def _row_of(self, item: BranchMessage) -> int:
        """Return the row of the window where a message begins; the first if it is not there."""
        region = self._rows.get(view) if (view := self._views.get(item.message.id)) else None
        row = 0 if region is None else region.y - round(self.scroll_y)
        return row if 0 < row < self.container_size.height else 0

    def _stay_at(self, view: MessageView | None, row: int = 0) -> None:
        """Go to a message, which comes to a row of the window, or to the end, and stay there."""
        self.following = view is None
        self._pinned = view
        self._pinned_row = row
        self.refresh(layout=True)
        self.call_after_refresh(self._come_to_rest)

    def release_anchor(self) -> None:
        """Scroll; a request for the end follows it again."""
        super().release_anchor()
        self.following = False
        self._pinned = None
        self.call_later(self._resume)

    def process_layout(self, placements: list[WidgetPlacement]) -> list[WidgetPlacement]:
        """Set the position for a new layout."""
        rows = {placement.widget: placement.region for placement in placements}
        bottom = max((p.region.bottom + p.margin.bottom for p in placements), default=0)
        legend = self._legend.outer_size.height if self._legend.display else 0
        end = bottom + legend - self.container_size.height
        if self.following:
            position = end
        elif self._pinned in rows:
            position = min(rows[self._pinned].y - self._pinned_row, end)
        else:
            position = self._same_text(rows)
        # Moving the scrollbar may request the layout once more, so its reference is set first.
        self._rows = rows
        self._settle(position)
        return placements

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Report the reader's new position."""
        super().watch_scroll_y(old_value, new_value)
        self.moved()

    def watch_virtual_size(self) -> None:
        """Look at the position again when there is more, or less, or a window of another height."""
        self.call_after_refresh(self._come_to_rest)

    on_resize = watch_virtual_size

    # Textual works a goal out at once and goes there after the next refresh: what is mounted above meanwhile
    # would be jumped over. So both of these move at once; an animation, too, would aim at a place that moves.

    def action_page_up(self) -> None:
        """Scroll a page."""
        self.scroll_relative(y=-self.size.height, animate=False, immediate=True)

    def action_page_down(self) -> None:
        """Scroll a page."""
        self.scroll_relative(y=self.size.height, animate=False, immediate=True)

    def _resume(self) -> None:
        if self.scroll_target_y >= self.max_scroll_y and self.has_end():
            self.following = True
        self.moved()

    def _come_to_rest(self) -> None:
        if self._views and self.has_end() and self.size.height and not self.max_scroll_y:
            self.following = True  # all of it is seen
            self._pinned = None
        if self.following:
            self.scroll_target_y = self.scroll_y = self.max_scroll_y
        self.moved()

    def _settle(self, position: int) -> None:
        y = max(0, position)
        self.set_reactive(Widget.scroll_y, y)
        self.set_reactive(Widget.scroll_target_y, y)
        self.vertical_scrollbar.position = y

    def _same_text(self, rows: dict[Widget, Region]) -> int:
        """Return the position at which the topmost text that remains is where it was."""
        y = round(self.scroll_y)
        for widget, before in self._rows.items():
            now = rows.get(widget)
            if now is None or before.bottom <= y or not isinstance(widget, MessageView):
                continue
            inside = y - before.y
            if inside > 0 and now.width != before.width:
                inside = inside * now.height // max(1, before.height)  # the text was wrapped again
            return now.y + inside
        return y
