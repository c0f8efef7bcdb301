"""Python in a process of its own: whatever native code does to itself there, this program lives on."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

from localspec.errors import EngineDied, EngineError, LocalSpecError

_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")

_GREETING = b"localspec: values follow\n"  # of a child, after whatever else Python prints at its start
_CODE = "from localspec.child_process import main; main()"
_SECRETS = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}  # no business of native code that reads foreign files
_DEATH_S = 2.0  # from the end of a pipe to the end of its process

if sys.platform == "win32":
    _FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
else:
    _FLAGS = 0


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
        process = start_python(_CODE, printed, "the probing process")
        ends = time.monotonic() + timeout_s
        deadline = threading.Timer(timeout_s, process.kill)
        deadline.daemon = True
        deadline.start()
        try:
            yield from _received(process, pickle.dumps((task, arguments, options)))
        except EngineDied as died:
            late = time.monotonic() >= ends
            reason = f"it took longer than {timeout_s:g} s" if late else _reason(process, printed)
            raise EngineDied(f"{died}: {reason}") from None
        finally:
            deadline.cancel()
            process.kill()
            process.communicate()


def start_python(code: str, stderr: int | IO[bytes], what: str) -> subprocess.Popen[bytes]:
    """Start a Python that runs `code` in a session of its own: no key of the terminal reaches it.

    Raises `EngineError` that names `what` cannot be started.
    """
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    kept = {name: value for name, value in os.environ.items() if name.upper() not in _SECRETS}
    kept["PYTHON_COLORS"] = "0"  # FORCE_COLOR is for the terminal: what a child prints is read here
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


def _received(process: subprocess.Popen[bytes], work: bytes) -> Iterator[_Value]:
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):  # a child that has died already is noticed below
        process.stdin.write(work)
        process.stdin.flush()
    try:
        for _ in printed_before(process.stdout):
            continue
        while not isinstance(value := pickle.load(process.stdout), _End):
            yield value
    except Exception:  # noqa: BLE001 - a value cut off in the middle fails in many ways, all of them the end
        raise EngineDied("the probing process ended") from None
    if value.error is not None:
        raise value.error


def printed_before(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines that a child prints before its values; raises EOFError where none come."""
    while not (line := stream.readline()).endswith(_GREETING):  # after what did not end its line
        if not line:
            raise EOFError
        yield line


def _reason(process: subprocess.Popen[bytes], printed: IO[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_DEATH_S)
    printed.seek(0)
    lines = [line.strip() for line in printed.read().decode("utf-8", "replace").splitlines() if line.strip()]
    how = exit_words(process.returncode or 0)
    return f"{lines[-1]} ({how})" if lines else how


def exit_words(code: int) -> str:
    """Return how a process ended: the name of a signal, or its exit code."""
    names = {number.value: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else names.get(-code, f"signal {-code}")


def take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Put a child's pipes out of the libraries' reach: they read nothing, and print to standard error."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
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
    except Exception as error:  # noqa: BLE001 - the parent tells it, there is nobody else
        end = _End(EngineError(f"{type(error).__name__}: {error}"))
    pickle.dump(end, values, pickle.HIGHEST_PROTOCOL)
    values.flush()
