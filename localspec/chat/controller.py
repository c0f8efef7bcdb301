"""The open chat without a screen: questions, answers, branches, switching to other chats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Protocol

from localspec.chat.answering import AnswerEvent, AnswerSaved, Started
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import AnswerRecord, Attachment, StoredMessage
from localspec.chat.plain_rates import own_rate
from localspec.chat.prompting import ContextBudget, check_alone, context_budget, never_fits
from localspec.chat.running_answer import Job, RunningAnswer
from localspec.chat.session import ChatSession
from localspec.errors import EngineDied, EngineError, StoreError, UserError
from localspec.types.models import PlainRate
from localspec.types.request import Mode

NEWS_S = 1 / 12  # between two updates of an answer in progress
LEAVING_S = 0.8  # for an answer that is to stop; no key is heard meanwhile
ANSWERING = "an answer is being written"


class ChatView(Protocol):
    """A view of the open chat. All methods but `ended` are called while nothing else changes the chat."""

    async def show(self, at: int | None = None, focus: int | None = None) -> None:
        """Show the open chat again, at its end or at a message; `focus` is the message to give the focus."""

    async def show_messages(self) -> None:
        """Show the messages of the open chat again."""

    async def show_question(self, question: StoredMessage) -> None:
        """Show a question that was just asked."""

    def began(self) -> None:
        """Show that an answer is in progress."""

    async def show_news(self, answer: RunningAnswer) -> None:
        """Show what came of an answer since the last time."""

    def rests(self) -> None:
        """Show that the models no longer work for this chat."""

    def ended(self, answer: RunningAnswer, error: BaseException | None) -> None:
        """Hear that an answer has come to its end, or to an error; must not wait."""

    def take_unsent(self) -> tuple[int, str]:
        """Return the open chat, which is left now, and the text to keep with it that was not sent."""


class ChatController:
    """The open chat of a session and the one answer that may be in progress in it.

    `start` runs a coroutine in the background. The methods raise `LocalSpecError`.
    """

    def __init__(
        self,
        session: ChatSession,
        loader: ModelLoader,
        view: ChatView,
        start: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        self.session = session
        self.loader = loader
        self._view = view
        self._start = start
        self._answer: RunningAnswer | None = None
        self._changing = asyncio.Lock()  # while an answer begins, is shown or ends, or a chat opens

    # --- the answer in progress ---

    @property
    def answering(self) -> bool:
        """Whether an answer is being written, or does not end."""
        return self._answer is not None and (not self._answer.saved or self._answer.is_stuck)

    @property
    def working(self) -> bool:
        """Whether the models are at work, for an answer or to measure something after it."""
        return self._answer is not None

    def stop(self) -> None:
        """Stop the answer in progress and keep its text. If the engine does not respond, end it."""
        if self._answer is not None and self._answer.is_stuck:
            self._start(self.reload())
        elif self._answer is not None:
            self._answer.stop()

    async def reload(self) -> None:
        """End the engine, even if it does not respond, and open the models again."""
        if (models := self.loader.ready) is not None:
            await asyncio.to_thread(models.close)
            self.loader.reopen(models)
        self.loader.start()

    async def stop_background_work(self) -> None:
        """Cut short what is still measured after an answer; raises `UserError` while one is written."""
        self.require_idle()
        await self._leave_answer()

    def require_idle(self) -> None:
        """Raise `UserError` while an answer is written."""
        if self.answering:
            raise UserError(ANSWERING, "stop it first: Esc")

    async def _leave_answer(self) -> None:
        """Stop the answer in progress and wait until it is saved, because the chat is about to change."""
        if (answer := self._answer) is not None:
            answer.stop()
            if not await answer.ends_within(LEAVING_S):
                raise UserError("the answer has not stopped yet", "wait a moment")
            self._rest()

    def _rest(self) -> None:
        self._answer = None
        self._view.rests()

    def _launch(self, job: Job, *, continues: bool = False) -> None:
        """Start an answer in the open chat."""
        self._answer = answer = RunningAnswer(self.loader, job, continues=continues)
        self._view.began()
        self._start(self._follow(answer))

    async def _follow(self, answer: RunningAnswer) -> None:
        """Show an answer as it comes, and report its end, unless its chat was left."""
        while not await answer.ends_within(NEWS_S):
            async with self._changing:
                if answer is self._answer:
                    await self._view.show_news(answer)
        async with self._changing:
            if answer is not self._answer:
                return
            await self._view.show_news(answer)
            self._rest()
            if answer.error is not None or not answer.saved:  # it may have left nothing
                with suppress(StoreError):
                    await asyncio.to_thread(self.session.chat.show_answer)
                await self._view.show_messages()
        self._view.ended(answer, answer.error)

    # --- questions and answers ---

    async def ask(self, read: Callable[[], Awaitable[tuple[str, Sequence[Attachment]]]]) -> None:
        """Ask something in the open chat and start the answer.

        `read` gives the question and its files; the chat cannot be left before it is asked.
        """
        chat, asked_s = self.session.chat, None if self.loader.ready is None else monotonic()
        async with self._changing:
            text, files = await read()
            await asyncio.to_thread(self._check_fits, text, files)
            await self.stop_background_work()
            question = await asyncio.to_thread(chat.ask, text, files)
            await self._view.show_question(question)
            self._launch(lambda models: self.session.answer(models, asked_s=asked_s))

    def _check_fits(self, text: str, files: Sequence[Attachment]) -> None:
        """Raise `ContextFullError` for a question that is too long for the whole context."""
        if (models := self.loader.ready) is not None:
            with suppress(EngineError):  # the answer will report it
                check_alone(self.session.chat.system, text, files, models.target, models.count_tokens)

    async def answer_again(self, message: StoredMessage, mode: Mode | None = None) -> None:
        """Answer a question again, as another branch."""
        question = self.question_of(message)
        await self._begin_at(question, lambda models: self.session.answer(models, mode=mode))

    async def go_on(self, message: StoredMessage) -> None:
        """Continue an answer at its end."""
        self.require_idle()
        if message.role != "assistant":
            raise UserError("only an answer can be continued", "choose the answer below")
        await self._begin_at(message, lambda models: self.session.answer(models, continues=message.id))

    async def _begin_at(self, message: StoredMessage, job: Job) -> None:
        """Start an answer at a message, which becomes the end of the shown branch."""
        async with self._changing:
            await self.stop_background_work()
            await asyncio.to_thread(self.session.chat.back_to, message.id)
            await self._view.show()
            self._launch(job, continues=message.role == "assistant")

    async def edit(self, message: StoredMessage, text: str) -> None:
        """Write a message in another way; a question is answered at once, an answer can be continued."""
        async with self._changing:
            edited = await asyncio.to_thread(self.session.chat.edit, message.id, text)
            await self._view.show()
            if edited.role == "user":
                await self.stop_background_work()
                self._launch(self.session.answer)

    async def switch(self, message: StoredMessage, step: int) -> int:
        """Show another branch at a message, and return the id of the message that is shown instead."""
        self.require_idle()
        async with self._changing:
            shown = await asyncio.to_thread(self.session.chat.switch, message.id, step)
            await self._view.show(focus=shown)
        return shown

    def compared(self, message: StoredMessage) -> Callable[[Mode], Iterator[AnswerEvent]]:
        """Return a function that answers a question in a mode, with the same seed each time.

        The shown branch does not change. Raises `UserError` if no models are open.
        """
        question, chat = self.question_of(message), self.session.chat
        models, shown = self.loader.models(wait=False), chat.path[-1]
        record = chat.record(message.id) if message.role == "assistant" else None
        seed = record.seed if record is not None else 0
        rates: dict[Mode, PlainRate] = {}

        def answers(mode: Mode) -> Iterator[AnswerEvent]:
            chat.back_to(question.id)
            try:
                for event in self.session.answer(models, mode=mode, seed=seed, plain=rates.get("off")):
                    if isinstance(event, Started) and shown is not question:
                        chat.back_to(shown.id)  # a killed program shows this branch at the next start
                    yield event
                    if isinstance(event, AnswerSaved) and event.record and (rate := own_rate(event.record)):
                        rates["off"] = rate
            except EngineDied:
                self.loader.reopen(models)
                raise
            finally:
                if shown is not question:  # only a chosen answer is shown afterwards
                    chat.back_to(shown.id)

        return answers

    async def keep_compared(self, chosen: int | None) -> None:
        """Show the answer that was chosen of those compared, or the one before."""
        chat = self.session.chat
        if chosen is not None:
            await asyncio.to_thread(chat.go_to, chosen)
        await asyncio.to_thread(chat.show_answer)
        await self._view.show()

    async def room(self, answer: RunningAnswer | None = None) -> ContextBudget:
        """Return the exchanges that could be left out for the next answer, or for one that did not fit."""
        self.require_idle()
        models, chat, path = self.loader.models(wait=False), self.session.chat, self.session.chat.path
        continues = answer is not None and answer.continues
        if answer is not None and not continues and path[-1].role == "assistant":  # written again
            path = path[:-1]
        room = await asyncio.to_thread(
            context_budget, chat.system, path, models.target.context, models.count_tokens, continues=continues
        )
        if room.waits and room.excess(range(len(room.exchanges))):
            raise never_fits(room.fixed, models.target)
        if not room.exchanges:
            raise UserError("there is nothing that could be left out", "ask something first")
        return room

    async def leave_out(self, dropped: Sequence[int], *, waits: bool, answer: RunningAnswer | None) -> None:
        """Leave exchanges unread; where something waits for that, an answer begins, the given one again."""
        async with self._changing:
            await asyncio.to_thread(self.session.chat.leave_out, dropped)
            await self._view.show()
            if waits:
                await self.stop_background_work()
                job, continues = (answer.job, answer.continues) if answer else (self.session.answer, False)
                self._launch(job, continues=continues)

    # --- messages of the shown branch ---

    def message(self, message_id: int) -> StoredMessage:
        """Return a message of the shown branch; raises `UserError` for one that is not shown any more."""
        for message in self.session.chat.path:
            if message.id == message_id:
                return message
        raise UserError("this message is no longer shown")

    def question_of(self, message: StoredMessage) -> StoredMessage:
        """Return the question that an answer belongs to, or the question itself."""
        return message if message.role == "user" or message.parent is None else self.message(message.parent)

    async def record_of(self, message: StoredMessage, what: str, hint: str) -> AnswerRecord:
        """Return the figures of a message, which is called so; raises `UserError` with a hint without any."""
        record = await asyncio.to_thread(self.session.chat.record, message.id)
        if record is None:
            raise UserError(f"there are no figures for this {what}", hint)
        return record

    # --- other chats ---

    async def switch_chat(self, open_another: Callable[[], object]) -> None:
        """Switch to another chat; queued prompts are saved with the unsent text of this one."""
        async with self._changing:
            await self._leave_answer()
            unsent = self._view.take_unsent()
            await asyncio.to_thread(self.session.store.set_draft, *unsent)
            await asyncio.to_thread(open_another)
            self.session.queue.clear()

    async def delete(self) -> None:
        """Delete the open chat, and open an empty one."""
        async with self._changing:
            await self.stop_background_work()
            await asyncio.to_thread(self.session.store.delete, self.session.chat.info.id)
            await asyncio.to_thread(self.session.new)
        await self._view.show()

    def close(self) -> None:
        """Stop the answer in progress because the program ends; its text is saved."""
        if self._answer is not None:
            self._answer.stop()
