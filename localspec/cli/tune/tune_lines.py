"""What a run of the tuner says while it goes on: a line for each stage, and a few that are drawn anew."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.tuning.events import StageBegan, TaskDone, TaskResult, TuneEvent, WorkplaceChosen
from localspec.tuning.progress import StageState, TaskState, TuneProgress
from localspec.tuning.words import (
    STAGE_WORDS,
    UNITS,
    Glyphs,
    attempts_words,
    bar,
    best_words,
    clock,
    figure,
    gain_interval,
    settings_words,
    shortened,
    sparkline,
    workplace_words,
)
from localspec.units import duration

_BAR = 24  # columns at most
_CURVE = 40
_FEWEST = 8  # columns worth drawing a bar in


def lasting(
    event: TuneEvent, ended: StageState | None, progress: TuneProgress, with_: Glyphs
) -> Iterator[str]:
    """Yield what stays readable after an event."""
    if ended is not None:
        yield from stage_ended(ended, progress, with_)
    match event:
        case WorkplaceChosen():
            yield f"  {attempts_words(event)}; {workplace_words(event.workplace)}"
            yield f"  {event.reason}"
        case TaskDone(result):
            yield result_words(result, with_)


def stage_began(event: StageBegan) -> str:
    """Return that a stage begins, where no bar shows it."""
    line = f"{_title(event.stage, event.task)}: {STAGE_WORDS[event.stage]}"
    if event.kept:
        return f"{line}, {event.kept} of {event.steps} {UNITS[event.stage]} kept from before"
    return f"{line}, up to {event.steps} {UNITS[event.stage]}" if event.steps > 1 else line


def stage_ended(state: StageState, progress: TuneProgress, with_: Glyphs) -> Iterator[str]:
    """Yield what came of a stage."""
    title = f"{with_.done} {_title(state.stage, state.task)}"
    if state.kept >= state.steps > 0:
        yield f"{title}: kept from before"
    else:
        took = "" if state.took_s is None else f", {duration(state.took_s)}"
        why = f" ({state.note})" if state.note and state.done < state.steps else ""
        yield f"{title}: {counts(state)}{why}{took}"
    best = progress.of(state.task).best if state.task is not None else None
    if state.stage == "study" and best is not None:
        yield f"  best: {settings_words(best.settings)}: {best_words(best)}"


def counts(state: StageState) -> str:
    """Return how much of a stage is done."""
    return f"{state.done} of {state.steps} {UNITS[state.stage]}"


def result_words(result: TaskResult, with_: Glyphs) -> str:
    """Return a result in a line that can be read in passing."""
    if result.settings.mode == "off":
        return f"{with_.done} {result.task}: plain decoding; {result.reason}"
    winner = result.winner
    gain = f"{with_.times}{winner.gain.value:.2f} of plain ({gain_interval(winner.gain)})"
    words = settings_words(result.settings)
    return f"{with_.done} {result.task}: {words}: {figure(winner.rate.value)} tok/s, {gain}"


def block(progress: TuneProgress, now_s: float, width: int, with_: Glyphs) -> list[str]:
    """Return the few lines that are drawn anew: the running stage, the best so far, the time."""
    state, lines = progress.current, []
    if state is not None:
        lines.append(stage_line(state, width, with_))
        task = progress.of(state.task) if state.task is not None else None
        lines += best_lines(task, width, with_) if task is not None else []
    left_s = progress.left_s(now_s)
    left = "" if left_s is None else f", about {duration(left_s)} left"
    time_line = f"{clock(progress.took_s(now_s))} so far{left}. Ctrl+C stops"
    wordy = f"{time_line} and keeps what was found"
    lines.append(wordy if len(wordy) <= width else time_line)
    return [shortened(line, width) for line in lines]


def stage_line(state: StageState, width: int, with_: Glyphs) -> str:
    """Return the running stage with a bar as wide as there is room for."""
    title = f"{with_.running} {_title(state.stage, state.task)}: {STAGE_WORDS[state.stage]}"
    done = counts(state)
    room = min(_BAR, width - len(title) - len(done) - 4)
    if room < _FEWEST:
        return f"{title}  {done}"
    line = f"{title}  {bar(state.fraction, room, with_)}  {done}"
    return f"{line}  {state.note}" if state.note else line


def best_lines(task: TaskState, width: int, with_: Glyphs) -> list[str]:
    """Return the best settings so far, and how it came to them."""
    if task.best is None:
        return []
    words = best_words(task.best)
    curve = sparkline(task.history, min(_CURVE, width - len(words) - 4), with_)
    return [f"  {settings_words(task.best.settings)}", f"  {words}  {curve}".rstrip()]


def _title(stage: str, task: str | None) -> str:
    return stage if task is None else f"{task}, {stage}"
