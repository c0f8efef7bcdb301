"""The conversation: transcript and prompt, and the answer that is being written between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.timer import Timer
from textual.worker import Worker

from localspec.chat.attachments import attach, complete_input
from localspec.chat.commands import Completion, as_message, parse
from localspec.chat.messages import StoredMessage
from localspec.errors import LocalSpecError, StoreError, UserError
from localspec_tui import messages as said
from localspec_tui.screens.chat.answering import AnswerEnded, Answering, Job
from localspec_tui.screens.chat.unsent import Unsent
from localspec_tui.widgets.composer.composer import Composer
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.transcript.transcript import Transcript
from localspec_tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from localspec_tui.screens.chat.screen import ChatScreen

TICKS_PER_S = 12


class ChatPane(Vertical):
    """The open chat, with a new answer at its end now and then."""

    DEFAULT_CSS = """
    ChatPane {
        width: 1fr;
        & Transcript, & Welcome { height: 1fr; }
        & Timeline { height: 14; }
        & LogPanel { height: 12; }
        & Composer { dock: bottom; }
    }
    """

    def __init__(self, chat_screen: ChatScreen, attachment_bytes: int) -> None:
        super().__init__()
        self._chat_screen = chat_screen
        self._desk = chat_screen.desk
        self._attachment_bytes = attachment_bytes
        self._answering = Answering(chat_screen.loader, self.post_message)
        self._ticks: Timer | None = None
        self._work: Worker[None] | None = None
        self._unsent = Unsent(self, chat_screen, attachment_bytes)
        self.changing = asyncio.Lock()  # held while an answer begins, is shown or ends, or another chat opens

    def compose(self) -> ComposeResult:
        """Stack transcript, panels and prompt."""
        yield Welcome()
        yield Transcript(classes="hidden")
        yield Timeline(classes="hidden")
        yield LogPanel(classes="hidden")
        yield Composer(self._complete)

    async def on_mount(self) -> None:
        """Get the prompts of earlier days."""
        self._ticks = self.set_interval(1 / TICKS_PER_S, self._tick, pause=True)
        with suppress(StoreError):  # what is wrong with the store is said where something is to be kept
            self.query_one(Composer).set_history(await asyncio.to_thread(self._desk.store.prompts))

    def on_unmount(self) -> None:
        """End an answer under way; what was written so far is kept, and what was not sent."""
        if self._answering.busy:
            self._answering.stop()
        self._unsent.keep_at_end()

    @property
    def answering(self) -> bool:
        """Tell whether an answer is being written."""
        return self._answering.busy and not self._answering.saved

    @property
    def working(self) -> bool:
        """Tell whether the models are at work, for an answer or to measure something after it."""
        return self._answering.busy

    async def show(self, at: int | None = None) -> None:
        """Show the open chat anew, at its end or at one of its messages."""
        shown = self._desk.chat.shown()
        self.query_one(Welcome).set_class(bool(shown), "hidden")
        transcript = self.query_one(Transcript)
        transcript.set_class(not shown, "hidden")
        await transcript.show(shown, at)

    def take_up_draft(self) -> None:
        """Go on with what was being written in the open chat."""
        self.query_one(Composer).text = self._desk.chat.info.draft

    def stop(self) -> None:
        """End the answer; what came is kept."""
        self._answering.stop()

    async def leave(self) -> None:
        """End an answer under way and wait until it is kept, because the chat is about to change."""
        if self._answering.busy and self._work is not None:
            self._answering.stop()
            await self._work.wait()
            self._answering.finish()
            self._rest()

    async def put_away(self, open_another: Callable[[], object]) -> None:
        """Leave the open chat for another; prompts that wait become part of its unsent text."""
        async with self.changing:
            await self.leave()
            self._unsent.forget()
            await asyncio.to_thread(self._unsent.keep, self.query_one(Composer).text)
            await asyncio.to_thread(open_another)
        self._desk.queue.clear()
        self._show_queue()
        self._chat_screen.say("")

    # --- asking ---

    @on(said.PromptEntered)
    async def _take_prompt(self, event: said.PromptEntered) -> None:
        event.stop()
        try:
            if (command := parse(event.text)) is not None:
                await self._chat_screen.run_command(command)
            elif self.answering:
                self._wait(event.text)
            else:
                await self._ask(event.text)
        except LocalSpecError as error:
            composer = self.query_one(Composer)
            if composer.text.strip():  # something else is being written there already
                self._wait(event.text)
            else:
                composer.text = event.text
            self._unsent.refuse(event.text, error)

    async def _ask(self, text: str) -> None:
        """Ask the open chat something and start the answer."""
        async with self.changing:
            question, files = await asyncio.to_thread(
                attach, as_message(text), self._chat_screen.folder, self._attachment_bytes
            )
            await self.until_free()
            asked = await asyncio.to_thread(self._desk.chat.ask, question, files)
            if len(self._desk.chat.path) == 1:
                await self.show()
            else:
                await self.query_one(Transcript).add(self._desk.chat.shown_one(asked.id))
                self.query_one(Transcript).follow()
            self.launch(self._desk.answer)

    async def until_free(self) -> None:
        """Cut short what is still measured after an answer; raises `UserError` while one is written."""
        if self.answering:
            raise UserError("an answer is being written", "stop it first: Esc")
        await self.leave()

    def _complete(self, text: str) -> Sequence[Completion]:
        def names(kind: str) -> Sequence[str]:
            themes = sorted(self.app.available_themes)
            return themes if kind == "theme" else [profile.name for profile in self._desk.profiles]

        return complete_input(text, names, self._chat_screen.folder)

    @on(said.DraftChanged)
    def _draft_changed(self, event: said.DraftChanged) -> None:
        self._unsent.changed(event.text)

    # --- answering ---

    def launch(self, job: Job) -> None:
        """Let the models work on the open chat."""
        self._answering.begin()
        self._chat_screen.reporter.begin()
        self.query_one(Composer).set_answering(True)
        self._work = self.run_worker(
            lambda: self._answering.run(job), thread=True, group="answer", exit_on_error=False
        )
        if self._ticks is not None:
            self._ticks.resume()

    async def _tick(self) -> None:
        """Show what came since the last time."""
        async with self.changing:
            await self._show_news()

    async def _show_news(self) -> None:
        update = self._answering.live.drain()
        transcript = self.query_one(Transcript)
        if update.started is not None:
            await self._show_started(update.started)
        if update.text:
            transcript.stream(update.text, update.pieces)
        if update.saved is not None:
            self._answering.saved = True
            await transcript.end_stream(self._desk.chat.shown_one(update.saved.message.id))
            self.query_one(Composer).set_answering(False)
        self._chat_screen.reporter.tell(update)

    async def _show_started(self, message: StoredMessage) -> None:
        """Show where the answer is going to be written; one that failed at once is gone already."""
        try:
            # the text so far is drained: by now the chat may hold some of what comes next
            item = replace(self._desk.chat.shown_one(message.id), message=message)
        except UserError:
            return
        transcript = self.query_one(Transcript)
        if message.content:  # it goes on with a text that is shown already
            await transcript.replace(item)
        else:
            await transcript.add(item)

    @on(AnswerEnded)
    async def _end_answer(self, event: AnswerEnded) -> None:
        event.stop()
        async with self.changing:
            if event.live is not self._answering.live:
                return  # of a chat that was left meanwhile
            await self._show_news()
            is_kept = self._answering.saved and event.error is None
            self._answering.finish()
            self._rest()
            if not is_kept:  # it may have left nothing
                with suppress(StoreError):
                    await asyncio.to_thread(self._desk.chat.settle)
                await self.show()
        await self._chat_screen.answer_ended(event.error)
        if event.error is None:
            await self._ask_queued()

    def _rest(self) -> None:
        if self._ticks is not None:
            self._ticks.pause()
        self.query_one(Composer).set_answering(False)

    # --- prompts that wait ---

    async def _ask_queued(self) -> None:
        if (text := self._desk.queue.take_first()) is not None:
            self._queue_changed()
            await self._take_prompt(said.PromptEntered(text))

    def _wait(self, text: str) -> None:
        self._desk.queue.add(text)
        self._queue_changed()

    def _queue_changed(self) -> None:
        self._show_queue()
        self._unsent.changed()

    def _show_queue(self) -> None:
        self.query_one(Composer).set_queue(self._desk.queue.items)

    @on(said.QueuedPromptTaken)
    def _edit_queued(self, event: said.QueuedPromptTaken) -> None:
        event.stop()
        if (text := self._desk.queue.take(event.index)) is not None:
            composer = self.query_one(Composer)
            if composer.text.strip():  # what is being written waits instead
                self._desk.queue.add(composer.text)
            composer.text = text
            self._show_queue()
            composer.focus()

    @on(said.QueuedPromptRemoved)
    def _drop_queued(self, event: said.QueuedPromptRemoved) -> None:
        event.stop()
        self._desk.queue.remove(event.index)
        self._queue_changed()
