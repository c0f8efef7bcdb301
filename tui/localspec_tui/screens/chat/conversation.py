"""The open chat as it is shown, and the answer that is being written into it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message as ScreenMessage
from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker

from localspec.chat.live_stats import mode_name
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import AnswerRecord, Role, StoredMessage
from localspec.chat.session import ChatSession
from localspec.errors import LocalSpecError, StoreError, UserError
from localspec.inference.worker.wire import LogLine
from localspec.units import MODE_NAMES
from localspec_tui.screens.chat.answering import STUCK, AnswerEnded, Answering, Job
from localspec_tui.screens.chat.status import ChatStatus
from localspec_tui.screens.chat.unsent import ChatComposer
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.status import TitleBar
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.transcript.transcript import Transcript
from localspec_tui.widgets.welcome import Welcome

TICKS_PER_S = 12
WAITING_S = 10.0  # after which a person may be looking elsewhere
LEAVING_S = 0.8  # for an answer that is to stop; no key is heard meanwhile
Log = deque[LogLine]
Answer = TypeVar("Answer")


class ChatsChanged(ScreenMessage):
    """The list of chats may have to be read again."""


@dataclass
class AnswerReady(ScreenMessage):
    """An answer that took its time has come to its end."""

    title: str


class Conversation(Vertical):
    """The open chat between its panels, with a new answer at its end now and then."""

    def __init__(
        self, session: ChatSession, loader: ModelLoader, folder: Path, attachment_bytes: int, log: Log
    ) -> None:
        super().__init__()
        self.session = session
        self.loader = loader
        self.folder = folder
        self.status = ChatStatus(session, loader)  # which the screen shows below everything
        self.welcome = Welcome()
        self.transcript = Transcript(classes="hidden")
        self.timeline = Timeline(classes="hidden")
        self.log_panel = LogPanel(log, classes="hidden")
        self.composer = ChatComposer(session, loader, folder, attachment_bytes, self.status)
        self._answer: Answering | None = None
        self._ticks: Timer | None = None
        self._work: Worker[None] | None = None
        self.changing = asyncio.Lock()  # while an answer begins, is shown or ends, or a chat opens

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
            self.composer.set_history(await asyncio.to_thread(self.session.store.prompts))

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
        for bar in self.screen.query(TitleBar):  # none while the screen is being left
            bar.chat_title, bar.profile = self.session.chat.info.title, self.session.profile.title
            bar.mode = f"mode {MODE_NAMES.get(self.session.mode or '', 'auto')}"
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
        async with self.changing:
            await self._leave()
            before, unsent = self.composer.text, self.composer.leave()
            await asyncio.to_thread(self.session.store.set_draft, *unsent)
            await asyncio.to_thread(open_another)
        self.session.queue.clear()
        self.composer.set_queue(self.session.queue)
        self.status.say("")
        await self.begin_anew(at, before)

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
        async with self.changing:
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
        self._answer = Answering(self.loader, job, continues=continues)
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
        async with self.changing:
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
        mode = "off" if options is None else options.request.settings.mode
        self.timeline.clear(f"{mode_name(mode)} answer under way")
        self.screen.query_one(TitleBar).chat_title = self.session.chat.info.title
        try:
            # the text so far is drained: by now the chat may hold some of what comes next
            item = replace(self.session.chat.shown_one(message.id), message=message)
        except UserError:
            return
        if message.content:  # it goes on with a text that is shown already
            await self.transcript.replace(item)
        else:
            await self.transcript.add(item)

    async def end(self, event: AnswerEnded) -> bool:
        """Show what an answer left; tell whether it belongs to the open chat, which may have been left."""
        async with self.changing:
            if event.answer is not self._answer:
                return False
            await self._show_news(event.answer)
            is_kept = event.answer.saved and event.error is None
            self._rest()
            if not is_kept:  # it may have left nothing
                with suppress(StoreError):
                    await asyncio.to_thread(self.session.chat.settle)
                await self.show_messages()
        self.show_figures()
        self.post_message(ChatsChanged())
        if monotonic() - event.answer.began_s > WAITING_S:
            self.post_message(AnswerReady(self.session.chat.info.title))
        return True
