"""The pane of the chat: what is said there, the answer being written, and what a person does about it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import TypeVar, assert_never

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message as ScreenMessage
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker, WorkerState

from localspec.chat import commands
from localspec.chat.answering import AnswerEvent, Saved, Started
from localspec.chat.live_stats import mode_name, own_rate
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import AnswerRecord, Attachment, Role, StoredMessage
from localspec.chat.prompting import check_alone, never_fits, room_of
from localspec.chat.session import ChatSession
from localspec.errors import (
    Cancelled,
    ContextFullError,
    EngineDied,
    EngineError,
    LocalSpecError,
    ServerLost,
    StoreError,
    UserError,
)
from localspec.inference.worker.wire import LogLine
from localspec.safe_text import safe_text
from localspec.types.models import PlainRate
from localspec.types.request import Mode
from localspec.units import MODE_NAMES
from localspec_tui.clipboard import CopyAsked
from localspec_tui.screens.chat.answering import STUCK, Answering, Job
from localspec_tui.screens.chat.status import NOTICE_S, ChatStatus
from localspec_tui.screens.chat.unsent import ChatComposer
from localspec_tui.screens.compare import CompareScreen, comparable
from localspec_tui.screens.dialogs import AskScreen, EditScreen, MakeRoomScreen
from localspec_tui.widgets.composer.composer import PromptEntered, QueueResumed
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.status import TitleBar, in_words
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.transcript.message import ActionAsked
from localspec_tui.widgets.transcript.transcript import Transcript
from localspec_tui.widgets.welcome import Welcome

TICKS_PER_S = 12
WAITING_S = 10.0  # after which a person may be looking elsewhere
LEAVING_S = 0.8  # for an answer that is to stop; no key is heard meanwhile
Log = deque[LogLine]
Answer = TypeVar("Answer")
COMPARED: tuple[Mode, ...] = ("off", "sd", "ssd")


class ChatsChanged(ScreenMessage):
    """The list of chats may have to be read again."""


@dataclass
class AnswerReady(ScreenMessage):
    """An answer that took its time has come to its end."""

    title: str


class ChatPane(Vertical):
    """The open chat between its panels, with a new answer at its end now and then."""

    def __init__(
        self,
        session: ChatSession,
        loader: ModelLoader,
        folder: Path,
        attachment_bytes: int,
        log: Log,
        run_command: Callable[[commands.Command], Awaitable[None]],
    ) -> None:
        super().__init__()
        self.session = session
        self.loader = loader
        self.folder = folder
        self._run_command = run_command
        self.title_bar = TitleBar()  # which the screen shows above everything,
        self.status = ChatStatus(session, loader)  # and this below
        self.welcome = Welcome()
        self.transcript = Transcript(classes="hidden")
        self.timeline = Timeline(classes="hidden")
        self.log_panel = LogPanel(log, classes="hidden")
        self.composer = ChatComposer(session, loader, folder, attachment_bytes, self.status)
        self._answer: Answering | None = None
        self._ticks: Timer
        self._changing = asyncio.Lock()  # while an answer begins, is shown or ends, or a chat opens
        self.go_home: Callable[[], None] | None = None  # where the models are on another machine
        self.own_commands: Sequence[commands.CommandSpec] = ()  # the person's, as they were read last
        self._told: set[str] = set()  # of what is wrong with them

    def compose(self) -> ComposeResult:
        """Stack transcript, panels and prompt."""
        yield self.welcome
        yield self.transcript
        yield self.timeline
        yield self.log_panel
        yield self.composer

    async def on_mount(self) -> None:
        """Get the prompts of earlier days, and the person's own commands."""
        self._ticks = self.set_interval(1 / TICKS_PER_S, self._tick, pause=True)
        with suppress(StoreError):  # what is wrong with the store is said where something is to be kept
            self.composer.set_history(await asyncio.to_thread(self.session.store.prompts))
        await self.templates()

    def on_unmount(self) -> None:
        """End an answer under way; what was written so far is kept."""
        if self._answer is not None:
            self._answer.stop()

    @property
    def answering(self) -> bool:
        """Tell whether an answer is being written, or does not end."""
        return self._answer is not None and (not self._answer.saved or self._answer.is_stuck)

    @property
    def working(self) -> bool:
        """Tell whether the models are at work, for an answer or to measure something after it."""
        return self._answer is not None

    def ask(self, screen: Screen[Answer], take: Callable[[Answer | None], Awaitable[None]]) -> None:
        """Open another screen, and do with what it brings back what is to be done."""
        self.app.push_screen(screen, lambda answer: self.status.attempt(take(answer)))

    # --- the open chat ---

    async def show(self, at: int | None = None, focus: int | None = None) -> None:
        """Show the open chat anew, at its end or at one of its messages; `focus` as the transcript has it."""
        await self.show_messages(at, focus)
        self.show_figures()
        self.post_message(ChatsChanged())

    async def show_messages(self, at: int | None = None, focus: int | None = None) -> None:
        """Show the messages of the open chat, or the welcome page where there are none."""
        shown = self.session.chat.shown()
        self.welcome.set_class(bool(shown), "hidden")
        self.transcript.set_class(not shown, "hidden")
        await self.transcript.show(shown, at, focus)

    def show_figures(self) -> None:
        """Show title, profile, mode and the figures of the last answer of the open chat."""
        self.title_bar.chat_title = self.session.chat.info.title
        self.title_bar.profile = self.session.profile.title
        self.title_bar.mode = f"mode {MODE_NAMES.get(self.session.mode or '', 'auto')}"
        self.status.show_chat(answering=self.answering)
        if not self.working:
            self.run_worker(self._find_timeline(), group="timeline", exclusive=True)

    async def _find_timeline(self) -> None:
        """Show the rounds of the last answer, which take a while to read."""
        record = None
        with suppress(LocalSpecError):  # there may be no answer
            last = self.last("assistant")
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

    async def leave_for(self, open_another: Callable[[], object], at: int | None = None) -> None:
        """Leave the open chat for another; prompts that wait become part of its unsent text."""
        async with self._changing:
            title = self.session.chat.info.title if self.answering else None
            await self._leave()
            before, unsent = self.composer.text, self.composer.leave()
            await asyncio.to_thread(self.session.store.set_draft, *unsent)
            await asyncio.to_thread(open_another)
        self.session.queue.clear()
        self.composer.set_queue(self.session.queue)
        self.status.say("")
        await self.begin_anew(at, before)
        if title is not None:
            self.status.say(
                f"the answer in “{title}” was stopped; what came is kept, and /continue there goes on"
            )

    async def open_chat(self, chat_id: int, at: int | None = None) -> None:
        """Leave the open chat for another; an answer under way there is ended and kept."""
        await self.leave_for(lambda: self.session.open(chat_id, at), at)

    async def begin_anew(self, at: int | None = None, before: str = "") -> None:
        """Show a chat that was just opened, and go on with what was being written there.

        What was typed meanwhile, behind the text of the chat before, is meant for this one.
        """
        await self.show(at)
        typed = self.composer.text if self.composer.text.startswith(before) else ""
        self.composer.text = self.session.chat.info.draft + typed.removeprefix(before)
        self.composer.focus()

    async def delete(self) -> None:
        """Delete the open chat, and open an empty one."""
        async with self._changing:
            await self.until_free()
            await asyncio.to_thread(self.session.store.delete, self.session.chat.info.id)
            await asyncio.to_thread(self.session.new)
        await self.show()

    def last(self, role: Role | None = None) -> StoredMessage:
        """Return the last message of the shown branch, by one side if given; raises UserError without any."""
        for message in reversed(self.session.chat.path):
            if role in {None, message.role}:
                return message
        raise UserError(
            f"there is no {'answer' if role == 'assistant' else 'question'} yet", "ask something first"
        )

    # --- answering ---

    def launch(self, job: Job, *, continues: bool = False) -> None:
        """Let the models work on the open chat."""
        self._answer = answer = Answering(self.loader, job, continues=continues)
        self.status.forgive()
        self.status.mention("")
        self.composer.set_answering(True)
        answer.work = self.run_worker(answer.run, thread=True, group="answer", exit_on_error=False)
        self._ticks.resume()

    def stop(self) -> None:
        """End an answer under way, with the engine if that does not react; what came is kept."""
        if self._answer is not None and self._answer.is_stuck:
            self.run_worker(self.reload())
        elif self._answer is not None:
            self._answer.stop()

    async def reload(self) -> None:
        """End the engine, whether it reacts or not, and open the models anew."""
        if (models := self.loader.ready) is not None:
            await asyncio.to_thread(models.close)
            self.loader.reopen(models)
        self.loader.start()

    async def until_free(self) -> None:
        """Cut short what is still measured after an answer; raises `UserError` while one is written."""
        self.must_be_idle()
        await self._leave()

    def must_be_idle(self) -> None:
        """Raise `UserError` while an answer is written."""
        if self.answering:
            raise UserError("an answer is being written", "stop it first: Esc")

    async def _leave(self) -> None:
        """End an answer under way and wait until it is kept, because the chat is about to change."""
        if self._answer is not None:
            self._answer.stop()
            work = asyncio.create_task(self._answer.work.wait())
            done, _ = await asyncio.wait([work], timeout=LEAVING_S)
            if not done:
                raise UserError("the answer under way has not stopped yet", "wait a moment")
            self._rest()

    def _rest(self) -> None:
        self._answer = None
        self._ticks.pause()
        self.composer.set_answering(False)

    async def _tick(self) -> None:
        """Show what came since the last time."""
        async with self._changing:
            if self._answer is not None:
                await self._show_news(self._answer)

    async def _show_news(self, answer: Answering) -> None:
        update = answer.live.drain()
        if update.started is not None:
            await self._show_started(update.started)
        if update.text:
            self.transcript.stream(update.text, update.pieces)
        if update.saved is not None:
            answer.saved = True
            await self.transcript.replace(self.session.chat.shown_one(update.saved.message.id))
            self.composer.set_answering(False)
        self.timeline.add(update.rounds)
        self.status.tell(update)
        if answer.is_stuck and self.status.said != STUCK:
            self.status.say(STUCK)
        elif answer.models is not None and not answer.is_stuck:
            self.status.tell_first_call(answer.models.first_call_s())

    async def _show_started(self, message: StoredMessage) -> None:
        """Show where the answer is going to be written; one that failed at once is gone already."""
        options = self.session.in_use
        assert options is not None  # it is being used
        self.timeline.clear(f"{mode_name(options.request.settings.mode)} answer under way")
        self.title_bar.chat_title = self.session.chat.info.title
        try:
            # the text so far is drained: by now the chat may hold some of what comes next
            item = replace(self.session.chat.shown_one(message.id), message=message)
        except UserError:
            return
        if message.content:  # it goes on with a text that is shown already
            await self.transcript.replace(item)
        else:
            await self.transcript.add(item)

    # --- commands of the person's own ---

    async def templates(self) -> commands.Templates:
        """Read the person's own commands anew; what is wrong with one is told once."""
        found = await asyncio.to_thread(commands.own_templates)
        for problem in [problem for problem in found.problems if problem not in self._told]:
            self._told.add(problem)
            self.notify(problem, severity="warning", timeout=NOTICE_S, markup=False)
        self.own_commands = found.specs
        return found

    # --- asking ---

    @on(PromptEntered)
    async def _take_prompt(self, event: PromptEntered) -> None:
        try:
            text = event.text
            if commands.may_be_own(text):
                text = (await self.templates()).filled_in(text)
            if (command := commands.parse(text)) is not None:
                await self._run_command(command)
            elif self.answering:
                self.composer.wait(text)
            else:
                await self._ask(text)
        except LocalSpecError as error:
            self.composer.refuse(event.text, error)

    async def _ask(self, text: str) -> None:
        """Ask the open chat something and start the answer."""
        chat = self.session.chat
        async with self._changing:
            message = commands.as_message(text, {*commands.NAMES, *(spec.name for spec in self.own_commands)})
            question, files = await asyncio.to_thread(self.composer.attached, message)
            for line in await asyncio.to_thread(self.composer.unread, message, files):
                self.notify(line, severity="warning", timeout=NOTICE_S, markup=False)
            await asyncio.to_thread(self._check_fits, question, files)
            await self.until_free()
            asked = await asyncio.to_thread(chat.ask, question, files)
            self.status.count_question(is_other_below=bool(self.composer.text))
            self.post_message(ChatsChanged())
            if len(chat.path) == 1:
                await self.show_messages()
            else:
                await self.transcript.add(chat.shown_one(asked.id))
                self.transcript.follow()
            self.launch(self.session.answer)

    def _check_fits(self, question: str, files: Sequence[Attachment]) -> None:
        """Raise `ContextFullError` for a question that no room could be made for."""
        if (models := self.loader.ready) is not None:
            with suppress(EngineError):  # which the answer will tell
                check_alone(self.session.chat.system, question, files, models.target, models.count_tokens)

    @on(Worker.StateChanged)
    async def _end_answer(self, event: Worker.StateChanged) -> None:
        """Show what an answer left, unless its chat was left, and go on with what waits."""
        answer, error = self._answer, event.worker.result
        if answer is None or event.worker is not answer.work or event.state is not WorkerState.SUCCESS:
            return  # it is cancelled where the screen is left
        async with self._changing:
            if answer is not self._answer:
                return
            await self._show_news(answer)
            self._rest()
            if error is not None or not answer.saved:  # it may have left nothing
                with suppress(StoreError):
                    await asyncio.to_thread(self.session.chat.settle)
                await self.show_messages()
        self.show_figures()
        self.post_message(ChatsChanged())
        if monotonic() - answer.began_s > WAITING_S:
            self.post_message(AnswerReady(self.session.chat.info.title))
        if error is not None:
            await self._explain(error, answer)
        await self.status.look_at_memory()
        if error is None and not answer.is_stopped:
            await self._ask_waiting()
        elif answer.is_stopped and self.session.queue:
            self.status.say("stopped; what waits is sent by Enter in an empty prompt", is_error=True)

    @on(QueueResumed)
    async def _ask_waiting(self) -> None:
        if not self.answering and (text := self.composer.next_waiting()) is not None:
            await self._take_prompt(PromptEntered(text))

    async def _explain(self, error: BaseException, answer: Answering) -> None:
        """Say what ended an answer before its end, and what can be done."""
        match error:
            case Cancelled():
                self.status.say("stopped", is_error=True)
            case ContextFullError():
                await self.status.attempt(self.make_room(answer))
            case ServerLost() if self.go_home is not None and answer.models is not None:
                await asyncio.to_thread(self.loader.release)
                self.offer_home(f"{error}. What was written is kept.", otherwise="Open there again")
            case EngineDied():
                self.status.say(f"{error}; what was written is kept", is_error=True)
                self.loader.reopen(answer.models)
            case _:
                self.status.say(in_words(error), is_error=True)

    def offer_home(self, problem: str, otherwise: str = "") -> None:
        """Ask whether to open the models on this machine instead, or do `otherwise`, if anything, at once."""

        async def take(is_wanted: bool | None) -> None:
            if is_wanted and self.go_home is not None:
                self.go_home()
                self.go_home = None
            if is_wanted or otherwise:
                self.loader.start()

        question = f"{problem} Open the models on this machine instead?"
        if self.go_home is not None and not isinstance(self.app.screen, AskScreen):
            self.ask(AskScreen(question, "Open here", otherwise or "Not now", is_careful=True), take)

    # --- messages ---

    @on(ActionAsked)
    async def _act(self, event: ActionAsked) -> None:
        await self.status.attempt(self._do(event))

    async def _do(self, asked: ActionAsked) -> None:
        walks = asked.action in ("previous", "next")  # keys may outrun the screen: any branch will do
        message = (self.session.chat.message if walks else self._message)(asked.message_id)
        match asked.action:
            case "copy":
                self.copy(message.content, "the message")
            case "copy-code":
                self.copy(asked.text, "the code")
            case "edit":
                await self.edit(message)
            case "regenerate":
                await self.regenerate(message)
            case "continue":
                await self.go_on(message)
            case "previous" | "next":
                await self.switch(message, -1 if asked.action == "previous" else 1)
            case "timeline":
                self.show_rounds(message, await self.record_of(message, "message", "choose an answer"))
                self.timeline.remove_class("hidden")
            case "compare":
                await self.compare(message)
            case _:
                assert_never(asked.action)

    def copy(self, text: str, what: str) -> None:
        """Let text be copied, and told by that name."""
        self.post_message(CopyAsked(text, what))

    async def edit(self, message: StoredMessage) -> None:
        """Let a message be rewritten; a new question is answered at once, an answer can be continued."""
        before = safe_text(message.content)

        async def take(text: str | None) -> None:
            if text is None or not text.strip() or text == before:
                return
            async with self._changing:
                edited = await asyncio.to_thread(self.session.chat.edit, message.id, text)
                await self.show()
                if edited.role == "user":
                    await self.until_free()
                    self.launch(self.session.answer)

        await self.until_free()
        title = "Edit the question" if message.role == "user" else "Edit the answer"
        self.ask(EditScreen(title, before), take)

    async def regenerate(self, message: StoredMessage, mode: Mode | None = None) -> None:
        """Answer a question again, as another branch."""
        question = self._question_of(message)
        await self._begin_at(question, lambda models: self.session.answer(models, mode=mode))

    async def go_on(self, message: StoredMessage) -> None:
        """Let the model continue an answer where it ends."""
        self.must_be_idle()
        if message.role != "assistant":
            raise UserError("only an answer can be continued", "choose the answer below")
        await self._begin_at(message, lambda models: self.session.answer(models, continues=message.id))

    async def _begin_at(self, message: StoredMessage, job: Job) -> None:
        """Let the models work at a message, which ends the shown branch."""
        async with self._changing:
            await self.until_free()
            await asyncio.to_thread(self.session.chat.back_to, message.id)
            await self.show()
            self.launch(job, continues=message.role == "assistant")

    async def switch(self, message: StoredMessage, step: int) -> None:
        """Show another branch at a message."""
        self.must_be_idle()
        chat = self.session.chat
        shown = await asyncio.to_thread(chat.switch, message.id, step)
        await self.show(focus=shown)
        if self.transcript.has_focus_within:
            self.transcript.focus_at(len(chat.tree.path_to(shown)) - 1)

    async def compare(self, message: StoredMessage, modes: tuple[Mode, ...] = COMPARED) -> None:
        """Answer a question in several modes with one seed, side by side."""
        self.must_be_idle()
        question, chat = self._question_of(message), self.session.chat
        shown = chat.path[-1]
        models = self.loader.models(wait=False)
        modes = comparable(modes, has_draft=models.draft is not None)
        rates: dict[Mode, PlainRate] = {}
        record = await asyncio.to_thread(chat.record, message.id) if message.role == "assistant" else None
        seed = record.seed if record is not None else 0

        def run(mode: Mode) -> Iterator[AnswerEvent]:
            chat.back_to(question.id)
            try:
                for event in self.session.answer(models, mode=mode, seed=seed, plain=rates.get("off")):
                    if isinstance(event, Started) and shown is not question:
                        chat.back_to(shown.id)  # what a kill would leave on the screen
                    yield event
                    if isinstance(event, Saved) and event.record and (rate := own_rate(event.record)):
                        rates["off"] = rate
            except EngineDied:
                self.loader.reopen(models)
                raise
            finally:
                if shown is not question:  # an answer to keep is one that somebody chose
                    chat.back_to(shown.id)

        async def keep(chosen: int | None) -> None:
            if chosen is not None:
                await asyncio.to_thread(chat.go_to, chosen)
            await asyncio.to_thread(chat.settle)
            await self.show()

        await self.until_free()
        self.ask(CompareScreen(modes, run, models.cancel, models.close), keep)

    async def make_room(self, answer: Answering | None = None) -> None:
        """Let exchanges be chosen that the model no longer reads; an answer that waits for it then begins."""
        self.must_be_idle()
        models, chat, path = self.loader.models(wait=False), self.session.chat, self.session.chat.path
        continues = answer is not None and answer.continues
        if answer is not None and not continues and path[-1].role == "assistant":  # written anew
            path = path[:-1]
        room = await asyncio.to_thread(
            room_of, chat.system, path, models.target.context, models.count_tokens, continues=continues
        )
        if room.waits and room.excess(range(len(room.exchanges))):
            raise never_fits(room.fixed, models.target)
        if not room.exchanges:
            raise UserError("there is nothing that could be left out", "ask something first")

        async def take(dropped: tuple[int, ...] | None) -> None:
            if dropped is None:
                excess = room.waits and room.excess(room.dropped)
                self.status.say(f"still too long by {excess:,} tokens; /room makes room" if excess else "")
                return
            await asyncio.to_thread(chat.leave_out, dropped)
            await self.show()
            self.status.count_anew()
            if room.waits:
                await self.until_free()
                self.launch(answer.job if answer else self.session.answer, continues=continues)

        self.ask(MakeRoomScreen(room), take)

    async def record_of(self, message: StoredMessage, what: str, hint: str) -> AnswerRecord:
        """Return the figures of a message, which is called so; raises `UserError` with a hint without any."""
        record = await asyncio.to_thread(self.session.chat.record, message.id)
        if record is None:
            raise UserError(f"there are no figures for this {what}", hint)
        return record

    def _message(self, message_id: int) -> StoredMessage:
        for message in self.session.chat.path:
            if message.id == message_id:
                return message
        raise UserError("this message is no longer shown")

    def _question_of(self, message: StoredMessage) -> StoredMessage:
        """Return the question that an answer belongs to, or the question itself."""
        return message if message.role == "user" or message.parent is None else self._message(message.parent)
