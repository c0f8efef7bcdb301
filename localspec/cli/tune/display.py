"""Show a run of the tuner on standard error: drawn in place on a terminal, else a line for each stage."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Self, TextIO

from localspec.cli.shared.console import Styled, colours_unwanted, is_terminal, say
from localspec.safe_text import safe_line
from localspec.tuning.events import (
    LoadOptionsChosen,
    StageBegan,
    StageStatus,
    TaskResult,
    TaskStatus,
    TuneEvent,
    TuneProgress,
)
from localspec.tuning.words import (
    DONE,
    RUNNING,
    STAGE_WORDS,
    UNITS,
    attempts_words,
    bar,
    best_words,
    clock,
    counts,
    figure,
    gain_interval,
    load_options_words,
    settings_words,
    shortened,
    sparkline,
)
from localspec.types import TaskType
from localspec.units import duration

_BAR = 24  # columns at most
_CURVE = 40
_FEWEST = 8  # columns worth drawing a bar in
_WIDE = 200


def results_width() -> int:
    """Return the columns for results; what is no terminal has room for each on a line."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _WIDE


def lasting(event: TuneEvent, ended: StageStatus | None, progress: TuneProgress) -> Iterator[str]:
    """Yield what stays readable after an event."""
    if ended is not None:
        yield from stage_ended(ended, progress)
    match event:
        case LoadOptionsChosen():
            yield f"  {attempts_words(event)}; {load_options_words(event.workplace)}"
            yield f"  {event.reason}"
        case TaskResult():
            yield result_words(event)


def stage_began(event: StageBegan) -> str:
    """Return that a stage begins, where no bar shows it."""
    line = f"{_title(event.stage, event.task)}: {STAGE_WORDS[event.stage]}"
    return f"{line}, up to {event.steps} {UNITS[event.stage]}" if event.steps > 1 else line


def stage_ended(state: StageStatus, progress: TuneProgress) -> Iterator[str]:
    """Yield what came of a stage."""
    title = f"{DONE} {_title(state.stage, state.task)}"
    took = "" if state.took_s is None else f", {duration(state.took_s)}"
    why = f" ({state.note})" if state.note and state.done < state.steps else ""
    yield f"{title}: {counts(state)}{why}{took}"
    best = progress.of(state.task).best if state.task is not None else None
    if state.stage == "study" and best is not None:
        yield f"  best: {settings_words(best.settings)}: {best_words(best)}"


def result_words(result: TaskResult) -> str:
    """Return a result in a line that can be read in passing."""
    if result.settings.mode == "off":
        return f"{DONE} {result.task}: plain decoding; {result.reason}"
    winner = result.winner
    gain = f"×{winner.gain.value:.2f} of plain ({gain_interval(winner.gain)})"
    words = settings_words(result.settings)
    return f"{DONE} {result.task}: {words}: {figure(winner.rate.value)} tok/s, {gain}"


def block(progress: TuneProgress, now_s: float, width: int) -> list[str]:
    """Return the few lines that are drawn anew: the running stage, the best so far, the time."""
    state, lines = progress.current, []
    if state is not None:
        lines.append(stage_line(state, width))
        task = progress.of(state.task) if state.task is not None else None
        lines += best_lines(task, width) if task is not None else []
    left_s = progress.left_s(now_s)
    left = "" if left_s is None else f", about {duration(left_s)} left"
    time_line = f"{clock(progress.took_s(now_s))} so far{left}. Ctrl+C stops"
    wordy = f"{time_line} and keeps what was found"
    lines.append(wordy if len(wordy) <= width else time_line)
    return [shortened(line, width) for line in lines]


def stage_line(state: StageStatus, width: int) -> str:
    """Return the running stage with a bar as wide as there is room for."""
    title = f"{RUNNING} {_title(state.stage, state.task)}: {STAGE_WORDS[state.stage]}"
    done = counts(state)
    room = min(_BAR, width - len(title) - len(done) - 4)
    if room < _FEWEST:
        return f"{title}  {done}"
    line = f"{title}  {bar(state.fraction, room)}  {done}"
    return f"{line}  {state.note}" if state.note else line


def best_lines(task: TaskStatus, width: int) -> list[str]:
    """Return the best settings so far, and how it came to them."""
    if task.best is None:
        return []
    words = best_words(task.best)
    curve = sparkline(task.history, min(_CURVE, width - len(words) - 4))
    return [f"  {settings_words(task.best.settings)}", f"  {words}  {curve}".rstrip()]


def _title(stage: str, task: str | None) -> str:
    return stage if task is None else f"{task}, {stage}"


REDRAWN_S = 0.1
_DISPLAY_FEWEST = 10
_NARROW = 80  # columns where nobody knows
_DIM, _BOLD, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"


class TuneView:
    """Says what a run does, a line for each stage as it begins and ends; a context manager.

    With a canvas it draws a few lines in place; a thread of its own keeps the clock going between events.
    """

    def __init__(self, tasks: Sequence[TaskType], canvas: Canvas | None = None) -> None:
        self.progress = TuneProgress(tasks, time.monotonic())
        self.canvas = canvas
        self._lock = threading.RLock()  # Ctrl+C tells something while an event is taken in
        self._said: list[str] = []  # and not shown yet
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="localspec-tune-view", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._show([])

    def take(self, event: TuneEvent) -> None:
        """Show what an event says."""
        with self._lock:
            ended = self.progress.take(event, time.monotonic())
            self.tell(*lasting(event, ended, self.progress))
        if self.canvas is None and isinstance(event, StageBegan):
            self.tell(stage_began(event))

    def tell(self, *lines: str) -> None:
        """Say something else, above the lines that are drawn anew."""
        if self.canvas is None:
            for line in lines:
                say(line)
            return
        with self._lock:
            self._said += lines

    def _redraw(self) -> None:
        while self.canvas is not None and not self._ended.wait(REDRAWN_S):
            with self._lock:
                self._show(block(self.progress, time.monotonic(), self.canvas.width))

    def _show(self, lines: Sequence[str]) -> None:
        if self.canvas is not None:
            self.canvas.draw(self._said, lines)
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
            return max(_DISPLAY_FEWEST, os.get_terminal_size(self._stream.fileno()).columns - 1)
        except (OSError, ValueError):
            return _NARROW - 1

    def draw(self, kept: Sequence[str], lines: Sequence[str]) -> None:
        """Put `lines` in place of those before, below `kept`."""
        lines = [safe_line(line) for line in lines]
        if not kept and tuple(lines) == self._drawn:
            return
        width = self.width
        above = (row for line in kept for row in wrap(safe_line(line), width, subsequent_indent="    "))
        self._stream.write(Styled(self._erased(width + 1) + "".join(f"{row}\n" for row in above)))
        self._stream.write(Styled("\n".join(self._styled(lines))))
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
    return TuneView(tasks, Canvas(sys.stderr) if draws else None)
