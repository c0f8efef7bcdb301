"""The life of a connection to a server: why it ended, what the server wrote beside the protocol, how much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from localspec import units
from localspec.tools.mcp.descriptions import shown_line

LARGEST_MESSAGE = 8 * 2**20  # bytes
_BURST = 32 * 2**20  # bytes that may come at once
_STEADY = 2**20  # bytes a second beyond it
_MESSAGES = (2000.0, 200.0)  # at once and a second; they take the SDK 0.4 ms each
_NOTICES = (5000.0, 1000.0)  # which we read ourselves, and mostly drop
_LAST_WORDS = 2048  # bytes of standard error


class Allowance:
    """An amount that fills up again with time, up to its size."""

    def __init__(self, size: float, rate: float, now: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._rate = rate
        self._now = now
        self._left = size
        self._since = now()

    def take(self, amount: float) -> float:
        """Take an amount, and return the seconds until it is there; 0 if it is there now."""
        now = self._now()
        self._left = min(self._left + (now - self._since) * self._rate, self._size) - amount
        self._since = now
        return max(-self._left / self._rate, 0.0)


class Life:
    """State that the parts of one connection share; belongs to the thread of its event loop."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.on_change = on_change  # of the list of tools
        self.ended = asyncio.Event()
        self.is_mute = False  # its output has ended, and it will soon: it answers nothing that is asked now
        self.reason = ""  # why it ended, after the name of the server
        self.status = 0  # of the last HTTP response that was an error
        self._messages = Allowance(*_MESSAGES)
        self._notices = Allowance(*_NOTICES)
        self._received = Allowance(_BURST, _STEADY)
        self._errors = b""
        self._noise = ""

    def end(self, reason: str) -> None:
        """Let the connection end; the first reason counts."""
        if not self.ended.is_set():
            self.reason = reason
            self.ended.set()

    def may_receive(self, length: int) -> bool:
        """Count received bytes; end the connection and return False if they are too many."""
        if self._received.take(length):
            self.end(f"sent more than {units.memory(_BURST)} and was ended")
        return not self.ended.is_set()

    async def pace(self, *, is_notice: bool = False) -> None:
        """Wait before the next message of a server that sends very many of them."""
        if wait_s := (self._notices if is_notice else self._messages).take(1):
            await asyncio.sleep(wait_s)

    def keep_error(self, data: bytes) -> None:
        """Keep the end of what the server writes to standard error."""
        self._errors = (self._errors + data)[-_LAST_WORDS:]

    def keep_noise(self, line: bytes) -> None:
        """Keep the first line of standard output that is no message of the protocol."""
        self._noise = self._noise or shown_line(line[:400].decode("utf-8", "replace"), 100)

    @property
    def last_words(self) -> str:
        """Return the last line that the server wrote beside the protocol, for its user; may be empty."""
        lines = self._errors.decode("utf-8", "replace").splitlines()
        written = [text for line in lines if (text := shown_line(line, 160))]
        return written[-1] if written else self._noise
