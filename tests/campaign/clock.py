"""A clock for promises about time, which stands still while the machine does not let this process run."""

from __future__ import annotations

import threading
import time

_TICK_S = 0.05


class _Clock(threading.Thread):
    """Finds by its own lateness how long this process stood still."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._looking = threading.Lock()
        self._looked_s = time.monotonic()
        self._used_s = time.process_time()
        self._still_s = 0.0

    def run(self) -> None:
        """Look, again and again."""
        while True:
            time.sleep(_TICK_S)
            self.look()

    def look(self) -> float:
        """Return the seconds that have passed, without those in which this process stood still."""
        with self._looking:
            moment_s = time.monotonic()
            used_s = time.process_time()
            passed_s = moment_s - self._looked_s
            # What it computed meanwhile, perhaps in a call that let no other thread run, has passed.
            self._still_s += max(0.0, passed_s - 2 * _TICK_S - (used_s - self._used_s))
            self._looked_s = moment_s
            self._used_s = used_s
            return moment_s - self._still_s


_CLOCK = _Clock()


def now_s() -> float:
    """Return seconds of a clock that stands still while this process does."""
    if not _CLOCK.is_alive():
        _CLOCK.start()
    return _CLOCK.look()
