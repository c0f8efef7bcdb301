"""Models behind a queue: answers at once or by turns, for clients that disconnect and models that die."""

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
from localspec.inference.interface import OneAnswer, SeatedModels, SharedModels
from localspec.storage.profiles import Profile
from localspec.types.events import GenerationEvent, RoundDone, TextDelta
from localspec.types.request import Request, TemplateVariables

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
    work: EngineTask | None = None  # instead of an answer: what an attached screen asks of the models
    request: Request | None = None  # of an attached screen, which has chosen the settings itself
    tells_rounds: bool = False  # as it does to an attached screen
    name: str = ""  # by which it can be cancelled
    reads: bool = False  # its prompt alone, while no other request is there
    client: object = None  # the same for all answers of one reply; None: it has only this one


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
    models: OneAnswer | SharedModels | None = None  # while it is being written

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
            event = self.waiting.popleft()
            last = found[-1] if found else None
            if isinstance(event, TextDelta) and isinstance(last, TextDelta):
                found[-1] = TextDelta((*last.pieces, *event.pieces))
            else:
                found.append(event)
        return found

    @property
    def reads(self) -> bool:
        """Whether its prompt is only read, while no answer is there."""
        return self.asked.reads

    @property
    def needs_all(self) -> bool:
        """Whether nothing else can use the models meanwhile."""
        return self.asked.reads or self.asked.work is not None

    @property
    def kind(self) -> object:
        """Return the scales of its LoRA adapters: a call of the models has the same for all."""
        return (self.asked.request or self.asked.overrides.answer).adapters

    @property
    def client(self) -> object:
        """Return the client that it is for."""
        return self.asked.client or self

    def stop(self) -> None:
        """End it if it is being written."""
        if self.models is not None:
            self.models.cancel()


class EngineQueue:
    """The threads that work with the models.

    Up to `parallel` answers are written at once, as far as the models have seats. Others are interleaved: the
    one with the fewest tokens is next, and its turn ends between two rounds. The rest wait in the order of
    their arrival. A prompt that is only to be read waits until there is nothing else to do, and another
    request ends the reading. Dead models are reopened at once.
    """

    def __init__(
        self,
        open_models: Callable[[], SharedModels],
        tuned_for: TunedLookup,
        parallel: int = turns.PARALLEL,
        report: Callable[[str], object] = lambda _line: None,
    ) -> None:
        """Open the models in this thread and raise the error of that. `report` is called at every death."""
        self._open = open_models
        self.tuned_for = tuned_for
        self.parallel = parallel
        self._report = report
        self._numbers = 0
        self._jobs: list[Job] = []  # in the order of their arrival, without the running ones
        self._changed = threading.Condition()
        self._running: list[Job] = []
        self._opening = threading.RLock()
        self._ends = False
        self.restarts = 0
        self.trouble = ""  # why there are no models at the moment
        self._use(open_models())
        self._threads = [
            threading.Thread(target=self._work, args=(number == 0,), name="localspec-engine", daemon=True)
            for number in range(parallel)
        ]
        for thread in self._threads:
            thread.start()

    def tool_format(self, variables: TemplateVariables = ()) -> ToolFormat:
        """Return the target's form of tool calls; raises UserError if its template refuses them."""
        return self._formats(variables)

    def jobs(self) -> tuple[tuple[Job, ...], tuple[Job, ...]]:
        """Return the running answers, and those that wait for a turn."""
        with self._changed:
            return tuple(self._running), tuple(self._jobs)

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
                job.stop()
        return job is not None

    def cut(self, reason: str) -> None:
        """End every answer with `ServerEndsError`, those in progress and those that wait."""
        with self._changed:
            for job in [*self._jobs, *self._running]:
                job.send(ServerEndsError(reason))

    def close(self) -> None:
        """Stop what is being written, and free the models."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self.models.cancel()
        for thread in self._threads:
            thread.join(timeout=2.0)
        self.models.close()

    def _named(self, name: str) -> Job | None:
        """Return the answer of a name, if there is one; most answers have none."""
        return next((job for job in [*self._jobs, *self._running] if name and job.asked.name == name), None)

    def _queued(self, asked: QueuedRequest) -> Job:
        with self._changed:
            if self._named(asked.name) is not None:  # cancelling one would also end the other
                raise UserError("another answer of this name is in progress", "give each its own name")
            if len(self._jobs) >= MAX_WAITING:
                raise QueueFullError(f"{MAX_WAITING} requests are waiting already")
            self._numbers += 1
            job = Job(self._numbers, asked, asyncio.get_running_loop())
            job.share = turns.first_share([*self._jobs, *self._running])
            self._jobs.append(job)
            for other in self._running if not asked.reads else ():
                if other.reads:
                    other.cancelled = True
                    other.stop()
            self._changed.notify_all()
        return job

    def _give_up(self, job: Job) -> None:
        with self._changed:
            job.given_up.set()
            if job in self._running:
                job.stop()
            elif job in self._jobs and job.paused is None:
                self._jobs.remove(job)

    def _work(self, looks: bool) -> None:
        while (job := self._next(looks=looks)) is not None:
            models = self.models
            error = None
            try:
                is_over = self._take_turn(job)
            except LocalSpecError as failed:
                error = failed
                is_over = True
            except Exception as failed:  # noqa: BLE001 - the others still wait for this thread
                error = EngineError(f"unexpected {type(failed).__name__}: {failed}")
                is_over = True
            if isinstance(error, EngineDied):
                self._bury(error, models)
                if not job.tokens and not job.tried_again:  # it may have died long before
                    job.tried_again = True
                    job.read = 0
                    is_over = False
                    job.paused = None
            with self._changed:
                self._running.remove(job)
                job.models = None
                turns.has_left(job, self._jobs)
                if not is_over:
                    self._jobs.append(job)
                self._changed.notify_all()
            if is_over:
                job.send(error)

    def _next(self, *, looks: bool) -> Job | None:
        """Return the next job, None at the end; one thread `looks` whether idle models have died."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ends or self._startable() is not None, IDLE_S)
                if self._ends:
                    return None
                job = self._startable()
                if job is not None:
                    self._jobs.remove(job)
                    self._running.append(job)
                    self._changed.notify_all()  # another one may begin beside it
                    return job
                looks_now = looks and not self._running
            if looks_now:
                self._look()

    @property
    def at_once(self) -> int:
        """Return the number of answers that are written at once."""
        return 1 if self._seated is None else min(self.parallel, self._seated.seats)

    def _startable(self) -> Job | None:
        """Return the job that can begin now, None if there is none."""
        return turns.startable(self._jobs, self._running, self.at_once, self.parallel)

    def _look(self) -> None:
        """Reopen models that died while idle."""
        try:
            if not self.trouble:
                self.models.saved()
        except EngineDied as died:
            self._bury(died, self.models)
        except LocalSpecError:
            pass  # the next request reports it

    def _take_turn(self, job: Job) -> bool:
        """Write a part of an answer; return whether it is over."""
        if job.given_up.is_set():
            if job.paused is not None:
                self.models.drop(job.paused)
            return True
        with self._opening:
            if self.trouble:
                self._reopen()
            models = self.models
            one: OneAnswer | SharedModels = models
            if self._seated is not None and self.at_once > 1 and not job.needs_all:
                one = self._seated.for_one_of_several()
            job.models = one
        tells_rounds = job.asked.tells_rounds or job.asked.request is not None
        for event in turns.turn(job, self._events(job, models, one), one, partial(self._is_due, job)):
            if job.given_up.is_set() or job.cancelled:
                one.cancel()
            if tells_rounds or not isinstance(event, RoundDone):
                job.send(event)
        return job.paused is None

    def _events(
        self, job: Job, models: SharedModels, one: OneAnswer | SharedModels
    ) -> Iterator[GenerationEvent]:
        if job.paused is not None:
            number = job.paused
            job.paused = None
            return one.resume(number)
        asked = job.asked
        if asked.work is not None:
            return asked.work(models)
        request = asked.request or self._chooser.options(asked.profile, asked.overrides).request
        return models.read(request) if asked.reads else one.generate(request)

    def _is_due(self, job: Job, is_over: bool) -> bool:
        with self._changed:
            return turns.is_due(job, self._running, self._jobs, self.at_once, self.parallel, is_over=is_over)

    def _bury(self, died: EngineDied, models: SharedModels) -> None:
        """Open the models again, without the answers that were begun; the next one may try once more."""
        with self._opening:
            if models is self.models:  # else another thread has done it
                self._replace(died)

    def _replace(self, died: EngineDied) -> None:
        with self._changed:
            lost = [job for job in self._jobs if job.tokens]
            self._jobs = [job for job in self._jobs if not job.tokens]
            for job in self._jobs:
                job.paused = None
                job.read = 0
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
        # checked once: it is needed for every event, and checking a protocol takes 40 µs and more
        self._seated = models if isinstance(models, SeatedModels) else None
        self._chooser = SettingsSelector(models, self.tuned_for)
        self._formats = lru_cache(_FORMATS_KEPT)(partial(tool_format, models.render))
