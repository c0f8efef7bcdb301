"""The process that holds the models: takes requests from one pipe and answers on another.

One thread handles calls one at a time, others short ones in parallel, and answers of models with several
seats have a thread each. The process ends with its requests,
whether the parent closed the pipe or died.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING

from localspec.child_process import take_pipes
from localspec.errors import Cancelled, EngineError, LocalSpecError
from localspec.inference.worker.wire import (
    ANSWERS,
    ASIDES,
    GIVING_WAY,
    SILENT,
    TEXTS,
    WRITING_S,
    Call,
    Cancel,
    Events,
    Failure,
    FirstCall,
    LogLine,
    Measuring,
    Opened,
    Pause,
    Read,
    ReadSoFar,
    Request,
    Result,
    Told,
)
from localspec.llama import rpc
from localspec.llama.library import native
from localspec.types.events import RoundDone, TextDelta, TokensScored

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime, SeatedAnswer

logger = logging.getLogger(__name__)

_PACE_S = 0.02  # between two messages about an answer: no screen or stream shows more of them
_PATIENCE_S = 0.8
_AGAIN_S = 0.05  # the runtime ignores a cancel before its first step, so it is repeated
_STEP = 0.005  # of the progress: finer is not worth a message
_URGENT_S = 0.1
_SILENCE_S = 60.0  # of a server that computes for us: far more than any call of it takes
_STOPPING_S = 1.5  # of such a server, once its call is not wanted any more
_SLOWEST = 2e6  # bytes per second of a line; while loading, nothing is heard until a tensor has crossed it
_REST_S = 5.0  # of reading ahead
_IDLE_S = 0.5  # seconds after an answer, before its assumed costs are measured
_WATCH_S = 0.5  # between two looks whether a GPU makes programs


def main(*, tells_log: bool) -> None:
    """Serve until the requests end; `verbose` logs details."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)  # the others run on: reading their stacks can crash or never end
    threading.excepthook = _end_with_a_thread
    _die_first_and_fast()
    requests, replies = take_pipes()
    logging.captureWarnings(capture=True)
    outbox = Outbox(replies)
    logging.getLogger().addHandler(LogSender(outbox) if tells_log else logging.NullHandler())
    logging.getLogger("localspec").setLevel(logging.DEBUG if tells_log else logging.WARNING)
    service = ModelService(outbox)
    with suppress(Exception):  # a request that is cut off by the parent's death fails in many ways
        while True:
            service.take(pickle.load(requests))
    service.stop(_PATIENCE_S)
    service.write_before_leaving(WRITING_S)
    outbox.flush(_PATIENCE_S)
    os._exit(0)  # the system frees everything; destructors of native libraries can only crash here


def _import_everything() -> None:
    """Import what models need while the parent thinks and native code reads, the heaviest first."""
    with suppress(Exception):  # its first use reports the error
        for name in ("localspec.inference.runtime", "numpy.random"):
            import_module(name)


def _end_with_a_thread(failure: threading.ExceptHookArgs) -> None:
    """End where a thread fails: the parent would wait for its answers for ever."""
    threading.__excepthook__(failure)
    os._exit(1)


def _die_first_and_fast() -> None:
    """Make the system, short of memory, end this process first, and write no core dump."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        # 1 and not 0: Linux then does not pass the image to a program that collects them, either
        resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))


class Outbox:
    """Writes values in its own thread: what can wait for a moment goes with what else comes by then."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._queue: SimpleQueue[Told | threading.Event] = SimpleQueue()
        self._is_urgent = threading.Event()
        self._written_s = -_PACE_S
        threading.Thread(target=self._send, name="localspec-outbox", daemon=True).start()

    def put(self, item: Told | threading.Event, *, can_wait: bool = False) -> None:
        """Send something at once, or within `_PACE_S`."""
        self._queue.put(item)
        if not can_wait:
            self._is_urgent.set()

    def flush(self, timeout_s: float) -> None:
        """Wait until everything so far is written, or the time is over."""
        written = threading.Event()
        self.put(written)
        written.wait(timeout_s)

    def _send(self) -> None:
        while True:
            batch = [self._queue.get()]
            if (left_s := self._written_s + _PACE_S - time.monotonic()) > 0:
                self._is_urgent.wait(left_s)
            self._is_urgent.clear()  # before the queue is emptied: what follows sets it again
            with suppress(Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            self._write(batch)
            self._written_s = time.monotonic()

    def _write(self, batch: list[Told | threading.Event]) -> None:
        items = _joined(item for item in batch if not isinstance(item, threading.Event))
        if items:
            with suppress(OSError):  # the parent is gone, and this process ends soon
                self._stream.write(pickle.dumps(items, pickle.HIGHEST_PROTOCOL))
                self._stream.flush()
        for item in batch:
            if isinstance(item, threading.Event):
                item.set()


def _joined(items: Iterable[Told]) -> list[Told]:
    """Return values with neighbouring events of one call as one value."""
    found: list[Told] = []
    for item in items:
        last = found[-1] if found else None
        if isinstance(item, Events) and isinstance(last, Events) and last.number == item.number:
            found[-1] = Events(item.number, (*last.events, *item.events))
        else:
            found.append(item)
    return found


def _within(seconds: float, queue: SimpleQueue[_Job | None]) -> _Job | None:
    """Wait for a call, or for word that there is something to read, for so long at most."""
    with suppress(Empty):
        return queue.get(timeout=seconds)
    return None


class LogSender(logging.Handler):
    """Sends log records to the parent, line by line."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; an error is waited for, because native code may end the process after it."""
        for text in self.format(record).splitlines():
            self._outbox.put(LogLine(record.levelno, record.name, text))
        if record.levelno >= logging.ERROR:
            self._outbox.flush(_URGENT_S)


class _Job:
    """A call that is waiting or being worked on."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.cancelled = self.pauses = False
        self.answer: SeatedAnswer | None = None  # where others are written at the same time
        self.ended = threading.Event()
        self.heard_s = time.monotonic()  # when it last got on
        self.patience_s = _SILENCE_S


class ModelService:
    """Does what is asked: `take` returns at once."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()
        self._is_at_idle_work = False  # between calls
        self._to_read: Read | None = None  # meanwhile
        self._jobs: dict[int, _Job] = {}  # by call; but for answers with seats, the first is worked on
        self._work: SimpleQueue[_Job | None] = SimpleQueue()  # None: there is something to read
        self._asides: SimpleQueue[_Job | None] = SimpleQueue()
        for queue, name in ((self._work, "localspec-work"), (self._asides, "localspec-asides")):
            threading.Thread(target=self._serve, args=(queue,), name=name, daemon=True).start()

    def take(self, request: Request) -> None:
        """Take a request without waiting for it to be met."""
        if isinstance(request, Cancel):
            self._cancel(request.number)
            return
        if isinstance(request, Pause):
            self._pause(request.number)
            return
        if isinstance(request, Read):
            with self._lock:
                self._to_read = request if request.request is not None else None
            self._work.put(None)
            return
        job = _Job(request)
        if request.method in TEXTS:
            threading.Thread(target=self._answer, args=(job,), name="localspec-text", daemon=True).start()
            return
        if request.method in ASIDES:
            self._asides.put(job)
            return
        with self._lock:
            self._jobs[request.number] = job
            self._to_read = None
        if request.method in ("values_of", "open"):
            threading.Thread(target=self._watch_open, args=(job,), name="localspec-open", daemon=True).start()
        runtime = self._runtime
        if request.method in ANSWERS and runtime is not None and runtime.seats > 1:
            job.answer = runtime.for_one_of_several()
            threading.Thread(target=self._answer, args=(job,), name="localspec-answer", daemon=True).start()
        else:
            self._work.put(job)
        with self._lock:
            if self._is_at_idle_work and self._runtime is not None:
                _end_work(self._runtime)

    def stop(self, patience_s: float) -> None:
        """Cancel everything, and wait for the end of it, but not for ever."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            self._cancel(job.call.number)
        ends_s = time.monotonic() + patience_s
        for job in jobs:
            job.ended.wait(max(0.0, ends_s - time.monotonic()))

    def write_before_leaving(self, limit_s: float) -> None:
        """Write to disk what is to be written of conversations, but not for longer than that.

        Write nothing if a call has not ended: the models may hang.
        """
        job = _Job(Call(0, "write_before_leaving", (limit_s,), {}))
        with self._lock:
            if self._jobs or self._runtime is None or not self._runtime.keeps_on_disk:
                return
            self._jobs[0] = job
            self._to_read = None
            if self._is_at_idle_work:
                _end_work(self._runtime)
        self._work.put(job)
        job.ended.wait(limit_s + _PATIENCE_S)

    def _cancel(self, number: int) -> None:
        with self._lock:
            job = self._jobs.get(number)
        if job is not None and not job.cancelled:
            job.cancelled = True
            threading.Thread(target=self._insist, args=(job,), name="localspec-cancel", daemon=True).start()

    def _pause(self, number: int) -> None:
        with self._lock:
            job = self._jobs.get(number)
            if job is not None and job.answer is not None:
                job.answer.pause()
            elif self._runtime is not None and job is not None and job is self._first():
                job.pauses = True  # if the runtime has yet to hear of the call
                self._runtime.pause()

    def _first(self) -> _Job | None:
        """Return the call that is being worked on, besides answers with seats."""
        return next((job for job in self._jobs.values() if job.answer is None), None)

    def _insist(self, job: _Job) -> None:
        began_s = time.monotonic()
        while True:
            with self._lock:
                is_worked_on = job.answer is not None or self._first() is job
                runtime = self._runtime if is_worked_on else None
                if job.answer is not None:
                    job.answer.cancel()
                elif runtime is not None:
                    _end_work(runtime)
            if job.ended.wait(_AGAIN_S):
                return
            if runtime is not None and time.monotonic() - began_s > _STOPPING_S:
                self._check_servers(runtime, max(_STOPPING_S, 2 * runtime.longest_call_s()))

    def _serve(self, queue: SimpleQueue[_Job | None]) -> None:
        if queue is self._work:
            with suppress(Exception):  # as above
                native()  # at once, before the first request
            threading.Thread(target=_import_everything, name="localspec-imports", daemon=True).start()
        while True:
            self._answer(self._next(queue))

    def _answer(self, job: _Job) -> None:
        reply = self._reply(job)
        with self._lock:  # from here on a late cancel finds nothing, and cannot hit the next call
            self._jobs.pop(job.call.number, None)
        self._outbox.put(reply)
        job.ended.set()
        if job.answer is not None:
            self._work.put(None)  # perhaps there is time for something else now

    def _next(self, queue: SimpleQueue[_Job | None]) -> _Job:
        """Wait for a call; meanwhile read ahead, measure what answers had to assume, and write what rests."""
        has_measured = False
        while True:
            runtime = self._runtime if queue is self._work and self._is_idle() else None
            job = None
            if runtime is not None and (to_read := self._to_read) is not None:
                if self._read_ahead(runtime, to_read):
                    job = _within(_REST_S, queue)
            elif runtime is not None and runtime.lacks_costs and not has_measured:
                job = _within(_IDLE_S, queue)
                if job is None and self._to_read is None:
                    has_measured = True
                    self._measure(runtime)
            elif runtime is not None and (left_s := runtime.writes_in_s()) is not None:
                job = _within(left_s, queue)
                if job is None and not left_s:
                    self._write_resting(runtime)
            else:
                job = queue.get()
                has_measured = False
            if job is not None:
                return job

    @contextmanager
    def _idle_work(self) -> Iterator[None]:
        """Have an incoming call end what the runtime does in the block: no call has to wait for it."""
        with self._lock:
            self._is_at_idle_work = True
        try:
            yield
        finally:
            with self._lock:
                self._is_at_idle_work = False

    def _is_idle(self) -> bool:
        with self._lock:
            return not self._jobs

    def _read_ahead(self, runtime: Runtime, to_read: Read) -> bool:
        """Read until that is done, something else is to be read, or a call comes.

        Return whether to rest before the rest is read.
        """
        from localspec.inference.worker.rest import Surroundings  # psutil: 20 ms

        assert to_read.request is not None
        around = Surroundings(uses_processor=runtime.uses_processor)
        reason = around.call_for_rest()
        try:
            with self._idle_work(), closing(runtime.read_now(to_read.request, self._is_idle)) as events:
                for progress in events if not reason else ():
                    self._outbox.put(ReadSoFar(to_read.number, progress))
                    if self._to_read is not to_read:
                        return False
                    if reason := around.call_for_rest():
                        break
        except LocalSpecError as error:
            logger.info("nothing is read ahead: %s", error)  # the answer will report it
        except Exception:
            logger.exception("nothing is read ahead")  # and the models are as they would be without
        if reason:
            logger.info("nothing is read ahead for a while: %s", reason)
            return True
        with self._lock:
            if self._to_read is to_read:
                self._to_read = None
        return False

    def _measure(self, runtime: Runtime) -> None:
        """Measure call costs and report that."""
        self._outbox.put(Measuring(is_under_way=True))
        logger.info("measuring call costs while idle")
        try:
            with self._idle_work():
                runtime.measure_between_answers(lambda: not self._is_idle())
        except LocalSpecError as error:
            logger.warning("call costs could not be measured: %s", error)
        else:
            logger.info("measuring was interrupted" if runtime.lacks_costs else "call costs are measured")
        finally:
            self._outbox.put(Measuring(is_under_way=False))

    def _write_resting(self, runtime: Runtime) -> None:
        """Have conversations written to disk that rest in the caches."""
        try:
            with self._idle_work():
                runtime.write_resting()
        except Exception:
            logger.exception("the cache of a conversation cannot be saved")

    def _reply(self, job: _Job) -> Result | Failure:
        number = job.call.number
        try:
            return Result(number, self._perform(job))
        except LocalSpecError as error:
            return Failure(number, error)
        except MemoryError:
            return Failure(number, EngineError("there is not enough memory left to continue"))
        except BaseException as error:
            logger.exception("%s failed", job.call.method)
            first_line = next(iter(str(error).splitlines()), "")
            return Failure(
                number, EngineError(f"the model process failed: {type(error).__name__}: {first_line}")
            )

    def _perform(self, job: _Job) -> object:
        call = job.call
        if call.method == "open":
            return self._open(job)
        answer: object
        if call.method == "values_of":
            task, *arguments = call.arguments
            answer = task(*arguments, **call.options)
        elif self._runtime is None:
            raise EngineError("no models are open")
        elif call.method == "perform":
            task, *arguments = call.arguments
            callbacks = [partial(self._tell, job)] if call.options["tells"] else []
            return self._runtime.perform(task, *arguments, *callbacks)
        else:
            models = job.answer or self._runtime
            with self._idle_work() if call.method in GIVING_WAY else nullcontext():
                answer = getattr(models, call.method)(*call.arguments, **call.options)
        if not isinstance(answer, Iterator):
            return answer
        if job.pauses and self._runtime is not None and job.answer is None:
            self._runtime.pause()
        self._pass_on(call.number, answer)
        return None

    def _pass_on(self, number: int, events: Iterator[object]) -> None:
        """Send events as they come, those of a round together; after the first text rounds can wait."""
        of_round: list[object] = []
        has_text = False
        try:
            for event in events:
                of_round.append(event)
                if isinstance(event, TokensScored | TextDelta):
                    continue  # the end of its round comes at once
                self._outbox.put(
                    Events(number, tuple(of_round)), can_wait=has_text and isinstance(event, RoundDone)
                )
                has_text = has_text or len(of_round) > 1
                of_round = []
        finally:
            if of_round:
                self._outbox.put(Events(number, tuple(of_round)))

    def _open(self, job: _Job) -> Opened:
        from localspec.gguf import known
        from localspec.inference.runtime import Runtime  # numpy, llama.cpp: 0.3 s, and requests are heard

        reported = -1.0

        def on_progress(fraction: float) -> bool:
            nonlocal reported
            if not reported <= fraction < min(1.0, reported + _STEP):
                reported = fraction
                self._outbox.put(Events(job.call.number, (fraction,)))
            job.heard_s = time.monotonic()
            return not job.cancelled

        headers, plan = job.call.arguments
        known.update(headers)
        largest = max((tensor.bytes for header in known.values() for tensor in header.tensors), default=0)
        job.patience_s = _SILENCE_S + largest / _SLOWEST
        self._runtime = runtime = Runtime.open(plan, on_progress=on_progress)
        threading.Thread(target=self._watch, args=(runtime,), name="localspec-watch", daemon=True).start()
        return runtime.target, runtime.draft, runtime.notes, runtime.modes, runtime.seats

    def _watch(self, runtime: Runtime) -> None:
        """Report when GPUs start and finish compiling kernels."""
        reported = False
        while runtime.uses_cards:
            time.sleep(_WATCH_S)
            self._check_servers(runtime, _SILENCE_S)
            seconds = runtime.first_call_s()
            if (seconds is not None) is not reported:
                reported = not reported
                self._outbox.put(FirstCall(seconds))

    def _check_servers(self, runtime: Runtime, patience_s: float) -> None:
        """End if servers have not answered a call for so long."""
        if rpc.looks and (seconds := runtime.call_s()) > patience_s:
            parts = [each for each in (runtime.target, runtime.draft) if each is not None]
            _give_up(dict.fromkeys(server for part in parts for server in part.servers), seconds)

    def _watch_open(self, job: _Job) -> None:
        """End if servers fall silent while they are looked at, or models open there."""
        while not job.ended.wait(_WATCH_S):
            if (seconds := time.monotonic() - job.heard_s) > job.patience_s:
                _give_up(rpc.looks, seconds)

    def _tell(self, job: _Job, *words: object) -> None:
        """Report the progress of a task; raises `Cancelled` if it was cancelled."""
        if job.cancelled:
            raise Cancelled("it was stopped")
        self._outbox.put(Events(job.call.number, (words,)))


def _end_work(runtime: Runtime) -> None:
    """Cancel what a runtime does, but no answers that have seats."""
    if runtime.seats > 1:
        runtime.cancel_other_work()
    else:
        runtime.cancel()


def _give_up(servers: Iterable[str], silent_s: float) -> None:
    """Exit at once if there are RPC servers: llama.cpp waits for ever for a sleeping or disconnected one."""
    if names := " or ".join(servers):
        os.write(2, f"{SILENT}{names} has not answered for {silent_s:.0f} s\n".encode())
        os._exit(1)
