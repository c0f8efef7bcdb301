"""The real program in a pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parent.parent.parent
_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_()][0-9A-Za-z]?")
TIMEOUT_S = 60.0  # for a slow machine; nothing waits that long on a usual one


class Terminal:
    """One run of `localspec` with someone in front of it."""

    def __init__(
        self,
        arguments: Sequence[str] = (),
        *,
        variables: Mapping[str, str],
        size: tuple[int, int] = (100, 30),
        log: Path | None = None,
    ) -> None:
        """Start it; its standard error goes to `log` if there is one."""
        columns, rows = size
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = {
            "TERM": "xterm-256color",
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tui'}",
        }
        with Path(log or os.devnull).open("wb") as written:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "localspec", *arguments],
                stdin=slave,
                stdout=slave,
                stderr=written if log else slave,
                env=environment | dict(variables),
                start_new_session=True,
            )
        os.close(slave)
        self.output = ""  # everything so far, without control sequences
        self.raw = b""  # with them
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with suppress(OSError):  # it has vanished
            os.close(self._master)

    @property
    def modes(self) -> set[str]:
        """What the program has switched on and not off again: private modes, `>u` for kitty's keyboard."""
        on: set[str] = set()
        for number, switch in re.findall(rb"\x1b\[\?(\d+)([hl])", self.raw):
            (on.add if switch == b"h" else on.discard)(number.decode())
        keyboards = len(re.findall(rb"\x1b\[>\d+u", self.raw)) - len(re.findall(rb"\x1b\[<u", self.raw))
        return on | {">u"} if keyboards else on

    def vanish(self) -> None:
        """Be no more, and tell no one."""
        os.close(self._master)

    def send(self, keys: str) -> None:
        """Type keys; `\\udc9b` represents the byte 0x9b, which is no UTF-8."""
        os.write(self._master, keys.encode("utf-8", "surrogateescape"))

    def read(self, within_s: float) -> None:
        """Take in what the program draws, waiting for it no longer than this."""
        if not select.select([self._master], [], [], within_s)[0]:
            return
        try:
            data = os.read(self._master, 1 << 16)
            self.raw += data
            data = self._rest + data
        except OSError:  # the program has gone
            return
        cut = data.rfind(b"\x1b")  # a sequence may be cut in two
        cut = cut if cut > len(data) - 32 and cut >= 0 else len(data)
        data, self._rest = data[:cut], data[cut:]
        self.output += _CONTROLS.sub("", data.decode("utf-8", "replace"))

    def until(self, condition: Callable[[], object]) -> None:
        """Read until something is so."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"it never came to be; the last that was drawn:\n{self.output[-4000:]}")
            self.read(0.02)

    def shows(self, *words: str) -> None:
        """Read until some words have been drawn."""
        self.until(lambda: all(word in self.output for word in words))

    def leave(self) -> int:
        """Wait for the program to end; return its exit code."""
        self.until(lambda: self.process.poll() is not None)
        return self.process.returncode

    def kill(self) -> None:
        """Kill the program as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
