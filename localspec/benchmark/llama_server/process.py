"""llama-server as a child process: started, watched and ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

from localspec.errors import EngineDied, EngineError, UserError
from localspec.storage.paths import expanded

HOST = "127.0.0.1"
START_LIMIT_S = 600.0
_PAUSE_S = 0.05  # between two looks at a server that loads
_PATIENCE_S = 5.0  # for what a healthy process does at once
_KEPT = 65536  # bytes of its last output
_SETTINGS = ("LLAMA_ARG_", "LLAMA_SERVER_", "LLAMA_API_KEY", "LLAMA_TRACE", "AIP_", "MTMD_")
_SPIN_COUNT = "1000"  # as localspec.llama sets it: libgomp's own is 14 times slower on busy cores
_HINT = "give the path of llama.cpp's llama-server"
_STAMP = re.compile(r"^(?:\d+\.){3}\d+ ([A-Z]) ")  # when, and how serious
_TELLING = re.compile(r"error|fail|invalid|exception|assert|what\(\)", re.IGNORECASE)

if sys.platform == "win32":
    _FLAGS = subprocess.CREATE_NO_WINDOW
else:
    _FLAGS = 0


class ServerProcess:
    """One server on a port of this machine, and what it writes.

    It stays in this program's group of processes: a terminal that closes ends both.
    """

    def __init__(self, program: Path, port: int, flags: Sequence[str]) -> None:
        """Start a program with flags; raises UserError if that is impossible."""
        self.name = program.name
        self.port = port
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            self._process = _start(program, ["--host", HOST, "--port", str(port), *flags], self._output)
        except UserError:
            self._output.close()
            raise

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the models are loaded; raises UserError if it ends before, or never gets there."""
        deadline = time.monotonic() + START_LIMIT_S
        while self.get("/health") is None:
            try:
                self._process.wait(_PAUSE_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise self.refused(f"has not loaded its models after {START_LIMIT_S:g} s") from None
            else:
                raise self.refused(f"ended at its start ({_how(self._process.returncode)})")

    def refused(self, what: str) -> UserError:
        """End it and return the error that says what it did, with its own words about it."""
        self.end()
        return UserError(f"{self.name} {what}{self._telling_words()}", "start it by hand to see more")

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn what a broken connection raises inside into EngineError with the server's own words."""
        since = self._written()
        try:
            yield
        except (OSError, HTTPException) as error:
            raise self._broken_off(error, since) from error

    def _broken_off(self, error: Exception, since: int) -> EngineError:
        if isinstance(error, TimeoutError):
            return EngineError(f"{self.name} has said nothing for too long")
        try:
            code = self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return EngineError(f"{self.name} broke off in an answer ({type(error).__name__})")
        return EngineDied(f"{self.name} ended in an answer ({_how(code)}){self._telling_words(since)}")

    def end(self) -> None:
        """End the process; a second call does nothing."""
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """End the process and forget what it wrote; a second call does nothing."""
        self.end()
        self._output.close()

    def get(self, path: str) -> bytes | None:
        """Return what the server has under a path; None while it has nothing."""
        connection = HTTPConnection(HOST, self.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.read() if response.status == 200 else None
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def _telling_words(self, since: int = 0) -> str:
        """Return what an ended process wrote of its failure; a running one shares the place in the file."""
        self._output.seek(max(since, self._written() - _KEPT))
        lines = self._output.read().decode("utf-8", "replace").splitlines()
        said = next((" ".join(_STAMP.sub("", line).split()) for line in lines if _is_telling(line)), "")
        return f": {said}" if said else ""

    def _written(self) -> int:
        return os.fstat(self._output.fileno()).st_size


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as asked:
        asked.bind((HOST, 0))
        return int(asked.getsockname()[1])


def _start(program: Path, words: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    path = expanded(program).absolute()
    found = shutil.which(program) or shutil.which(path)
    if found is None:
        what = "is not a program that can be started" if path.exists() else "does not exist"
        raise UserError(f"{program} {what}", _HINT)
    try:
        return subprocess.Popen(
            [found, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(os.environ),
            creationflags=_FLAGS,
        )
    except OSError as error:
        raise UserError(f"{program} cannot be started: {error.strerror or error}", _HINT) from error


def _environment(found: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without settings of a person's own servers, whose threads spin as ours do."""
    kept = {name: value for name, value in found.items() if not name.upper().startswith(_SETTINGS)}
    return {"GOMP_SPINCOUNT": _SPIN_COUNT} | kept


def _is_telling(line: str) -> bool:
    """Tell whether a line of the log speaks of a failure; what ends a process at once has no stamp."""
    stamp = _STAMP.match(line)
    return stamp[1] == "E" if stamp else _TELLING.search(line) is not None


def _how(code: int) -> str:
    names = {number.value: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else names.get(-code, f"signal {-code}")
