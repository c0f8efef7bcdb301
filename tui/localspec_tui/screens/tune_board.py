"""How far the tuner is: a row with a bar for what serves all tasks, and for each task; then the results."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from textual.content import Content
from textual.widgets import Static

from localspec.cli.tune.results import result_lines
from localspec.cli.tune.tune_lines import counts
from localspec.tuning.progress import StageState, TaskState, TuneProgress
from localspec.tuning.words import (
    STAGE_WORDS,
    UNICODE,
    attempts_words,
    bar,
    best_words,
    settings_words,
    sparkline,
    workplace_words,
)
from localspec.units import duration

_NAMES = 10  # columns
_INDENT = " " * (_NAMES + 3)
_BAR = 30
_FEWEST = 8
_WORDY = 100  # columns from which a stage is described
_CURVE = 60


class TuneBoard(Static):
    """Drawn anew from the state of a run; as wide as there is room for."""

    DEFAULT_CSS = """
    TuneBoard { width: 100%; height: auto; }
    """

    def show(self, progress: TuneProgress) -> None:
        """Show where a run stands."""
        self.update(drawn(progress, self.size.width))


def drawn(progress: TuneProgress, width: int) -> Content:
    """Return the whole board."""
    lines = [*_shared(progress, width)]
    for task in progress.tasks:
        lines += _task(task, [state for state in progress.stages if state.task == task.task], width)
    results = result_lines(progress.results, width)
    if results:
        lines += [Content(""), *(Content(line) for line in results)]
    return Content("\n").join(lines)


def _shared(progress: TuneProgress, width: int) -> Iterator[Content]:
    for state in progress.stages:
        if state.task is None:
            yield _stage(state.stage, state, width)
        if state.stage == "machine" and progress.workplace is not None:
            place = workplace_words(progress.workplace.workplace)
            yield from _detail(f"{place}; {attempts_words(progress.workplace)}", width)


def _task(task: TaskState, stages: list[StageState], width: int) -> Iterator[Content]:
    if task.result is not None:
        row = Content.assemble(
            (f"{task.task:<{_NAMES}} ", "bold"),
            ("✓ ", "$text-success"),
            f"tuned in {duration(_took(stages))}",
        )
        yield row
    elif stages:
        yield _stage(task.task, stages[-1], width)
    else:
        yield Content.assemble((f"{task.task:<{_NAMES}} ", "bold"), ("· waits", "dim"))
    if task.best is None or task.result is not None:
        return
    yield from _detail(settings_words(task.best.settings), width)
    words = best_words(task.best)
    curve = sparkline(task.history, min(_CURVE, width - len(_INDENT) - len(words) - 2))
    *first, last = _detail(words, width)
    yield from [*first, last + Content.styled(f"  {curve}", "$accent")]


def _stage(name: str, state: StageState, width: int) -> Content:
    """Return a stage in a row: its name, a mark, a bar, how much is done."""
    is_done = state.took_s is not None
    mark = (f"{UNICODE.done} ", "$text-success") if is_done else (f"{UNICODE.running} ", "$text-primary")
    label = "" if state.task is None else f"{state.stage:<8} "
    done = f"  {counts(state)}"
    if state.took_s is not None:
        done += f", {duration(state.took_s)}"
    room = min(_BAR, width - _NAMES - 3 - len(label) - len(done))
    drawn_bar = bar(1.0 if is_done else state.fraction, room) if room >= _FEWEST else ""
    row = Content.assemble(
        (f"{name:<{_NAMES}} ", "bold"),
        mark,
        label,
        (drawn_bar, "$success" if is_done else "$primary"),
        done,
    )
    if width < _WORDY or is_done:
        return row
    return row + Content.styled(f"  {state.note or STAGE_WORDS[state.stage]}", "dim").truncate(
        max(1, width - row.cell_length), ellipsis=True
    )


def _detail(text: str, width: int) -> Iterator[Content]:
    for line in wrap(text, max(20, width - len(_INDENT))):
        yield Content.styled(f"{_INDENT}{line}", "dim")


def _took(stages: list[StageState]) -> float:
    return sum(state.took_s or 0.0 for state in stages)
