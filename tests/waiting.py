"""Waiting for what other threads and processes do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_MOMENT = threading.Event()


def until(holds: Callable[[], bool], seconds: float = 20) -> float:
    """Wait until something is so; return how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds
        _MOMENT.wait(0.001)
    return time.monotonic() - began


@contextmanager
def once(holds: Callable[[], bool], act: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread, as soon as something is so during the block."""

    def wait() -> None:
        until(holds)
        act()

    with ThreadPoolExecutor(1) as waiting:
        done = waiting.submit(wait)
        yield
        done.result()
