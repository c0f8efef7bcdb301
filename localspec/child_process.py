"""A Python child process: if native code crashes there, this program continues."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import IO, Generic, Literal, ParamSpec, Protocol, TypeVar, cast

from localspec.errors import EngineDied, EngineError, LocalSpecError

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")

_GREETING = b"localspec: values follow\n"  # of a child, after whatever else Python prints at its start
_CODE = "from localspec.child_process import main; main()"
_SECRETS = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}  # no business of native code that reads foreign files
_DEATH_S = 2.0  # from the end of a pipe to the end of its process
_LOOK_S = 0.01  # between two looks at a child's memory
_HEAD = struct.Struct("<BQ")  # of a marked text: its mark, and its bytes

if sys.platform == "win32":
    _FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
else:
    _FLAGS = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a child until its next message: seconds, bytes of memory, bytes of the message.

    None is no limit. Unlike seconds that pass, other programs use up no seconds that it computes.
    """

    seconds: float | None = None
    memory: int | None = None
    length: int | None = None
    computed_seconds: float | None = None


NONE = Limits()
Codec = Callable[[IO[bytes], int | None], _Value]
"""Reads a message of at most that many bytes; an exception means that no more messages come."""


class ChildEndedError(Exception):
    """A child ended before its message; `how` names the signal or the exit code."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class ChildOverLimitError(Exception):
    """A child took more than one of its limits, and was ended."""

    def __init__(self, limit: Literal["seconds", "memory", "computed_seconds"]) -> None:
        super().__init__(limit)
        self.limit = limit


class Child(Generic[_Value]):
    """A Python child process that receives pickled messages and answers with messages that a codec reads.

    It ends when this program ends.
    """

    def __init__(
        self, code: str, what: str, reads: Codec[_Value], stderr: int | IO[bytes] = subprocess.DEVNULL
    ) -> None:
        """Start it; raises EngineError that names `what` cannot be started."""
        self._process = start_python(code, stderr, what)
        self._reads = reads
        self._is_greeted = False
        self._end = weakref.finalize(self, _end, self._process)
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return whether nothing can be asked of it any more."""
        return self._process.poll() is not None

    def greet(self, limits: Limits = NONE) -> None:
        """Wait until it is ready for messages; raises what `receive` raises."""
        if not self._is_greeted:
            with self._within(limits):
                self._read_greeting()

    def ask(self, message: object, limits: Limits = NONE) -> _Value:
        """Send a message, and return the first that answers it; raises what `receive` raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        data = pickle.dumps(message)
        with self._within(limits):
            with suppress(OSError):  # that it has ended is noticed below
                self._process.stdin.write(data)
                self._process.stdin.flush()
            self._read_greeting()
            return self._reads(self._process.stdout, limits.length)

    def receive(self, limits: Limits = NONE) -> _Value:
        """Return its next message; raises ChildEndedError and ChildOverLimitError, and it has ended then."""
        assert self._process.stdout is not None
        with self._within(limits):
            return self._reads(self._process.stdout, limits.length)

    def end(self) -> None:
        """End it at once; a second call does nothing."""
        self._end()

    def kill(self) -> None:
        """Kill it; to be called while another thread waits for its message, which then ends it."""
        self._process.kill()

    def _read_greeting(self) -> None:
        assert self._process.stdout is not None
        if not self._is_greeted:
            self._is_greeted = not [*printed_before(self._process.stdout)]

    @contextmanager
    def _within(self, limits: Limits) -> Iterator[None]:
        try:
            with _watched(self._process, limits):
                yield
        except ChildOverLimitError:
            self.end()
            raise
        except Exception:  # noqa: BLE001 - a message cut off in the middle fails in many ways
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_DEATH_S)
            self.end()
            raise ChildEndedError(exit_words(self._process.returncode or 0)) from None
        except BaseException:
            self.end()  # nothing can read its message any more
            raise


def pickled(stream: IO[bytes], _length: int | None) -> object:
    """Read a pickled message: of a child alone that runs no foreign code."""
    return pickle.load(stream)


def marked_text(stream: IO[bytes], length: int | None) -> tuple[int, str]:
    """Read a number and a text, as `write_marked_text` writes them; safe for untrusted input."""
    mark, size = _HEAD.unpack(stream.read(_HEAD.size))
    text = stream.read(size if length is None else min(size, length))
    if len(text) < size:
        raise EOFError
    return mark, text.decode("utf-8", "replace")


def write_marked_text(stream: IO[bytes], mark: int, text: bytes) -> None:
    """Write a number and a text in UTF-8."""
    stream.write(_HEAD.pack(mark, len(text)) + text)
    stream.flush()


class ValuesOf(Protocol):
    """Yields what a function of a module yields in another process."""

    def __call__(
        self,
        task: Callable[_Arguments, Iterator[_Value]],
        /,
        *arguments: _Arguments.args,
        **options: _Arguments.kwargs,
    ) -> Iterator[_Value]:
        """Run it; raises EngineError if the process ends, and the function's own error."""


@dataclass(frozen=True, slots=True)
class _End:
    error: LocalSpecError | None = None


def values_of(
    task: Callable[_Arguments, Iterator[_Value]],
    timeout_s: float,
    *arguments: _Arguments.args,
    **options: _Arguments.kwargs,
) -> Generator[_Value, None, None]:
    """Yield what a function of a module yields in a child process; closing the iterator ends the child.

    Raises the function's own error, or EngineDied if the process died or took longer than `timeout_s`.
    """
    import tempfile  # 3 ms

    with tempfile.TemporaryFile() as printed:
        child = Child(_CODE, "the probing process", pickled, printed)
        ends = time.monotonic() + timeout_s
        try:
            value = child.ask((task, arguments, options), Limits(timeout_s))
            while not isinstance(value, _End):
                yield cast(_Value, value)
                value = child.receive(Limits(ends - time.monotonic()))
        except ChildOverLimitError:
            raise EngineDied(f"the probing process ended: it took longer than {timeout_s:g} s") from None
        except ChildEndedError as ended:
            raise EngineDied(f"the probing process ended: {_last_words(printed, ended.how)}") from None
        finally:
            child.end()
        if value.error is not None:
            raise value.error


def start_python(code: str, stderr: int | IO[bytes], what: str) -> subprocess.Popen[bytes]:
    """Start a Python that runs `code` in its own session, so Ctrl+C in the terminal does not reach it.

    Raises `EngineError` with the name `what` if it cannot be started.
    """
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    kept = {name: value for name, value in os.environ.items() if name.upper() not in _SECRETS}
    kept["PYTHON_COLORS"] = "0"  # FORCE_COLOR is for the terminal; the output of a child is read here
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-u", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=kept | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8:backslashreplace"},
            start_new_session=True,
            creationflags=_FLAGS,
        )
    except OSError as error:
        raise EngineError(f"{what} cannot be started: {error.strerror or error}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@contextmanager
def _watched(process: subprocess.Popen[bytes], limits: Limits) -> Iterator[None]:
    """End a process that takes too long or too much meanwhile, and raise ChildOverLimitError."""
    over = threading.Event()
    excess = list[ChildOverLimitError]()
    ends = inf if limits.seconds is None else time.monotonic() + limits.seconds

    def pause_s() -> float | None:
        if limits.memory is not None or limits.computed_seconds is not None:
            return _LOOK_S
        return None if limits.seconds is None else max(ends - time.monotonic(), 0)

    def watch() -> None:
        most_s = inf  # computed; unknown until the first look, as most messages are answered before that
        while not over.wait(pause_s()):
            if limits.computed_seconds is not None and most_s == inf:
                most_s = _computed_s(process) + limits.computed_seconds
            if time.monotonic() >= ends:
                excess.append(ChildOverLimitError("seconds"))
            elif limits.computed_seconds is not None and _computed_s(process) >= most_s:
                excess.append(ChildOverLimitError("computed_seconds"))
            elif limits.memory is not None and _resident(process) > limits.memory:
                excess.append(ChildOverLimitError("memory"))
            if excess:
                process.kill()
                break

    watcher = threading.Thread(target=watch, name="localspec-child", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        if excess:
            raise excess[0]


def _resident(process: subprocess.Popen[bytes]) -> int:
    import psutil  # which the process itself has no use for

    with suppress(psutil.Error):
        resident: int = psutil.Process(process.pid).memory_info().rss
        return resident
    return 0


def _computed_s(process: subprocess.Popen[bytes]) -> float:
    import psutil  # which the process itself has no use for

    with suppress(psutil.Error):
        times = psutil.Process(process.pid).cpu_times()
        computed_s: float = times.user + times.system
        return computed_s
    return 0.0


def printed_before(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines that a child prints before its values; raises EOFError where none come."""
    while not (line := stream.readline()).endswith(_GREETING):  # after what did not end its line
        if not line:
            raise EOFError
        yield line


def _last_words(printed: IO[bytes], how: str) -> str:
    printed.seek(0)
    lines = [line.strip() for line in printed.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return f"{lines[-1]} ({how})" if lines else how


def exit_words(code: int) -> str:
    """Return the end of a process in words: the name of a signal, or its exit code."""
    names = {number.value: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else names.get(-code, f"signal {-code}")


def take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Put a child's pipes out of the libraries' reach: they read nothing, and print to standard error."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device, not a file
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    replies.write(_GREETING)
    replies.flush()
    return requests, replies


def main() -> None:
    """Do the work that standard input describes."""
    requests, values = take_pipes()
    end = _End()
    try:
        task, arguments, options = pickle.load(requests)
        for value in task(*arguments, **options):
            pickle.dump(value, values, pickle.HIGHEST_PROTOCOL)
            values.flush()
    except LocalSpecError as error:
        end = _End(error)
    except Exception as error:  # noqa: BLE001 - the parent reports it
        end = _End(EngineError(f"{type(error).__name__}: {error}"))
    pickle.dump(end, values, pickle.HIGHEST_PROTOCOL)
    values.flush()
