"""Standard input as data, read to its end while other work continues."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from localspec.errors import UserError

MAX_BYTES = 64 * 2**20  # far more than any context
_CHUNK = 2**16
_NAME = "standard input"


class StandardInput:
    """Reads standard input in its own thread; `wait` returns all of it."""

    def __init__(
        self, most: int = MAX_BYTES, *, silence_s: float = 0, on_silence: Callable[[], None] | None = None
    ) -> None:
        """Begin to read; call `on_silence` once if no byte and no end has come within `silence_s`."""
        self._most = most
        self._data = bytearray()
        self._obstacle: OSError | None = None
        self._began = threading.Event()
        self._ended = threading.Event()
        self._start(self._read)
        if on_silence is not None:
            self._start(lambda: self._began.wait(silence_s) or on_silence())

    def ends_within(self, seconds: float) -> bool:
        """Return whether all of it comes within some seconds."""
        return self._ended.wait(seconds)

    def wait(self) -> bytes:
        """Return all of it, once it has ended; raises UserError where it cannot be read, or is too large."""
        self._ended.wait()
        if self._obstacle is not None:
            raise UserError(f"{_NAME} cannot be read: {self._obstacle.strerror or self._obstacle}")
        if len(self._data) > self._most:
            raise UserError(f"{_NAME} is larger than {self._most >> 20} MiB", "pipe a part of it")
        return bytes(self._data)

    def obstacle(self) -> str:
        """Return the error of reading it to its end, as under `nohup`; empty if there was none."""
        self._ended.wait()
        return "" if self._obstacle is None else str(self._obstacle.strerror or self._obstacle)

    def _start(self, work: Callable[[], object]) -> None:
        threading.Thread(target=work, name="localspec-input", daemon=True).start()

    def _read(self) -> None:
        try:
            for chunk in _chunks(sys.stdin):
                self._began.set()
                self._data += chunk
                if len(self._data) > self._most:
                    break
        except OSError as error:
            self._obstacle = error
        finally:
            self._began.set()
            self._ended.set()


def _chunks(stream: TextIO) -> Iterator[bytes]:
    """Yield data as it comes, without the stream's lock, which a reading thread would hold at exit."""
    try:
        descriptor = stream.fileno()
    except OSError:  # not a file
        yield stream.buffer.read()
        return
    while True:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:  # another program that shares it made it non-blocking
            select.select([descriptor], [], [])
            continue
        if not chunk:
            return
        yield chunk
