"""The process that holds the models: takes requests from one pipe and answers on another.

The end of the requests ends it, whether the parent closed them or died.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from localspec.inference.worker.service import Service
from localspec.inference.worker.wire import GREETING, LogLine, Reply

_PATIENCE_S = 0.5


def main() -> None:
    """Serve until the requests end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)  # the others run on: reading their stacks can crash or never end
    threading.excepthook = _end_with_a_thread
    _die_first_and_fast()
    requests, replies = _take_pipes()
    logging.captureWarnings(capture=True)
    outbox = Outbox(replies)
    service = Service(outbox)
    with suppress(Exception):  # a request that is cut off by the parent's death fails in many ways
        while True:
            service.take(pickle.load(requests))
    service.stop(_PATIENCE_S)
    outbox.flush(_PATIENCE_S)
    os._exit(0)  # the system frees everything; destructors of native libraries can only crash here


def _end_with_a_thread(failure: threading.ExceptHookArgs) -> None:
    """End where a thread fails: the parent would wait for its answers for ever."""
    threading.__excepthook__(failure)
    os._exit(1)


def _die_first_and_fast() -> None:
    """Let the system, short of memory, end this process before others, and write no image of gigabytes."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500", "ascii")
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        # 1 and not 0: Linux then does not pass the image to a program that collects them, either
        resource.setrlimit(resource.RLIMIT_CORE, (1 if most else 0, most))


def _take_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Put the pipes out of the libraries' reach: they read nothing, and print to standard error."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device, not a file
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    replies.write(GREETING)
    replies.flush()
    return requests, replies


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
