"""What the engine's process prints and logs, on its way to a listener."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import IO

from localspec.inference.worker.wire import LogLine

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
