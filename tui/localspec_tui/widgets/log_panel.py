"""The log panel: messages of libraries and the program, which must not reach the terminal."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterable
from typing import ClassVar

from rich.highlighter import Highlighter
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Log, Static

from localspec.inference.worker.wire import LogLine

KEPT = 2000  # lines
FLUSHES_PER_S = 10
BATCH = 250  # lines in one flush: some 10 ms of the screen's time
_LEVELS = {  # the prefix of a line, and the levels shown from there up
    logging.DEBUG: ("debug", "everything"),
    logging.INFO: ("info", "information"),
    logging.WARNING: ("warning", "warnings"),
    logging.ERROR: ("error", "errors"),
    logging.CRITICAL: ("fatal", "errors"),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


class LogLines(Log):
    """The lines that are shown."""

    FOCUS_ON_CLICK = False  # typing after a click goes to the prompt


class LogPanel(Vertical):
    """The last lines of the log, the newest at the end; follows unless scrolled back.

    Any thread may append to `new`, from which the panel takes what has come when it next looks.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log-panel--quiet", "log-panel--warning", "log-panel--error"}

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", f"level({logging.DEBUG})", "Everything", show=False, id="log.everything"),
        Binding("i", f"level({logging.INFO})", "Information", show=False, id="log.information"),
        Binding("w", f"level({logging.WARNING})", "Warnings", show=False, id="log.warnings"),
        Binding("e", f"level({logging.ERROR})", "Errors", show=False, id="log.errors"),
        Binding("y", "copy", "Copy all", id="log.copy"),
    ]

    def __init__(self, new: deque[LogLine], *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.new = new
        self._kept: deque[LogLine] = deque(maxlen=KEPT)
        self._unwritten: deque[LogLine] = deque(maxlen=KEPT)
        self._level = logging.WARNING  # llama.cpp's information is seldom needed
        self.border_title = "Log"

    def compose(self) -> ComposeResult:
        """Return the lines and the hint below them."""
        log = LogLines(highlight=True, auto_scroll=False, max_lines=KEPT)
        log.highlighter = _Levels(self)
        yield log
        yield Static(classes="log-panel--hint", markup=False)

    def on_mount(self) -> None:
        """Look for new lines from now on."""
        self._show_hint()
        self.set_interval(1 / FLUSHES_PER_S, self._flush)

    def text(self) -> str:
        """Return the lines as shown, those of the chosen level."""
        return "\n".join(written(line) for line in [*self._kept, *self.new] if line.level >= self._level)

    def action_level(self, level: int) -> None:
        """Show lines from a level up."""
        self._level = level
        self.query_one(Log).clear()
        self._unwritten = deque(self._kept, maxlen=KEPT)
        self._flush()
        self._show_hint()

    def action_copy(self) -> None:
        """Copy the lines shown."""
        self.app.copy_to_clipboard(self.text())

    def _flush(self) -> None:
        new = [self.new.popleft() for _ in range(len(self.new))]
        self._kept.extend(new)
        self._unwritten.extend(new)
        if self._unwritten and self.display:  # also lines that came while it was hidden
            self._show_hint()
            self._write([self._unwritten.popleft() for _ in range(min(BATCH, len(self._unwritten)))])

    def _write(self, lines: Iterable[LogLine]) -> None:
        log = self.query_one(Log)
        shown = [written(line) for line in lines if line.level >= self._level]
        if not shown:
            return
        following = log.is_vertical_scroll_end
        before = log.line_count
        log.write("\n".join(shown) + "\n", scroll_end=following)
        lost = before + len(shown) - log.line_count
        if lost > 0 and not following:  # the lines being read stay in place
            log.scroll_to(y=log.scroll_y - lost, animate=False, immediate=True)

    def _show_hint(self) -> None:
        keys = "d everything  i information  w warnings  e errors  y copy"
        shown = sum(line.level >= self._level for line in self._kept)
        share = f" ({shown:,} of {len(self._kept):,} lines)"
        hint = Content.assemble("Showing ", (_LEVELS[self._level][1], "bold"), f"{share}   {keys}")
        self.query_one(".log-panel--hint", Static).update(hint)


class _Levels(Highlighter):
    """Colour the word in front of a line; the word itself says the same without colour."""

    def __init__(self, panel: LogPanel) -> None:
        self._panel = panel

    def highlight(self, text: Text) -> None:
        word = text.plain[:8].strip()
        kind = {"debug": "quiet", "info": "quiet", "warning": "warning"}.get(word, "error")
        style = self._panel.get_component_rich_style(f"log-panel--{kind}", partial=True)
        text.stylize(style, 0, 8 if kind != "error" else len(word))


def written(line: LogLine) -> str:
    """Return a line of the log as text, safe to show: control characters in their written form."""
    level = max((known for known in _LEVELS if known <= line.level), default=logging.DEBUG)
    text = line.text.rstrip().expandtabs(4)
    return f"{_LEVELS[level][0]:<8} {_safe(line.name)}: {_safe(text)}"


def _safe(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "backslashreplace").decode(), text)
