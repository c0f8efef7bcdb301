"""What the child sends: replies and log lines, from any of its threads, without waiting for the parent."""

from __future__ import annotations

import logging
import pickle
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import IO

from localspec.inference.worker.wire import LogLine, Reply

_URGENT_S = 0.1


class Outbox:
    """Writes what it is given in a thread of its own; what piles up meanwhile goes as one."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._queue: SimpleQueue[Reply | LogLine | threading.Event] = SimpleQueue()
        threading.Thread(target=self._send, name="localspec-outbox", daemon=True).start()

    def put(self, item: Reply | LogLine) -> None:
        """Send something soon."""
        self._queue.put(item)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything so far is written, or the time is over."""
        written = threading.Event()
        self._queue.put(written)
        written.wait(timeout_s)

    def _send(self) -> None:
        while True:
            batch = [self._queue.get()]
            try:
                while True:
                    batch.append(self._queue.get_nowait())
            except Empty:
                self._write(batch)

    def _write(self, batch: list[Reply | LogLine | threading.Event]) -> None:
        items = [item for item in batch if not isinstance(item, threading.Event)]
        if items:
            with suppress(OSError):  # the parent is gone, and this process ends soon
                self._stream.write(pickle.dumps(items, pickle.HIGHEST_PROTOCOL))
                self._stream.flush()
        for item in batch:
            if isinstance(item, threading.Event):
                item.set()


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
