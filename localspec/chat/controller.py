"""The open chat and the answers in all chats without a screen: questions, branches, switching to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol

from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.answering import AnswerEvent, AnswerSaved, LiveUpdate, Started
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import AnswerRecord, Attachment, DeletedMessages, Outcome, StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.plain_rates import own_rate
from localspec.chat.prompting import ContextBudget, check_alone, context_budget, never_fits
from localspec.chat.running_answer import RunningAnswer
from localspec.chat.session import AnswerVariant, ChatSession, Job
from localspec.chat.tool_use.consent import CallAsked, Decision
from localspec.errors import EngineDied, EngineError, StoreError, UserError
from localspec.inference.interface import KeepsOnDisk, OpenModels
from localspec.storage.kept_caches import chat_name, forget_named
from localspec.types.models import PlainRate
from localspec.types.request import Mode

NEWS_S = 1 / 12  # between two updates of an answer in progress
LEAVING_S = 0.8  # for an answer that is to stop; no key is heard meanwhile
ANSWERING = "an answer is being written"
CHECK_S = 2.0  # for the length of a question: the models may work for another chat and not respond
PUT_OFF = 4  # messages by which a chat grows until a summary is proposed again
MOST = 8  # chats that are answered at once


class ChatView(Protocol):
    """A view of the open chat. All methods but `ended` are called while nothing else changes the chat."""

    async def show(self, at: int | None = None, focus: int | None = None) -> None:
        """Show the open chat again, at its end or at a message; `focus` is the message to give the focus."""

    async def show_opened(self, at: int | None, news: LiveUpdate | None) -> None:
        """Show a chat that was just opened; `news` is all that came of an answer in progress in it."""

    async def show_messages(self) -> None:
        """Show the messages of the open chat again."""

    async def show_question(self, question: StoredMessage) -> None:
        """Show a question that was just asked."""

    def began(self, *, is_shown: bool) -> None:
        """Show that an answer is in progress, in the open chat or in one that was left just now."""

    async def show_news(self, answer: RunningAnswer, news: LiveUpdate) -> None:
        """Show what came of an answer since the last time."""

    def rests(self) -> None:
        """Show that the models no longer work for this chat."""

    def ended(self, answer: RunningAnswer, error: BaseException | None) -> None:
        """Hear that an answer has come to its end, or to an error; must not wait."""

    def ended_elsewhere(self, answer: RunningAnswer, outcome: Outcome) -> None:
        """Hear that an answer in a chat that is not open has ended, or failed; must not wait."""

    def asks_elsewhere(self, answer: RunningAnswer, asked: CallAsked) -> None:
        """Hear that a call waits for consent in a chat that is not open; must not wait."""

    def rested_elsewhere(self, answer: RunningAnswer, error: BaseException | None) -> None:
        """Hear that the models no longer work for a chat that is not open; must not wait."""

    def take_unsent(self) -> tuple[int, str]:
        """Return the open chat, which is left now, and the text to keep with it that was not sent."""


class ChatController:
    """The open chat of a session, and the answers in progress: at most one in each chat.

    An answer goes on where its chat is left. `start` runs a coroutine in the background. The methods raise
    `LocalSpecError`.
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
        self._answers: dict[int, RunningAnswer] = {}  # by chat
        self._turns = AnswerTurns()
        self.unread = session.store.unread()  # of answers that ended in chats that were not open
        if self.unread.pop(session.chat.info.id, None) is not None:
            session.store.set_unread(session.chat.info.id, None)
        self._put_off: dict[int, int] = {}  # by chat, the messages before which nothing is summarised unasked
        self._changing = asyncio.Lock()  # while an answer begins, is shown or ends, or a chat opens

    # --- the answers in progress ---

    @property
    def _answer(self) -> RunningAnswer | None:
        """The answer in progress in the open chat."""
        return self._answers.get(self.session.chat.info.id)

    @property
    def running(self) -> RunningAnswer | None:
        """The answer in progress in the open chat, or what is measured after it."""
        return self._answer

    @property
    def answering(self) -> bool:
        """Whether an answer is being written in the open chat, or does not end."""
        return self._is_answering(self.session.chat)

    def _is_answering(self, chat: OpenChat) -> bool:
        answer = self._answers.get(chat.info.id)
        return answer is not None and (answer.saved is None or answer.is_stuck)

    @property
    def working(self) -> bool:
        """Whether the models are at work for the open chat: for an answer, or to measure after it."""
        return self._answer is not None

    @property
    def is_busy(self) -> bool:
        """Whether the models are at work for any chat."""
        return bool(self._answers)

    def being_answered(self) -> dict[int, OpenChat]:
        """Return the chats that an answer is being written into, by their numbers."""
        return {number: each.chat for number, each in self._answers.items() if each.saved is None}

    def stop(self) -> None:
        """Stop the answer in the open chat and keep its text. If the engine does not respond, end it."""
        answer = self._answer
        if answer is None:
            return
        if answer.is_stuck:
            self._start(self.reload())
            return
        answer.stop()
        if answer.models is None and not any(each.is_loading for each in self._answers.values()):
            self.loader.cancel()

    async def reload(self) -> None:
        """End the engine, even if it does not respond, and open the models again."""
        if (models := self.loader.ready) is not None:
            await asyncio.to_thread(models.close)
            self.loader.reopen(models)
        self.loader.start()

    async def stop_background_work(self) -> None:
        """Cut short what is still measured after answers; raises `UserError` while one is written here."""
        await self._stop_background_work(self.session.chat)

    async def _stop_background_work(self, chat: OpenChat) -> None:
        self._require_idle(chat)
        for answer in self._answers.values():
            if answer.saved is not None:
                answer.stop()
        await self._leave_answer(chat.info.id)

    async def free_models(self) -> None:
        """Cut short what is measured after answers; raises `UserError` while one is written in any chat."""
        self.require_idle()
        for chat in self.being_answered().values():
            raise UserError(f"“{chat.info.title}” is being answered", "wait, or open it and press Esc")
        await self.stop_answers()

    async def stop_answers(self) -> None:
        """Stop the answers in all chats and wait until they are saved."""
        for answer in self._answers.values():
            answer.stop()
        for number in list(self._answers):
            await self._leave_answer(number)

    def require_idle(self) -> None:
        """Raise `UserError` while an answer is written in the open chat."""
        self._require_idle(self.session.chat)

    def _require_idle(self, chat: OpenChat) -> None:
        if self._is_answering(chat):
            raise UserError(ANSWERING, "stop it first: Esc")

    async def _leave_answer(self, chat_id: int) -> None:
        """Stop the answer in a chat and wait until it is saved, because the chat is about to change."""
        answer = self._answers.get(chat_id)
        if answer is None:
            return
        answer.stop()
        if not await answer.ends_within(LEAVING_S):
            raise UserError("the answer has not stopped yet", "wait a moment")
        if answer is self._answer:
            await self._view.show_news(answer, answer.live.drain())
        self._rest(answer)

    def _rest(self, answer: RunningAnswer) -> None:
        is_shown = answer is self._answer
        self._answers.pop(answer.chat.info.id, None)
        if is_shown:
            self._view.rests()

    async def _prepare(self, chat: OpenChat) -> None:
        """Make way for an answer in a chat; raises `UserError` where there can be no other."""
        await self._stop_background_work(chat)
        if len(self.being_answered()) >= MOST:
            raise UserError(f"{MOST} chats are being answered already", "wait for one, or stop one: Esc")

    def _launch(self, chat: OpenChat, job: Job, *, continues: bool = False) -> RunningAnswer:
        """Start an answer in a chat."""
        answer = RunningAnswer(self.loader, chat, self._turns, job, continues=continues)
        self._answers[chat.info.id] = answer
        self._view.began(is_shown=answer is self._answer)
        self._start(self._follow(answer))
        return answer

    async def _follow(self, answer: RunningAnswer) -> None:
        """Show an answer as it comes, while its chat is open, and report its end."""
        while not await answer.ends_within(NEWS_S):
            async with self._changing:
                await self._tell(answer)
        async with self._changing:
            if self._answers.get(answer.chat.info.id) is not answer:
                return  # it was stopped because its chat was to change
            is_shown, error = answer is self._answer, answer.error
            await self._tell(answer)
            if not (is_shown or answer.is_reported or answer.is_stopped):
                await self._end_elsewhere(answer, "answered" if error is None else "failed")
            self._rest(answer)
            if error is not None or answer.saved is None:  # it may have left nothing
                with suppress(StoreError):
                    await asyncio.to_thread(answer.chat.show_answer)
                if is_shown:
                    await self._view.show_messages()
        if is_shown:
            self._view.ended(answer, error)
        else:
            self._view.rested_elsewhere(answer, error)

    async def _tell(self, answer: RunningAnswer) -> None:
        """Show what came of an answer if its chat is open, and else report once that it is finished."""
        saved = answer.saved
        if answer is self._answer:
            await self._view.show_news(answer, answer.live.drain())
            while answer.live.is_behind:
                await self._view.show_news(answer, answer.live.drain())
            answer.is_reported = saved is not None
        elif (asked := answer.turn.desk.asked) is not answer.asked_elsewhere:
            answer.asked_elsewhere = asked
            if asked is not None:
                self._view.asks_elsewhere(answer, asked)
        elif saved is not None and saved.message.state != "failed" and not answer.is_reported:
            answer.is_reported = True
            if not answer.is_stopped:
                await self._end_elsewhere(answer, "answered")

    async def _end_elsewhere(self, answer: RunningAnswer, outcome: Outcome) -> None:
        try:
            with suppress(StoreError):
                await asyncio.to_thread(answer.chat.reload_info)  # it may have been given another title
        except UserError:
            return  # another program has deleted it
        number = answer.chat.info.id
        self.unread[number] = outcome
        with suppress(StoreError):
            await asyncio.to_thread(self.session.store.set_unread, number, outcome)
        self._view.ended_elsewhere(answer, outcome)

    # --- questions and answers ---

    async def ask(self, read: Callable[[], Awaitable[tuple[str, Sequence[Attachment]]]]) -> None:
        """Ask something in the open chat and start the answer.

        `read` gives the question and its files; the chat cannot be left before it is asked.
        """
        meant, asked_s = self.session.chat, None if self.loader.ready is None else monotonic()
        async with self._changing:
            chat = self._as_it_is(meant)
            if not chat.path:
                chat = await asyncio.to_thread(self.session.unshared, chat)
            text, files = await read()
            with suppress(TimeoutError):  # the answer will tell the same
                await asyncio.wait_for(asyncio.to_thread(self._check_fits, chat, text, files), CHECK_S)
            await self._prepare(chat)
            question = await asyncio.to_thread(chat.ask, text, files)
            if chat is self.session.chat:
                await self._view.show_question(question)
            self._launch(chat, partial(self.session.answer, chat=chat, asked_s=asked_s))

    def _as_it_is(self, chat: OpenChat) -> OpenChat:
        """Return a chat as it is open now: it may have been left since, and opened again."""
        number = chat.info.id
        if number == self.session.chat.info.id:
            return self.session.chat
        answer = self._answers.get(number)
        return chat if answer is None else answer.chat

    def _check_fits(self, chat: OpenChat, text: str, files: Sequence[Attachment]) -> None:
        """Raise `ContextFullError` for a question that is too long for the whole context."""
        if (models := self.loader.ready) is not None:
            with suppress(EngineError):  # the answer will report it
                check_alone(chat.system, text, files, models.target, models.count_tokens)

    def decide(self, call_id: str, decision: Decision) -> None:
        """Allow or refuse the call that waits in the open chat; raises `UserError` if it does not."""
        answer = self._answer
        if answer is None or not answer.turn.desk.decide(call_id, decision):
            raise UserError("this call no longer waits")

    async def answer_again(
        self, message: StoredMessage, mode: Mode | None = None, target: Path | None = None
    ) -> None:
        """Answer a question again, as another branch; only with the model `target`, if one is given."""
        question = self.question_of(message)
        answer = partial(self.session.answer, chat=self.session.chat, variant=AnswerVariant(mode))

        def answer_if_meant(models: OpenModels, turn: AnswerTurn) -> Iterator[AnswerEvent]:
            if target is not None and models.target.path.resolve() != target.resolve():
                raise UserError(f"`{target.name}` did not open", "the earlier answer stays")
            yield from answer(models, turn)

        await self._begin_at(question, answer_if_meant)

    async def go_on(self, message: StoredMessage) -> None:
        """Continue an answer at its end."""
        self.require_idle()
        if message.role != "assistant":
            raise UserError("only an answer can be continued", "choose the answer below")
        chat = self.session.chat
        await self._begin_at(message, partial(self.session.answer, chat=chat, continues=message.id))

    async def _begin_at(self, message: StoredMessage, job: Job) -> None:
        """Start an answer at a message, which becomes the end of the shown branch."""
        async with self._changing:
            chat = self.session.chat
            await self._prepare(chat)
            await asyncio.to_thread(chat.back_to, message.id)
            await self._view.show()
            self._launch(chat, job, continues=message.role == "assistant")

    async def edit(self, message: StoredMessage, text: str) -> None:
        """Write a message in another way; a question is answered at once, an answer can be continued."""
        if message.role == "tool":
            raise UserError("the result of a tool cannot be changed", "edit the question, or the answer")
        async with self._changing:
            chat = self.session.chat
            if message.role == "user":
                await self._prepare(chat)
            edited = await asyncio.to_thread(chat.edit, message.id, text)
            await self._view.show()
            if edited.role == "user":
                self._launch(chat, partial(self.session.answer, chat=chat))

    async def delete_messages(self, message: StoredMessage) -> DeletedMessages:
        """Move a message to the bin, with all below it in every branch."""
        async with self._changing:
            chat = self.session.chat
            await self._stop_background_work(chat)
            deleted = await asyncio.to_thread(chat.delete, message.id)
            await self._view.show()
        await asyncio.to_thread(self._forget_caches, deleted.chat)
        return deleted

    async def restore_messages(self, deleted: DeletedMessages) -> None:
        """Restore messages that were deleted together, in their chat."""
        if deleted.chat != self.session.chat.info.id:
            await self.open_chat(deleted.chat)
        async with self._changing:
            chat = self.session.chat
            await self._stop_background_work(chat)
            await asyncio.to_thread(chat.restore, deleted)
            await self._view.show()

    async def fork(self, message: StoredMessage) -> None:
        """Open a new chat with a message and all above it."""
        forked = await asyncio.to_thread(self.session.chat.fork, message.id)
        await self.open_chat(forked.id)

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
                for event in self.session.answer(models, variant=AnswerVariant(mode, seed, rates.get("off"))):
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
        tools = await asyncio.to_thread(self.session.tool_tokens, models, chat)
        room = await asyncio.to_thread(
            context_budget,
            chat.system,
            path,
            models.target.context,
            models.count_tokens,
            continues=continues,
            tools=tools,
        )
        if room.waits and room.excess(range(len(room.exchanges))):
            raise never_fits(room.fixed, models.target)
        if not room.exchanges:
            raise UserError("there is nothing that could be left out", "ask something first")
        return room

    async def leave_out(self, dropped: Sequence[int], *, waits: bool, answer: RunningAnswer | None) -> None:
        """Leave exchanges unread; where something waits for that, an answer begins, the given one again."""
        async with self._changing:
            chat = self.session.chat
            if waits:
                await self._prepare(chat)
            await asyncio.to_thread(chat.leave_out, dropped)
            await self._view.show()
            if waits and answer is not None:
                self._launch(chat, answer.job, continues=answer.continues)
            elif waits:
                self._launch(chat, partial(self.session.answer, chat=chat))

    async def compact(self, answer: RunningAnswer | None = None) -> None:
        """Have the older part of the chat summarised; then an answer that did not fit is begun again."""
        async with self._changing:
            chat = self.session.chat
            await self._prepare(chat)
            self._put_off[chat.info.id] = len(chat.path) + PUT_OFF
            if answer is None:
                self._launch(chat, partial(self.session.compact, chat=chat))
            else:
                job = self.session.answer_in_less(answer.job, chat)
                self._launch(chat, job, continues=answer.continues).is_shortened = True

    async def compaction_due(self) -> str:
        """Return in words what should be summarised now; empty where there is room, or it was put off."""
        chat, models = self.session.chat, self.loader.ready
        is_put_off = len(chat.path) < self._put_off.get(chat.info.id, 0)
        if models is None or self.session.compaction_mode == "off" or is_put_off:
            return ""
        with suppress(UserError, EngineError):  # nothing to summarise; the next answer reports an error
            if await asyncio.to_thread(self.session.is_nearly_full, models, chat):
                return await self.summarisable()
        return ""

    async def summarisable(self) -> str:
        """Return in words what could be summarised, and for about how long; empty for nothing."""
        models = self.loader.models(wait=False)
        with suppress(UserError):
            return (await asyncio.to_thread(self.session.compaction, models))[1]
        return ""

    def put_off_compaction(self) -> None:
        """Do not ask again before the chat has grown."""
        self._put_off[self.session.chat.info.id] = len(self.session.chat.path) + PUT_OFF

    async def set_summary(self, message_id: int, text: str) -> None:
        """Give a summary other words; an empty text takes it back, so that the model reads all again."""
        self.require_idle()
        async with self._changing:
            await asyncio.to_thread(self.session.chat.set_summary, message_id, text)
            await self._view.show(focus=-message_id if text else None)

    # --- messages of the shown branch ---

    def message(self, message_id: int) -> StoredMessage:
        """Return a message of the shown branch; raises `UserError` for one that is not shown any more."""
        for message in self.session.chat.path:
            if message.id == message_id:
                return message
        raise UserError("this message is no longer shown")

    def question_of(self, message: StoredMessage) -> StoredMessage:
        """Return the question, or the result of a tool, that an answer follows; or the message itself."""
        if message.role != "assistant" or message.parent is None:
            return message
        return self.message(message.parent)

    async def record_of(self, message: StoredMessage, what: str, hint: str) -> AnswerRecord:
        """Return the figures of a message, which is called so; raises `UserError` with a hint without any."""
        record = await asyncio.to_thread(self.session.chat.record, message.id)
        if record is None:
            raise UserError(f"there are no figures for this {what}", hint)
        return record

    # --- other chats ---

    async def open_chat(self, chat_id: int, at: int | None = None) -> None:
        """Switch to a chat, at one of its messages if given."""

        def open_it() -> None:
            answer = self._answers.get(chat_id)
            if answer is None:
                self.session.open(chat_id, at)
            else:  # what is written stays on the shown branch
                self.session.open_again(answer.chat, at if answer.saved is not None else None)

        await self.switch_chat(open_it, at)

    async def switch_chat(self, open_another: Callable[[], object], at: int | None = None) -> None:
        """Switch to another chat; queued prompts are saved with the unsent text of this one.

        An answer in progress in this one goes on.
        """
        async with self._changing:
            unsent = self._view.take_unsent()
            await asyncio.to_thread(self.session.store.set_draft, *unsent)
            await asyncio.to_thread(open_another)
            self.session.queue.clear()
            await self._show_opened(at)

    async def _show_opened(self, at: int | None = None) -> None:
        number, answer = self.session.chat.info.id, self._answer
        if self.unread.pop(number, None) is not None:
            with suppress(StoreError):
                await asyncio.to_thread(self.session.store.set_unread, number, None)
        await self._view.show_opened(at, None if answer is None else answer.live.drain_all())

    async def delete(self, chat_id: int) -> None:
        """Delete a chat, after the answer in it was stopped; the open one makes way for an empty chat."""
        async with self._changing:
            await self._leave_answer(chat_id)
            await asyncio.to_thread(self.session.store.delete, chat_id)
            self.unread.pop(chat_id, None)
            is_open = chat_id == self.session.chat.info.id
            if is_open:
                await asyncio.to_thread(self.session.new)
        if is_open:
            await self._view.show()
        await asyncio.to_thread(self._forget_caches, chat_id)

    def _forget_caches(self, chat_id: int) -> None:
        """Delete the files with a chat's caches; raises StoreError."""
        name, models = chat_name(chat_id), self.loader.ready
        if isinstance(models, KeepsOnDisk):
            with suppress(EngineError):  # what has died writes no more
                models.forget_conversation(name)
        forget_named(name)

    def close(self) -> None:
        """Stop the answers in progress because the program ends; their texts are saved.

        Any thread may call it.
        """
        for answer in list(self._answers.values()):
            answer.stop()
