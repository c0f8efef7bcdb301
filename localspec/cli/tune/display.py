"""Show a run of the tuner on standard error: drawn in place on a terminal, else a line for each stage."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from textwrap import wrap
from types import TracebackType
from typing import Self, TextIO

from localspec.cli.shared.console import colours_unwanted, is_terminal, say
from localspec.cli.tune.tune_lines import block, lasting, stage_began
from localspec.tuning.events import StageBegan, TuneEvent
from localspec.tuning.progress import TuneProgress
from localspec.tuning.words import glyphs
from localspec.types import TaskType

REDRAWN_S = 0.1
_FEWEST = 10
_NARROW = 80  # columns where nobody knows
_DIM, _BOLD, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"


class TuneView:
    """A line for each stage as it begins and ends; a context manager."""

    def __init__(self, tasks: Sequence[TaskType]) -> None:
        self.progress = TuneProgress(tasks, time.monotonic())
        self._glyphs = glyphs(sys.stderr.encoding)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def take(self, event: TuneEvent) -> None:
        """Show what an event says."""
        ended = self.progress.take(event, time.monotonic())
        for line in lasting(event, ended, self.progress, self._glyphs):
            say(line)
        if isinstance(event, StageBegan):
            say(stage_began(event))

    def tell(self, text: str) -> None:
        """Say something else."""
        say(text)

    def end(self) -> None:
        """Say no more."""


class LiveTuneView(TuneView):
    """Draws a few lines in place; a thread of its own keeps the clock going between events."""

    def __init__(self, tasks: Sequence[TaskType]) -> None:
        super().__init__(tasks)
        self._canvas = Canvas(sys.stderr)
        self._lock = threading.Lock()
        self._said: list[str] = []  # and not shown yet
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="localspec-tune-view", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def take(self, event: TuneEvent) -> None:
        """Take in what the next drawing is to show."""
        with self._lock:
            ended = self.progress.take(event, time.monotonic())
            self._said += lasting(event, ended, self.progress, self._glyphs)

    def tell(self, text: str) -> None:
        """Say something above the lines that are drawn anew."""
        with self._lock:
            self._said.append(text)

    def end(self) -> None:
        """Take the drawing away; what was said stays."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._canvas.draw(self._said, ())
            self._said = []

    def _redraw(self) -> None:
        while not self._ended.wait(REDRAWN_S):
            with self._lock:
                lines = block(self.progress, time.monotonic(), self._canvas.width, self._glyphs)
                self._canvas.draw(self._said, lines)
                self._said = []


class Canvas:
    """The last lines of a terminal, drawn over and over; what it is told to keep scrolls up above them."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn: tuple[str, ...] = ()
        self._colours = not colours_unwanted()

    @property
    def width(self) -> int:
        """Return the columns that can be written to without wrapping."""
        try:
            return max(_FEWEST, os.get_terminal_size(self._stream.fileno()).columns - 1)
        except (OSError, ValueError):
            return _NARROW - 1

    def draw(self, kept: Sequence[str], lines: Sequence[str]) -> None:
        """Put `lines` in place of those before, below `kept`."""
        if not kept and tuple(lines) == self._drawn:
            return
        width = self.width
        above = (row for line in kept for row in wrap(line, width, subsequent_indent="    "))
        self._stream.write(self._erased(width + 1) + "".join(f"{row}\n" for row in above))
        self._stream.write("\n".join(self._styled(lines)))
        self._stream.flush()
        self._drawn = tuple(lines)

    def _erased(self, columns: int) -> str:
        """Return what takes away the lines of the last drawing, which a smaller window has wrapped."""
        rows = sum(max(1, -(-len(line) // columns)) for line in self._drawn)
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}\x1b[J" if rows else ""

    def _styled(self, lines: Sequence[str]) -> list[str]:
        if not self._colours or not lines:
            return list(lines)
        first, *others, last = lines if len(lines) > 1 else ("", *lines)
        return [f"{_BOLD}{first}{_RESET}"] * bool(first) + [*others, f"{_DIM}{last}{_RESET}"]


def view(tasks: Sequence[TaskType]) -> TuneView:
    """Return what suits standard error."""
    draws = is_terminal(sys.stderr) and os.environ.get("TERM", "dumb") != "dumb"
    return LiveTuneView(tasks) if draws else TuneView(tasks)
