"""The conversation: transcript and prompt, the answer between them, and what can be done with a message."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

import pyperclip
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message as ScreenMessage
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import TextArea
from textual.worker import Worker

from localspec.app import figures
from localspec.chat.answering import AnswerEvent
from localspec.chat.attachments import attach, complete_input, describe
from localspec.chat.commands import Command, Completion, as_message, parse
from localspec.chat.live_stats import mode_name
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import AnswerRecord, Role, StoredMessage
from localspec.chat.prompting import exchanges
from localspec.chat.session import ChatSession
from localspec.errors import Cancelled, ContextFullError, EngineDied, LocalSpecError, StoreError, UserError
from localspec.inference.interface import OpenModels
from localspec.inference.worker.wire import LogLine
from localspec.safe_text import safe_text
from localspec.types import Message, Mode
from localspec_tui.screens.chat.answering import STUCK, AnswerEnded, Answering, Job
from localspec_tui.screens.chat.status import ChatStatus
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.dialogs import EditScreen, MakeRoomScreen, NoteScreen
from localspec_tui.widgets.composer.composer import (
    Composer,
    PromptEntered,
    QueuedPromptRemoved,
    QueuedPromptTaken,
)
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.status import TitleBar, in_words
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.transcript.message import ActionAsked
from localspec_tui.widgets.transcript.transcript import Transcript
from localspec_tui.widgets.welcome import Welcome

TICKS_PER_S = 12
REST_S = 0.4
LEAVING_S = 0.8  # for an answer that is to stop; no key is heard meanwhile
COMPARED: tuple[Mode, ...] = ("off", "sd", "ssd")
Log = deque[LogLine]
Answer = TypeVar("Answer")


class ChatsChanged(ScreenMessage):
    """The list of chats may have to be read again."""


class ChatPane(Vertical):
    """The open chat, with a new answer at its end now and then."""

    def __init__(
        self,
        session: ChatSession,
        loader: ModelLoader,
        folder: Path,
        attachment_bytes: int,
        log: Log,
        run_command: Callable[[Command], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._session = session
        self._loader = loader
        self._folder = folder
        self._attachment_bytes = attachment_bytes
        self._run_command = run_command
        self.status = ChatStatus(session, loader)  # which the screen shows below everything
        self.welcome = Welcome()
        self.transcript = Transcript(classes="hidden")
        self.timeline = Timeline(classes="hidden")
        self.log_panel = LogPanel(log, classes="hidden")
        self.composer = Composer(self._complete)
        self._answer: Answering | None = None
        self._ticks: Timer | None = None
        self._work: Worker[None] | None = None
        self._changing = asyncio.Lock()  # while an answer begins, is shown or ends, or a chat opens
        self._is_kept = True  # what was written and not yet sent
        self._said = self._refused = ""  # of a prompt, and the prompt that could not be sent

    def compose(self) -> ComposeResult:
        """Stack transcript, panels and prompt."""
        yield self.welcome
        yield self.transcript
        yield self.timeline
        yield self.log_panel
        yield self.composer

    async def on_mount(self) -> None:
        """Get the prompts of earlier days."""
        self._ticks = self.set_interval(1 / TICKS_PER_S, self._tick, pause=True)
        with suppress(StoreError):  # what is wrong with the store is said where something is to be kept
            self.composer.set_history(await asyncio.to_thread(self._session.store.prompts))

    def on_unmount(self) -> None:
        """End an answer under way; what was written so far is kept, and what was not sent."""
        if self._answer is not None:
            self._answer.stop()
        if self._session.queue or not self._is_kept:
            with suppress(StoreError):
                self._session.store.set_draft(*self._unsent())

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
        await self._show_messages(at, focus)
        self.show_figures()
        self.post_message(ChatsChanged())

    async def _show_messages(self, at: int | None = None, focus: int | None = None) -> None:
        shown = self._session.chat.shown()
        self.welcome.set_class(bool(shown), "hidden")
        self.transcript.set_class(not shown, "hidden")
        await self.transcript.show(shown, at, focus)

    def show_figures(self) -> None:
        """Show title, profile, mode and the figures of the last answer of the open chat."""
        for bar in self.screen.query(TitleBar):  # none while the screen is being left
            bar.chat_title, bar.profile = self._session.chat.info.title, self._session.profile.title
            bar.mode = f"mode {self._session.mode or 'auto'}"
        self.status.show_chat(answering=self.answering)
        if not self.working:
            self.run_worker(self._find_timeline(), group="timeline", exclusive=True)

    async def _find_timeline(self) -> None:
        """Show the rounds of the last answer, which take a while to read."""
        record = None
        with suppress(LocalSpecError):  # there may be no answer
            last = self.last("assistant")
            record = await asyncio.to_thread(self._session.chat.record, last.id)
        if self.working:
            return
        if record is None:
            self.timeline.clear("no answer yet")
        else:
            self._show_rounds(last, record)

    def _show_rounds(self, message: StoredMessage, record: AnswerRecord) -> None:
        moment = datetime.fromtimestamp(message.created).astimezone()
        self.timeline.show(record.rounds, f"{mode_name(record.mode)} answer of {moment:%H:%M}")

    async def leave_for(self, open_another: Callable[[], object], at: int | None = None) -> None:
        """Leave the open chat for another; prompts that wait become part of its unsent text."""
        async with self._changing:
            await self._leave()
            self.workers.cancel_group(self, "draft")
            before, unsent = self.composer.text, self._unsent()
            await asyncio.to_thread(self._session.store.set_draft, *unsent)
            await asyncio.to_thread(open_another)
        self._session.queue.clear()
        self.composer.set_queue(self._session.queue)
        self.status.say("")
        await self.begin_anew(at, before)

    async def begin_anew(self, at: int | None = None, before: str = "") -> None:
        """Show a chat that was just opened, and go on with what was being written there.

        What was typed meanwhile, behind the text of the chat before, is meant for this one.
        """
        await self.show(at)
        typed = self.composer.text if self.composer.text.startswith(before) else ""
        self.composer.text = self._session.chat.info.draft + typed.removeprefix(before)
        self.composer.focus()

    async def delete(self) -> None:
        """Delete the open chat, and open an empty one."""
        async with self._changing:
            await self.until_free()
            await asyncio.to_thread(self._session.store.delete, self._session.chat.info.id)
            await asyncio.to_thread(self._session.new)
        await self.show()

    # --- asking ---

    @on(PromptEntered)
    async def _take_prompt(self, event: PromptEntered) -> None:
        try:
            if (command := parse(event.text)) is not None:
                await self._run_command(command)
            elif self.answering:
                self._wait(event.text)
            else:
                await self._ask(event.text)
        except LocalSpecError as error:
            if self.composer.text.strip():  # something else is being written there already
                self._wait(event.text)
            else:
                self.composer.text = event.text
            self._refused, self._said = event.text, in_words(error)
            self.status.say(self._said, is_error=True)

    async def _ask(self, text: str) -> None:
        """Ask the open chat something and start the answer."""
        chat = self._session.chat
        async with self._changing:
            question, files = await asyncio.to_thread(
                attach, as_message(text), self._folder, self._attachment_bytes
            )
            await self.until_free()
            asked = await asyncio.to_thread(chat.ask, question, files)
            if len(chat.path) == 1:
                await self._show_messages()
            else:
                await self.transcript.add(chat.shown_one(asked.id))
                self.transcript.follow()
            self._launch(self._session.answer)

    def _complete(self, text: str) -> Sequence[Completion]:
        def names(kind: str) -> Sequence[str]:
            themes = sorted(self.app.available_themes)
            return themes if kind == "theme" else [profile.name for profile in self._session.profiles]

        return complete_input(text, names, self._folder)

    # --- what is not sent yet ---

    @on(TextArea.Changed)
    def _draft_changed(self) -> None:
        self.status.count_in(self.composer.text)
        self._keep_soon()

    def _keep_soon(self) -> None:
        """Look after the prompts below when the fingers rest: a kill loses no more than was just typed."""
        self._is_kept = False
        self._look_after_draft()

    @work(group="draft", exclusive=True, exit_on_error=False)
    async def _look_after_draft(self) -> None:
        await asyncio.sleep(REST_S)
        text = self.composer.text
        line = await asyncio.to_thread(self._keep_and_weigh, text, *self._unsent())
        if line or (self.status.said == self._said and text != self._refused):
            self._said = line
            self.status.say(line)

    def _keep_and_weigh(self, text: str, chat_id: int, unsent: str) -> str:
        """Keep what is not sent; return what there is to say of the files that the prompt names."""
        models = self._loader.ready
        try:
            self._session.store.set_draft(chat_id, unsent)
            _, files = attach(text, self._folder, self._attachment_bytes)
            counts = [
                models.count_tokens((Message("user", file.text),)) if models else None for file in files
            ]
        except LocalSpecError as error:
            return in_words(error)
        return "; ".join(describe(*pair) for pair in zip(files, counts, strict=True))

    def _unsent(self) -> tuple[int, str]:
        """Return the open chat and what is to be kept with it: the prompts that wait, and the one below."""
        self._is_kept = True
        prompts = (*self._session.queue, self.composer.text)
        return self._session.chat.info.id, "\n\n".join(each for each in prompts if each.strip())

    async def _ask_queued(self) -> None:
        if self._session.queue:
            text = self._session.queue.pop(0)
            self._queue_changed()
            await self._take_prompt(PromptEntered(text))

    def _wait(self, text: str) -> None:
        self._session.queue.append(text)
        self._queue_changed()

    def _queue_changed(self) -> None:
        self.composer.set_queue(self._session.queue)
        self._keep_soon()

    @on(QueuedPromptTaken)
    def _edit_queued(self, event: QueuedPromptTaken) -> None:
        if event.index < len(self._session.queue):  # its turn may have come meanwhile
            text = self._session.queue.pop(event.index)
            if self.composer.text.strip():  # what is being written waits instead
                self._session.queue.append(self.composer.text)
            self.composer.text = text
            self.composer.set_queue(self._session.queue)
            self.composer.focus()

    @on(QueuedPromptRemoved)
    def _drop_queued(self, event: QueuedPromptRemoved) -> None:
        del self._session.queue[event.index : event.index + 1]  # nothing if its turn has come meanwhile
        self._queue_changed()

    # --- answering ---

    def _launch(self, job: Job) -> None:
        """Let the models work on the open chat."""
        self._answer = Answering(self._loader, job)
        self.status.forgive()
        self.status.mention("")
        self.composer.set_answering(True)
        run = partial(self._answer.run, self.post_message)
        self._work = self.run_worker(run, thread=True, group="answer", exit_on_error=False)
        if self._ticks is not None:
            self._ticks.resume()

    def stop(self) -> None:
        """End an answer under way, with the engine if that does not react; what came is kept."""
        if self._answer is not None and self._answer.is_stuck:
            self.run_worker(self.reload())
        elif self._answer is not None:
            self._answer.stop()

    async def reload(self) -> None:
        """End the engine, whether it reacts or not, and open the models anew."""
        if (models := self._loader.ready) is not None:
            await asyncio.to_thread(models.close)
            self._loader.reopen(models)
        self._loader.start()

    async def until_free(self) -> None:
        """Cut short what is still measured after an answer; raises `UserError` while one is written."""
        self._must_be_idle()
        await self._leave()

    def _must_be_idle(self) -> None:
        if self.answering:
            raise UserError("an answer is being written", "stop it first: Esc")

    async def _leave(self) -> None:
        """End an answer under way and wait until it is kept, because the chat is about to change."""
        if self._answer is not None and self._work is not None:
            self._answer.stop()
            done, _ = await asyncio.wait([asyncio.create_task(self._work.wait())], timeout=LEAVING_S)
            if not done:
                raise UserError("the answer under way has not stopped yet", "wait a moment")
            self._rest()

    def _rest(self) -> None:
        self._answer = None
        if self._ticks is not None:
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
            await self.transcript.replace(self._session.chat.shown_one(update.saved.message.id))
            self.composer.set_answering(False)
        self.timeline.add(update.rounds)
        self.status.tell(update)
        if answer.is_stuck and self.status.said != STUCK:
            self.status.say(STUCK)
        elif answer.models is not None and not answer.is_stuck:
            self.status.tell_first_call(answer.models.first_call_s())

    async def _show_started(self, message: StoredMessage) -> None:
        """Show where the answer is going to be written; one that failed at once is gone already."""
        options = self._session.in_use
        mode = "off" if options is None else options.request.settings.mode
        self.timeline.clear(f"{mode_name(mode)} answer under way")
        self.screen.query_one(TitleBar).chat_title = self._session.chat.info.title
        try:
            # the text so far is drained: by now the chat may hold some of what comes next
            item = replace(self._session.chat.shown_one(message.id), message=message)
        except UserError:
            return
        if message.content:  # it goes on with a text that is shown already
            await self.transcript.replace(item)
        else:
            await self.transcript.add(item)

    @on(AnswerEnded)
    async def _end_answer(self, event: AnswerEnded) -> None:
        async with self._changing:
            if event.answer is not self._answer:
                return  # of a chat that was left meanwhile
            await self._show_news(event.answer)
            is_kept = event.answer.saved and event.error is None
            self._rest()
            if not is_kept:  # it may have left nothing
                with suppress(StoreError):
                    await asyncio.to_thread(self._session.chat.settle)
                await self._show_messages()
        self.show_figures()
        self.post_message(ChatsChanged())
        if event.error is not None:
            await self._explain(event.error, event.answer.models)
        await self.status.look_at_memory()
        if event.error is None:
            await self._ask_queued()

    async def _explain(self, error: BaseException, models: OpenModels | None) -> None:
        """Say what ended an answer before its end, and what can be done."""
        match error:
            case Cancelled():
                self.status.say("stopped", is_error=True)
            case ContextFullError():
                self.status.say(in_words(error))
                if any(message.role == "assistant" for message in self._session.chat.path):
                    await self.status.attempt(self.make_room())
            case EngineDied():
                self.status.say(f"{error}; what was written is kept", is_error=True)
                self._loader.reopen(models)
            case _:
                self.status.say(in_words(error), is_error=True)

    # --- messages ---

    @on(ActionAsked)
    async def _act(self, event: ActionAsked) -> None:
        await self.status.attempt(self._do(event))

    async def _do(self, asked: ActionAsked) -> None:
        message = self._message(asked.message_id)
        match asked.action:
            case "copy":
                await self.copy(message.content, "the message")
            case "copy-code":
                await self.copy(asked.text, "the code")
            case "edit":
                await self.edit(message)
            case "regenerate":
                await self.regenerate(message)
            case "continue":
                await self.go_on(message)
            case "previous":
                await self.switch(message, -1)
            case "next":
                await self.switch(message, 1)
            case "timeline":
                self._show_rounds(message, await self._record_of(message, "message", "choose an answer"))
                self.timeline.remove_class("hidden")
            case "compare":
                await self.compare(message)
            case _:
                assert_never(asked.action)

    def last(self, role: Role | None = None) -> StoredMessage:
        """Return the last message of the shown branch, by one side if given; raises UserError without any."""
        for message in reversed(self._session.chat.path):
            if role in {None, message.role}:
                return message
        raise UserError(
            f"there is no {'answer' if role == 'assistant' else 'question'} yet", "ask something first"
        )

    async def copy(self, text: str, what: str) -> None:
        """Put text on every clipboard that can be reached; a desktop without one is no mistake."""
        self.app.copy_to_clipboard(text)
        with suppress(pyperclip.PyperclipException, OSError):  # the terminal has it, or nobody can
            await asyncio.to_thread(pyperclip.copy, text)
        self.notify(f"copied {what}", timeout=2)

    async def edit(self, message: StoredMessage) -> None:
        """Let a message be rewritten; a new question is answered at once, an answer can be continued."""
        before = safe_text(message.content)

        async def take(text: str | None) -> None:
            if text is None or not text.strip() or text == before:
                return
            async with self._changing:
                edited = await asyncio.to_thread(self._session.chat.edit, message.id, text)
                await self.show()
                if edited.role == "user":
                    await self.until_free()
                    self._launch(self._session.answer)

        await self.until_free()
        title = "Edit the question" if message.role == "user" else "Edit the answer"
        self.ask(EditScreen(title, before), take)

    async def regenerate(self, message: StoredMessage, mode: Mode | None = None) -> None:
        """Answer a question again, as another branch."""
        question = self._question_of(message)
        await self._begin_at(question, lambda models: self._session.answer(models, mode=mode))

    async def go_on(self, message: StoredMessage) -> None:
        """Let the model continue an answer where it ends."""
        self._must_be_idle()
        if message.role != "assistant":
            raise UserError("only an answer can be continued", "choose the answer below")
        await self._begin_at(message, lambda models: self._session.answer(models, continues=message.id))

    async def _begin_at(self, message: StoredMessage, job: Job) -> None:
        """Let the models work at a message, which ends the shown branch."""
        async with self._changing:
            await self.until_free()
            await asyncio.to_thread(self._session.chat.back_to, message.id)
            await self.show()
            self._launch(job)

    async def switch(self, message: StoredMessage, step: int) -> None:
        """Show another branch at a message."""
        self._must_be_idle()
        chat = self._session.chat
        shown = await asyncio.to_thread(chat.switch, message.id, step)
        await self.show(focus=shown)
        if self.transcript.has_focus_within:
            self.transcript.focus_at(len(chat.tree.path_to(shown)) - 1)

    async def compare(self, message: StoredMessage, modes: tuple[Mode, ...] = COMPARED) -> None:
        """Answer a question in several modes with one seed, side by side."""
        self._must_be_idle()
        question, chat = self._question_of(message), self._session.chat
        models = self._loader.models(wait=False)
        if models.draft is None:
            modes = tuple(mode for mode in modes if mode in {"off", "ngram"}) or ("off",)
        record = await asyncio.to_thread(chat.record, message.id) if message.role == "assistant" else None
        seed = record.seed if record is not None else 0

        def run(mode: Mode) -> Iterator[AnswerEvent]:
            chat.back_to(question.id)
            try:
                yield from self._session.answer(models, mode=mode, seed=seed)
            except EngineDied:
                self._loader.reopen(models)
                raise

        async def keep(chosen: int | None) -> None:
            if chosen is not None:
                await asyncio.to_thread(chat.go_to, chosen)
            await asyncio.to_thread(chat.settle)
            await self.show()

        await self.until_free()
        self.ask(CompareScreen(modes, run, models.cancel, models.close), keep)

    async def make_room(self) -> None:
        """Let exchanges be chosen that the model no longer reads."""
        self._must_be_idle()
        models = self._loader.models(wait=False)
        found = await asyncio.to_thread(exchanges, self._session.chat.path, models.count_tokens)
        if not found:
            raise UserError("there is nothing that could be left out", "ask something first")

        async def take(dropped: tuple[int, ...] | None) -> None:
            if dropped is not None:
                await asyncio.to_thread(self._session.chat.leave_out, dropped)
                await self.show()

        self.ask(MakeRoomScreen(found, models.target.context), take)

    async def show_stats(self) -> None:
        """Show all figures of the last answer."""
        record = await self._record_of(self.last("assistant"), "answer", "it was written or edited by hand")
        lines = figures.table(record.settings, record.reason, record.summary)
        if record.plain is not None:
            lines.append(f"plain decoding, measured here: {record.plain.tokens_per_s:.1f} tok/s")
        self.app.push_screen(NoteScreen("Figures of this answer", "\n".join(lines)))

    async def _record_of(self, message: StoredMessage, what: str, hint: str) -> AnswerRecord:
        record = await asyncio.to_thread(self._session.chat.record, message.id)
        if record is None:
            raise UserError(f"there are no figures for this {what}", hint)
        return record

    def _message(self, message_id: int) -> StoredMessage:
        for message in self._session.chat.path:
            if message.id == message_id:
                return message
        raise UserError("this message is no longer shown")

    def _question_of(self, message: StoredMessage) -> StoredMessage:
        """Return the question that an answer belongs to, or the question itself."""
        return message if message.role == "user" or message.parent is None else self._message(message.parent)
