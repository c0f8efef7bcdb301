"""The models, shared by answers of several chats, at once or by turns: each is written in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic

from localspec.chat.tool_use.consent import ConsentDesk
from localspec.errors import Cancelled, EngineDied, LocalSpecError
from localspec.inference.interface import (
    OneAnswer,
    OpenModels,
    PausableModels,
    SeatedModels,
    ServesSeveral,
)
from localspec.inference.turns import PARALLEL, Share, first_share, has_left, is_due, startable, turn
from localspec.types.events import Finished, GenerationEvent
from localspec.types.request import Request


class AnswerTurns:
    """The answers that share the models: those whose turn it is, as many as have seats, and the others."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: list[AnswerTurn] = []  # in the order in which they began to wait
        self.running: list[AnswerTurn] = []  # the first to come first
        self.seats = 1  # of the models
        self._death: tuple[OpenModels, EngineDied] | None = None  # the latest

    def note_death(self, models: OpenModels, death: EngineDied) -> None:
        """Note why models have ended, for the answers that wait for them."""
        self._death = (models, death)

    def require_alive(self, models: OpenModels | None) -> None:
        """Raise the `EngineDied` of models that have ended while an answer waited: closed, they tell less."""
        if self._death is not None and self._death[0] is models:
            raise type(self._death[1])(*self._death[1].args)

    def is_next(self, answer: AnswerTurn) -> bool:
        """Return whether a waiting answer may begin its turn."""
        return startable(self.waiting, self.running, self.seats, PARALLEL) is answer

    def begin(self, answer: AnswerTurn) -> None:
        """Let an answer have its turn."""
        self.running.append(answer)
        if len(self.running) > 1:
            for each in self.running:
                each.has_company = True

    def end(self, answer: AnswerTurn) -> None:
        """End the turn of an answer, if it has one; another one may begin then."""
        if answer in self.running:
            self.running.remove(answer)
            has_left(answer, self.waiting)
        self.changed.notify_all()


class AnswerTurn(Share):
    """One answer's turns at the models, which belong to its thread from one to the next `generate` pause.

    Its calls of tools wait for consent at its `desk`.

    Models of a server are shared there, with other programs, and nothing waits here.
    """

    def __init__(self, turns: AnswerTurns) -> None:
        super().__init__()
        self._turns = turns
        self._models: OpenModels | None = None  # as soon as they are open
        self._one: OneAnswer | PausableModels | None = None  # with which it is being written
        self._is_cancelled = False
        self.has_company = False  # since it began to be written: others were written in the same calls
        self.desk = ConsentDesk()

    @contextmanager
    def taken(self, models: OpenModels) -> Iterator[None]:
        """Wait for the first turn; from then on the block has the models.

        Raises `Cancelled`, or the `EngineDied` of models that have ended meanwhile.
        """
        if isinstance(models, ServesSeveral):
            self._models = models.for_one_answer()
            yield
            return
        turns = self._turns
        self._models = models
        with turns.changed:
            turns.seats = models.seats if isinstance(models, SeatedModels) else 1
            self.share = first_share([*turns.waiting, *turns.running])
        if not self._wait():
            raise Cancelled("stopped")
        try:
            yield
        except EngineDied as death:
            turns.note_death(models, death)
            raise
        finally:
            with turns.changed:
                turns.end(self)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let other answers have the models while the block needs none; raises `Cancelled` after it."""
        if isinstance(self._models, ServesSeveral):
            yield
            return
        with self._turns.changed:
            self._turns.end(self)
        yield
        if not self._wait():
            raise Cancelled("stopped")

    def generate(self, request: Request) -> Generator[GenerationEvent]:
        """Yield an answer as the models do, beside others or with their turns in between."""
        models = self._models
        assert models is not None  # they are taken
        if not isinstance(models, PausableModels):
            yield from models.generate(request)
            return
        self.tokens = 0
        self.read = 0
        waited_s = 0.0
        self.has_company = len(self._turns.running) > 1
        one = self._for_one(models)
        events = one.generate(request)
        while True:
            try:
                for event in turn(self, events, one, self._is_due):
                    if self._is_cancelled:  # perhaps before the models were at work
                        one.cancel()
                    yield _begun_later(event, waited_s) if isinstance(event, Finished) else event
            finally:
                if isinstance(events, Generator):
                    events.close()
            if self.paused is None:
                return
            began_s = monotonic()
            number = self.paused
            goes_on = self._wait()
            if not self.tokens:
                waited_s += monotonic() - began_s
            self.paused = None
            if not goes_on:
                with suppress(LocalSpecError):  # the models may be gone
                    models.drop(number)
                yield _begun_later(Finished("cancelled", self.so_far), waited_s)
                return
            one = self._for_one(models)
            events = one.resume(number)

    def _for_one(self, models: PausableModels) -> OneAnswer | PausableModels:
        """Return the models for this answer alone, where it has a seat among others."""
        one: OneAnswer | PausableModels = models
        if self._turns.seats > 1 and isinstance(models, SeatedModels):
            one = models.for_one_of_several()
        self._one = one
        return one

    def cancel(self) -> None:
        """End the answer soon, whether it waits or is being written; callable from any thread."""
        self.desk.stop()
        turns = self._turns
        with turns.changed:
            self._is_cancelled = True
            if isinstance(self._models, ServesSeveral) or turns.running == [self]:
                assert self._models is not None
                self._models.cancel()  # also what is measured after it
            if self in turns.running and self._one is not None:
                self._one.cancel()
            turns.changed.notify_all()

    def make_way(self) -> None:
        """Pause at once if another answer is to have its first token."""
        if self._one is not None and self._is_due(is_over=False):
            self._one.pause()

    @property
    def is_waiting(self) -> bool:
        """Whether another answer has its turn instead."""
        return self in self._turns.waiting

    @property
    def has_seat(self) -> bool:
        """Whether other answers can begin beside it."""
        return self._turns.seats > 1

    @property
    def is_alone(self) -> bool:
        """Whether no other answer is being written or waits for a turn."""
        return not self._turns.waiting and self._turns.running in ([], [self])

    def _wait(self) -> bool:
        """Wait for the next turn; return False where the answer is cancelled meanwhile."""
        turns = self._turns
        with turns.changed:
            turns.end(self)
            turns.waiting.append(self)
            for each in turns.running:
                each.make_way()
            turns.changed.wait_for(lambda: self._is_cancelled or turns.is_next(self))
            turns.waiting.remove(self)
            turns.changed.notify_all()  # another one may begin beside it, or instead
            if not self._is_cancelled:
                turns.require_alive(self._models)
                turns.begin(self)
            return not self._is_cancelled

    def _is_due(self, is_over: bool) -> bool:
        turns = self._turns
        with turns.changed:
            return is_due(self, turns.running, turns.waiting, turns.seats, PARALLEL, is_over=is_over)


def _begun_later(end: Finished, seconds: float) -> Finished:
    """Return the end of an answer that waited for its first token."""
    return replace(end, summary=replace(end.summary, first_token_s=end.summary.first_token_s + seconds))
