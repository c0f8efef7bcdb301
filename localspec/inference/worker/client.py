"""Models in another process, with the interface of those in this one.

The process has two pipes for requests and replies; its output, its log and its end are reported.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import re
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import wraps
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from localspec.child_process import exit_words, printed_before
from localspec.errors import (
    Cancelled,
    EngineDied,
    EngineError,
    LocalSpecError,
    ModelFileError,
    ServerLost,
    UserError,
)
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import KeepsOnDisk, KeepsSlots, OpenModels, QuickChooser, SharedModels
from localspec.inference.worker import start
from localspec.inference.worker.wire import (
    ASIDES,
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
    Reply,
    Request,
    Result,
    Told,
)
from localspec.types.events import GenerationEvent, Paused, ReadAhead
from localspec.types.models import ModelInfo
from localspec.types.request import Mode
from localspec.types.request import Request as GenerationRequest

if TYPE_CHECKING:
    pass

LogListener = Callable[[LogLine], None]
_Arguments = ParamSpec("_Arguments")
_Models = TypeVar("_Models", bound=OpenModels)
_Value = TypeVar("_Value")

_ASK_S = 0.05  # how often `on_progress` is asked whether to continue
_POLITE_S = 1.0  # for a process that is to end, before it is made to
_FIRM_S = 0.5
_ASIDE_S = 3.0  # for what is answered at once
_TEXT_S = 60.0  # for what takes as long as its text
_LIMITS_S = dict.fromkeys(ASIDES, _ASIDE_S) | dict.fromkeys(TEXTS, _TEXT_S)
_LEAVING_S = 2.0  # for a call that is not wanted any more
_DEATH_S = 1.0  # from the end of a pipe to the end of its process
_LINES_KEPT = 100
_ABORT = "(SIGABRT)"
_ASSERTION = "GGML_ASSERT"  # while it opens a model, it is the file that is not as expected
_LONGEST_LINE = 2**16  # bytes: something that prints without line breaks must not fill the memory


def _remote(
    method: Callable[Concatenate[_Models, _Arguments], _Value],
) -> Callable[Concatenate[Worker, _Arguments], _Value]:
    """Return a method of open models that is called in the other process."""

    @wraps(method)
    def call(self: Worker, /, *arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Value:
        limit_s = _LIMITS_S.get(method.__name__)
        with closing(self._process.call(method.__name__, *arguments, **options)) as pending:
            if (reply := pending.next(limit_s)) is None:
                raise EngineError("the model process is not responding")
            return cast(_Value, cast(Result, reply).value)

    return call


class Worker(AbstractContextManager["Worker"]):
    """A target and at most one draft model in a child process; a context manager.

    When that process ends, the call in progress and every later one raise `EngineDied`, with the reason;
    only `cancel` and `close` then do nothing.
    """

    target: ModelInfo
    draft: ModelInfo | None
    notes: tuple[str, ...]
    modes: tuple[Mode, ...]
    seats: int

    def __init__(self, on_log: Callable[[LogLine], None] | None = None) -> None:
        """Start the process, which prepares to `load`; `on_log` is called in its own thread."""
        self._process = EngineProcess(on_log)
        self._close = weakref.finalize(self, self._process.close)  # also when the program ends

    @classmethod
    def open(
        cls,
        plan: OpenPlan,
        *,
        on_progress: Callable[[float], bool] | None = None,
        on_log: Callable[[LogLine], None] | None = None,
    ) -> Worker:
        """Open the models of a plan; `on_progress(fraction)` is called repeatedly.

        It returns False to stop, and is called in this thread; `on_log` is called in its own. Raises the
        errors of `load`.
        """
        worker = cls(on_log)
        worker.load(plan, on_progress=on_progress)
        return worker

    def load(self, plan: OpenPlan, *, on_progress: Callable[[float], bool] | None = None) -> None:
        """Open the models in the process that is there, as `open` does; a failure ends it.

        Raises `Cancelled` when stopped, `EngineDied`, and what `Runtime.open` raises.
        """
        from localspec.gguf import known  # which a plan has read

        try:
            with self._or_killed():
                headers = known.copy()  # other threads may read one meanwhile
                # The child gets the placement only as options, and does not import the planner.
                pending = self._process.call("open", headers, replace(plan, placement=None))
                opened = cast(Opened, _watched(pending, on_progress))
        except ServerLost:
            raise
        except EngineDied as died:
            files = " with ".join(str(options.path) for options in (plan.target, plan.draft) if options)
            if plan.target.split_mode == "tensor" and _ABORT in str(died):
                raise UserError(
                    f"{files} cannot be opened with -sm tensor: {died}", "use -sm layer"
                ) from None
            if _ASSERTION not in str(died):
                raise EngineDied(f"{files} could not be opened: {died}") from None
            raise ModelFileError(
                f"{files} cannot be opened: {died}",
                "llama.cpp expects something else in such a file: download it again, or choose another",
            ) from None
        self.target, self.draft, self.notes, self.modes, self.seats = opened

    @contextmanager
    def _or_killed(self) -> Iterator[None]:
        """End a process that failed at its start."""
        try:
            yield
        except EngineError as error:
            self._process.kill(error)  # later calls fail for the same reason
            raise
        except BaseException:
            self._process.kill()
            raise

    def values_of(
        self,
        task: Callable[_Arguments, Iterator[_Value]],
        /,
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> Generator[_Value]:
        """Yield what a function of a module yields in the process that opens the models, before it does."""
        with self._or_killed():
            yield from cast(Generator[_Value], self._process.events("values_of", task, *arguments, **options))

    def perform(
        self, task: Callable[..., _Value], *arguments: object, on_progress: Callable[..., None] | None = None
    ) -> _Value:
        """Run a module's function on the runtime in its process, and return the result.

        It is called with the runtime, the arguments and, if `on_progress` is given, a callback that calls it
        or raises `Cancelled`.
        """
        tells = on_progress is not None
        with closing(self._process.call("perform", task, *arguments, tells=tells)) as pending:
            while not isinstance(reply := pending.next(), Result):
                if reply is not None and on_progress is not None:
                    for words in reply.events:
                        on_progress(*cast(tuple[object, ...], words))
            return cast(_Value, reply.value)

    @property
    def pid(self) -> int:
        """Return the number that the system knows the process by."""
        return self._process.pid

    def generate(self, request: GenerationRequest) -> Generator[GenerationEvent]:
        """Yield the answer as it is written; closing the iterator stops it and waits a moment for the end."""
        yield from cast(Generator[GenerationEvent], self._process.events("generate", request))

    def for_one_of_several(self) -> WorkerAnswer:
        """Return the models for one of several answers; see `SeatedModels`."""
        return WorkerAnswer(self._process)

    def read(self, request: GenerationRequest) -> Generator[GenerationEvent]:
        """Yield the progress of reading a prompt that is not answered; closing the iterator stops it."""
        yield from cast(Generator[GenerationEvent], self._process.events("read", request))

    def resume(self, number: int) -> Generator[GenerationEvent]:
        """Yield the rest of a paused answer, as `generate` does; raises `UserError` if there is none."""
        yield from cast(Generator[GenerationEvent], self._process.events("resume", number))

    def cancel(self) -> None:
        """End the running answer within a moment; callable from any thread."""
        self._process.cancel()

    def pause(self) -> None:
        """End the running answer's events with `Paused` after its round; callable from any thread."""
        self._process.pause()

    def first_call_s(self) -> float | None:
        """Return for how long a GPU has been making the programs of a call, None if it is not."""
        since = self._process.first_call_since
        return None if since is None else time.monotonic() - since

    def is_measuring(self) -> bool:
        """Return whether costs are being measured while idle."""
        return self._process.is_measuring

    def read_ahead(self, request: GenerationRequest | None) -> None:
        """Read, while idle, how every prompt begins that continues a question; see `ReadsAhead`."""
        self._process.read_ahead(request)

    def read_so_far(self) -> ReadAhead | None:
        """Return the progress of that; None if nothing is known yet."""
        return self._process.read_so_far

    def keep_conversations(self, limit: int, on_disk: int = 0) -> None:
        """Save the KV caches of conversations; with some `on_disk`, the process may write as it ends."""
        self._process.patience_s = _POLITE_S + (WRITING_S + _POLITE_S if on_disk else 0.0)
        self._keep_conversations(limit, on_disk)

    _keep_conversations = _remote(SharedModels.keep_conversations)
    known_settings = _remote(QuickChooser.known_settings)
    measure_before_leaving = _remote(QuickChooser.measure_before_leaving)
    choose_settings = _remote(SharedModels.choose_settings)
    count_tokens = _remote(SharedModels.count_tokens)
    render = _remote(SharedModels.render)
    tokenize = _remote(SharedModels.tokenize)
    detokenize = _remote(SharedModels.detokenize)
    measure_plain = _remote(SharedModels.measure_plain)
    memory = _remote(SharedModels.memory)
    forget_conversation = _remote(KeepsOnDisk.forget_conversation)
    save_slot = _remote(KeepsSlots.save_slot)
    restore_slot = _remote(KeepsSlots.restore_slot)
    erase_slot = _remote(KeepsSlots.erase_slot)
    drop = _remote(SharedModels.drop)
    saved = _remote(SharedModels.saved)

    def close(self) -> None:
        """End the process, in about a second at most; a second call does nothing."""
        self._close()

    def __exit__(self, *_: object) -> None:
        self.close()


class WorkerAnswer:
    """The models for one of several answers, each taken in a thread of its own."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self._pending: Pending | None = None
        self._pauses = self._is_cancelled = False

    def generate(self, request: GenerationRequest) -> Generator[GenerationEvent]:
        """Yield the answer as it is written; closing the iterator stops it and waits a moment for the end."""
        return self._events("generate", request)

    def resume(self, number: int) -> Generator[GenerationEvent]:
        """Yield the rest of a paused answer; raises `UserError` if there is none of this number."""
        return self._events("resume", number)

    def pause(self) -> None:
        """End its events with `Paused` after its round; callable from any thread."""
        self._pauses = True
        if (pending := self._pending) is not None:
            self._process.send(Pause(pending.number))

    def cancel(self) -> None:
        """End it within a moment; callable from any thread."""
        self._is_cancelled = True
        if (pending := self._pending) is not None:
            pending.cancel()

    def _events(self, method: str, argument: object) -> Generator[GenerationEvent]:
        with closing(self._process.call(method, argument)) as pending:
            self._pending = pending
            if self._pauses:  # before it began
                self.pause()
            if self._is_cancelled:
                self.cancel()
            while isinstance(reply := pending.next(), Events):
                yield from cast(tuple[GenerationEvent, ...], reply.events)


def _watched(pending: Pending, on_progress: Callable[[float], bool] | None) -> object:
    """Return the result of a call with progress, which can be stopped."""
    fraction = 0.0
    while not isinstance(reply := pending.next(None if on_progress is None else _ASK_S), Result):
        if reply is not None:
            fraction = cast(float, reply.events[-1])
        if on_progress is not None and not on_progress(fraction):
            raise Cancelled("loading was stopped")
    return reply.value


class Pending:
    """A call in progress; close it."""

    def __init__(self, process: EngineProcess, number: int) -> None:
        self.number = number
        self._process = process
        self._ended = False
        self.can_cancel = False  # once it was sent, and as long as it was not cancelled
        self.replies: SimpleQueue[Reply] = SimpleQueue()

    def next(self, timeout_s: float | None = None) -> Events | Result | None:
        """Wait for events, at last the result or the error it raises; return None after the timeout."""
        try:
            reply = self.replies.get(timeout=timeout_s)
        except Empty:
            return None
        self._ended = not isinstance(reply, Events)
        if isinstance(reply, Failure):
            raise reply.error
        return reply

    def cancel(self) -> None:
        """Cancel the call in the process."""
        if self.can_cancel:
            self.can_cancel = False
            self._process.send(Cancel(self.number))

    def close(self) -> None:
        """Stop the call if it continues, and wait until it has stopped, but not for ever."""
        try:
            if not self._ended:
                self.cancel()
            ends = time.monotonic() + _LEAVING_S
            # a lost iterator may be collected in the thread that would end its call
            while not self._ended and threading.current_thread() is not self._process.reader:
                if (left_s := ends - time.monotonic()) <= 0:
                    break  # the next request has to wait there
                with suppress(LocalSpecError):
                    reply = self.next(left_s)
                    for event in reply.events if isinstance(reply, Events) else ():
                        if isinstance(event, Paused):
                            self._process.drop(event.number)  # no other code knows this number
        finally:
            self._process.forget(self.number)


class EngineProcess:
    """A process that holds models. Its threads end with it; `close` ends it."""

    def __init__(self, on_log: LogListener | None) -> None:
        self._process = process = start(tells_log=on_log is not None)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.pid = process.pid
        self._requests = process.stdin
        self._replies = process.stdout
        self._output = Output(process.stderr, on_log)
        self._numbers = itertools.count(1)
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._pending: dict[int, Pending] = {}
        self._end: EngineError | None = None
        self.first_call_since: float | None = None  # in which a GPU makes programs
        self.is_measuring = False  # call costs, while idle
        self.read_so_far: ReadAhead | None = None  # of what was asked for last
        self._reading = 0  # its number
        self._opens = False  # models, or has
        self.patience_s = _POLITE_S  # with the process at its end
        self.reader = threading.Thread(target=self._read, name="localspec-replies", daemon=True)
        self._writer = threading.Thread(target=self._write, name="localspec-requests", daemon=True)
        self.reader.start()
        self._writer.start()

    def call(self, method: str, *arguments: object, **options: object) -> Pending:
        """Begin a call; raise `EngineDied` if the process has ended."""
        number = next(self._numbers)
        pending = Pending(self, number)
        self._opens |= method == "open"
        # in this order, and in `_settle` in the other: a call that comes too late sees the end here
        self._pending[number] = pending
        if self._end is not None:
            self.forget(number)
            raise type(self._end)(*self._end.args)
        self.send(Call(number, method, arguments, options))
        pending.can_cancel = True
        return pending

    def events(self, method: str, *arguments: object) -> Generator[object]:
        """Yield the events of a call; closing the iterator stops it and waits a moment for the end."""
        with closing(self.call(method, *arguments)) as pending:
            while isinstance(reply := pending.next(), Events):
                yield from reply.events

    def send(self, request: Request) -> None:
        """Send a message without waiting; the reader notices if the child is gone."""
        if self._end is None:  # an iterator may outlive the interpreter's ability to pickle
            self._frames.put(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))

    def read_ahead(self, request: GenerationRequest | None) -> None:
        """Have something read while idle, in place of what was asked for before."""
        self._reading = self._reading + 1
        self.read_so_far = None
        self.send(Read(self._reading, request))

    def cancel(self) -> None:
        """Stop every call that takes time."""
        for pending in list(self._pending.values()):
            pending.cancel()

    def pause(self) -> None:
        """Pause every running answer."""
        for number in list(self._pending):
            self.send(Pause(number))

    def drop(self, number: int) -> None:
        """Drop a paused answer without waiting for it."""
        self.forget(self.call("drop", number).number)

    def forget(self, number: int) -> None:
        """Drop what still comes for a call."""
        self._pending.pop(number, None)

    def close(self, reason: EngineError | None = None) -> None:
        """End the process: by the end of its requests, or by force. Calls in progress raise `EngineDied`.

        Later calls raise the reason, if there is one.
        """
        if self._end is None:
            self._end = reason or EngineError("the models are closed")
        if not self._opens:  # nothing will be opened
            self._process.kill()
        self._frames.put(None)
        if not self._ends_within(self.patience_s):
            self._process.kill()
            self._ends_within(_DEATH_S)
        self._release()

    def kill(self, reason: EngineError | None = None) -> None:
        """End the process at once; later calls raise the reason, if there is one."""
        if self._end is None:
            self._end = reason
        self._process.kill()
        self.close(reason)

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _release(self) -> None:
        """Join the threads and close their pipes; pipes that another process keeps open are left alone."""
        for thread, stream in ((self.reader, self._replies), (self._output.reader, self._output.stream)):
            if _joined(thread):
                stream.close()
        _joined(self._writer)
        _joined(self._output.relay)

    def _write(self) -> None:
        with suppress(OSError), self._requests:
            while (frame := self._frames.get()) is not None:
                self._requests.write(frame)
                self._requests.flush()

    def _read(self) -> None:
        try:
            for line in printed_before(self._replies):  # by something that runs at the start of every Python
                self._output.add(line)
            while True:
                for reply in pickle.load(self._replies):
                    self._deliver(reply)
        except Exception:  # noqa: BLE001 - a value cut off in the middle fails in many ways, all of them the end
            self._settle()

    def _deliver(self, reply: Told) -> None:
        if isinstance(reply, LogLine):
            self._output.tell(reply)
        elif isinstance(reply, FirstCall):
            self.first_call_since = None if reply.seconds is None else time.monotonic() - reply.seconds
        elif isinstance(reply, Measuring):
            self.is_measuring = reply.is_under_way
        elif isinstance(reply, ReadSoFar):
            if reply.number == self._reading:
                self.read_so_far = reply.progress
        elif (pending := self._pending.get(reply.number)) is not None:
            pending.replies.put(reply)

    def _settle(self) -> None:
        """Report the end of the process and its reason to all waiting calls."""
        if not self._ends_within(_DEATH_S):
            self._process.kill()  # it cannot answer any more
            self._ends_within(_DEATH_S)
        self._output.reader.join(_FIRM_S)
        self.first_call_since = None
        self.is_measuring = False
        self.read_so_far = None
        died = EngineDied("the model process was ended")
        if self._end is None:
            self._end = died = explain(self._process.returncode or 0, self._output.last_lines)
        for pending in list(self._pending.values()):
            pending.replies.put(Failure(pending.number, type(died)(*died.args)))
        self._output.end()


def _joined(thread: threading.Thread) -> bool:
    """Wait a moment for a thread to end, unless it is this one; return whether it has."""
    if thread is not threading.current_thread():
        thread.join(_FIRM_S)
    return not thread.is_alive()


_MEANINGS = {
    "SIGBUS": "crashed: a file that it reads became shorter, or memory is faulty",
    "SIGFPE": "crashed: it divided by zero",
    "SIGILL": "crashed: llama.cpp was built for another CPU",
    "SIGKILL": "was ended by the system, probably for lack of memory",
    "SIGSEGV": "crashed: it reached for memory that is not its own",
    "SIGTERM": "was ended by another program",
}
_WINDOWS_NAMES = {0xC0000005: "SIGSEGV", 0xC000001D: "SIGILL", 0xC0000094: "SIGFPE"}
_SERVER = "RPC"  # llama.cpp's words for a connection that breaks: ggml-rpc.cpp
_DUMP = "Fatal Python error:"  # the beginning of faulthandler's output, after the library's own
_FOLDER = re.compile(r"^\S*[/\\](?=[^/\\\s]+:\d+: )")  # the folder in which the library was built
_TELLING = re.compile(r"^no reply|assert|error|exception|failed|what\(\):|abort", re.IGNORECASE)


def explain(code: int, output: Iterable[str]) -> EngineDied:
    """Return the error, of one line, that an exit code means; `output` is what the process printed last."""
    name = _WINDOWS_NAMES.get(code % 2**32, "") if code >= 0 else exit_words(code)
    line = _telling_line(output)
    if line.startswith(SILENT):
        return ServerLost(line.removeprefix(SILENT))
    if name == "SIGABRT" and _SERVER in line:
        return ServerLost("the machine that computes for us is gone, or its server has ended")
    if name == "SIGABRT":
        return EngineDied(f"the model process stopped itself: {line or 'it gave no reason'} (SIGABRT)")
    if name:
        return EngineDied(f"the model process {_MEANINGS.get(name, 'was ended')} ({name})")
    return EngineDied(f"the model process ended with exit code {code}" + (f": {line}" if line else ""))


def _telling_line(output: Iterable[str]) -> str:
    """Return the last line about a failure, else the last line."""
    lines = [line.strip() for line in takewhile(lambda line: not line.startswith(_DUMP), output)]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return _FOLDER.sub("", telling[-1]) if telling else ""


class Output:
    """Passes on the output and log of a process in its own thread, so a slow listener blocks nothing."""

    def __init__(self, stream: IO[bytes], listener: LogListener | None) -> None:
        self.stream = stream
        self._listener = listener
        self.last_lines: deque[str] = deque(maxlen=_LINES_KEPT)  # that were printed
        self._lines: SimpleQueue[LogLine | None] = SimpleQueue()
        self.reader = threading.Thread(target=self._read, name="localspec-output", daemon=True)
        self.relay = threading.Thread(target=self._relay, name="localspec-log", daemon=True)
        self.reader.start()
        self.relay.start()

    def add(self, raw: bytes) -> None:
        """Take a printed line."""
        if text := raw.decode("utf-8", "replace").rstrip():
            self.last_lines.append(text)
            self.tell(LogLine(logging.WARNING, "output", text))

    def tell(self, line: LogLine) -> None:
        """Pass a line on, without waiting for the listener."""
        if self._listener is not None:
            self._lines.put(line)

    def end(self) -> None:
        """End the listener's thread after the lines so far."""
        self._lines.put(None)

    def _read(self) -> None:
        while raw := self.stream.readline(_LONGEST_LINE):
            self.add(raw)

    def _relay(self) -> None:
        while self._listener is not None and (line := self._lines.get()) is not None:
            with suppress(Exception):  # there is no caller to report it to
                self._listener(line)
