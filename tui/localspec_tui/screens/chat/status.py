"""The status line of the open chat: figures of its answers, its context, the models, and what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from textual import work

from localspec import units
from localspec.chat.answering import AnswerSaved, LiveUpdate, Started
from localspec.chat.answers import ANSWERING
from localspec.chat.figures import Figures, of_record
from localspec.chat.live_stats import LiveStats
from localspec.chat.loading import Closed, Failed, Loading, LoadState, ModelLoader, Ready
from localspec.chat.messages import AnswerRecord, StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.prompting import after_answer, estimate, to_prompt, warning
from localspec.chat.session import ChatSession
from localspec.errors import EngineError, LocalSpecError, UserError
from localspec.inference.interface import QuickChooser
from localspec.types.events import ModeChanged, ReadAhead
from localspec.types.request import Message
from localspec_tui.widgets.notice import Notice
from localspec_tui.widgets.status import StatusLine, context_part, error_line
from localspec_tui.workers import Ts

UNOPENED = "no models are open; the next prompt opens them"
STUCK = "the model process is not responding; Esc again restarts it"
NOTICE_S = 12.0
MEASURING_S = 0.25  # between two looks whether costs are being measured


class ChatStatus(StatusLine):
    """Shows the figures of the answer in progress, or of the last one of the open chat."""

    def __init__(self, session: ChatSession, loader: ModelLoader, notice: Notice) -> None:
        super().__init__()
        self._session = session
        self._loader = loader
        self.notice = notice
        self._live_stats = LiveStats(session.shared.rates)
        self._typed = 0  # tokens of the prompt below
        self._warned: str | None = None
        self._prompt_tokens = self._written = 0  # of the answer in progress
        self._continued = ""  # the text that the answer in progress began with
        self._tools = 0  # tokens of the tools of the open chat
        self._held = 0  # tokens that the open chat takes,
        self._is_estimate = False  # an estimate
        self._is_new = True
        self._makes_programs = False
        self._is_measuring = False
        self._read: ReadAhead | None = None
        self._has_told_change = False  # in the answer in progress
        self._told_change: ModeChanged | None = None  # ever

    def on_mount(self) -> None:
        """Look from time to time whether costs are being measured."""
        self.set_interval(MEASURING_S, self._tell_measuring)

    async def attempt(self, action: Callable[[*Ts], Awaitable[None]], *given: *Ts) -> None:
        """Do something with what is given, and say what goes wrong, as long as it does."""
        try:
            await action(*given)
        except LocalSpecError as error:
            is_busy = isinstance(error, UserError) and error.message == ANSWERING
            self.notice.say(error_line(error), is_error=True, about="answer" if is_busy else "")
        else:
            self.notice.clear_error()

    # --- an answer in progress ---

    def tell(self, update: LiveUpdate) -> None:
        """Show the progress of an answer since the last time."""
        if update.started is not None:
            self._take_up(update.started)
        if update.summarised is not None:
            self.notice.say(update.summarised.words)
        elif update.summarising is not None:
            so_far = f": {update.summarising.tokens:,} tokens so far" * bool(update.summarising.tokens)
            self.notice.say(f"summarising {update.summarising.what}{so_far}; Esc stops it", about="answer")
        elif update.progress is not None and update.progress.total:
            self.notice.show_transient(
                f"reading the prompt: {update.progress.done:,} of {update.progress.total:,} tokens",
                about="answer",
            )
        elif update.splitting is not None:
            self.notice.show_transient("looking for the steps of your question", about="answer")
        for change in update.changes:
            self._live_stats.changed(change)
            self._tell_change(change)
        self._live_stats.read(update.text)
        if update.rounds:
            if update.progress is None:
                self.notice.show_transient("")
            self._live_stats.add(update.rounds)
            self._written += sum(mark.tokens for mark in update.rounds)
            self._held = max(self._held, self._prompt_tokens + self._written)
            self._is_estimate = True
            self._show_use()
            self.figures = self._live_stats.figures()
        if update.saved is not None:
            self._take_in(update.saved)

    def _tell_change(self, change: ModeChanged) -> None:
        """Say the first change of mode of an answer; later answers repeat it, and figures show the others."""
        is_news = change.draft_failed or not (self._has_told_change or change == self._told_change)
        if is_news and self.notice.is_read:
            self.notice.say(change.reason)
            self._told_change = change
        self._has_told_change = True

    def _take_in(self, saved: AnswerSaved) -> None:
        """Show the figures of an answer that was saved, and say if nothing was added to an earlier text."""
        self.notice.over("answer")
        if self._continued and (saved.message.content, saved.message.state) == (self._continued, "complete"):
            self.notice.say("the model added nothing: this answer is complete")
        self._continued = ""
        if saved.record is not None:
            self._show_record(saved.record)

    def tell_first_call(self, seconds: float | None) -> None:
        """Say for how long a GPU has been making programs, if it is."""
        if seconds is not None or self._makes_programs:
            self.notice.show_transient("" if seconds is None else units.first_call(seconds), about="answer")
        self._makes_programs = seconds is not None

    def _tell_measuring(self) -> None:
        """Say that costs are being measured, as long as they are."""
        models = self._loader.ready
        is_measuring = isinstance(models, QuickChooser) and models.is_measuring()
        if is_measuring and not self._is_measuring:
            self.notice.show_transient(units.MEASURING)
        elif self._is_measuring and not is_measuring and self.notice.said == units.MEASURING:
            self.notice.show_transient("")
        self._is_measuring = is_measuring

    def show_read(self, so_far: ReadAhead | None) -> None:
        """Show how much of the chat the models have read ahead, None if that is unknown."""
        if so_far != self._read:
            self._read = so_far
            self._show_use()

    def _take_up(self, started: Started) -> None:
        """Show what was chosen for an answer that begins."""
        for notice in self._session.shared.take_notices():
            self.notify(notice, severity="warning", timeout=NOTICE_S, markup=False)
        record = started.record
        chat = self._session.chat
        self.route = self._session.route_shown(record.profile)
        self.reason = record.reason
        self._continued = started.message.content
        self._has_told_change = False
        self._prompt_tokens = estimate(_prompt(chat, started.message))
        self._written = 0
        begun = started.message.content
        budget = record.thinking_budget
        self._live_stats.start(record.mode, self._prompt_tokens, text=begun, thinking_budget=budget)
        self._count_prompt(chat, started.message)

    @work(group="count", exclusive=True, exit_on_error=False)
    async def _count_prompt(self, chat: OpenChat, started: StoredMessage) -> None:
        """Replace the estimate of what an answer's prompt takes by its count."""
        if (models := self._loader.ready) is not None:
            tokens = await asyncio.to_thread(models.count_tokens, _prompt(chat, started))
            tools = await asyncio.to_thread(self._session.tool_tokens, models, chat)
            self._prompt_tokens = tokens + tools

    def _show_record(self, record: AnswerRecord) -> None:
        self.figures = of_record(record)
        self.route = self._session.route_shown(record.profile)
        self.reason = record.reason
        self._weigh(record)

    # --- the open chat ---

    def forget(self) -> None:
        """Forget the answer in progress: another chat is shown, perhaps with its own."""
        self.workers.cancel_group(self, "count")
        self.figures = Figures("")
        self.route = ""
        self.reason = ""

    def show_chat(self, *, answering: bool) -> None:
        """Show the figures of the last answer of the open chat, and how full its context is."""
        self.count_tools()
        chat = self._session.chat
        answers = [message for message in chat.path if message.role == "assistant"]
        record = chat.outline(answers[-1].id) if answers else None
        if record is not None:
            self._show_record(record)
            if any(message.dropped or message.summary for message in chat.path):
                self.count_anew()
            return
        if not answering:
            self.figures = Figures("")
            self.route = self.reason = ""
        self._weigh(None)

    @work(group="count", exclusive=True, exit_on_error=False)
    async def count_anew(self) -> None:
        """Count the open chat: other exchanges may be left out than when it was answered."""
        models = self._loader.ready
        chat = self._session.chat
        if models is not None and (prompt := chat.prompt()):
            tokens = await asyncio.to_thread(models.count_tokens, prompt)
            tokens += await asyncio.to_thread(self._session.tool_tokens, models, chat)
            if chat is self._session.chat:
                self._held = tokens
                self._is_estimate = False
                self._show_context()

    @work(group="tools", exclusive=True, exit_on_error=False)
    async def count_tools(self) -> None:
        """Count the tools of the open chat, which may have been switched."""
        models = self._loader.ready
        chat = self._session.chat
        before = self._tools
        if models is None:
            return
        with suppress(EngineError):  # the next call to the models reports it
            self._tools = await asyncio.to_thread(self._session.tool_tokens, models, chat)
        if self._tools != before and chat is self._session.chat:
            self._held = max(0, self._held + self._tools - before)
            self._show_context()

    def count_in(self, tokens: int) -> None:
        """Count in what is being typed."""
        self._typed = tokens
        self._show_context()

    def count_question(self, *, is_other_below: bool) -> None:
        """Add a question that was just asked and has left the composer."""
        held = self._held + (0 if is_other_below else self._typed)
        self._weigh(None)
        self._held = max(held, self._held)
        self._typed = self._typed if is_other_below else 0
        self._show_context()

    def _weigh(self, record: AnswerRecord | None) -> None:
        """Show the context use of the open chat, from its last answer unless that was changed."""
        chat = self._session.chat
        path = self._session.chat.path
        counted = None if record is None else after_answer(record)
        question = chat.prompt()[-1:] if counted and path[-1].role == "user" else ()
        self._is_new = not any(message.role == "assistant" for message in path)
        self._is_estimate = bool(path if counted is None else question)
        if counted is not None and counted < self._tools:  # the last answer was written without them
            counted += self._tools
        estimated = self._tools + (estimate(chat.prompt()) if path else 0)
        self._held = counted + estimate(question) if counted else estimated
        self._show_context()

    def _show_context(self) -> None:
        line = self._show_use()
        if self._warned and self.notice.said == self._warned:
            self.notice.say("")
        if line is not None:
            self.notice.show_transient(line)
        self._warned = line

    def _show_use(self) -> str | None:
        """Show the context use, and return a warning if it is needed."""
        models = self._loader.ready
        used = self._held + self._typed
        if models is None:
            return None
        estimated = self._is_estimate or self._typed > 0
        unread = 0 if self._read is None else self._read.total - self._read.tokens
        self.meter = (
            context_part(used, models.target.context, estimated=estimated, unread=unread, tools=self._tools),
        )
        return warning(used, models.target.context, estimated=estimated, is_new=self._is_new)

    # --- the models ---

    async def show_state(self, state: LoadState, *, tells: bool = True) -> None:
        """Show how the models are coming along; unless another pane `tells` what there is to say of it."""
        self.loaded = state.fraction if isinstance(state, Loading) else None
        self.notice.over("models")
        if tells:
            self._tell_state(state)
        if isinstance(state, Ready):
            self._show_context()
            self.count_tools()
            await self.update_memory()

    def _tell_state(self, state: LoadState) -> None:
        match state:
            case Closed():
                self.notice.say(UNOPENED, about="models")
            case Ready(models, problem):
                for note in models.notes:
                    self.notice.say(note)
                if problem:
                    self.notice.say(f"the other models could not be opened: {problem}", is_error=True)
            case Failed(error, hint):
                self.notice.say(f"{error}; {hint}" if hint else str(error), is_error=True, about="models")

    async def update_memory(self) -> None:
        """Show how full the devices are."""
        if (models := self._loader.ready) is not None:
            with suppress(EngineError):  # the next call to the models reports the error
                self.memory = await asyncio.to_thread(models.memory)


def _prompt(chat: OpenChat, started: StoredMessage) -> tuple[Message, ...]:
    """Return the prompt of an answer that has just begun, or continues with its text so far."""
    before = chat.tree.path_to(started.parent)
    if not started.content:
        return to_prompt(chat.system, before)
    return to_prompt(chat.system, (*before, started), continues=True)
