"""An open chat without a screen: questions, branches, switching to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic

from localspec.chat.answer_turns import AnswerTurn
from localspec.chat.answering import AnswerEvent, AnswerSaved, Started
from localspec.chat.answers import Answers, ChatView
from localspec.chat.messages import AnswerRecord, Attachment, DeletedMessages, StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.plain_rates import own_rate
from localspec.chat.prompting import ContextBudget, check_alone, context_budget, is_short, never_fits
from localspec.chat.running_answer import RunningAnswer
from localspec.chat.session import AnswerVariant, ChatSession, Job
from localspec.chat.tool_use.consent import Decision
from localspec.errors import EngineDied, EngineError, UserError
from localspec.inference.interface import KeepsOnDisk, OpenModels
from localspec.storage.kept_caches import chat_name, forget_named
from localspec.types.models import PlainRate
from localspec.types.request import Mode

CHECK_S = 2.0  # for the length of a long question: the models may not respond
PUT_OFF = 4  # messages by which a chat grows until a summary is proposed again


class ChatController:
    """The open chat of a session, which a view shows; its answers are among those of all chats.

    The methods raise `LocalSpecError`.
    """

    def __init__(self, session: ChatSession, answers: Answers, view: ChatView) -> None:
        self.session = session
        self.answers = answers
        self.loader = answers.loader
        self._view = view
        self._put_off: dict[int, int] = {}  # by chat, the messages before which nothing is summarised unasked
        self._asking = asyncio.Lock()  # while files are read for a question, and while this chat changes
        answers.add(view)

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Let nothing else change the open chat."""
        async with self._asking, self.answers.changing:
            yield

    # --- the answer in progress ---

    @property
    def running(self) -> RunningAnswer | None:
        """The answer in progress in the open chat, or what is measured after it."""
        return self.answers.running(self.session.chat.info.id)

    @property
    def answering(self) -> bool:
        """Whether an answer is being written in the open chat, or does not end."""
        return self.answers.is_answering(self.session.chat)

    @property
    def working(self) -> bool:
        """Whether the models are at work for the open chat: for an answer, or to measure after it."""
        return self.running is not None

    def stop(self) -> None:
        """Stop the answer in the open chat and keep its text. If the engine does not respond, end it."""
        self.answers.stop(self.session.chat)

    async def stop_background_work(self) -> None:
        """Cut short what is still measured after answers; raises `UserError` while one is written here."""
        await self.answers.stop_background_work(self.session.chat)

    async def free_models(self) -> None:
        """Cut short what is measured after answers; raises `UserError` while one is written in any chat."""
        await self.answers.free_models(self.session.chat)

    def require_idle(self) -> None:
        """Raise `UserError` while an answer is written in the open chat."""
        self.answers.require_idle(self.session.chat)

    # --- questions and answers ---

    async def ask(self, read: Callable[[], Awaitable[tuple[str, Sequence[Attachment]]]]) -> None:
        """Ask something in the open chat and start the answer.

        `read` gives the question and its files; the chat cannot be left before it is asked.
        """
        meant = self.session.chat
        asked_s = None if self.loader.ready is None else monotonic()
        async with self._asking:
            text, files = await read()
            await self._check_fits(self.answers.as_it_is(meant), text, files)
            async with self.answers.changing:
                chat = self.answers.as_it_is(meant)
                if not chat.path:
                    chat = await asyncio.to_thread(self.session.unshared, chat)
                await self.answers.prepare(chat)
                question = await asyncio.to_thread(chat.ask, text, files)
                if (view := self.answers.view_of(chat.info.id)) is not None:
                    await view.show_question(question)
                self.answers.launch(chat, partial(self.session.answer, chat=chat, asked_s=asked_s))

    async def _check_fits(self, chat: OpenChat, text: str, files: Sequence[Attachment]) -> None:
        """Raise `ContextFullError` for a question that is too long for the whole context."""
        models = self.loader.ready
        if models is None or is_short(chat.system, text, files, models.target):
            return
        check = asyncio.to_thread(check_alone, chat.system, text, files, models.target, models.count_tokens)
        with suppress(TimeoutError, EngineError):  # the answer will tell the same
            await asyncio.wait_for(check, CHECK_S)

    def decide(self, call_id: str, decision: Decision) -> None:
        """Allow or refuse the call that waits in the open chat; raises `UserError` if it does not."""
        answer = self.running
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
        async with self._changing():
            chat = self.session.chat
            await self.answers.prepare(chat)
            await asyncio.to_thread(chat.back_to, message.id)
            await self._view.show()
            self.answers.launch(chat, job, continues=message.role == "assistant")

    async def edit(self, message: StoredMessage, text: str) -> None:
        """Write a message in another way; a question is answered at once, an answer can be continued."""
        if message.role == "tool":
            raise UserError("the result of a tool cannot be changed", "edit the question, or the answer")
        async with self._changing():
            chat = self.session.chat
            if message.role == "user":
                await self.answers.prepare(chat)
            edited = await asyncio.to_thread(chat.edit, message.id, text)
            await self._view.show()
            if edited.role == "user":
                self.answers.launch(chat, partial(self.session.answer, chat=chat))

    async def delete_messages(self, message: StoredMessage) -> DeletedMessages:
        """Move a message to the bin, with all below it in every branch."""
        async with self._changing():
            chat = self.session.chat
            await self.answers.stop_background_work(chat)
            deleted = await asyncio.to_thread(chat.delete, message.id)
            await self._view.show()
        await asyncio.to_thread(self._forget_caches, deleted.chat)
        return deleted

    async def restore_messages(self, deleted: DeletedMessages) -> None:
        """Restore messages that were deleted together, in their chat."""
        if deleted.chat != self.session.chat.info.id:
            await self.open_chat(deleted.chat)
        async with self._changing():
            chat = self.session.chat
            await self.answers.stop_background_work(chat)
            await asyncio.to_thread(chat.restore, deleted)
            await self._view.show()

    async def fork(self, message: StoredMessage) -> None:
        """Open a new chat with a message and all above it."""
        forked = await asyncio.to_thread(self.session.chat.fork, message.id)
        await self.open_chat(forked.id)

    async def switch(self, message: StoredMessage, step: int) -> int:
        """Show another branch at a message, and return the id of the message that is shown instead."""
        self.require_idle()
        async with self._changing():
            shown = await asyncio.to_thread(self.session.chat.switch, message.id, step)
            await self._view.show(focus=shown)
        return shown

    def compared(self, message: StoredMessage) -> Callable[[Mode], Iterator[AnswerEvent]]:
        """Return a function that answers a question in a mode, with the same seed each time.

        The shown branch does not change. Raises `UserError` if no models are open.
        """
        question = self.question_of(message)
        chat = self.session.chat
        models = self.loader.models(wait=False)
        shown = chat.path[-1]
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
        models = self.loader.models(wait=False)
        chat = self.session.chat
        path = self.session.chat.path
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
        async with self._changing():
            chat = self.session.chat
            if waits:
                await self.answers.prepare(chat)
            await asyncio.to_thread(chat.leave_out, dropped)
            await self._view.show()
            if waits and answer is not None:
                self.answers.launch(chat, answer.job, continues=answer.continues)
            elif waits:
                self.answers.launch(chat, partial(self.session.answer, chat=chat))

    async def compact(self, answer: RunningAnswer | None = None) -> None:
        """Have the older part of the chat summarised; then an answer that did not fit is begun again."""
        async with self._changing():
            chat = self.session.chat
            await self.answers.prepare(chat)
            self._put_off[chat.info.id] = len(chat.path) + PUT_OFF
            if answer is None:
                self.answers.launch(chat, partial(self.session.compact, chat=chat))
            else:
                job = self.session.answer_in_less(answer.job, chat)
                self.answers.launch(chat, job, continues=answer.continues).is_shortened = True

    async def compaction_due(self) -> str:
        """Return in words what should be summarised now; empty where there is room, or it was put off."""
        chat = self.session.chat
        models = self.loader.ready
        is_put_off = len(chat.path) < self._put_off.get(chat.info.id, 0)
        if models is None or self.session.shared.compaction_mode == "off" or is_put_off:
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
        async with self._changing():
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
        await self.switch_chat(lambda: open_in(self.session, self.answers, chat_id, at, view=self._view), at)

    async def switch_chat(self, open_another: Callable[[], object], at: int | None = None) -> None:
        """Switch to another chat; queued prompts are saved with the unsent text of this one.

        An answer in progress in this one goes on. Where this chat is opened again, prompts stay queued.
        """
        async with self._changing():
            left = self.session.chat.info.id
            unsent = self._view.take_unsent()
            await asyncio.to_thread(self.session.store.set_draft, *unsent)
            await asyncio.to_thread(open_another)
            if self.session.chat.info.id != left:
                self.session.queue.clear()
            await self.show_opened(at)

    async def show_opened(self, at: int | None = None) -> None:
        """Show the chat that was just opened, with the answer in progress in it."""
        await self.answers.saw(self.session.chat.info.id)
        answer = self.running
        await self._view.show_opened(at, None if answer is None else answer.live.drain_all())

    def new(self) -> None:
        """Open the newest chat that has only unsent text, or else a new one."""
        open_in(self.session, self.answers, None, view=self._view)

    async def close(self) -> None:
        """Leave the open chat for good: the view is closed, and what was not sent is saved."""
        async with self._changing():
            unsent = self._view.take_unsent()
            await asyncio.to_thread(self.session.store.set_draft, *unsent)
            self.session.queue.clear()
            self.answers.remove(self._view)

    async def delete(self, chat_id: int) -> None:
        """Delete a chat, after the answer in it was stopped; the open one makes way for an empty chat."""
        async with self._changing():
            await self.answers.leave(chat_id)
            await asyncio.to_thread(self.session.store.delete, chat_id)
            self.answers.unread.pop(chat_id, None)
            is_open = chat_id == self.session.chat.info.id
            if is_open:
                await asyncio.to_thread(self.new)
        if is_open:
            await self._view.show()
        await asyncio.to_thread(self._forget_caches, chat_id)

    def _forget_caches(self, chat_id: int) -> None:
        """Delete the files with a chat's caches; raises StoreError."""
        name = chat_name(chat_id)
        models = self.loader.ready
        if isinstance(models, KeepsOnDisk):
            with suppress(EngineError):  # what has died writes no more
                models.forget_conversation(name)
        forget_named(name)


def open_in(
    session: ChatSession,
    answers: Answers,
    chat_id: int | None,
    at: int | None = None,
    *,
    view: ChatView | None = None,
) -> None:
    """Open a chat in a session, at one of its messages if given; None opens a new one.

    Raises `UserError` for a chat that is open in another view than that of this session, which may have none.
    """
    taken = answers.open_chats(but=view)
    if chat_id is None:
        session.new(taken)
        return
    if chat_id in taken:
        raise UserError("this chat is open beside", "go on there")
    answer = answers.running(chat_id)
    if answer is None:
        session.open(chat_id, at)
    else:  # what is written stays on the shown branch
        session.open_again(answer.chat, at if answer.saved is not None else None)
