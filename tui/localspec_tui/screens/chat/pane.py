"""The pane of the chat: prompts become questions and commands, and messages can be acted on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import assert_never

import pyperclip
from textual import on

from localspec.app import figures
from localspec.chat.answering import AnswerEvent, Saved
from localspec.chat.attachments import attach
from localspec.chat.commands import Command, CommandSpec, as_message, parse
from localspec.chat.live_stats import own_rate
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import AnswerRecord, Attachment, StoredMessage
from localspec.chat.prompt_templates import Templates, may_be_own, own_templates
from localspec.chat.prompting import check_alone, never_fits, room_of
from localspec.chat.session import ChatSession
from localspec.errors import (
    Cancelled,
    ContextFullError,
    EngineDied,
    EngineError,
    LocalSpecError,
    UserError,
)
from localspec.safe_text import safe_text
from localspec.types import Mode, PlainRate
from localspec_tui.screens.chat.answering import AnswerEnded, Answering, Job
from localspec_tui.screens.chat.conversation import ChatsChanged, Conversation, Log
from localspec_tui.screens.chat.status import NOTICE_S
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.dialogs import EditScreen, MakeRoomScreen, NoteScreen
from localspec_tui.widgets.composer.composer import PromptEntered, QueueResumed
from localspec_tui.widgets.status import in_words
from localspec_tui.widgets.transcript.message import ActionAsked

COMPARED: tuple[Mode, ...] = ("off", "sd", "ssd")


class ChatPane(Conversation):
    """The conversation with what a person does in it."""

    def __init__(
        self,
        session: ChatSession,
        loader: ModelLoader,
        folder: Path,
        attachment_bytes: int,
        log: Log,
        run_command: Callable[[Command], Awaitable[None]],
    ) -> None:
        super().__init__(session, loader, folder, attachment_bytes, log)
        self._attachment_bytes = attachment_bytes
        self._run_command = run_command
        self.own_commands: Sequence[CommandSpec] = ()  # as they were read last
        self._told: set[str] = set()  # of what is wrong with them

    async def on_mount(self) -> None:
        """Read the person's own commands."""
        await self.templates()

    async def templates(self) -> Templates:
        """Read the person's own commands anew; what is wrong with one is told once."""
        found = await asyncio.to_thread(own_templates)
        for problem in [problem for problem in found.problems if problem not in self._told]:
            self._told.add(problem)
            self.notify(problem, severity="warning", timeout=NOTICE_S, markup=False)
        self.own_commands = found.specs
        return found

    def begin_command(self, name: str) -> None:
        """Put a command before what is being written."""
        self.composer.text = f"/{name} {self.composer.text}"
        self.composer.focus()

    # --- asking ---

    @on(PromptEntered)
    async def _take_prompt(self, event: PromptEntered) -> None:
        try:
            text = event.text
            if may_be_own(text):
                text = (await self.templates()).filled_in(text)
            if (command := parse(text)) is not None:
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
        async with self.changing:
            question, files = await asyncio.to_thread(
                attach, as_message(text), self.folder, self._attachment_bytes
            )
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

    @on(AnswerEnded)
    async def _end_answer(self, event: AnswerEnded) -> None:
        if not await self.end(event):
            return
        if event.error is not None:
            await self._explain(event.error, event.answer)
        await self.status.look_at_memory()
        if event.error is None and not event.answer.is_stopped:
            await self._ask_waiting()
        elif event.answer.is_stopped and self.session.queue:
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
            case EngineDied():
                self.status.say(f"{error}; what was written is kept", is_error=True)
                self.loader.reopen(answer.models)
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
                self.show_rounds(message, await self._record_of(message, "message", "choose an answer"))
                self.timeline.remove_class("hidden")
            case "compare":
                await self.compare(message)
            case _:
                assert_never(asked.action)

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
            async with self.changing:
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
        async with self.changing:
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
        models = self.loader.models(wait=False)
        if models.draft is None:
            modes = tuple(mode for mode in modes if mode in {"off", "ngram"}) or ("off",)
        modes = tuple(sorted(modes, key=lambda mode: mode != "off"))  # to which the others' ratios refer
        rates: dict[Mode, PlainRate] = {}
        record = await asyncio.to_thread(chat.record, message.id) if message.role == "assistant" else None
        seed = record.seed if record is not None else 0

        def run(mode: Mode) -> Iterator[AnswerEvent]:
            chat.back_to(question.id)
            try:
                for event in self.session.answer(models, mode=mode, seed=seed, plain=rates.get("off")):
                    yield event
                    if isinstance(event, Saved) and event.record and (rate := own_rate(event.record)):
                        rates["off"] = rate
            except EngineDied:
                self.loader.reopen(models)
                raise

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

    async def show_stats(self) -> None:
        """Show all figures of the last answer."""
        record = await self._record_of(self.last("assistant"), "answer", "it was written or edited by hand")
        lines = figures.table(record.settings, record.reason, record.summary)
        if record.plain is not None:
            lines.append(f"plain decoding, measured here: {record.plain.tokens_per_s:.1f} tok/s")
        self.app.push_screen(NoteScreen("Figures of this answer", "\n".join(lines)))

    async def _record_of(self, message: StoredMessage, what: str, hint: str) -> AnswerRecord:
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
