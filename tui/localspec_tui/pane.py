"""The conversation: transcript and prompt, and the answer that is being written between them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.timer import Timer
from textual.worker import Worker

from localspec.chat.attachments import attach, describe
from localspec.chat.commands import Completion, as_message, parse
from localspec.chat.completion import complete_input
from localspec.chat.records import StoredMessage
from localspec.errors import LocalSpecError, StoreError, UserError
from localspec.types import Message
from localspec_tui import messages as said
from localspec_tui.answering import AnswerEnded, Answering, Job
from localspec_tui.reporting import in_words
from localspec_tui.widgets.composer import Composer
from localspec_tui.widgets.log_panel import LogPanel
from localspec_tui.widgets.status import StatusLine
from localspec_tui.widgets.timeline import Timeline
from localspec_tui.widgets.transcript import Transcript
from localspec_tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from localspec_tui.screens.chat import ChatScreen

TICKS_PER_S, REST_S = 12, 0.4


class ChatPane(Vertical):
    """The open chat, with a new answer at its end now and then."""

    DEFAULT_CSS = """
    ChatPane {
        width: 1fr;
        & Transcript, & Welcome { height: 1fr; }
        & Timeline { height: 14; }
        & LogPanel { height: 12; }
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
        self._resting: Timer | None = None  # until the prompt below is kept
        self._draft = self._said_of_draft = self._refused = ""

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
        history = await asyncio.to_thread(self._desk.store.prompts)
        self.query_one(Composer).set_history(history)

    def on_unmount(self) -> None:
        """End an answer under way; what was written so far is kept, and what was not sent."""
        if self._answering.busy:
            self._answering.stop()
        if self._resting is not None or self._desk.queue.items:
            with suppress(StoreError):
                self._keep_unsent(self._draft)

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

    async def put_away(self) -> None:
        """Leave the open chat for another; prompts that wait become part of its unsent text."""
        await self.leave()
        if self._resting is not None:
            self._resting.stop()
            self._resting = None
        await asyncio.to_thread(self._keep_unsent, self.query_one(Composer).text)
        self._desk.queue.clear()
        self._show_queue()
        self._chat_screen.say("")

    def _keep_unsent(self, draft: str) -> None:
        unsent = "\n\n".join(text for text in (*self._desk.queue.items, draft) if text.strip())
        self._desk.store.set_draft(self._desk.chat.info.id, unsent)

    # --- asking ---

    @on(said.PromptEntered)
    async def _take_prompt(self, event: said.PromptEntered) -> None:
        event.stop()
        try:
            if (command := parse(event.text)) is not None:
                await self._chat_screen.run_command(command)
            elif self.answering:
                self._desk.queue.add(event.text)
                self._show_queue()
            else:
                await self._ask(event.text)
        except LocalSpecError as error:
            composer = self.query_one(Composer)
            composer.text = composer.text or event.text
            self._refused, self._said_of_draft = event.text, in_words(error)
            self._chat_screen.say(self._said_of_draft)

    async def _ask(self, text: str) -> None:
        """Ask the open chat something and start the answer."""
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
    def _wait_for_rest(self, event: said.DraftChanged) -> None:
        """Look after an unsent prompt when the fingers rest."""
        if self._resting is not None:
            self._resting.stop()
        self._draft = event.text
        self._resting = self.set_timer(REST_S, partial(self._rested, self._desk.chat.info.id, event.text))

    def _rested(self, chat_id: int, text: str) -> None:
        self._resting = None
        self._look_after(chat_id, text)

    @work(thread=True, exclusive=True, group="draft", exit_on_error=False)
    def _look_after(self, chat_id: int, text: str) -> None:
        """Keep an unsent prompt, and weigh the files that it names."""
        try:
            self._desk.store.set_draft(chat_id, text)
            _, files = attach(text, self._chat_screen.folder, self._attachment_bytes)
            tokens = [self._count(file.text) for file in files]
        except LocalSpecError as error:
            line = in_words(error)
        else:
            line = "; ".join(describe(*pair) for pair in zip(files, tokens, strict=True))
        self.app.call_from_thread(self._tell_of_draft, text, line)

    def _tell_of_draft(self, text: str, line: str) -> None:
        """Say what there is to say of an unsent prompt, or take back what was said of the one before."""
        said = self._chat_screen.query_one(StatusLine).said
        if line or (said == self._said_of_draft and text != self._refused):
            self._said_of_draft = line
            self._chat_screen.say(line)

    def _count(self, text: str) -> int | None:
        models = self._chat_screen.loader.ready
        return None if models is None else models.count_tokens((Message("user", text),))

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
            item = self._desk.chat.shown_one(message.id)
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
        if event.live is not self._answering.live:
            return  # of a chat that was left meanwhile
        await self._tick()
        is_kept = self._answering.saved and event.error is None
        self._answering.finish()
        self._rest()
        if not is_kept:  # it may have left nothing
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
            self._show_queue()
            await self._take_prompt(said.PromptEntered(text))

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
        self._show_queue()
