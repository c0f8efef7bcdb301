"""Events on their way from the thread that writes answers to the one that takes them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

PACE_S = 0.005  # between two looks of the reader, who would take time from the other thread each time

_Event = TypeVar("_Event")


class EventChannel(Generic[_Event]):
    """What one thread tells another, which takes several events at a time."""

    def __init__(self) -> None:
        self._waiting: deque[_Event] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._has_rung = False  # since the reader's last look
        self._error: BaseException | None = None
        self.is_over = False

    def send_all(self, events: Iterator[_Event]) -> None:
        """Send what an iterator yields, and the error that ends it."""
        try:
            for event in events:
                self._waiting.append(event)
                if not self._has_rung:
                    self._has_rung = True
                    self._bell.put(None)
        except BaseException as error:  # noqa: BLE001  the reader raises it
            self._error = error
        self.is_over = True
        self._bell.put(None)

    def received(self) -> Iterator[_Event]:
        """Yield events as they come; raise the error that ends them."""
        looked_s = -PACE_S
        is_over = False
        while not is_over:
            self._bell.get()
            left_s = looked_s + PACE_S - time.monotonic()
            if left_s > 0 and not self.is_over:
                with suppress(Empty):
                    self._bell.get(timeout=left_s)  # only the end rings again
            self._has_rung = False  # before they are taken: later ones ring again
            looked_s = time.monotonic()
            is_over = self.is_over
            while self._waiting:
                yield self._waiting.popleft()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Wait for the end."""
        while not self.is_over:
            self._bell.get()
