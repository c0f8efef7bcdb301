"""Models behind a queue: interleaved answers, for clients that disconnect and models that die."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial

from localspec.chat.answer_settings import SessionRequest, SettingsSelector, TunedLookup
from localspec.chat.calls.form import ToolFormat, tool_format
from localspec.errors import EngineDied, EngineError, LocalSpecError, UserError
from localspec.inference import turns
from localspec.inference.interface import SharedModels
from localspec.storage.profiles import Profile
from localspec.types.events import GenerationEvent, RoundDone, TextDelta
from localspec.types.request import TemplateVariables

MAX_WAITING = 64
IDLE_S = 2.0  # after which it is looked whether the models still live
_FORMATS_KEPT = 16  # of templates with other variables


class QueueFullError(EngineError):
    """The queue is full."""


class ServerEndsError(EngineError):
    """The server ends before this answer does."""


EngineTask = Callable[[SharedModels], Iterator[GenerationEvent]]


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """A queued request: its profile, and the settings that override it."""

    profile: Profile
    overrides: SessionRequest
    work: EngineTask | None = None  # instead of an answer: a request of an attached screen
    name: str = ""  # by which it can be cancelled
    reads: bool = False  # its prompt alone, while no other request is there


@dataclass(slots=True, eq=False)
class Job(turns.Share):
    """A queued answer; its events go to a client that runs in `loop`."""

    number: int
    asked: QueuedRequest
    loop: asyncio.AbstractEventLoop
    since: float = field(default_factory=time.monotonic)
    waiting: deque[GenerationEvent | LocalSpecError | None] = field(default_factory=deque)  # for the client
    is_announced: bool = False  # that some wait
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: threading.Event = field(default_factory=threading.Event)
    cancelled: bool = False
    tried_again: bool = False

    def send(self, event: GenerationEvent | LocalSpecError | None) -> None:
        """Pass an event on; None after the last one. The client's loop is woken once for all that wait."""
        self.waiting.append(event)
        if not self.is_announced:
            self.is_announced = True
            with suppress(RuntimeError):  # the loop has ended, and its clients with it
                self.loop.call_soon_threadsafe(self._announce)

    def _announce(self) -> None:
        self.is_announced = False  # before they are taken: later ones announce themselves again
        self.arrived.set()

    async def received(self) -> Sequence[GenerationEvent | LocalSpecError | None]:
        """Wait for events and return them all, with neighbouring texts as one."""
        await self.arrived.wait()
        self.arrived.clear()
        found: list[GenerationEvent | LocalSpecError | None] = []
        while self.waiting:
            event, last = self.waiting.popleft(), found[-1] if found else None
            if isinstance(event, TextDelta) and isinstance(last, TextDelta):
                found[-1] = TextDelta((*last.pieces, *event.pieces))
            else:
                found.append(event)
        return found

    @property
    def reads(self) -> bool:
        """Whether its prompt is only read, while no answer is there."""
        return self.asked.reads


class EngineQueue:
    """The one thread that works with the models.

    Up to `parallel` answers are interleaved: the one with the fewest tokens is next, and its turn ends
    between two rounds. The others wait in the order of their arrival. A prompt that is only to be read waits
    until there is nothing else to do, and another request ends the reading. Dead models are reopened at once.
    """

    def __init__(
        self,
        open_models: Callable[[], SharedModels],
        tuned_for: TunedLookup,
        parallel: int = turns.PARALLEL,
        report: Callable[[str], object] = lambda _line: None,
    ) -> None:
        """Open the models in this thread and raise the error of that. `report` is called at every death."""
        self._open, self.tuned_for, self.parallel, self._report = open_models, tuned_for, parallel, report
        self._numbers = 0
        self._jobs: list[Job] = []  # in the order of their arrival, without the current one
        self._changed = threading.Condition()
        self._current: Job | None = None
        self._ends = False
        self.restarts = 0
        self.trouble = ""  # why there are no models at the moment
        self._use(open_models())
        self._thread = threading.Thread(target=self._work, name="localspec-engine", daemon=True)
        self._thread.start()

    def tool_format(self, variables: TemplateVariables = ()) -> ToolFormat:
        """Return the target's form of tool calls; raises UserError if its template refuses them."""
        return self._formats(variables)

    def jobs(self) -> tuple[Job | None, tuple[Job, ...]]:
        """Return the number of running answers, and of those that wait for a turn."""
        with self._changed:
            return self._current, tuple(self._jobs)

    async def answer(self, asked: QueuedRequest) -> AsyncGenerator[GenerationEvent]:
        """Yield an answer as it is written; closing the generator gives it up, also while it waits.

        Raises `QueueFullError`, `UserError` for a name that is taken, and what writing the answer raises.
        """
        job = self._queued(asked)
        try:
            while True:
                for event in await job.received():
                    if event is None:
                        return
                    if isinstance(event, LocalSpecError):
                        raise event
                    yield event
        finally:
            self._give_up(job)

    def cancel(self, name: str) -> bool:
        """End the answer of a name soon, with its last event; return whether there is one."""
        with self._changed:
            job = self._named(name)
            if job is not None:
                job.cancelled = True
            if job is not None and job is self._current:
                self.models.cancel()
        return job is not None

    def cut(self, reason: str) -> None:
        """End every answer with `ServerEndsError`, those in progress and those that wait."""
        with self._changed:
            for job in [*self._jobs, self._current]:
                if job is not None:
                    job.send(ServerEndsError(reason))

    def close(self) -> None:
        """Stop what is being written, and free the models."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self.models.cancel()
        self._thread.join(timeout=2.0)
        self.models.close()

    def _named(self, name: str) -> Job | None:
        """Return the answer of a name, if there is one; most answers have none."""
        under_way = [*self._jobs, self._current] if self._current else self._jobs
        return next((job for job in under_way if name and job.asked.name == name), None)

    def _queued(self, asked: QueuedRequest) -> Job:
        with self._changed:
            if self._named(asked.name) is not None:  # cancelling one would also end the other
                raise UserError("another answer of this name is in progress", "give each its own name")
            if len(self._jobs) >= MAX_WAITING:
                raise QueueFullError(f"{MAX_WAITING} requests are waiting already")
            self._numbers += 1
            others = [*self._jobs, self._current] if self._current else self._jobs
            job = Job(self._numbers, asked, asyncio.get_running_loop())
            job.share = turns.first_share(others)
            self._jobs.append(job)
            if self._current is not None and self._current.asked.reads and not asked.reads:
                self._current.cancelled = True
                self.models.cancel()
            self._changed.notify()
        return job

    def _give_up(self, job: Job) -> None:
        with self._changed:
            job.given_up.set()
            if self._current is job:
                self.models.cancel()
            elif job in self._jobs and job.paused is None:
                self._jobs.remove(job)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            error: LocalSpecError | None = None
            try:
                is_over = self._take_turn(job)
            except LocalSpecError as failed:
                error, is_over = failed, True
            except Exception as failed:  # noqa: BLE001 - the others still wait for this thread
                error, is_over = EngineError(f"unexpected {type(failed).__name__}: {failed}"), True
            if isinstance(error, EngineDied):
                self._bury(error)
                if not job.tokens and not job.tried_again:  # it may have died long before
                    job.tried_again, job.read, is_over = True, 0, False
            with self._changed:
                self._current = None
                if not is_over:
                    self._jobs.append(job)
            if is_over:
                job.send(error)

    def _next(self) -> Job | None:
        """Return the next job, None at the end."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: bool(self._jobs) or self._ends, IDLE_S):
                    if self._ends:
                        return None
                    self._current = turns.next_of(self._jobs, self.parallel)
                    self._jobs.remove(self._current)
                    return self._current
            self._look()

    def _look(self) -> None:
        """Reopen models that died while idle."""
        try:
            if not self.trouble:
                self.models.saved()
        except EngineDied as died:
            self._bury(died)
        except LocalSpecError:
            pass  # the next request reports it

    def _take_turn(self, job: Job) -> bool:
        """Write a part of an answer; return whether it is over."""
        if job.given_up.is_set():
            if job.paused is not None:
                self.models.drop(job.paused)
            return True
        if self.trouble:
            self._reopen()
        for event in turns.turn(job, self._events(job), self.models, partial(self._is_due, job)):
            if job.given_up.is_set() or job.cancelled:
                self.models.cancel()
            if job.asked.work is not None or not isinstance(event, RoundDone):
                job.send(event)
        return job.paused is None

    def _events(self, job: Job) -> Iterator[GenerationEvent]:
        if job.paused is not None:
            number, job.paused = job.paused, None
            return self.models.resume(number)
        asked = job.asked
        if asked.work is not None:
            return asked.work(self.models)
        request = self._chooser.options(asked.profile, asked.overrides).request
        return self.models.read(request) if asked.reads else self.models.generate(request)

    def _is_due(self, job: Job, is_over: bool) -> bool:
        with self._changed:
            return turns.is_due(job, self._jobs, self.parallel, is_over=is_over)

    def _bury(self, died: EngineDied) -> None:
        """Open the models again, without the answers that were begun; the next one may try once more."""
        with self._changed:
            lost = [job for job in self._jobs if job.tokens]
            self._jobs = [job for job in self._jobs if not job.tokens]
            for job in self._jobs:
                job.paused, job.read = None, 0
        for job in lost:
            job.send(EngineDied(str(died)))
        self.trouble = str(died)
        with suppress(LocalSpecError):
            self._reopen()
        now = f"cannot be opened again: {self.trouble}" if self.trouble else "are open again"
        self._report(f"{time.strftime('%H:%M:%S')}  {died}; the models {now}")

    def _reopen(self) -> None:
        """Open the models again; raises EngineDied."""
        self.models.close()
        try:
            self._use(self._open())
        except LocalSpecError as error:
            self.trouble = str(error)
            raise EngineDied(self.trouble) from error
        self.trouble = ""
        self.restarts += 1

    def _use(self, models: SharedModels) -> None:
        self.models = models
        self._chooser = SettingsSelector(models, self.tuned_for)
        self._formats = lru_cache(_FORMATS_KEPT)(partial(tool_format, models.render))
