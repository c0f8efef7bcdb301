"""What can be done with a message or a chat."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, assert_never

import pyperclip
from textual.app import App

from localspec.chat.messages import StoredMessage
from localspec.chat.open_chat import AnswerEvent
from localspec.errors import EngineDied, UserError
from localspec.types import Mode
from localspec_tui.messages import Deed
from localspec_tui.screens.chat.answering import Job
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.dialogs import AskScreen, EditScreen
from localspec_tui.widgets.markdown.blocks import printable
from localspec_tui.widgets.transcript.transcript import Transcript

if TYPE_CHECKING:
    from localspec_tui.screens.chat.screen import ChatScreen


async def copy(app: App[int], text: str) -> None:
    """Put text on every clipboard that can be reached; a desktop without one is no mistake."""
    app.copy_to_clipboard(text)
    try:
        await asyncio.to_thread(pyperclip.copy, text)
    except (pyperclip.PyperclipException, OSError):
        return  # the terminal has it, or nobody can


COMPARED: tuple[Mode, ...] = ("off", "sd", "ssd")


class MessageActions:
    """Acts on the open chat for the screen; raises `UserError` for what makes no sense there."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._desk = screen.desk

    async def do(self, deed: Deed, message_id: int, text: str = "") -> None:
        """Do what a message of the transcript asks for."""
        message = self._message(message_id)
        match deed:
            case "copy":
                await self.copy(message.content, "the message")
            case "copy-code":
                await self.copy(text, "the code")
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
                await self._screen.reporter.show_timeline(message)
            case "compare":
                await self.compare(message)
            case _:
                assert_never(deed)

    def last(self, role: str) -> StoredMessage:
        """Return the last message of the shown branch by one side; raises UserError when there is none."""
        for message in reversed(self._desk.chat.path):
            if message.role == role:
                return message
        raise UserError(
            f"there is no {'answer' if role == 'assistant' else 'question'} yet", "ask something first"
        )

    async def copy(self, text: str, what: str) -> None:
        """Put text on the clipboard."""
        await copy(self._screen.app, text)
        self._screen.notify(f"copied {what}", timeout=2)

    async def edit(self, message: StoredMessage) -> None:
        """Let a message be rewritten; a new question is answered at once, an answer can be continued."""
        await self._screen.pane.until_free()
        title = "Edit the question" if message.role == "user" else "Edit the answer"
        self._screen.ask(EditScreen(title, printable(message.content)), self._take_edit(message))

    def _take_edit(self, message: StoredMessage) -> Callable[[str | None], Awaitable[None]]:
        async def take(text: str | None) -> None:
            if text is None or not text.strip() or text == printable(message.content):
                return
            async with self._screen.pane.changing:
                edited = await asyncio.to_thread(self._desk.chat.edit, message.id, text)
                await self._screen.show_chat()
                if edited.role == "user":
                    await self._screen.pane.until_free()
                    self._screen.pane.launch(self._desk.answer)

        return take

    async def regenerate(self, message: StoredMessage, mode: Mode | None = None) -> None:
        """Answer a question again, as another branch."""
        self.must_be_idle()
        question = self._question_of(message)
        await self._begin_at(question, lambda models: self._desk.answer(models, mode=mode))

    async def go_on(self, message: StoredMessage) -> None:
        """Let the model continue an answer where it ends."""
        self.must_be_idle()
        if message.role != "assistant":
            raise UserError("only an answer can be continued", "choose the answer below")
        await self._begin_at(message, lambda models: self._desk.answer(models, continues=message.id))

    async def _begin_at(self, message: StoredMessage, job: Job) -> None:
        """Let the models work at a message, which ends the shown branch."""
        async with self._screen.pane.changing:
            await self._screen.pane.until_free()
            await asyncio.to_thread(self._desk.chat.back_to, message.id)
            await self._screen.show_chat()
            self._screen.pane.launch(job)

    async def switch(self, message: StoredMessage, step: int) -> None:
        """Show another branch at a message."""
        self.must_be_idle()
        transcript, place = self._screen.query_one(Transcript), self._desk.chat.path.index(message)
        stays = transcript.has_focus_within  # on the keys that walk on
        await asyncio.to_thread(self._desk.chat.switch, message.id, step)
        await self._screen.show_chat()
        if stays:
            transcript.focus_at(place)

    async def compare(self, message: StoredMessage, modes: tuple[Mode, ...] = COMPARED) -> None:
        """Answer a question in several modes with one seed, side by side."""
        self.must_be_idle()
        question, chat = self._question_of(message), self._desk.chat
        models = self._screen.ready_models()
        if models.draft is None:
            modes = tuple(mode for mode in modes if mode in {"off", "ngram"}) or ("off",)
        record = await asyncio.to_thread(chat.record, message.id) if message.role == "assistant" else None
        seed = record.seed if record is not None else 0

        def run(mode: Mode) -> Iterator[AnswerEvent]:
            chat.back_to(question.id)
            try:
                yield from self._desk.answer(models, mode=mode, seed=seed)
            except EngineDied:
                self._screen.loader.reopen(models)
                raise

        async def keep(chosen: int | None) -> None:
            if chosen is not None:
                await asyncio.to_thread(chat.go_to, chosen)
            await asyncio.to_thread(chat.settle)
            await self._screen.show_chat()

        await self._screen.pane.until_free()
        self._screen.ask(CompareScreen(modes, run, models.cancel), keep)

    async def rename(self, chat_id: int, title: str) -> None:
        """Give a chat another title."""
        await asyncio.to_thread(self._desk.store.rename, chat_id, title)
        await self._chats_changed()

    async def pin(self, chat_id: int, *, pinned: bool) -> None:
        """Keep a chat at the top of the list, or no longer."""
        await asyncio.to_thread(self._desk.store.pin, chat_id, pinned)
        await self._chats_changed()

    async def delete(self, chat_id: int) -> None:
        """Delete a chat, and offer to take that back."""
        info = await asyncio.to_thread(self._desk.store.chat, chat_id)
        was_open = chat_id == self._desk.chat.info.id
        if was_open:
            async with self._screen.pane.changing:
                await self._screen.pane.until_free()
                await asyncio.to_thread(self._desk.store.delete, chat_id)
                await asyncio.to_thread(self._desk.new)
            await self._screen.show_chat()
        else:  # an answer may be under way
            await asyncio.to_thread(self._desk.store.delete, chat_id)
            await self._screen.show_chats()

        async def decide(undo: bool | None) -> None:
            if undo:
                await asyncio.to_thread(self._desk.store.restore, chat_id)
                await (self._screen.open_chat(chat_id) if was_open else self._screen.show_chats())

        question = f"“{info.title or 'New chat'}” was deleted."
        self._screen.ask(AskScreen(question, yes="Undo", no="Fine"), decide)

    async def _chats_changed(self) -> None:
        await asyncio.to_thread(self._desk.chat.reload)
        self._screen.reporter.show_chat()
        await self._screen.show_chats()

    def _message(self, message_id: int) -> StoredMessage:
        for message in self._desk.chat.path:
            if message.id == message_id:
                return message
        raise UserError("this message is no longer shown")

    def _question_of(self, message: StoredMessage) -> StoredMessage:
        """Return the question that an answer belongs to, or the question itself."""
        return message if message.role == "user" or message.parent is None else self._message(message.parent)

    def must_be_idle(self) -> None:
        """Raise `UserError` while an answer is written."""
        if self._screen.pane.answering:
            raise UserError("an answer is being written", "stop it first: Esc")
