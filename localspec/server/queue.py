"""Open models behind a queue: answers in turn, for clients that may leave, with models that may die."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from localspec.chat.answer_settings import Answered, Chooser, PairKnowledge, SessionRequest
from localspec.errors import EngineDied, EngineError, LocalSpecError
from localspec.inference.interface import OpenModels
from localspec.storage.profiles import Profile
from localspec.types import Finished, GenerationEvent, Message, ModeChanged, RoundDone

MOST_WAITING = 64


class QueueFullError(EngineError):
    """So many requests wait that another would wait too long."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One answer that somebody wants: of which profile, and what the request settles over it."""

    prompt: tuple[Message, ...] | str
    profile: Profile
    request: SessionRequest


@dataclass(slots=True, eq=False)
class Job:
    """An answer on its way to whoever waits for it in the thread of `loop`."""

    number: int
    asked: Asked
    loop: asyncio.AbstractEventLoop
    since: float = field(default_factory=time.monotonic)
    events: asyncio.Queue[GenerationEvent | LocalSpecError | None] = field(default_factory=asyncio.Queue)
    tokens: int = 0
    given_up: threading.Event = field(default_factory=threading.Event)

    def tell(self, event: GenerationEvent | LocalSpecError | None) -> None:
        """Pass an event on; None after the last one."""
        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class EngineQueue:
    """The one thread that works with the models; requests wait in the order of their arrival.

    Models that died are opened again at once; the answer under way fails.
    """

    def __init__(
        self, open_models: Callable[[], OpenModels], experience: PairKnowledge, most: int = MOST_WAITING
    ) -> None:
        """Open the models in this thread; what goes wrong is raised here."""
        self._open, self._experience, self._most = open_models, experience, most
        self._numbers = 0
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._current: Job | None = None
        self._ends = False
        self.restarts = 0
        self.trouble = ""  # why there are no models at the moment
        self.models = open_models()
        self._chooser = Chooser(self.models, experience)
        self._thread = threading.Thread(target=self._work, name="localspec-engine", daemon=True)
        self._thread.start()

    def jobs(self) -> tuple[Job | None, tuple[Job, ...]]:
        """Return what is being answered, and what waits."""
        with self._changed:
            return self._current, tuple(self._waiting)

    async def answer(self, asked: Asked) -> AsyncGenerator[GenerationEvent]:
        """Yield an answer as it is written; closing the generator gives it up, also while it waits.

        Raises `QueueFullError`, and what writing the answer raises.
        """
        with self._changed:
            if len(self._waiting) >= self._most:
                raise QueueFullError(f"{self._most} requests are waiting already")
            self._numbers += 1
            job = Job(self._numbers, asked, asyncio.get_running_loop())
            self._waiting.append(job)
            self._changed.notify()
        try:
            while (event := await job.events.get()) is not None:
                if isinstance(event, LocalSpecError):
                    raise event
                yield event
        finally:
            self._give_up(job)

    def close(self) -> None:
        """Stop what is being written, and free the models."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self.models.cancel()
        self._thread.join(timeout=2.0)
        self.models.close()

    def _give_up(self, job: Job) -> None:
        with self._changed:
            job.given_up.set()
            if job in self._waiting:
                self._waiting.remove(job)
            elif self._current is job:
                self.models.cancel()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            error = self._reopened() if self.trouble else None
            try:
                if error is None:
                    self._write(job)
            except LocalSpecError as failed:
                error = failed
            except Exception as failed:  # noqa: BLE001 - the others still wait for this thread
                error = EngineError(f"unexpected {type(failed).__name__}: {failed}")
            finally:
                with self._changed:
                    self._current = None
            job.tell(error)
            if isinstance(error, EngineDied):
                self.trouble = str(error)
                self._reopened()

    def _next(self) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ends)
            if self._ends:
                return None
            self._current = self._waiting.popleft()
            return self._current

    def _reopened(self) -> LocalSpecError | None:
        """Open the models again; return what goes wrong."""
        try:
            self.models.close()
            self.models = self._open()
        except LocalSpecError as error:
            self.trouble = str(error)
            return EngineDied(self.trouble)
        self._chooser = Chooser(self.models, self._experience)
        self.trouble = ""
        self.restarts += 1
        return None

    def _write(self, job: Job) -> None:
        asked, changed = job.asked, False
        options = self._chooser.options(asked.profile, asked.request)
        if job.given_up.is_set():
            return
        for event in self.models.generate(replace(options.request, prompt=asked.prompt)):
            if job.given_up.is_set():
                self.models.cancel()
            elif isinstance(event, RoundDone):
                job.tokens += event.tokens
            else:
                job.tell(event)
            changed = changed or isinstance(event, ModeChanged)
            if isinstance(event, Finished) and not job.given_up.is_set():
                settings, steady = options.request.settings, not changed
                self._experience.learn(Answered(asked.profile.task, settings, event.summary, steady=steady))
