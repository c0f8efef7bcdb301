"""What the screen tells: title, figures, context, loading, errors."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from localspec.app import figures
from localspec.chat import live_stats
from localspec.chat.commands import Command
from localspec.chat.live import LiveUpdate
from localspec.chat.live_stats import Figures, LiveStats
from localspec.chat.loading import Closed, Failed, Loading, LoadState, Ready
from localspec.chat.messages import AnswerRecord, StoredMessage
from localspec.chat.prompting import ContextUse, after_answer, estimate, warning
from localspec.errors import (
    Cancelled,
    ContextFullError,
    EngineDied,
    EngineError,
    LocalSpecError,
    UserError,
)
from localspec.models.default_pair import introduction, name_of
from localspec.types import DeviceMemory, Mode
from localspec_tui.screens.dialogs import NoteScreen
from localspec_tui.widgets.status import StatusLine
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.title_bar import TitleBar
from localspec_tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from localspec_tui.screens.chat.screen import ChatScreen

NOTICE_S = 12.0
CHARACTERS_PER_TOKEN = 3.5  # of what is being typed, where nothing has been counted


class Reporter:
    """Keeps the title bar, the status line and the timeline true."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._desk = screen.desk
        self._gauge = LiveStats(screen.desk.rates)
        self._record: AnswerRecord | None = None  # of the last answer of the open chat
        self._draft = ""
        self._warned: str | None = None
        self._prompt_tokens = self._written = 0  # of the answer under way
        self._held = ContextUse(0, 0)  # what the open chat takes
        self._is_new = True

    @property
    def _status(self) -> StatusLine:
        return self._screen.query_one(StatusLine)

    # --- an answer under way ---

    def begin(self) -> None:
        """Get ready for a new answer."""
        self._status.say("")
        self._gauge.start("off")

    def tell(self, update: LiveUpdate) -> None:
        """Show what an answer has done since the last time."""
        timeline = self._screen.query_one(Timeline)
        if update.started is not None:
            mode = self._take_up()
            self._screen.query_one(TitleBar).chat_title = self._desk.chat.info.title
            models = self._screen.loader.ready
            size = models.target.context if models is not None else 0
            self._prompt_tokens = estimate(self._desk.chat.prompt(), size).used
            self._written = 0
            self._gauge.start(mode, self._prompt_tokens)
            timeline.clear(f"{live_stats.mode_name(mode)} answer under way")
        if update.progress is not None and update.progress.total:
            done, total = update.progress.done, update.progress.total
            self._status.say(f"reading the prompt: {done:,} of {total:,} tokens")
        for change in update.changes:
            self._gauge.changed(change)
            self._status.say(change.reason)
        if update.rounds:
            if update.progress is None:
                self._status.say("")
            self._gauge.add(update.rounds)
            self._written += sum(mark.tokens for mark in update.rounds)
            self._show_use(self._prompt_tokens + self._written, estimated=True)
            timeline.add(update.rounds)
            self._status.show(self._gauge.figures())
        if update.saved is not None and update.saved.record is not None:
            self._take_record(update.saved.record)

    def _take_up(self) -> Mode:
        """Show what was chosen for an answer under way; return its mode."""
        for notice in self._desk.take_notices():
            self._screen.notify(notice, severity="warning", timeout=NOTICE_S, markup=False)
        options = self._desk.in_use
        if options is None:
            return "off"
        self._status.show_choice(self._desk.route_shown(options.profile), options.reason)
        return options.request.settings.mode

    def _take_record(self, record: AnswerRecord) -> None:
        self._record = record
        self._weigh()
        self._show_figures(record)
        self._show_context()

    def _show_figures(self, record: AnswerRecord) -> None:
        self._status.show(live_stats.of_record(record))
        self._status.show_choice(self._desk.route_shown(record.profile), record.reason)

    async def explain(self, error: BaseException) -> None:
        """Say what ended an answer before its end, and what can be done."""
        match error:
            case Cancelled():
                self._screen.say("stopped")
            case ContextFullError():
                self._screen.say(in_words(error))
                if any(message.role == "assistant" for message in self._desk.chat.path):
                    await self._screen.run_command(Command("drop"))
            case EngineDied():
                self._screen.say(f"{error}; what was written is kept")
                self._screen.loader.reopen()
            case _:
                self._screen.say(in_words(error))

    # --- the open chat ---

    def show_chat(self) -> None:
        """Show title, profile, mode and the figures of the last answer of the open chat."""
        bar, chat = self._screen.query_one(TitleBar), self._desk.chat
        bar.chat_title, bar.profile = chat.info.title, self._desk.profile.title
        bar.mode = f"mode {self._desk.mode or 'auto'}"
        answers = [message for message in chat.path if message.role == "assistant"]
        last = answers[-1] if answers else None
        self._record = chat.outline(last.id) if last is not None else None
        self._weigh()
        if self._record is not None:
            self._show_figures(self._record)
        elif not self._screen.pane.answering:
            self._status.show(Figures(""))
            self._status.show_choice("", "")
        if not self._screen.pane.working:
            self._screen.run_worker(self._find_timeline(last), group="timeline", exclusive=True)
        self._show_context()

    async def _find_timeline(self, message: StoredMessage | None) -> None:
        """Show the rounds of an answer, which take a while to read."""
        record = None
        if message is not None:
            with suppress(LocalSpecError):
                record = await asyncio.to_thread(self._desk.chat.record, message.id)
        if not self._screen.pane.working:
            self._show_timeline(message, record)

    def _show_timeline(self, message: StoredMessage | None, record: AnswerRecord | None) -> None:
        timeline = self._screen.query_one(Timeline)
        if message is None or record is None:
            timeline.clear("no answer yet")
        else:
            moment = datetime.fromtimestamp(message.created).astimezone()
            timeline.show(record.rounds, f"{live_stats.mode_name(record.mode)} answer of {moment:%H:%M}")

    async def show_timeline(self, message: StoredMessage) -> None:
        """Show the rounds of an earlier answer."""
        record = await asyncio.to_thread(self._desk.chat.record, message.id)
        if record is None:
            raise UserError("there are no figures for this message", "choose an answer")
        self._show_timeline(message, record)
        self._screen.query_one(Timeline).remove_class("hidden")

    async def show_stats(self, message: StoredMessage) -> None:
        """Show all figures of an answer."""
        record = await asyncio.to_thread(self._desk.chat.record, message.id)
        if record is None:
            raise UserError("there are no figures for this answer", "it was written or edited by hand")
        lines = figures.table(record.settings, record.reason, record.summary)
        if record.plain is not None:
            lines.append(f"plain decoding, measured here: {record.plain.tokens_per_s:.1f} tok/s")
        self._screen.app.push_screen(NoteScreen("Figures of this answer", "\n".join(lines)))

    # --- context ---

    def draft_changed(self, text: str) -> None:
        """Count in what is being typed."""
        self._draft = text
        self._show_context()

    def _weigh(self) -> None:
        """Find out what the open chat takes: its last answer tells, unless it was edited or broken off."""
        counted = None if self._record is None else after_answer(self._record, 0)
        path = self._desk.chat.path
        self._is_new = not any(message.role == "assistant" for message in path)
        self._held = counted or (estimate(self._desk.chat.prompt(), 0) if path else ContextUse(0, 0))

    def _show_context(self) -> None:
        held, typed = self._held, round(len(self._draft) / CHARACTERS_PER_TOKEN)
        use = self._show_use(held.used + typed, estimated=held.estimated or typed > 0)
        line = warning(use, is_new=self._is_new) if use is not None else None
        if line is not None or (self._warned and self._status.said == self._warned):
            self._screen.say(line or "")
        self._warned = line

    def _show_use(self, used: int, *, estimated: bool) -> ContextUse | None:
        models = self._screen.loader.ready
        if models is None:
            return None
        use = ContextUse(used, models.target.context, estimated=estimated)
        self._status.show_context(use.used, use.size, use.estimated)
        return use

    # --- loading ---

    async def loaded(self, state: LoadState) -> None:
        """Show how the models are coming along."""
        match state:
            case Loading(fraction):
                self._status.show_loading(fraction)
            case Ready(models):
                self._status.show_loading(None)
                draft = models.draft
                names = name_of(models.target) + (f" + {name_of(draft)}" if draft is not None else "")
                self._screen.query_one(TitleBar).models = names
                more = introduction(models.target)
                self._screen.query_one(Welcome).introduce(f"{names}: {more}" if more else names)
                for note in models.notes:
                    self._screen.say(note)
                self._show_context()
                await self.show_memory()
            case Failed(message, hint):
                self._status.show_loading(None)
                self._screen.say(f"{message}; {hint}" if hint else message)
            case Closed():
                self._status.show_loading(None)

    async def show_memory(self) -> None:
        """Show how full the devices are."""
        models = self._screen.loader.ready
        if models is not None:
            with suppress(EngineError):  # whoever next asks them for something is told
                memory: tuple[DeviceMemory, ...] = await asyncio.to_thread(models.memory)
                self._status.show_memory(memory)


def in_words(error: BaseException) -> str:
    """Return an error as one line, with what to do about it."""
    if isinstance(error, UserError) and error.hint:
        return f"{error.message}; {error.hint}"
    return " ".join(str(error).split()) or type(error).__name__
