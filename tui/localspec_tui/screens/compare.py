"""Answer one question in several modes, one after the other, and see texts and figures side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static, Tab, Tabs

from localspec.chat.answering import AnswerEvent, LiveAnswer
from localspec.chat.comparison import ComparedAnswer, figures, plain_rate, verdict
from localspec.chat.figures import mode_name
from localspec.chat.messages import BranchMessage
from localspec.chat.running_answer import STUCK_S
from localspec.types.request import Mode
from localspec.units import MODE_NAMES
from localspec_tui.keys import KeyFooter
from localspec_tui.screens.chat.status import STUCK
from localspec_tui.screens.dialog import Dialog
from localspec_tui.widgets.explained import ExplainedText
from localspec_tui.widgets.transcript.message import DisplayOptions, MessageBody, prepare
from localspec_tui.workers import start_worker

TICKS_PER_S = 12


def comparable(modes: Iterable[Mode], *, has_draft: bool) -> tuple[Mode, ...]:
    """Return the modes that need no more than there is, plain decoding first: ratios refer to it."""
    possible = [mode for mode in modes if has_draft or mode in {"off", "ngram"}] or ["off"]
    return tuple(sorted(possible, key=lambda mode: mode != "off"))


class AnswerColumn(Vertical, can_focus=True):
    """An answer in one mode. `live` is fed by the thread that answers."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "keep", "Keep this answer", id="compare.keep"),
        Binding("up", "scroll_text(-1)", "Up", show=False, id="compare.up"),
        Binding("down", "scroll_text(1)", "Down", show=False, id="compare.down"),
    ]

    def __init__(self, mode: Mode, keep: Callable[[int], None]) -> None:
        super().__init__(id=f"mode-{mode}")
        self.mode = mode
        self._keep = keep
        self.live = LiveAnswer()
        self.answer: ComparedAnswer | None = None
        self._message_id: int | None = None
        self._body: MessageBody | None = None  # once the answer has begun
        self._complete = False
        self._has_ended = False
        self.border_title = Content(f"{mode_name(mode)}  waiting")

    def compose(self) -> ComposeResult:
        """Yield the text, the figures and the way to keep them."""
        yield VerticalScroll(can_focus=False)
        yield ExplainedText(classes="answer-column--figures", markup=False)
        yield Static(classes="answer-column--keep", markup=False)

    def on_mount(self) -> None:
        """Follow the text as it grows."""
        view = self.query_one(VerticalScroll)
        self.watch(view, "virtual_size", lambda: self._follow(view))

    def look(self) -> bool:
        """Show new text; return whether the answer has finished."""
        update = self.live.drain()
        if update.started is not None:
            message = update.started.message
            self._message_id = message.id
            item = BranchMessage(message)
            self._body = MessageBody(item, prepare(item), DisplayOptions())
            self.query_one(VerticalScroll).mount(self._body)
            self._entitle("reading the question")
        if update.text and self._body is not None:
            self._body.append(update.text, update.pieces)
            self._entitle("writing")
        if update.finished is not None:
            self._complete = update.finished.reason != "cancelled"
        if update.error is not None:
            self._entitle("failed")
            self.show_figures([str(update.error) or type(update.error).__name__])
        if update.saved is None or self._body is None:
            return False
        written = self._body.text
        message = replace(update.saved.message, content=written)
        start_worker(self, self._body.finish, BranchMessage(message), group="finish", exclusive=True)
        self._entitle("" if self._complete else "stopped")
        if update.saved.record is not None:
            self.answer = ComparedAnswer(written, update.saved.record, self._complete)
        self._has_ended = True
        self.refresh_bindings()
        self.query_one(".answer-column--keep", Static).update("Enter keeps this answer")
        return True

    def show_figures(self, lines: Sequence[str]) -> None:
        """Show figures below the text."""
        self.query_one(".answer-column--figures", Static).update(Content("\n".join(lines)))

    def action_keep(self) -> None:
        """Ask for this answer to stay shown."""
        if self._message_id is not None:
            self._keep(self._message_id)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keep no answer before it has ended: Enter may belong to text that is being typed."""
        return self._has_ended if action == "keep" else super().check_action(action, parameters)

    def action_scroll_text(self, lines: int) -> None:
        """Scroll the text."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_click(self, event: events.Click) -> None:
        """Keep the answer when the line is clicked."""
        if event.widget is not None and event.widget.has_class("answer-column--keep") and self._has_ended:
            self.action_keep()

    def _follow(self, view: VerticalScroll) -> None:
        """Follow the text once it is longer than the column, which fills from the top."""
        if view.max_scroll_y > 0 and not view.is_anchored:
            view.anchor()

    def _entitle(self, state: str) -> None:
        self.border_title = Content(f"{mode_name(self.mode)}  {state}".rstrip())


class CompareScreen(Dialog[int | None]):
    """A column for each mode, in tabs where it is narrow. Returns the message to keep showing.

    One thread runs the modes one after the other: at once, they would share the machine.
    """

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012 - an instance attribute in Textual

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Stop and close", id="compare.leave"),
        Binding("left", "step(-1)", "Previous", id="compare.previous"),
        Binding("right", "step(1)", "Next", id="compare.next"),
    ]

    def __init__(
        self,
        modes: Sequence[Mode],
        run: Callable[[Mode], Iterator[AnswerEvent]],
        cancel: Callable[[], None],
        end_engine: Callable[[], None],
    ) -> None:
        """Compare; `end_engine` is for one that does not respond to `cancel`, and may take a second."""
        super().__init__()
        self._answer = run
        self._cancel_answer = cancel
        self._end_engine = end_engine
        self._columns = tuple(AnswerColumn(mode, self._leave) for mode in modes)
        self._stopped_s: float | None = None
        self._at = 0  # the mode that runs
        self._busy = True
        self._chosen = False  # whether the reader picked a column himself
        self._kept: int | None = None

    def compose(self) -> ComposeResult:
        """Return progress, columns and verdict."""
        yield Static(id="compare-progress", markup=False)
        yield Tabs(*(Tab(mode_name(each.mode), id=f"tab-{each.mode}") for each in self._columns))
        with Horizontal():
            yield from self._columns
        yield Static(id="compare-verdict", markup=False)
        yield KeyFooter()

    def on_mount(self) -> None:
        """Begin with the first mode."""
        self.query_one(Tabs).can_focus = False
        self._go_to(self._columns[0])
        self._tell()
        self.set_interval(1 / TICKS_PER_S, self._look)
        start_worker(self, self._answer_all)

    def on_unmount(self) -> None:
        """Stop what runs if the program ends."""
        if self._busy:
            self._stop()

    async def _answer_all(self) -> None:
        for index, column in enumerate(self._columns):
            if self._stopped_s is not None:
                break
            self._at = index
            await asyncio.to_thread(self._answer_in, column)
        self._look()
        self._busy = False
        self._tell()
        if self._stopped_s is not None:
            self.dismiss(self._kept)

    def _answer_in(self, column: AnswerColumn) -> None:
        """Belongs to a thread."""
        try:
            for event in self._answer(column.mode):
                column.live.take(event)
                if self._stopped_s is not None:  # asked before this answer was in progress
                    self._cancel_answer()
        except Exception as error:  # noqa: BLE001 - the column shows it
            column.live.take(error)

    def _look(self) -> None:
        finished = [column.look() for column in self._columns]
        if any(finished):
            self._weigh()
        if self._busy:
            self._tell()
            if not self._chosen and self._columns[self._at] is not self.focused:
                self._go_to(self._columns[self._at])

    def _weigh(self) -> None:
        """Show figures and verdict; a ratio appears as soon as the plain answer is there to compare with."""
        answers = [column.answer for column in self._columns if column.answer is not None]
        plain = plain_rate(answers)
        for column in self._columns:
            if column.answer is not None:
                column.show_figures(figures(column.answer, plain))
        self.query_one("#compare-verdict", Static).update(Content(verdict(answers)))

    def _tell(self) -> None:
        if not self._busy:
            text = "Every mode has answered once.  Enter keeps the chosen answer, Esc closes"
        elif self._stopped_s is not None:
            text = STUCK if self._is_stuck else "Stopping… The text so far is saved"
        else:
            name = MODE_NAMES[self._columns[self._at].mode]
            which = f"{self._at + 1} of {len(self._columns)}"
            text = f"Answering in mode {name}, {which}.  Esc stops"
        self.query_one("#compare-progress", Static).update(Content(text))

    def _go_to(self, column: AnswerColumn) -> None:
        for other in self._columns:
            other.set_class(other is column, "-shown")
        self.query_one(Tabs).active = f"tab-{column.mode}"
        column.focus()

    def action_step(self, step: int) -> None:
        """Go to the next column, or the one before."""
        self._chosen = True
        at = next((index for index, column in enumerate(self._columns) if column is self.focused), 0)
        self._go_to(self._columns[(at + step) % len(self._columns)])

    @on(Tabs.TabActivated)
    def _tab_chosen(self, event: Tabs.TabActivated) -> None:
        column = next(each for each in self._columns if event.tab.id == f"tab-{each.mode}")
        if not column.has_class("-shown"):
            self._chosen = True
            self._go_to(column)

    def action_leave(self) -> None:
        """Stop what runs, and close."""
        self._leave(None)

    def _leave(self, kept: int | None) -> None:
        self._kept = kept
        if not self._busy:
            self.dismiss(kept)
        elif self._is_stuck:
            self.run_worker(self._end_engine, thread=True, group="end", exclusive=True)
        else:
            self._stop()
            self._tell()

    @property
    def _is_stuck(self) -> bool:
        return self._stopped_s is not None and time.monotonic() - self._stopped_s >= STUCK_S

    def _stop(self) -> None:
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()
            self._cancel_answer()
