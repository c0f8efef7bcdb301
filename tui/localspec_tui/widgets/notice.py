"""What the program has to say: a bar above the prompt, which covers what is there and moves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Literal

from textual.content import Content
from textual.geometry import Size
from textual.reactive import reactive
from textual.timer import Timer
from textual.widget import Widget

from localspec_tui.widgets.status import one_line

# to notice that something is said, and to read it
READING_S = 4.0
CHARACTERS_PER_S = 25
COVERED_S = 0.25  # between two looks whether it can be seen
MAX_ROWS = 3
Topic = Literal["", "answer", "downloads", "models", "prompt", "queue", "quitting"]
"""What a notice is about, as long as it may be over before the notice is replaced."""


class Notice(Widget):
    """One notice at a time.

    It ends when there was time to read it. An error stays until something succeeds, and a notice about
    something in progress until that is over; Escape or a click ends any.
    """

    ALLOW_SELECT = False

    said = reactive("", init=False)  # at present
    _read_at = 0.0  # when the user will have read it
    _is_error = False
    _about: Topic = ""
    _ending: Timer | None = None

    def say(self, text: str, *, is_error: bool = False, about: Topic = "") -> None:
        """Say something in place of the notice before; an empty text ends that."""
        self._read_at = monotonic() + (_reading_s(text) if text else 0.0)
        self._show(text, is_error=is_error, about=about)

    @property
    def is_read(self) -> bool:
        """Whether the notice has been shown for long enough."""
        return monotonic() >= self._read_at

    def show_transient(self, text: str, *, about: Topic = "") -> None:
        """Say something that may be replaced at once, or end that, unless a notice is still being read."""
        if self.is_read:
            self._show(text, is_error=False, about=about)

    def over(self, about: Topic) -> None:
        """End the notice about something that is over, read or not."""
        if self._about == about:
            self.end()

    def clear_error(self) -> None:
        """End an error, because something has succeeded; models that did not open are one until they do."""
        if self._is_error and self._about != "models":
            self.end()

    def end(self) -> None:
        """Say nothing."""
        self.say("")

    def on_click(self) -> None:
        """End the notice."""
        self.end()

    def _show(self, text: str, *, is_error: bool, about: Topic) -> None:
        if self._ending is not None:
            self._ending.stop()
        ends = bool(text) and not is_error and not about
        self._ending = self.set_timer(_reading_s(text), self._end_once_seen) if ends else None
        self._is_error = is_error
        self._about = about
        self.said = text
        self.set_class(bool(text.strip()), "-said")
        self.set_class(is_error, "-error")

    def _end_once_seen(self, *, was_covered: bool = False) -> None:
        """End the notice; while another screen covers it, time does not run."""
        if not self.screen.is_active:
            self._ending = self.set_timer(COVERED_S, partial(self._end_once_seen, was_covered=True))
        elif was_covered:
            self._ending = self.set_timer(_reading_s(self.said), self._end_once_seen)
        else:
            self.end()

    def _watch_said(self) -> None:
        self.refresh(layout=len(self._lines(self.content_size.width)) != self.content_size.height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the rows of the notice."""
        return len(self._lines(width))

    def render(self) -> Content:
        """Return the notice; of a very long one the beginning and the end, which says what to do."""
        return Content("\n").join(self._lines(self.content_size.width))

    def _lines(self, width: int) -> Sequence[Content]:
        if width <= 0:  # not laid out yet
            return ()
        lines = Content(one_line(self.said)).wrap(width)
        if len(lines) <= MAX_ROWS:
            return lines
        return (*lines[: MAX_ROWS - 1], Content("…") + lines[-1][1:])


def _reading_s(text: str) -> float:
    return READING_S + len(text) / CHARACTERS_PER_S
