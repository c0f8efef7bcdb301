"""The answers in progress in all chats: they begin, are shown where their chats are open, and end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Protocol

from localspec.chat.answer_turns import AnswerTurns
from localspec.chat.answering import LiveUpdate
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import Outcome, StoredMessage
from localspec.chat.open_chat import OpenChat
from localspec.chat.running_answer import RunningAnswer
from localspec.chat.session import Job
from localspec.chat.store import Store
from localspec.chat.tool_use.consent import CallAsked
from localspec.errors import StoreError, UserError

NEWS_S = 1 / 12  # between two updates of an answer in progress
LEAVING_S = 0.8  # for an answer that is to stop; no key is heard meanwhile
ANSWERING = "an answer is being written"
MOST = 8  # chats that are answered at once


class ChatView(Protocol):
    """A view of one chat. All methods but `ended` are called while nothing else changes the chat."""

    @property
    def chat(self) -> OpenChat:
        """The chat that is open in this view."""

    @property
    def is_seen(self) -> bool:
        """Whether the user can see this view."""

    async def show(self, at: int | None = None, focus: int | None = None) -> None:
        """Show the open chat again, at its end or at a message; `focus` is the message to give the focus."""

    async def show_opened(self, at: int | None, news: LiveUpdate | None) -> None:
        """Show a chat that was just opened; `news` is all that came of an answer in progress in it."""

    async def show_messages(self) -> None:
        """Show the messages of the open chat again."""

    async def show_question(self, question: StoredMessage) -> None:
        """Show a question that was just asked."""

    def began(self) -> None:
        """Show that an answer is in progress."""

    async def show_news(self, answer: RunningAnswer, news: LiveUpdate) -> None:
        """Show what came of an answer since the last time."""

    def rests(self) -> None:
        """Show that the models no longer work for this chat."""

    def ended(self, answer: RunningAnswer, error: BaseException | None) -> None:
        """Hear that an answer has come to its end, or to an error; must not wait."""

    def take_unsent(self) -> tuple[int, str]:
        """Return the open chat, which is left now, and the text to keep with it that was not sent."""


class OtherChats(Protocol):
    """Who hears of answers that the user does not see. No method may wait."""

    def began(self, *, is_shown: bool) -> None:
        """Hear that an answer begins; in a view, or in a chat that was left just now."""

    def asks(self, answer: RunningAnswer, asked: CallAsked) -> None:
        """Hear that a call waits for consent."""

    def ended(self, answer: RunningAnswer, outcome: Outcome) -> None:
        """Hear that an answer has ended, or failed."""

    def rests(self, answer: RunningAnswer, error: BaseException | None) -> None:
        """Hear that the models no longer work for a chat."""


class Answers:
    """The answers in progress, at most one in each chat, and the views in which chats are open.

    An answer goes on where its chat is left. `start` runs a coroutine in the background. The methods raise
    `LocalSpecError`.
    """

    def __init__(
        self,
        store: Store,
        loader: ModelLoader,
        others: OtherChats,
        start: Callable[[Callable[[], Coroutine[None, None, None]]], object],
    ) -> None:
        self.loader = loader
        self.unread = store.unread()  # of answers that ended in chats that were not open
        self.changing = asyncio.Lock()  # while an answer begins, is shown or ends, or a chat opens
        self._store = store
        self._others = others
        self._start = start
        self._views: list[ChatView] = []
        self._running: dict[int, RunningAnswer] = {}  # by chat
        self._turns = AnswerTurns()
        self._is_closed = False  # the program ends, and its views go

    # --- where chats are open ---

    def add(self, view: ChatView) -> None:
        """Tell a view of the answers in the chat that is open there."""
        self._views.append(view)
        number = view.chat.info.id
        if self.unread.pop(number, None) is not None:
            self._store.set_unread(number, None)

    def remove(self, view: ChatView) -> None:
        """Forget a view that is closed; an answer in its chat goes on."""
        self._views.remove(view)

    def open_chats(self, but: ChatView | None = None) -> frozenset[int]:
        """Return the numbers of the chats that are open in views, but for one."""
        return frozenset(view.chat.info.id for view in self._views if view is not but)

    def view_of(self, chat_id: int) -> ChatView | None:
        """Return the view in which a chat is open, if there is one."""
        return next((view for view in self._views if view.chat.info.id == chat_id), None)

    def as_it_is(self, chat: OpenChat) -> OpenChat:
        """Return a chat as it is open now: it may have been left since, and opened again."""
        number = chat.info.id
        if (view := self.view_of(number)) is not None:
            return view.chat
        answer = self._running.get(number)
        return chat if answer is None else answer.chat

    async def saw(self, chat_id: int) -> None:
        """Note that the user sees the answers of a chat."""
        if self.unread.pop(chat_id, None) is not None:
            with suppress(StoreError):
                await asyncio.to_thread(self._store.set_unread, chat_id, None)

    # --- what is in progress ---

    def running(self, chat_id: int) -> RunningAnswer | None:
        """Return the answer in progress in a chat, or what is measured after it."""
        return self._running.get(chat_id)

    def is_answering(self, chat: OpenChat) -> bool:
        """Return whether an answer is being written in a chat, or does not end."""
        answer = self._running.get(chat.info.id)
        return answer is not None and (answer.saved is None or answer.is_stuck)

    @property
    def is_busy(self) -> bool:
        """Whether the models are at work for any chat."""
        return bool(self._running)

    def being_answered(self) -> dict[int, OpenChat]:
        """Return the chats that an answer is being written into, by their numbers."""
        return {number: each.chat for number, each in self._running.items() if each.saved is None}

    def require_idle(self, chat: OpenChat) -> None:
        """Raise `UserError` while an answer is written in a chat."""
        if self.is_answering(chat):
            raise UserError(ANSWERING, "stop it first: Esc")

    # --- an answer from its beginning to its end ---

    async def prepare(self, chat: OpenChat) -> None:
        """Make way for an answer in a chat; raises `UserError` where there can be no other."""
        await self.stop_background_work(chat)
        if len(self.being_answered()) >= MOST:
            raise UserError(f"{MOST} chats are being answered already", "wait for one, or stop one: Esc")

    def launch(self, chat: OpenChat, job: Job, *, continues: bool = False) -> RunningAnswer:
        """Start an answer in a chat."""
        answer = RunningAnswer(self.loader, chat, self._turns, job, continues=continues)
        self._running[chat.info.id] = answer
        view = self.view_of(chat.info.id)
        self._others.began(is_shown=view is not None)
        if view is not None:
            view.began()
        self._start(partial(self._follow, answer))
        return answer

    async def _follow(self, answer: RunningAnswer) -> None:
        """Show an answer as it comes, while its chat is open, and report its end."""
        while not await answer.ends_within(NEWS_S):
            async with self.changing:
                await self._tell(answer)
        if self._is_closed:
            return
        async with self.changing:
            number = answer.chat.info.id
            error = answer.error
            if self._running.get(number) is not answer:
                return  # it was stopped because its chat was to change
            await self._tell(answer)
            view = self.view_of(number)
            is_seen = view is not None and view.is_seen
            if not (is_seen or answer.is_reported or answer.is_stopped):
                await self._end_elsewhere(answer, "answered" if error is None else "failed")
            self._rest(answer)
            if error is not None or answer.saved is None:  # it may have left nothing
                with suppress(StoreError):
                    await asyncio.to_thread(answer.chat.show_answer)
                if view is not None:
                    await view.show_messages()
        if view is not None:
            view.ended(answer, error)
        else:
            self._others.rests(answer, error)

    async def _tell(self, answer: RunningAnswer) -> None:
        """Show what came of an answer where its chat is open; report once what cannot be seen."""
        if self._is_closed:
            return
        saved = answer.saved
        view = self.view_of(answer.chat.info.id)
        if view is not None:
            await view.show_news(answer, answer.live.drain())
            while answer.live.is_behind:
                await view.show_news(answer, answer.live.drain())
        if view is not None and view.is_seen:
            answer.is_reported = saved is not None
        elif (asked := answer.turn.desk.asked) is not answer.asked_elsewhere:
            answer.asked_elsewhere = asked
            if asked is not None:
                self._others.asks(answer, asked)
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
            await asyncio.to_thread(self._store.set_unread, number, outcome)
        self._others.ended(answer, outcome)

    def _rest(self, answer: RunningAnswer) -> None:
        number = answer.chat.info.id
        self._running.pop(number, None)
        if (view := self.view_of(number)) is not None:
            view.rests()

    # --- stopping ---

    def stop(self, chat: OpenChat) -> None:
        """Stop the answer in a chat and keep its text. If the engine does not respond, end it."""
        answer = self._running.get(chat.info.id)
        if answer is None:
            return
        if answer.is_stuck:
            self._start(self.reload)
            return
        answer.stop()
        if answer.models is None and not any(each.is_loading for each in self._running.values()):
            self.loader.cancel()

    async def reload(self) -> None:
        """End the engine, even if it does not respond, and open the models again."""
        if (models := self.loader.ready) is not None:
            await asyncio.to_thread(models.close)
            self.loader.reopen(models)
        self.loader.start()

    async def stop_background_work(self, chat: OpenChat) -> None:
        """Cut short what is still measured after answers; raises `UserError` while one is written here."""
        self.require_idle(chat)
        for answer in self._running.values():
            if answer.saved is not None and not answer.turn.has_seat:
                answer.stop()
        await self.leave(chat.info.id)

    async def stop_all(self) -> None:
        """Stop the answers in all chats and wait until they are saved."""
        for answer in self._running.values():
            answer.stop()
        for number in list(self._running):
            await self.leave(number)

    async def leave(self, chat_id: int) -> None:
        """Stop the answer in a chat and wait until it is saved, because the chat is about to change."""
        answer = self._running.get(chat_id)
        if answer is None:
            return
        answer.stop()
        if not await answer.ends_within(LEAVING_S):
            raise UserError("the answer has not stopped yet", "wait a moment")
        if (view := self.view_of(chat_id)) is not None:
            await view.show_news(answer, answer.live.drain())
        self._rest(answer)

    async def free_models(self, chat: OpenChat) -> None:
        """Cut short what is measured after answers; raises `UserError` while one is written anywhere.

        Of a chat that is not the given one, the error tells the title.
        """
        self.require_idle(chat)
        for other in self.being_answered().values():
            raise UserError(f"“{other.info.title}” is being answered", "wait, or open it and press Esc")
        await self.stop_all()

    def close(self) -> None:
        """Stop the answers in progress because the program ends; their texts are saved.

        Any thread may call it.
        """
        self._is_closed = True
        for answer in list(self._running.values()):
            answer.stop()
