"""Terminals, streams, Ctrl+C, and what a command ends with: one clear line and an exit code."""

from __future__ import annotations

import codecs
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout, suppress
from errno import (
    EACCES,
    EAGAIN,
    EBADF,
    EDQUOT,
    EIO,
    EMFILE,
    ENFILE,
    ENODEV,
    ENOMEM,
    ENOSPC,
    ENXIO,
    EPERM,
    EROFS,
    ESTALE,
)
from itertools import count
from types import FrameType
from typing import Any, Self, TextIO, cast

from localspec.errors import Cancelled, EngineDied, LibraryError, LocalSpecError, ServerLost, UserError
from localspec.safe_text import safe_line, safe_text

_WIDE = 200  # columns
_OF_THE_SYSTEM = {  # which no program can help
    EACCES, EAGAIN, EBADF, EDQUOT, EIO, EMFILE, ENFILE, ENODEV, ENOMEM, ENXIO, EPERM, EROFS, ESTALE,
}  # fmt: skip
_PATIENCE = 2  # an impatient second press means the same as the first
_ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
SUCCESS = 0
FAILURE = 1
USAGE = 2
INTERRUPTED = 130


SIMPLER = "localspec.simpler"
"""How a stream meets characters that its encoding lacks: by simpler ones, or `?`, instead of failing."""
_SIMPLER = str.maketrans("█░▁▂▃▄▅▆▇▓▒■◆▚✓▸×–“”…·", '#._.-=+*%=+oe&+>x-"".-')


def _simpler(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end].translate(_SIMPLER)
    return lacking.encode("ascii", "replace").decode("ascii"), error.end


codecs.register_error(SIMPLER, _simpler)


class Styled(str):
    """A text with our own control sequences; untrusted parts of it must already be safe."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return the text itself, so `print` passes it on unchanged."""
        return self


ERASE_LINE = Styled("\r\x1b[K")


class _SanitisedStream:
    """A stream to a terminal; only the control sequences of `Styled` texts take effect."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the stream has it
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._stream.write(text if isinstance(text, Styled) else safe_text(text))


@contextmanager
def sanitised_output() -> Iterator[None]:
    """Make output to terminals harmless, whatever its source; data into a pipe is unchanged."""
    out, err = (cast("TextIO", _SanitisedStream(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stderr(err), redirect_stdout(out if is_terminal(sys.stdout) else sys.stdout):
        yield


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal."""
    return stream is not None and not stream.closed and stream.isatty()


def colours_unwanted() -> bool:
    """Return whether NO_COLOR asks for plain text."""
    return bool(os.environ.get("NO_COLOR"))


def at_fence(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split arguments at the first `--`; flags only count before it."""
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[:end], argv[end + 1 :]


def say(text: str) -> None:
    """Print a line for the user to standard error, never among the data.

    A closed standard error does not stop the work, unless the data cannot be written either.
    """
    try:
        print(_line(text), file=sys.stderr, flush=True)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _are_one(sys.stdout, sys.stderr):
            raise
        forget(sys.stderr)


def write_aside(text: str) -> None:
    """Write text for the user at the keyboard to standard error at once: faint on a terminal."""
    shown = Styled(f"\x1b[2m{safe_text(text)}\x1b[0m")
    try:
        sys.stderr.write(shown if is_terminal(sys.stderr) and not colours_unwanted() else text)
        sys.stderr.flush()
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _are_one(sys.stdout, sys.stderr):
            raise
        forget(sys.stderr)


def ask(question: str) -> str:
    """Ask the user at the terminal, and return the typed line: empty at the end of the input."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline()


def confirm_with_user(question: str) -> bool:
    """Ask for a yes, and return whether it came."""
    return ask(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def print_json(value: Mapping[str, object], *, escaped: bool = True) -> None:
    """Print one JSON object for programs, under the number of its schema; `escaped` if all in ASCII."""
    import json

    from localspec.app.answer_json import finite  # both would cost `--help` 10 ms

    print(json.dumps(finite({"schema": 1, **value}), default=str, ensure_ascii=escaped))


def print_result(
    value: Mapping[str, object], lines: Iterable[str], *, as_json: bool, escaped: bool = False
) -> None:
    """Print a command's result: one JSON object for programs, or single lines for users."""
    if as_json:
        print_json(value, escaped=escaped)
    else:
        for line in lines:
            print(_line(line) if is_terminal(sys.stdout) else line)
    sys.stdout.flush()


def _line(text: str) -> str:
    return text if isinstance(text, Styled) else safe_line(text)


def _are_one(one: TextIO, other: TextIO) -> bool:
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except OSError:  # one of them is not a file
        return False


def forget(stream: TextIO) -> None:
    """Discard a stream's buffered and further output."""
    with suppress(OSError):  # not a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def on_interrupt(action: Callable[[], None]) -> AbstractContextManager[None]:
    """Make Ctrl+C call `action`; the third time it raises KeyboardInterrupt."""
    presses = count(1)

    def handle(_number: int, _frame: FrameType | None) -> None:
        if next(presses) > _PATIENCE:
            raise KeyboardInterrupt
        action()

    return _handling([signal.SIGINT], handle)


def exit_on_signals() -> AbstractContextManager[None]:
    """Make a request to end, such as from `kill`, raise SystemExit."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return _handling([number for number in _ENDS if signal.getsignal(number) is signal.SIG_DFL], leave)


@contextmanager
def _handling(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    hears = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if hears}
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


class ConsoleStatus:
    """One line on standard error that is overwritten, if that is a terminal."""

    def __init__(self) -> None:
        self._visible = False
        self.enabled = is_terminal(sys.stderr)

    def update(self, text: str) -> None:
        """Show `text` in place of what the line said."""
        if self.enabled:
            sys.stderr.write(Styled(f"{ERASE_LINE}{safe_line(text)[: _columns()]}"))
            sys.stderr.flush()
            self._visible = True

    def share_of(self, what: str) -> Callable[[float], bool]:
        """Return a callback that shows the progress of something, and lets it continue."""

        def on_progress(done: float) -> bool:
            self.update(f"{what}: {done:.0%}")
            return True

        return on_progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self._visible:
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()
            self._visible = False


class ProgressLine(ConsoleStatus):
    """The status line of a long test, with the expected rest and a way to stop."""

    def __init__(self, cancel: Callable[[], None], now: Callable[[], float] = time.monotonic) -> None:
        """Start now; `cancel` ends the running work when the user stops it."""
        super().__init__()
        self._cancel = cancel
        self._now = now
        self._began_s = now()
        self._stopped = False

    def stop(self) -> None:
        """End the test as soon as possible."""
        self._stopped = True
        self._cancel()

    def check(self) -> None:
        """Raise `Cancelled` if the user stopped it."""
        if self._stopped:
            raise Cancelled("it was stopped")

    def time_left(self, done: float) -> str:
        """Return the expected rest in words, after a share of the work; empty if unknown."""
        if not done:
            return ""
        from localspec.tuning.words import clock  # 20 ms

        passed_s = self._now() - self._began_s
        return f", about {clock(passed_s / done - passed_s)} left"


def results_width() -> int:
    """Return the columns for results; unlimited if that is not a terminal."""
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _WIDE


def _columns() -> int | None:
    """Return the width of a line of standard error, which must not wrap, to be erasable."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return None
    return columns - 1 if columns else None


def tell(error: LocalSpecError) -> None:
    """Print an error, and below it what to do about it."""
    message, hint = (error.message, error.hint) if isinstance(error, UserError) else (str(error), "")
    if isinstance(error, ServerLost):
        hint = "start again once `localspec share` runs there, or with --rpc none to compute here"
    elif isinstance(error, LibraryError):
        hint = "run `localspec doctor` for a fix"
    elif isinstance(error, EngineDied):
        hint = "the model's file may be damaged, or memory short; -v shows llama.cpp's messages"
    say(f"error: {message}")
    if hint:
        say(f"  hint: {hint}")


def exit_code(action: Callable[[], int], argv: Sequence[str]) -> int:
    """Run a command and return its exit code; nothing but SystemExit gets through."""
    try:
        return _flushed(action)
    except (Cancelled, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _forget_broken()
        return SUCCESS  # who reads no further has what they wanted, as with `head`
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line, not a traceback
        try:
            _explain(error, verbose="-v" in argv or "--verbose" in argv)
        except OSError:  # it cannot be read
            _forget_broken()
        return USAGE if isinstance(error, UserError) else FAILURE


def _flushed(action: Callable[[], int]) -> int:
    """Run a command; a reader that has gone shows itself here, not at the interpreter's end."""
    try:
        code = action()
    except SystemExit:  # argparse leaves this way after `--help`
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _explain(error: Exception, *, verbose: bool) -> None:
    if isinstance(error, LocalSpecError):
        tell(error)
        return
    if isinstance(error, OSError) and error.errno == ENOSPC:
        forget(sys.stdout)
        say(f"error: cannot write: {error.strerror}")
        return
    if verbose:
        import traceback  # 10 ms that only a crash should cost

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM:
        where = f" ({error.filename})" if error.filename else ""
        say(f"error: the system refuses: {error.strerror}{where}")
        return
    say(f"error: unexpected {type(error).__name__}: {error}")
    if not verbose:
        say("  hint: this is a mistake in LocalSpec; run it again with -v for the traceback, and report it")


def _forget_broken() -> None:
    """Drop streams that are closed: the interpreter's last flush would also fail."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            forget(stream)
