"""Show a run of the tuner on standard error: a line for each stage, and on a terminal where it is."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence

from localspec.cli.shared.console import StatusLine, is_terminal, say
from localspec.tuning.events import (
    LoadOptionsChosen,
    StageBegan,
    StageStatus,
    TaskResult,
    TuneEvent,
    TuneProgress,
)
from localspec.tuning.words import (
    DONE,
    STAGE_WORDS,
    UNITS,
    attempts_words,
    best_words,
    clock,
    counts,
    figure,
    gain_interval,
    load_options_words,
    settings_words,
)
from localspec.types import TaskType
from localspec.units import duration

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
    """Return that a stage begins, where no line shows it."""
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


def status(progress: TuneProgress, state: StageStatus, now_s: float) -> str:
    """Return the running stage in a line, the best so far and the time."""
    parts = [f"{_title(state.stage, state.task)}: {counts(state)}", state.note]
    if state.task is not None and (best := progress.of(state.task).best) is not None:
        parts.append(f"best {best_words(best)}")
    left_s = progress.left_s(now_s)
    parts.append(f"{clock(progress.took_s(now_s))} so far")
    parts.append("" if left_s is None else f"about {duration(left_s)} left")
    return "  ".join(filter(None, parts))


def _title(stage: str, task: str | None) -> str:
    return stage if task is None else f"{task}, {stage}"


class TuneView(StatusLine):
    """Says what a run does: a line for each stage, and below it where it is; a context manager."""

    def __init__(self, tasks: Sequence[TaskType]) -> None:
        """Begin now."""
        super().__init__()
        self.progress = TuneProgress(tasks, time.monotonic())

    def take(self, event: TuneEvent) -> None:
        """Show what an event says."""
        now_s = time.monotonic()
        ended = self.progress.take(event, now_s)
        self.tell(*lasting(event, ended, self.progress))
        if not self.enabled and isinstance(event, StageBegan):
            self.tell(stage_began(event))
        elif self.progress.current is not None:
            self.update(status(self.progress, self.progress.current, now_s))

    def tell(self, *lines: str) -> None:
        """Say something else, which stays."""
        self.clear()
        for line in lines:
            say(line)
