"""Notices of answers in chats that are not shown, and the way on where their models are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from textual.message import Message as ScreenMessage
from textual.notifications import Notification, Notify
from textual.screen import Screen

from localspec.chat.loading import ModelLoader
from localspec.chat.messages import ChatInfo, Outcome
from localspec.chat.running_answer import RunningAnswer
from localspec.chat.tool_use.consent import CallAsked
from localspec.chat.tool_use.described import describe_wish
from localspec.errors import Cancelled, EngineDied, ServerLost
from localspec_tui.screens.chat.status import NOTICE_S
from localspec_tui.screens.dialogs import AskScreen
from localspec_tui.widgets.notice import Notice
from localspec_tui.widgets.status import error_line, shortened

TITLE_COLUMNS = 22  # in a notice, which then takes one line in half of 80 columns
WAITING_S = 10.0  # after which the user may be looking elsewhere


class ChatsChanged(ScreenMessage):
    """The list of chats may have to be read again."""


@dataclass
class AnswerReady(ScreenMessage):
    """An answer that took its time has come to its end."""

    title: str


class Elsewhere:
    """Tells of answers in chats that no pane shows: the `OtherChats` of the answers."""

    def __init__(
        self,
        screen: Screen[int],
        loader: ModelLoader,
        stop_reading: Callable[[], None],
        read_again: Callable[[], None],
    ) -> None:
        """Take the screen that shows notices, and what begins and ends reading ahead."""
        self.use_local_models: Callable[[], None] | None = None  # where the models are on another machine
        self._screen = screen
        self._loader = loader
        self._stop_reading = stop_reading
        self.read_again = read_again
        self._notices: dict[int, Notification] = {}  # by chat
        self._going_on: dict[int, tuple[Notice, str]] = {}  # what was said of chats that were left

    # --- answers ---

    def began(self, *, is_shown: bool) -> None:
        """Have nothing more read ahead: something is asked."""
        self._stop_reading()
        self._screen.post_message(ChatsChanged())

    def goes_on(self, chat: ChatInfo, notice: Notice, *, has_waiting: bool) -> None:
        """Say in a pane that the answer in the chat that was left there goes on."""
        waiting = "; its queued prompts are kept there as unsent text" * has_waiting
        text = f"the answer in “{_short(chat.title)}” goes on{waiting}"
        self._going_on[chat.id] = (notice, text)
        notice.say(text)

    def asks(self, answer: RunningAnswer, asked: CallAsked) -> None:
        """Tell that a call waits for consent."""
        text = f"“{_short(answer.chat.info.title)}” waits: {describe_wish(asked.tool)}"
        self._give_notice(answer.chat.info.id, Notification(text, severity="warning", timeout=NOTICE_S))

    def ended(self, answer: RunningAnswer, outcome: Outcome) -> None:
        """Tell that an answer has ended, or failed."""
        self._screen.post_message(ChatsChanged())
        self.tell_time(answer)
        number = answer.chat.info.id
        title = _short(answer.chat.info.title)
        if (said := self._going_on.pop(number, None)) is not None and said[0].said == said[1]:
            said[0].say("")
        if outcome == "answered":
            self._give_notice(number, Notification(f"“{title}” is answered", timeout=NOTICE_S))
            return
        reason = error_line(answer.error or Cancelled("stopped"))
        text = f"“{title}” is not answered: {reason}{'; the text so far is saved' * bool(answer.saved)}"
        self._give_notice(number, Notification(text, severity="error", timeout=NOTICE_S))

    def rests(self, answer: RunningAnswer, error: BaseException | None) -> None:
        """Do what is next once the models no longer work for a chat."""
        self._screen.post_message(ChatsChanged())
        self.read_again()
        if error is not None:
            self._screen.call_later(self.reopen_after, error, answer)

    def tell_time(self, answer: RunningAnswer) -> None:
        """Tell of an answer that took its time."""
        if monotonic() - answer.began_s > WAITING_S:
            self._screen.post_message(AnswerReady(answer.chat.info.title))

    # --- notices ---

    def _give_notice(self, chat_id: int, notice: Notification) -> None:
        self.take_away_notice(chat_id)
        self._notices[chat_id] = notice
        self._screen.app.post_message(Notify(notice))

    def take_away_notice(self, chat_id: int) -> None:
        """Take away what was told of a chat: it is open now."""
        if (notice := self._notices.pop(chat_id, None)) is not None:
            self._screen.app.post_message(Notify(replace(notice, timeout=0.0)))

    # --- models that are gone ---

    async def reopen_after(self, error: BaseException, answer: RunningAnswer) -> None:
        """Have models opened again whose process has ended, or ask where."""
        if self.is_to_ask(error, answer):
            await asyncio.to_thread(self._loader.release)
            self.offer_local_models(f"{error}. The text so far is saved.", otherwise="Reconnect")
        elif isinstance(error, EngineDied):
            self._loader.reopen(answer.models)

    def is_to_ask(self, error: BaseException, answer: RunningAnswer) -> bool:
        """Return whether other models could be opened here in place of those of a lost server."""
        can_open = self.use_local_models is not None and answer.models is not None
        return can_open and isinstance(error, ServerLost)

    def offer_local_models(self, problem: str, otherwise: str = "") -> None:
        """Ask whether to open the models on this machine instead, or do `otherwise`, if anything, at once."""

        async def take(is_wanted: bool | None) -> None:
            if is_wanted and self.use_local_models is not None:
                self.use_local_models()
                self.use_local_models = None
            if is_wanted or otherwise:
                self._loader.start()

        question = f"{problem} Open the models on this machine instead?"
        if self.use_local_models is not None and not isinstance(self._screen.app.screen, AskScreen):
            self._screen.app.push_screen(
                AskScreen(question, "Open here", otherwise or "Not now", is_careful=True), take
            )


def _short(title: str) -> str:
    """Return a title of which a notice says something in one line."""
    return shortened(title, TITLE_COLUMNS)
