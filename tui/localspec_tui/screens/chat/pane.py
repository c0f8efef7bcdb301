"""The pane of the chat: what is said there, the answer being written, and the dialogs about both."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import Screen
from textual.widget import Widget

from localspec.chat.answer_settings import is_auto
from localspec.chat.answering import LiveUpdate
from localspec.chat.answers import Answers
from localspec.chat.commands.command import CommandCall
from localspec.chat.commands.own import OwnCommands, may_be_own, own_commands
from localspec.chat.commands.parsing import as_message, parse
from localspec.chat.commands.registry import SCREEN_NAMES
from localspec.chat.controller import ChatController
from localspec.chat.figures import mode_name
from localspec.chat.messages import (
    AnswerRecord,
    Attachment,
    BranchMessage,
    Span,
    StoredMessage,
)
from localspec.chat.open_chat import OpenChat
from localspec.chat.reading_ahead import ReadingAhead
from localspec.chat.running_answer import RunningAnswer
from localspec.chat.session import ChatSession
from localspec.chat.tool_use.consent import CallAsked
from localspec.errors import (
    Cancelled,
    ContextFullError,
    EngineDied,
    LocalSpecError,
    StoreError,
    UserError,
)
from localspec.inference.worker.wire import LogLine
from localspec.models.default_pair import introduction, name_of
from localspec.types.events import TextPiece
from localspec.types.models import ModelInfo
from localspec.units import MODE_NAMES
from localspec_tui.clipboard import CopyAsked
from localspec_tui.keys import handled
from localspec_tui.screens.chat.elsewhere import ChatsChanged, Elsewhere
from localspec_tui.screens.chat.status import NOTICE_S, STUCK, ChatStatus
from localspec_tui.screens.chat.unsent import ChatComposer
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.dialogs import AskScreen, MakeRoomScreen
from localspec_tui.widgets.composer.composer import PromptEntered, QueueResumed
from localspec_tui.widgets.consent import CallDecided, ConsentBar
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.notice import Notice
from localspec_tui.widgets.status import TitleBar, error_line
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.transcript.message import ActionAsked
from localspec_tui.widgets.transcript.transcript import Transcript
from localspec_tui.widgets.welcome import Welcome
from localspec_tui.workers import Ts, start_worker

_NEARLY_FULL = (
    "The context is nearly full. A summary can stand for what came first: all messages stay in the chat, and "
    "the model reads the summary in their place."
)
WAITS = "waiting: other chats are being answered"
READING_S = 0.25  # between two looks at what is read ahead
Log = deque[LogLine]
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PaneShared:
    """What all panes share; `told` is what was said of mistakes in the user's own commands."""

    answers: Answers
    elsewhere: Elsewhere
    folder: Path
    attachment_bytes: int
    log: Log
    run_command: Callable[[ChatPane, CommandCall], Awaitable[None]]
    act: Callable[[ChatPane, ActionAsked], Awaitable[None]]
    told: set[str] = field(default_factory=set)


class ChatPane(Vertical):
    """The open chat between its panels: the `ChatView` of its controller."""

    def __init__(self, session: ChatSession, shared: PaneShared) -> None:
        super().__init__()
        self._shared = shared
        self.session = session
        self.loader = loader = shared.answers.loader
        self.elsewhere = shared.elsewhere
        self.controller = ChatController(session, shared.answers, self)
        self.title_bar = TitleBar()  # which the screen shows above everything,
        self.notice = Notice()
        self.status = ChatStatus(session, loader, self.notice)  # and this below
        self.welcome = Welcome()
        self.transcript = Transcript(classes="hidden")
        self.consent = ConsentBar(self.write)
        self.timeline = Timeline(classes="hidden")
        self.log_panel = LogPanel(shared.log, classes="hidden")
        self.reading = ReadingAhead(session, loader, lambda: shared.answers.is_busy or self._reads_nothing)
        self.composer = ChatComposer(
            session, loader, shared.folder, shared.attachment_bytes, self.status, self.reading
        )
        self._words_to_show = ""  # in the chat that is opened next
        self._typed: str | None = None  # before the open chat was to be left
        self._left: tuple[int, str] | None = None  # the chat that was left last, and the prompt then
        self.is_active = False
        self.own_commands = OwnCommands()  # as they were read last

    def compose(self) -> ComposeResult:
        """Stack transcript, panels and prompt."""
        with Vertical(id="view"):
            yield self.welcome
            yield self.transcript
            yield self.timeline
            yield self.log_panel
            yield self.notice
        yield self.consent
        yield self.composer

    async def on_mount(self) -> None:
        """Get the prompts of earlier days, and the user's own commands."""
        with suppress(StoreError):  # store errors are reported when something is saved
            self.composer.set_history(await asyncio.to_thread(self.session.store.prompts))
        self._take_own_commands(await asyncio.to_thread(own_commands))
        self.set_interval(READING_S, self._show_reading)

    @property
    def _reads_nothing(self) -> bool:
        """Whether nothing is read ahead for the open chat."""
        return not self.is_active or isinstance(self.app.screen, CompareScreen)

    def _show_reading(self) -> None:
        """Show how much idle models have read ahead."""
        self.status.show_read(self.reading.so_far())
        self.composer.show_read()

    @property
    def chat(self) -> OpenChat:
        """The open chat."""
        return self.session.chat

    @property
    def parts(self) -> frozenset[Widget]:
        """The pane with its title and its status line, which are shown apart from it."""
        return frozenset((self, self.title_bar, self.status))

    @property
    def is_seen(self) -> bool:
        """Whether it can be seen: there may be room for the other one alone."""
        return not self.has_class("hidden")

    def show_parts(self, *, is_seen: bool) -> None:
        """Show all parts of the pane, or none."""
        for part in self.parts:
            part.set_class(not is_seen, "hidden")

    def set_active(self, is_active: bool) -> None:
        """Note whether keys act on this pane, and let it look so."""
        self.is_active = is_active
        for part in self.parts:
            part.set_class(is_active, "-active")
        if not is_active:
            self.reading.stop()
        elif self.is_attached:
            self.composer.look_again()

    async def run_command(self, call: CommandCall) -> None:
        """Run a slash command here."""
        await self._shared.run_command(self, call)

    @property
    def answering(self) -> bool:
        """Return whether an answer is being written, or does not end."""
        return self.controller.answering

    @property
    def working(self) -> bool:
        """Return whether the models are at work, for an answer or to measure something after it."""
        return self.controller.working

    def ask(self, screen: Screen[Answer], take: Callable[[Answer | None], Awaitable[None]]) -> None:
        """Open another screen, and call `take` with its result."""
        self.app.push_screen(screen, lambda answer: self.status.attempt(take, answer))

    def introduce(self, target: ModelInfo, draft: ModelInfo | None) -> None:
        """Show which models are open."""
        bar = self.title_bar
        more = introduction(target)
        bar.target = name_of(target)
        bar.draft = "" if draft is None else name_of(draft)
        self.welcome.introduce(f"{bar.models}: {more}" if more else bar.models)

    # --- the open chat ---

    async def show(self, at: int | None = None, focus: int | None = None) -> None:
        """Show the open chat again, at its end or at a message; `focus` is the message to give the focus."""
        await self.show_messages(at, focus)
        self.show_figures()
        self.post_message(ChatsChanged())

    async def show_messages(
        self, at: int | None = None, focus: int | None = None, news: LiveUpdate | None = None
    ) -> None:
        """Show the messages of the open chat, or the welcome page where there are none.

        An answer in progress is shown as far as `news` tells it: what comes next is added to that.
        """
        shown = self.session.chat.shown()
        if news is not None and news.started is not None and news.saved is None:
            shown = tuple(_so_far(item, news.started.message, news.pieces) for item in shown)
        self.welcome.set_class(bool(shown), "hidden")
        self.transcript.set_class(not shown, "hidden")
        await self.transcript.show(shown, at, focus)

    def show_figures(self) -> None:
        """Show title, profile, mode and the figures of the last answer of the open chat."""
        self.title_bar.chat_title = self.session.chat.info.title
        profile = self.session.profile
        self.title_bar.profile = "" if is_auto(profile) else profile.title
        self.title_bar.mode = MODE_NAMES.get(self.session.mode or "", "")
        self.status.show_chat(answering=self.answering)
        if not self.working:
            start_worker(self, self._find_timeline, group="timeline", exclusive=True)
            self.composer.look_again()

    async def _find_timeline(self) -> None:
        """Show the rounds of the last answer, which take a while to read."""
        record = None
        with suppress(LocalSpecError):  # there may be no answer
            last = self.session.chat.last("assistant")
            record = await asyncio.to_thread(self.session.chat.record, last.id)
        if self.working:
            return
        if record is None:
            self.timeline.clear("no answer yet")
        else:
            self.show_rounds(last, record)

    def show_rounds(self, message: StoredMessage, record: AnswerRecord) -> None:
        """Show how an answer was drafted and verified."""
        moment = datetime.fromtimestamp(message.created).astimezone()
        self.timeline.show(record.rounds, f"{mode_name(record.mode)} answer of {moment:%H:%M}")

    async def switch_chat(self, open_another: Callable[[], object]) -> None:
        """Switch to another chat; an answer in progress in this one goes on."""
        await self._leave(self.controller.switch_chat, open_another)

    async def open_chat(self, chat_id: int, at: int | None = None, words: str = "") -> None:
        """Switch to a chat, at one of its messages if given; an answer in progress in this one goes on.

        Words that were searched for are highlighted there.
        """
        self._words_to_show = words
        await self._leave(self.controller.open_chat, chat_id, at)

    async def settle(self) -> str:
        """Wait until all that was typed and sent here so far has come to the open chat.

        Return the prompt up to there.
        """
        typed = await self.composer.settle()
        if asyncio.current_task() is not self.task:
            await handled(self)
        return typed

    async def _leave(self, switch: Callable[[*Ts], Awaitable[None]], *given: *Ts) -> None:
        """Switch to another chat, and say what becomes of the one that is left."""
        self._typed = await self.settle()
        left = self.session.chat
        has_waiting = bool(self.session.queue)
        await switch(*given)
        if left.info.id in self.controller.answers.being_answered() and left is not self.session.chat:
            self.elsewhere.goes_on(left.info, self.notice, has_waiting=has_waiting)

    def take_unsent(self) -> tuple[int, str]:
        """Return the open chat, which is left now, and its unsent text."""
        text = self.composer.text
        typed = text if self._typed is None else self._typed
        self._typed = None
        unsent = typed if text.startswith(typed) else text
        self._left = self.chat.info.id, unsent
        return self.composer.leave(unsent)

    async def show_opened(self, at: int | None, news: LiveUpdate | None) -> None:
        """Show a chat that was just opened, with its unsent text and the answer in progress in it.

        Text typed meanwhile, after the text of the previous chat, is meant for this one.
        """
        self.elsewhere.take_away_notice(self.session.chat.info.id)
        self.transcript.highlight(self._words_to_show)
        self._words_to_show = ""
        self.composer.set_queue(self.session.queue)
        self.composer.set_answering(self.answering)
        self.status.forget()
        self.notice.say("")
        await self.show_messages(at, news=news)
        self.show_figures()
        self.post_message(ChatsChanged())
        running = self.controller.running
        await self.consent.show(None if running is None else running.turn.desk.asked)
        if news is not None:
            self.timeline.clear("no answer yet")
            self._show_progress(news)
            if news.changes:  # of the mode, which was said then
                self.notice.say("")
        left_chat, before = self._left or (None, "")
        self._left = None
        if left_chat != self.chat.info.id:  # else it was open already, with its text
            typed = self.composer.text
            typed = typed.removeprefix(before) if typed.startswith(before) else ""
            self.composer.text = self.chat.info.draft + typed
        if self.is_active:
            self.composer.focus()

    # --- answers ---

    def began(self) -> None:
        """Show that an answer is in progress."""
        self.notice.clear_error()
        self.notice.show_transient("")
        self.composer.set_answering(True)

    def rests(self) -> None:
        """Show that the models no longer work for this chat."""
        start_worker(self, self.consent.show, None, group="consent")
        self.composer.set_answering(False)
        self.notice.over("answer")

    async def show_news(self, answer: RunningAnswer, news: LiveUpdate) -> None:
        """Show what came of an answer since the last time."""
        if news.started is not None:
            await self._show_started(news.started.message)
        if news.text:
            self.transcript.stream(news.text, news.pieces)
        self.transcript.stream_calls(news.calls)
        if news.summarised is not None:
            await self.show_messages()
        if news.saved is not None:
            await self.transcript.replace(self.session.chat.shown_one(news.saved.message.id))
            self.composer.set_answering(news.saved.goes_on)
        for result in news.results:
            await self.transcript.add(self.session.chat.shown_one(result.id))
        await self._show_consent(answer.turn.desk.asked)
        self._show_progress(news)
        if news.running:
            self.notice.show_transient(f"{news.running[-1].tool.name} is running", about="answer")
        if answer.is_stuck and self.notice.said != STUCK:
            self.notice.say(STUCK, about="answer")
        elif answer.models is not None and not answer.is_stuck:
            self.status.tell_first_call(answer.models.first_call_s())
        if answer.turn.is_waiting and not answer.turn.tokens:
            self.notice.show_transient(WAITS, about="answer")

    async def _show_consent(self, asked: CallAsked | None) -> None:
        """Ask about a call that waits; an empty prompt lends its focus to the question."""
        was_waiting = self.consent.waits
        has_typed = bool(self.composer.text.strip())
        await self.consent.show(asked)
        if asked is not None and not was_waiting and not has_typed and self.composer.has_focus_within:
            self.consent.focus()
        if asked is None and was_waiting and self.is_active and self.screen.focused is None:
            self.composer.focus()

    @on(CallDecided)
    async def _decide(self, event: CallDecided) -> None:
        async def decide() -> None:
            self.controller.decide(event.call_id, event.decision)
            await self._show_consent(None)

        await self.status.attempt(decide)

    def write(self, text: str = "") -> None:
        """Go to the prompt, with letters that were typed elsewhere and are text."""
        if letters := self.consent.take_letter() + text:
            self.composer.text += letters
        self.composer.focus()

    def _show_progress(self, news: LiveUpdate) -> None:
        """Show the figures of an answer in progress, and its rounds."""
        if news.started is not None:
            self.timeline.clear(f"{mode_name(news.started.record.mode)} answer in progress")
        self.timeline.add(news.rounds)
        self.status.tell(news)

    async def _show_started(self, message: StoredMessage) -> None:
        """Show where the answer is going to be written; one that failed at once is gone already."""
        self.title_bar.chat_title = self.session.chat.info.title
        if self.notice.said == WAITS:
            self.notice.show_transient("")
        try:
            # the text so far is drained: the chat may already have some of the next
            item = replace(self.session.chat.shown_one(message.id), message=message)
        except UserError:
            return
        if self.transcript.has(message.id):  # it continues with a text that is shown already
            await self.transcript.replace(item)
        else:
            await self.transcript.add(item)

    def ended(self, answer: RunningAnswer, error: BaseException | None) -> None:
        """Continue after an answer, once earlier messages have been handled."""
        self.call_later(self._go_on_after, answer, error)

    async def _go_on_after(self, answer: RunningAnswer, error: BaseException | None) -> None:
        if answer.chat is not self.session.chat:  # it was left just now
            self.elsewhere.rests(answer, error)
            return
        self.show_figures()
        if not self.is_active:  # the chat that is in use waited for this
            self.elsewhere.read_again()
        self.post_message(ChatsChanged())
        if self.is_seen:  # or it was told already
            self.elsewhere.tell_time(answer)
        if error is not None:
            await self._explain(error, answer)
        start_worker(self, self.status.update_memory, group="memory", exclusive=True)
        if error is None and not answer.is_stopped:
            await self._make_room_in_time()
            await self._ask_waiting()
        elif answer.is_stopped and self.session.queue:
            self.notice.say(
                "stopped; Enter in an empty prompt sends the next queued prompt", is_error=True, about="queue"
            )

    async def _make_room_in_time(self) -> None:
        """Have the older part of a chat summarised that is nearly full, or ask whether to."""
        what = await self.controller.compaction_due()
        if not what or self.answering:
            return
        if self.session.shared.compaction_mode == "auto":
            await self.status.attempt(self.controller.compact)
        elif not self.session.queue and self.is_active:  # else it asks after the next answer
            self.controller.put_off_compaction()
            question = f"{_NEARLY_FULL} Summarise the older {what}?"
            self.ask(AskScreen(question, "Summarise", "Not now", is_careful=True), self._take_summary)

    async def _take_summary(self, is_wanted: bool | None) -> None:
        if is_wanted:
            await self.controller.compact()

    async def _explain(self, error: BaseException, answer: RunningAnswer) -> None:
        """Report the error of an answer, and offer a way out."""
        match error:
            case Cancelled():
                self.notice.say("stopped", is_error=True)
            case ContextFullError():
                is_to_shorten = self.session.shared.compaction_mode == "auto" and not answer.is_shortened
                if is_to_shorten or self.is_active:
                    way_out = self.controller.compact if is_to_shorten else self.make_room
                    await self.status.attempt(way_out, answer)
                else:  # the user is writing elsewhere
                    self.notice.say(f"{error}; /room leaves out exchanges", is_error=True)
            case EngineDied():
                if not self.elsewhere.is_to_ask(error, answer):
                    saved = "; the text so far is saved" * (answer.saved is not None)
                    self.notice.say(f"{error}{saved}", is_error=True)
                await self.elsewhere.reopen_after(error, answer)
            case _:
                self.notice.say(error_line(error), is_error=True)

    # --- prompts ---

    async def read_own_commands(self) -> OwnCommands:
        """Read the user's own commands and those of servers again; report each problem once."""
        found = await asyncio.to_thread(own_commands, self.session.servers)
        self._take_own_commands(found)
        return found

    def _take_own_commands(self, found: OwnCommands) -> None:
        for problem in [problem for problem in found.problems if problem not in self._shared.told]:
            self._shared.told.add(problem)
            self.notify(problem, severity="warning", timeout=NOTICE_S, markup=False)
        self.own_commands = found

    @on(PromptEntered)
    async def _take_prompt(self, event: PromptEntered) -> None:
        try:
            call = await self._command_in(event.text)
        except LocalSpecError as error:
            self.composer.refuse(event.text, error)
            return
        if call is None:
            await self.send(event.text, event.text)
        else:
            await self.run_command(call)

    async def _command_in(self, text: str) -> CommandCall | None:
        own = (await self.read_own_commands()).parse(text) if may_be_own(text) else None
        return own or parse(text)

    async def send(self, prompt: str, typed: str) -> None:
        """Send or queue a prompt; a rejected one goes back to the composer as it was `typed`."""
        try:
            if self.answering:
                self.composer.wait(prompt)
            else:
                await self._ask(prompt)
        except LocalSpecError as error:
            self.composer.refuse(typed, error)

    async def _ask(self, prompt: str) -> None:
        """Ask the open chat something, with the files that the prompt names."""
        own_names = (command.name for command in self.own_commands.commands)
        message = as_message(prompt, {*SCREEN_NAMES, *own_names})

        async def read() -> tuple[str, tuple[Attachment, ...]]:
            found = await self.composer.attach(message)
            for line in found.notes:
                self.notify(line, severity="warning", timeout=NOTICE_S, markup=False)
            return found.text, found.files

        await self.controller.ask(read)

    async def show_question(self, question: StoredMessage) -> None:
        """Show a question that was just asked."""
        chat = self.session.chat
        self.status.count_question(is_other_below=bool(self.composer.text))
        if len(chat.path) == 1:
            await self.show_messages()
        else:
            await self.transcript.add(chat.shown_one(question.id))
            self.transcript.follow()

    @on(QueueResumed)
    async def _ask_waiting(self) -> None:
        if not self.answering and (text := self.composer.next_waiting()) is not None:
            await self._take_prompt(PromptEntered(text))

    # --- messages ---

    @on(ActionAsked)
    async def _act(self, event: ActionAsked) -> None:
        await self.status.attempt(self._shared.act, self, event)

    async def fork(self, message: StoredMessage) -> None:
        """Go on in a new chat that has a message and all above it."""
        await self._leave(self.controller.fork, message)
        self.notice.say("a new chat with the messages so far; the other one stays as it is")

    def copy(self, text: str, what: str) -> None:
        """Copy a text and report that under a name."""
        self.post_message(CopyAsked(text, what))

    async def make_room(self, answer: RunningAnswer | None = None) -> None:
        """Show the exchanges to leave out; an answer that waits for space then begins."""
        room = await self.controller.room(answer)

        async def take(dropped: tuple[int, ...] | Literal["summarise"] | None) -> None:
            if dropped == "summarise":
                await self.controller.compact(answer)
                return
            if dropped is None:
                excess = room.waits and room.excess(room.dropped)
                self.notice.say(
                    f"still too long by {excess:,} tokens; use /room to leave out exchanges" if excess else ""
                )
                return
            await self.controller.leave_out(dropped, waits=room.waits, answer=answer)
            self.status.count_anew()

        self.ask(MakeRoomScreen(room, await self.controller.summarisable()), take)


def _so_far(item: BranchMessage, started: StoredMessage, pieces: Sequence[TextPiece]) -> BranchMessage:
    """Return a message as it is shown; the one being written has the pieces that came so far."""
    if item.message.id != started.id:
        return item
    text = started.content + "".join(piece.text for piece in pieces)
    spans = (Span(len(piece.text), piece.provenance) for piece in pieces)
    return replace(item, message=replace(started, content=text), spans=(*item.spans, *spans))
