"""An answer in progress in one chat, in a thread of its own."""

from __future__ import annotations

import asyncio
import time

from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.answering import AnswerSaved, LiveAnswer
from localspec.chat.loading import ModelLoader
from localspec.chat.open_chat import OpenChat
from localspec.chat.session import Job
from localspec.chat.tool_use.consent import CallAsked
from localspec.inference.interface import OpenModels

STUCK_S = 2.0  # after `stop`, without an end: the engine does not respond


class RunningAnswer:
    """An answer in progress in a chat; it starts at once, in the running event loop."""

    def __init__(
        self, loader: ModelLoader, chat: OpenChat, turns: AnswerTurns, job: Job, *, continues: bool = False
    ) -> None:
        self._loader = loader
        self.chat = chat
        self.turn = AnswerTurn(turns)
        self.job = job
        self.continues = continues  # an answer that is there already
        self.is_shortened = False  # its chat is summarised first
        self.began_s = time.monotonic()
        self._stopped_s: float | None = None
        self.models: OpenModels | None = None
        self.live = LiveAnswer()
        self.saved: AnswerSaved | None = None  # what is measured after that can be cut short
        self.is_reported = False  # or was seen
        self.asked_elsewhere: CallAsked | None = None  # that was reported, of a chat that is not open
        self._thread = asyncio.ensure_future(asyncio.to_thread(self._run))

    def _run(self) -> BaseException | None:
        """Do the job from its first to its last event, and return the error, if any."""
        try:
            if not self.is_stopped:
                self._loader.start()  # again, if it was stopped or failed
            self.models = models = self._loader.models(wanted=lambda: not self.is_stopped)
            with self.turn.taken(models):
                for event in self.job(models, self.turn):
                    self.live.take(event)
                    if isinstance(event, AnswerSaved) and not event.goes_on:
                        self.saved = event
        except BaseException as failure:  # noqa: BLE001 - the view reports it
            return failure
        return None

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the thread, and return whether it came."""
        done, _ = await asyncio.wait([self._thread], timeout=seconds)
        return bool(done)

    @property
    def error(self) -> BaseException | None:
        """The error of an answer that has ended, if any."""
        return self._thread.result()

    @property
    def is_loading(self) -> bool:
        """Whether it waits for the models to be opened."""
        return self.models is None and not self.is_stopped

    @property
    def is_stuck(self) -> bool:
        """Whether it has not stopped `STUCK_S` after `stop`."""
        return self._stopped_s is not None and time.monotonic() - self._stopped_s >= STUCK_S

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped_s is not None

    def stop(self) -> None:
        """End this answer, and no other one; the loading that it may wait for goes on."""
        self._stopped_s = self._stopped_s or time.monotonic()
        self.turn.cancel()
        self._loader.look_again()
