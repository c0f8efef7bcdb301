"""When idle models rest instead of reading ahead: on battery, or while other programs need the CPU."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

import psutil

LOOK_S = 0.5  # between two looks at what others do: the system counts in hundredths
OTHERS_SHARE = 0.25  # of all cores, busy with other programs; these get as much as llama.cpp's threads do


class Surroundings:
    """The power supply, and what other programs do beside the models since the last look."""

    def __init__(self, *, uses_processor: bool) -> None:
        """Begin to look; other programs only matter to models that the CPU computes."""
        self._uses_processor = uses_processor
        self._last = _times()

    def call_for_rest(self) -> str:
        """Return why the models are to rest, "" if they need not."""
        if _is_on_battery():
            return "this machine is on battery"
        return "other programs need the CPU" if self._uses_processor and self._are_others_busy() else ""

    def _are_others_busy(self) -> bool:
        """Return whether others took much of the CPU since the last look, if that was long enough ago."""
        now = _times()
        last = self._last
        if now.of_all_cores - last.of_all_cores < LOOK_S * (os.cpu_count() or 1):
            return False
        self._last = now
        others = (now.busy - last.busy) - (now.own - last.own)
        return others > OTHERS_SHARE * (now.of_all_cores - last.of_all_cores)


class _Times(NamedTuple):
    """Seconds of all cores since the machine started, those that were busy, and those of this process."""

    of_all_cores: float
    busy: float
    own: float


def _times() -> _Times:
    times = psutil.cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # which are counted twice
    of_all_cores = sum(times) - guests
    idle = times.idle + getattr(times, "iowait", 0.0)
    return _Times(of_all_cores, of_all_cores - idle, time.process_time())


def _is_on_battery() -> bool:
    with suppress(
        AttributeError, NotImplementedError, OSError, RuntimeError
    ):  # by system; a desktop has none
        battery = psutil.sensors_battery()
        return battery is not None and battery.power_plugged is False
    return False
