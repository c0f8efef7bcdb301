"""The status line: how the answer is decoded and how fast, the context, the memory, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from localspec.chat.live_stats import Figures
from localspec.types import DeviceMemory
from localspec_tui.widgets.status import (
    GAP,
    Part,
    Placed,
    choice_parts,
    context_part,
    lay_out,
    loading_part,
    memory_parts,
    said_part,
    speed_parts,
)

MOST_ROWS = 3  # of what is said


class StatusLine(Widget):
    """One row of figures, each of which explains itself under the pointer.

    A sentence takes their place; one that is longer than the row stands in rows of its own above them.
    """

    DEFAULT_CSS = """
    StatusLine {
        height: auto;
        max-height: 4;
        padding: 0 1;
        background: $panel;
        color: $text;
        text-wrap: nowrap;
        text-overflow: clip;
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id, classes=classes)
        self._speed: tuple[Part, ...] = ()
        self._choice: tuple[Part, ...] = ()
        self._reason = ""
        self._meter: Part | None = None
        self._memory: tuple[Part, ...] = ()
        self._said = ""
        self._loading: float | None = None

    @property
    def said(self) -> str:
        """Return what is said at present."""
        return self._said

    def show(self, figures: Figures) -> None:
        """Show the figures of an answer."""
        self._speed = speed_parts(figures)
        self.refresh()

    def show_choice(self, route: str, reason: str) -> None:
        """Show which profile `auto` followed, if it did, and why the answer is decoded as it is."""
        self._choice, self._reason = choice_parts(route, reason), reason
        self.refresh()

    def show_context(self, used: int | None, size: int | None, estimated: bool) -> None:
        """Show how full the context is; None leaves the meter out."""
        self._meter = context_part(used, size, estimated=estimated)
        self._fit()

    def show_memory(self, memory: Sequence[DeviceMemory]) -> None:
        """Show the memory in use on each device."""
        self._memory = memory_parts(memory)
        self.refresh()

    def say(self, text: str) -> None:
        """Say something in place of the figures until it is replaced; an empty text clears it."""
        self._said = text
        self._fit()

    def show_loading(self, fraction: float | None) -> None:
        """Show how far the models are loaded, None when they are or will not be."""
        self._loading = fraction
        self._fit()

    def _fit(self) -> None:
        rows = len(self._sentence(self.content_size.width)) + 1
        self.refresh(layout=rows != self.content_size.height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the rows of figures and of what is said above them."""
        return len(self._sentence(width)) + 1

    def render(self) -> Content:
        """Return what fits, each part in its style."""
        sentence = [line.stylize("bold") for line in self._sentence(self.content_size.width)]
        return Content("\n").join([*sentence, self._figures()])

    def _figures(self) -> Content:
        row = Content("")
        for placed in self._layout():
            row = row.pad_right(placed.column - row.cell_length) + Content.styled(
                placed.text, placed.part.style
            )
        return row

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain what is under the pointer."""
        offset, row = event.get_content_offset(self), len(self._sentence(self.content_size.width))
        is_over = offset is not None and offset.y == row
        parts = [placed for placed in self._layout() if is_over and offset and _covers(placed, offset.x)]
        meaning = Content(parts[0].part.meaning) if parts else None
        if meaning != self.tooltip:
            self.tooltip = meaning

    def _sentence(self, width: int) -> Sequence[Content]:
        """Return the lines of what is said where it is too long to stand beside the meter."""
        said = said_part(self._said)
        room = width - (self._meter.width + GAP if self._meter else 0)
        if self._loading is not None or said.width <= room:
            return ()
        lines = Content(said.text).wrap(width)
        if len(lines) <= MOST_ROWS:
            return lines
        return (*lines[: MOST_ROWS - 1], Content("…") + lines[-1][1:])  # the end says what can be done

    def _layout(self) -> tuple[Placed, ...]:
        said = None if self._loading is None else loading_part(self._loading)
        if said is None and self._said.strip() and not self._sentence(self.content_size.width):
            said = said_part(self._said)
        parts = [*self._speed, *self._choice, *self._memory]
        if self._speed and self._reason:
            parts[0] = replace(parts[0], meaning=f"{parts[0].meaning}. This one: {self._reason}")
        if said is not None:
            parts.insert(0, said)
        if self._meter is not None:  # stays beside what is said, however long that is
            parts.insert(
                len(parts) - len(self._memory), replace(self._meter, rank=-2) if said else self._meter
            )
        return lay_out(self.content_size.width, parts)


def _covers(placed: Placed, column: int) -> bool:
    return placed.column <= column < placed.column + Content(placed.text).cell_length
