"""The child process and its pipes, seen from the parent: starting, talking, and noticing its end."""

from __future__ import annotations

import itertools
import logging
import pickle
import re
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import IO

from localspec.child_process import exit_words, start_python
from localspec.errors import EngineDied, EngineError, LocalSpecError
from localspec.inference.worker.wire import (
    GREETING,
    Call,
    Cancel,
    Event,
    Failure,
    LogLine,
    Method,
    Reply,
    Request,
    Result,
)

_POLITE_S = 1.0
_FIRM_S = 0.5
_DEATH_S = 1.0  # from the end of a pipe to the end of its process
_CODE = "from localspec.inference.worker.child import main; main()"


class Pending:
    """A call under way; close it."""

    def __init__(self, process: EngineProcess, number: int) -> None:
        self.number = number
        self._process = process
        self._ended = False
        self.replies: SimpleQueue[Reply] = SimpleQueue()

    def next(self, timeout_s: float | None = None) -> Event | Result | None:
        """Wait for an event, at last the result or the error it raises; return None after the timeout."""
        try:
            reply = self.replies.get(timeout=timeout_s)
        except Empty:
            return None
        self._ended = not isinstance(reply, Event)
        if isinstance(reply, Failure):
            raise reply.error
        return reply

    def close(self) -> None:
        """Stop the call if it goes on, and wait until it has stopped."""
        try:
            if not self._ended:
                self._process.send(Cancel(self.number))
            # a lost iterator may be collected in the very thread that would bring the end of its call
            while not self._ended and not self._process.is_reading():
                with suppress(LocalSpecError):
                    self.next()
        finally:
            self._process.forget(self.number)


class EngineProcess:
    """A process that holds models. Its threads end with it; `close` ends it."""

    def __init__(self, on_log: LogListener | None) -> None:
        self._process = start_python(_CODE, subprocess.PIPE, "the engine's process")
        self._relay = LogRelay(on_log) if on_log is not None else None
        assert self._process.stderr is not None
        self._output = Output(self._process.stderr, self._tell)
        self._numbers = itertools.count(1)
        # reentrant, because the collection of a lost iterator may close its call at any point, also in here
        self._writing = threading.RLock()
        self._pending: dict[int, Pending] = {}
        self._end: EngineError | None = None
        self._reader = threading.Thread(target=self._read, name="localspec-replies", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Return the number that the system knows the process by."""
        return self._process.pid

    def call(self, method: Method, *arguments: object) -> Pending:
        """Begin a call; raise `EngineDied` if there is nobody to answer it."""
        number = next(self._numbers)
        pending = Pending(self, number)
        # in this order, and in `_settle` in the other: a call too late to be told of the end sees it here
        self._pending[number] = pending
        if self._end is not None:
            self.forget(number)
            raise type(self._end)(*self._end.args)
        self.send(Call(number, method, arguments))
        return pending

    def send(self, request: Request) -> None:
        """Tell the child something; that it hears no more is found out by the reader."""
        stream = self._process.stdin
        assert stream is not None
        if stream.closed:  # an iterator may outlive the interpreter's ability to pickle
            return
        frame = pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        with self._writing, suppress(OSError, ValueError):
            stream.write(frame)
            stream.flush()

    def cancel(self) -> None:
        """Stop every call that takes time."""
        for number in list(self._pending):
            self.send(Cancel(number))

    def is_reading(self) -> bool:
        """Tell whether this is the thread that reads the replies."""
        return threading.current_thread() is self._reader

    def forget(self, number: int) -> None:
        """Drop what still comes for a call."""
        self._pending.pop(number, None)

    def close(self) -> None:
        """End the process: by the end of its requests, then by request of the system, then by force."""
        if self._end is None:
            self._end = EngineError("the models are closed")
        self._hang_up()
        for insist, patience_s in ((self._process.terminate, _POLITE_S), (self._process.kill, _FIRM_S)):
            if self._ends_within(patience_s):
                break
            insist()
        self._ends_within(_DEATH_S)
        self._release()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self.close()

    def _hang_up(self) -> None:
        """Close the pipe of requests, unless the child does not even read the last of them."""
        if self._writing.acquire(timeout=_FIRM_S):
            try:
                assert self._process.stdin is not None
                with suppress(OSError):
                    self._process.stdin.close()
            finally:
                self._writing.release()

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _release(self) -> None:
        """Join the threads and close their pipes; what somebody else keeps open is left alone."""
        pairs = ((self._reader, self._process.stdout), (self._output.thread, self._process.stderr))
        for thread, stream in pairs:
            if _joined(thread) and stream is not None:
                stream.close()
        if self._relay is not None:
            _joined(self._relay.thread)

    def _tell(self, line: LogLine) -> None:
        if self._relay is not None:
            self._relay.add(line)

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        try:
            while not (line := stream.readline()).endswith(GREETING):  # after what did not end its line
                if not line:
                    raise EOFError
                self._output.add(line)  # of something that runs at the start of every Python
            while True:
                for reply in pickle.load(stream):
                    self._deliver(reply)
        except Exception:  # noqa: BLE001 - a value cut off in the middle fails in many ways, all of them the end
            self._settle()

    def _deliver(self, reply: Reply | LogLine) -> None:
        if isinstance(reply, LogLine):
            self._tell(reply)
            return
        if (pending := self._pending.get(reply.number)) is not None:
            pending.replies.put(reply)

    def _settle(self) -> None:
        """Tell everybody who waits that the process has ended, and why."""
        if not self._ends_within(_DEATH_S):
            self._process.kill()  # it cannot answer any more
            self._ends_within(_DEATH_S)
        self._output.thread.join(_FIRM_S)
        if self._end is None:
            self._end = EngineDied(explain(self._process.returncode or 0, self._output.last_lines()))
        for pending in list(self._pending.values()):
            pending.replies.put(Failure(pending.number, type(self._end)(*self._end.args)))
        if self._relay is not None:
            self._relay.end()


def _joined(thread: threading.Thread) -> bool:
    """Wait a moment for a thread to end, unless it is this one; tell whether it has."""
    if thread is not threading.current_thread():
        thread.join(_FIRM_S)
    return not thread.is_alive()


_MEANINGS = {
    "SIGBUS": "crashed: a file that it reads became shorter, or memory is faulty",
    "SIGFPE": "crashed: it divided by zero",
    "SIGILL": "crashed: llama.cpp was built for another processor than this",
    "SIGKILL": "was ended by the system, probably for lack of memory",
    "SIGSEGV": "crashed: it reached for memory that is not its own",
    "SIGTERM": "was ended by another program",
}
_WINDOWS_NAMES = {0xC0000005: "SIGSEGV", 0xC000001D: "SIGILL", 0xC0000094: "SIGFPE"}
_DUMP = "Fatal Python error: "  # how faulthandler begins, after what the library itself has said
_FOLDER = re.compile(r"^\S*[/\\](?=[^/\\\s]+:\d+: )")  # in which somebody built the library
_TELLING = re.compile(r"assert|error|exception|failed|what\(\):|abort", re.IGNORECASE)


def explain(code: int, output: Iterable[str]) -> str:
    """Return one line that says what an exit code means; `output` is what the process printed last."""
    name = _WINDOWS_NAMES.get(code % 2**32, "") if code >= 0 else exit_words(code)
    line = _telling_line(output)
    if name == "SIGABRT":
        return f"the engine stopped itself: {line or 'it gave no reason'} (SIGABRT)"
    if name:
        return f"the engine {_MEANINGS.get(name, 'was ended')} ({name})"
    return f"the engine ended with exit code {code}" + (f": {line}" if line else "")


def _telling_line(output: Iterable[str]) -> str:
    """Return the last line that speaks of a failure, else the last of all."""
    lines = [line.strip() for line in takewhile(lambda line: not line.startswith(_DUMP), output)]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    return _FOLDER.sub("", telling[-1]) if telling else ""


LogListener = Callable[[LogLine], None]

_LINES_KEPT = 100
_LONGEST_LINE = 2**16  # bytes: something that prints without line breaks must not fill the memory


class LogRelay:
    """Hands lines to a listener in a thread of its own: a slow listener keeps nobody else waiting."""

    def __init__(self, listener: LogListener) -> None:
        self._listener = listener
        self._lines: SimpleQueue[LogLine | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._relay, name="localspec-log", daemon=True)
        self.thread.start()

    def add(self, line: LogLine) -> None:
        """Take a line without waiting for the listener."""
        self._lines.put(line)

    def end(self) -> None:
        """Let the thread end after the lines so far."""
        self._lines.put(None)

    def _relay(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._listener(line)
            except Exception:  # noqa: BLE001 - nobody above could hear of it; the next line may fare better
                continue


class Output:
    """Reads what a process prints, line by line, and keeps the last lines."""

    def __init__(self, stream: IO[bytes], take: LogListener) -> None:
        self._stream = stream
        self._take = take
        self._last: deque[str] = deque(maxlen=_LINES_KEPT)
        self.thread = threading.Thread(target=self._read, name="localspec-output", daemon=True)
        self.thread.start()

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines that were printed."""
        return tuple(self._last)

    def add(self, raw: bytes) -> None:
        """Take a line that arrived elsewhere."""
        if text := raw.decode("utf-8", "replace").rstrip():
            self._last.append(text)
            self._take(LogLine(logging.WARNING, "output", text))

    def _read(self) -> None:
        while raw := self._stream.readline(_LONGEST_LINE):
            self.add(raw)
