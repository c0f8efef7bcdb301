"""Tune from the chat: choose the kinds of work, watch, stop at any time; the results stay until read."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from textwrap import wrap
from typing import ClassVar, Literal, get_args

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, SelectionList, Static

from localspec.app.tuning import DEFAULT_TASKS, StopSignal, TuneChoice
from localspec.benchmark.statistics import Interval
from localspec.chat.answer_settings import TunedLookup
from localspec.chat.loading import ModelLoader
from localspec.errors import Cancelled, LocalSpecError
from localspec.storage.tuned_settings import TunedTask
from localspec.tuning.events import StageStatus, TaskStatus, TuneEvent, TuneProgress
from localspec.tuning.plan import usual_s
from localspec.tuning.words import (
    DONE,
    EMPTY,
    RUNNING,
    STAGE_WORDS,
    attempts_words,
    bar,
    best_words,
    clock,
    compared_words,
    counts,
    dropped_words,
    figure,
    load_options_words,
    mode_words,
    settings_words,
    shift_words,
    sparkline,
    verdict_words,
)
from localspec.types.request import EngineSettings, TaskType
from localspec.units import ago, duration
from localspec_tui.keys import KeyFooter
from localspec_tui.screens.dialog import Dialog
from localspec_tui.screens.dialogs import TickList
from localspec_tui.widgets.explained import ExplainedText
from localspec_tui.widgets.status import error_line
from localspec_tui.workers import start_worker

TICKS_PER_S = 8
TASKS: tuple[TaskType, ...] = get_args(TaskType)
_WORDS: dict[TaskType, str] = {
    "coding": "writing and explaining programs",
    "writing": "stories, letters, prose",
    "math": "solving step by step",
    "translate": "from one language into another",
    "summarise": "long texts made short",
    "dialogue": "everyday questions",
}
Tuner = Callable[[TuneChoice, StopSignal], Iterator[TuneEvent]]
"""Starts a run; what it yields may take long to come. It raises `Cancelled` when it is stopped."""
State = Literal["choice", "run", "end"]
# by which a machine is faster or slower than expected
SHORTER = 0.7
LONGER = 1.4
_NAMES = 10  # columns
_INDENT = " " * (_NAMES + 3)
_MODE = 18  # columns of the longest name of a mode
_BAR = 30
_FEWEST = 8
_WORDY = 90  # columns from which a stage is described
_CURVE = 60


def drawn(progress: TuneProgress, width: int) -> Content:
    """Return the whole board."""
    lines = [*_shared(progress, width)]
    for task in progress.tasks:
        lines += _task(task, [state for state in progress.stages if state.task == task.task], width)
    for result in progress.results:
        rates = result.contenders[0].rate.value, result.winner.rate.value
        words = verdict_words(result.settings, result.winner.gain, result.reason)
        lines += [Content(""), *verdict(result.task, words, result.settings, rates, width)]
        lines += [line for words in dropped_words(result) for line in _detail(words, width)]
    return Content("\n").join(lines)


def verdict(
    task: TaskType, words: str, settings: EngineSettings, rates: tuple[float, float], width: int
) -> Iterator[Content]:
    """Yield what was found for a task: a sentence, and bars of plain decoding and of what was chosen."""
    for row, line in enumerate(wrap(words, max(20, width - _NAMES - 1))):
        yield Content.assemble((f"{'' if row else task:<{_NAMES}} ", "bold"), line)
    if settings.mode == "off" or not max(rates):
        return
    indent = " " * (_NAMES + 1 if width >= _WORDY // 2 else 0)
    for name, rate in zip(("plain", mode_words(settings)), rates, strict=True):
        tail = f" {figure(rate)} tokens/s"
        room = max(1, min(2 * _BAR, width - len(indent) - _MODE - len(tail) - 1))
        drawn_bar = bar(rate / max(rates), room).rstrip(EMPTY)
        style = "$primary" if name == "plain" else "$success"
        yield Content.assemble(f"{indent}{name:<{_MODE}} ", (drawn_bar, style), tail)


def _shared(progress: TuneProgress, width: int) -> Iterator[Content]:
    for state in progress.stages:
        if state.task is None:
            yield _stage(state.stage, state, width)
        if state.stage == "machine" and progress.workplace is not None:
            place = load_options_words(progress.workplace.workplace)
            yield from _detail(f"{place}; {attempts_words(progress.workplace)}", width)
            if words := shift_words(progress.workplace):
                yield from _detail(words, width)
        if state.stage == "costs" and (words := compared_words(progress.compared)):
            yield from _detail(words, width)


def _task(task: TaskStatus, stages: list[StageStatus], width: int) -> Iterator[Content]:
    if task.result is not None:
        took = duration(sum(state.took_s or 0.0 for state in stages))
        name = (f"{task.task:<{_NAMES}} ", "bold")
        yield Content.assemble(name, ("✓ ", "$text-success"), f"tuned in {took}")
    elif stages:
        yield _stage(task.task, stages[-1], width)
    else:
        yield Content.assemble((f"{task.task:<{_NAMES}} ", "bold"), ("· waiting", "dim"))
    if task.best is None or task.result is not None:
        return
    yield from _detail(settings_words(task.best.settings), width)
    words = best_words(task.best)
    curve = sparkline(task.history, min(_CURVE, width - len(_INDENT) - len(words) - 2))
    *first, last = _detail(words, width)
    yield from [*first, last + Content.styled(f"  {curve}", "$accent")]


def _stage(name: str, state: StageStatus, width: int) -> Content:
    """Return a stage in a row: its name, a mark, a bar, how much is done."""
    is_done = state.took_s is not None
    mark = (f"{DONE} ", "$text-success") if is_done else (f"{RUNNING} ", "$text-primary")
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


class TuneScreen(Dialog[None]):
    """First a choice of tasks, then the run; the chat's models are closed meanwhile."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-wide")]  # noqa: RUF012 - an instance attribute in Textual

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "enter", "Begin, close at the end", priority=True, id="tune.begin"),
        Binding("q", "begin(True)", "Tune quickly", id="tune.quick"),
        Binding("r", "begin(False, True)", "Resume a stopped run", id="tune.resume"),
        Binding("escape,ctrl+c", "leave", "Stop, then close", priority=True, id="tune.leave"),
    ]
    _KEYS: ClassVar[dict[State, dict[str, str]]] = {
        "choice": {"enter": "Begin", "leave": "Leave"},
        "run": {"leave": "Stop"},
        "end": {"enter": "Close", "leave": "Close"},
    }

    def __init__(
        self,
        tuner: Tuner,
        loader: ModelLoader,
        models: str,
        tasks: Sequence[TaskType],
        known: TunedLookup,
        was_stopped: Callable[[], bool],
    ) -> None:
        """Choose tasks; `known` and `was_stopped`, called in a thread, report earlier runs."""
        super().__init__()
        self._known = known
        self._last: tuple[TunedTask, ...] = ()  # still valid
        self._tuner = tuner
        self._was_stopped = was_stopped
        self._goes_on = False
        self._loader = loader
        self._models = models
        self._tasks = tuple(tasks) or DEFAULT_TASKS
        self._stop = StopSignal()
        self._events: deque[TuneEvent] = deque()
        self._progress: TuneProgress | None = None  # None before the run
        self._outcome: Content | None = None  # None before its end

    def compose(self) -> ComposeResult:
        """Return the choice, and what takes its place."""
        with Vertical(id="tune", classes="frame") as box:
            box.border_title = f"Tune {self._models}".rstrip().replace("[", "\\[")
            with VerticalScroll(id="tune-choice"):
                yield ExplainedText(id="tune-last")
                yield Static("Measure this machine and find the fastest settings for:")
                yield TickList[TaskType](_line, TASKS, self._tasks)
                yield Static(id="tune-note", classes="note")
                with Horizontal(classes="buttons"):
                    yield Button("Begin  Enter", variant="primary", compact=True, action="screen.begin")
                    yield Button("Quick  q", compact=True, action="screen.begin(True)")
                    go_on = Button("Resume  r", compact=True, action="screen.begin(False, True)", id="go-on")
                    go_on.display = False
                    yield go_on
                    yield Button("Close  Esc", id="tune-leave", compact=True, action="screen.leave")
            with Vertical(id="tune-run"):
                yield Static(id="tune-head", markup=False)
                with VerticalScroll(id="tune-scroll"):
                    yield ExplainedText(id="tune-board")
        yield KeyFooter(words_of=self._key_words)

    def on_mount(self) -> None:
        """Show the choice of tasks."""
        self._estimate()
        self.query_one(SelectionList).focus()
        self.set_interval(1 / TICKS_PER_S, self._look)
        start_worker(self, self._recall)

    @on(SelectionList.SelectedChanged)
    def _estimate(self) -> None:
        """Say how long the chosen tasks take; only a run knows how fast the models are."""
        count = len(self.query_one(SelectionList).selected)
        note = self.query_one("#tune-note", Static)
        if not count:
            note.update("Choose at least one task with Space.")
            return
        whole, quick = (_minutes(usual_s(count, quick=quick)) for quick in (False, True))
        note.update(
            f"It takes about {whole} minutes, or {quick} when quick, and longer with slow models. The chat "
            "waits; its models are closed meanwhile. Speculation is turned off for tasks where it does not "
            "beat plain decoding."
        )

    async def _recall(self) -> None:
        """Look up earlier results for these models."""
        found = await asyncio.to_thread(lambda: [self._known(task) for task in TASKS])
        self._last = tuple(choice.kept for choice in found if choice is not None and choice.kept is not None)
        with suppress(LocalSpecError):
            self._goes_on = await asyncio.to_thread(self._was_stopped)
        self.query_one("#go-on").display = self._goes_on
        self.refresh_bindings()
        self._draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Let keys do what there is to do now; resume only where a run was stopped."""
        if action == "begin":
            return self._state == "choice" and (self._goes_on or parameters != (False, True))
        return action != "enter" or self._state != "run"

    def _key_words(self, name: str) -> str:
        """Return the words for Enter and Escape."""
        words = {"tune.begin": "enter", "tune.leave": "leave"}
        return self._KEYS[self._state].get(words.get(name, ""), "")

    def on_unmount(self) -> None:
        """Stop what runs if the program ends."""
        if self._is_running:
            self._stop.ask()

    def on_resize(self) -> None:
        """Draw again, as wide as it is now."""
        self.call_after_refresh(self._draw)

    @property
    def _is_running(self) -> bool:
        return self._state == "run"

    @property
    def _state(self) -> State:
        if self._progress is None:
            return "choice"
        return "run" if self._outcome is None else "end"

    # --- what the user does ---

    def action_enter(self) -> None:
        """Begin, or do what the focused button says; at the end, close."""
        if self._outcome is not None:
            self.dismiss(None)
        elif isinstance(self.focused, Button):
            self.focused.press()
        else:
            self.action_begin()

    def action_leave(self) -> None:
        """Stop the run; close where none runs."""
        if self._is_running:
            self._stop.ask()
            self._draw()
        else:
            self.dismiss(None)

    # --- the run ---

    def action_begin(self, quick: bool = False, resume: bool = False) -> None:
        """Start a run, with `quick` a shorter one, or resume one that was stopped."""
        chosen: list[TaskType] = self.query_one(SelectionList).selected
        if self._progress is not None:
            return
        if not chosen:
            return
        tasks = tuple(task for task in TASKS if task in chosen)
        self._progress = TuneProgress(tasks, time.monotonic())
        self.refresh_bindings()
        self.add_class("-running")
        self.query_one("#tune-scroll").focus()
        choice = TuneChoice(tasks, quick=quick, resume=resume)
        start_worker(self, self._run, choice)
        self.call_after_refresh(self._draw)

    async def _run(self, choice: TuneChoice) -> None:
        try:
            await asyncio.to_thread(self._tune, choice)
            outcome = Content("Done. The settings are saved, and mode auto uses them.")
        except Cancelled:
            tasks = " ".join(choice.tasks)
            outcome = Content(f"Stopped. Results so far are saved; /tune {tasks}, then r, resumes.")
        except Exception as error:  # noqa: BLE001 - the view reports it
            outcome = Content.styled(f"Tuning ended: {error_line(error)}", "$text-error")
        self._look()
        self._outcome = outcome
        self.refresh_bindings()
        self._draw()

    def _tune(self, choice: TuneChoice) -> None:
        """Belongs to a thread: memory may not do for the chat's models and the tuner's."""
        try:
            self._loader.release()
            self._events.extend(self._tuner(choice, self._stop))
        finally:
            self._loader.start()

    def _look(self) -> None:
        """Take in what came since the last time; the clock continues by itself."""
        if self._progress is None or self._outcome is not None:
            return
        while self._events:
            self._progress.take(self._events.popleft(), time.monotonic())
        self._draw()

    def _draw(self) -> None:
        if self._progress is None:
            last = self.query_one("#tune-last", Static)
            last.display = bool(self._last)
            last.update(_recalled(self._last, last.size.width or self.size.width - 8))
            return
        board = self.query_one("#tune-board", Static)
        board.update(drawn(self._progress, board.size.width))
        self.query_one("#tune-head", Static).update(self._outcome or self._head(self._progress))
        self.query_one("#tune", Vertical).border_subtitle = (
            "Enter closes" if self._outcome is not None else "stopping" if self._stop.wanted else "Esc stops"
        )

    def _head(self, progress: TuneProgress) -> str:
        if self._stop.wanted:
            return "Stopping… Results so far are saved"
        now_s = time.monotonic()
        left_s = progress.left_s(now_s)
        left = "" if left_s is None else f", about {duration(left_s)} left"
        return f"{clock(progress.took_s(now_s))} so far{left}"


def _minutes(seconds: float) -> str:
    """Return an expected time as a span of minutes: 3 to 6."""
    least, most = (max(1, round(factor * seconds / 60)) for factor in (SHORTER, LONGER))
    return str(least) if least == most else f"{least} to {most}"


def _recalled(last: Sequence[TunedTask], width: int) -> Content:
    """Return earlier results that are still valid."""
    lines = [Content("Found earlier, and used in mode auto:")]
    for kept in last:
        words = verdict_words(kept.settings, Interval(kept.gain, kept.gain_low, kept.gain_high), kept.reason)
        when = ago(kept.measured_at, datetime.now(UTC))
        lines += verdict(kept.task, f"{words}; {when}", kept.settings, (kept.plain_rate, kept.rate), width)
    return Content("\n").join([*lines, Content("")])


def _line(task: TaskType, chosen: bool) -> Content:
    """Return a task in a line."""
    return Content.assemble((f"{'tune' if chosen else '':<5}", "bold"), f"{task:<10} {_WORDS[task]}")
