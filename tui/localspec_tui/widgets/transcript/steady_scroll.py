"""A scrolling container in which what is read stays in place, or the end stays in view."""

from __future__ import annotations

from dataclasses import dataclass

from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.layout import WidgetPlacement
from textual.reactive import Reactive
from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class _Row:
    """Where a widget was laid out."""

    top: int
    height: int
    width: int


class SteadyScroll(VerticalScroll, can_focus=False):
    """Follows its end until the reader scrolls away from it; then keeps the same text in view.

    The position is settled while the layout is made, before anything is drawn: nothing flickers,
    whatever is added above, taken away, folded or wrapped anew.
    """

    # Textual makes a second layout whenever this changes; the scrollbar asks for its own.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))

    def __init__(self, *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self._rows: dict[Widget, _Row] = {}
        self.following = True  # the end stays in view
        self._pinned: Widget | None = None

    def stay_at_end(self) -> None:
        """Go to the end and stay there."""
        self.following, self._pinned = True, None
        self.refresh(layout=True)
        self.call_after_refresh(self._come_to_rest)

    def stay_at(self, widget: Widget) -> None:
        """Go to a widget, which comes to the top, and stay there."""
        self.following, self._pinned = False, widget
        self.refresh(layout=True)
        self.call_after_refresh(self._come_to_rest)

    def moved(self) -> None:
        """Take note that the position or the content has changed."""

    def keeps_place(self, widget: Widget) -> bool:
        """Tell whether a widget holds text that is to stay where it is."""
        return True

    def room_below(self) -> int:
        """Return how many rows something docked takes at the lower edge."""
        return 0

    def has_end(self) -> bool:
        """Tell whether what stands last is the end of everything."""
        return True

    def release_anchor(self) -> None:
        """Let the reader scroll; one who asks for the end follows it again."""
        super().release_anchor()
        self.following, self._pinned = False, None
        self.call_later(self._resume)

    def process_layout(self, placements: list[WidgetPlacement]) -> list[WidgetPlacement]:
        """Settle the position for a new layout."""
        rows = {
            placement.widget: _Row(placement.region.y, placement.region.height, placement.region.width)
            for placement in placements
        }
        if self.following:
            bottom = max((p.region.bottom + p.margin.bottom for p in placements), default=0)
            position = bottom + self.room_below() - self.container_size.height
        elif self._pinned in rows:
            position = rows[self._pinned].top
        else:
            position = self._same_text(rows)
        # To move the scrollbar may ask for the layout once more: what it is compared with comes first.
        self._rows = rows
        self._settle(position)
        return placements

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Tell that the reader is somewhere else."""
        super().watch_scroll_y(old_value, new_value)
        self.moved()

    def watch_virtual_size(self) -> None:
        """Look at the position again when there is more, or less."""
        self.call_after_refresh(self._come_to_rest)

    def on_resize(self) -> None:
        """Look at the position again in a window of another height."""
        self.call_after_refresh(self._come_to_rest)

    def action_scroll_up(self) -> None:
        """Scroll a line at once: an animation would aim at a place that moves."""
        self.scroll_up(animate=False)

    def action_scroll_down(self) -> None:
        """Scroll a line at once."""
        self.scroll_down(animate=False)

    def action_page_up(self) -> None:
        """Scroll a page at once."""
        self.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        """Scroll a page at once."""
        self.scroll_page_down(animate=False)

    def _resume(self) -> None:
        if self.scroll_target_y >= self.max_scroll_y and self.has_end():
            self.following = True
        self.moved()

    def _come_to_rest(self) -> None:
        if self.following:
            self.scroll_target_y = self.scroll_y = self.max_scroll_y
        self.moved()

    def _settle(self, position: int) -> None:
        y = max(0, position)
        self.set_reactive(Widget.scroll_y, y)
        self.set_reactive(Widget.scroll_target_y, y)
        self.vertical_scrollbar.position = y

    def _same_text(self, rows: dict[Widget, _Row]) -> int:
        """Return the position at which the topmost text that remains is where it was."""
        y = round(self.scroll_y)
        for widget, before in self._rows.items():
            now = rows.get(widget)
            if now is None or before.top + before.height <= y or not self.keeps_place(widget):
                continue
            inside = y - before.top
            if inside > 0 and now.width != before.width:
                inside = inside * now.height // max(1, before.height)  # the text was wrapped anew
            return now.top + inside
        return y
