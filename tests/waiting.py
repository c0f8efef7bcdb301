"""Waiting for what other threads and processes do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_MOMENT = threading.Event()


def until(holds: Callable[[], bool], seconds: float = 20) -> float:
    """Wait until something is so; return how long that took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds
        _MOMENT.wait(0.001)
    return time.monotonic() - began
