"""The models, shared by answers of several chats: each is written in a thread of its own, by turns."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic

from localspec.chat.tool_use.consent import ConsentDesk
from localspec.errors import Cancelled, LocalSpecError
from localspec.inference.interface import OpenModels, PausableModels, ServesSeveral
from localspec.inference.turns import PARALLEL, Share, first_share, is_due, next_of, turn
from localspec.types.events import Finished, GenerationEvent
from localspec.types.request import Request


class AnswerTurns:
    """The answers that share the models, and the one whose turn it is."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: list[AnswerTurn] = []  # in the order in which they began to wait
        self.current: AnswerTurn | None = None

    def is_next(self, answer: AnswerTurn) -> bool:
        """Return whether a waiting answer may begin its turn."""
        return self.current is None and next_of(self.waiting, PARALLEL) is answer


class AnswerTurn(Share):
    """One answer's turns at the models, which belong to its thread from one to the next `generate` pause.

    Its calls of tools wait for consent at its `desk`.

    Models of a server are shared there, with other programs, and nothing waits here.
    """

    def __init__(self, turns: AnswerTurns) -> None:
        super().__init__()
        self._turns = turns
        self._models: OpenModels | None = None  # as soon as they are open
        self._is_cancelled = False
        self.desk = ConsentDesk()

    @contextmanager
    def taken(self, models: OpenModels) -> Iterator[None]:
        """Wait for the first turn; from then on the block has the models. Raises `Cancelled`."""
        if isinstance(models, ServesSeveral):
            self._models = models.for_one_answer()
            yield
            return
        turns, self._models = self._turns, models
        with turns.changed:
            others = [*turns.waiting, *([turns.current] if turns.current else [])]
            self.share = first_share(others)
        if not self._wait():
            raise Cancelled("stopped")
        try:
            yield
        finally:
            with turns.changed:
                if turns.current is self:
                    turns.current = None
                    turns.changed.notify_all()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let other answers have the models while the block needs none; raises `Cancelled` after it."""
        if isinstance(self._models, ServesSeveral):
            yield
            return
        turns = self._turns
        with turns.changed:
            if turns.current is self:
                turns.current = None
                turns.changed.notify_all()
        yield
        if not self._wait():
            raise Cancelled("stopped")

    def generate(self, request: Request) -> Generator[GenerationEvent]:
        """Yield an answer as the models do, and let others have their turns in between."""
        models = self._models
        assert models is not None  # they are taken
        if not isinstance(models, PausableModels):
            yield from models.generate(request)
            return
        self.tokens, self.read, waited_s = 0, 0, 0.0
        events = models.generate(request)
        while True:
            try:
                for event in turn(self, events, models, self._is_due):
                    if self._is_cancelled:  # perhaps before the models were at work
                        models.cancel()
                    yield _begun_later(event, waited_s) if isinstance(event, Finished) else event
            finally:
                if isinstance(events, Generator):
                    events.close()
            if self.paused is None:
                return
            began_s = monotonic()
            number, goes_on = self.paused, self._wait()
            if not self.tokens:
                waited_s += monotonic() - began_s
            self.paused = None
            if not goes_on:
                with suppress(LocalSpecError):  # the models may be gone
                    models.drop(number)
                yield _begun_later(Finished("cancelled", self.so_far), waited_s)
                return
            events = models.resume(number)

    def cancel(self) -> None:
        """End the answer soon, whether it waits or is being written; callable from any thread."""
        self.desk.stop()
        turns = self._turns
        with turns.changed:
            self._is_cancelled = True
            is_at_work = turns.current is self or isinstance(self._models, ServesSeveral)
            if is_at_work and self._models is not None:
                self._models.cancel()
            turns.changed.notify_all()

    def make_way(self) -> None:
        """Pause at once if another answer is to have its first token."""
        if isinstance(self._models, PausableModels) and self._is_due(is_over=False):
            self._models.pause()

    @property
    def is_waiting(self) -> bool:
        """Whether another answer has its turn instead."""
        return self in self._turns.waiting

    @property
    def is_awaited(self) -> bool:
        """Whether other answers wait for a turn."""
        return bool(self._turns.waiting)

    def _wait(self) -> bool:
        """Wait for the next turn; return False where the answer is cancelled meanwhile."""
        turns = self._turns
        with turns.changed:
            if turns.current is self:
                turns.current = None
            turns.waiting.append(self)
            turns.changed.notify_all()
            if turns.current is not None:
                turns.current.make_way()
            turns.changed.wait_for(lambda: self._is_cancelled or turns.is_next(self))
            turns.waiting.remove(self)
            if self._is_cancelled:
                turns.changed.notify_all()
                return False
            turns.current = self
            return True

    def _is_due(self, is_over: bool) -> bool:
        turns = self._turns
        with turns.changed:
            return is_due(self, turns.waiting, PARALLEL, is_over=is_over)


def _begun_later(end: Finished, seconds: float) -> Finished:
    """Return the end of an answer that waited for its first token."""
    return replace(end, summary=replace(end.summary, first_token_s=end.summary.first_token_s + seconds))
