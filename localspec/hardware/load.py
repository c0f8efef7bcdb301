"""What other programs use of this machine."""

from __future__ import annotations

import os
import time

import psutil

_WATCH_S = 0.3


def busy_cores() -> tuple[float, str]:
    """Return the cores that other programs use now, and the name of the greediest program."""
    asked = ["pid", "name", "cpu_percent"]
    for _ in psutil.process_iter(asked):
        pass  # psutil counts from here
    time.sleep(_WATCH_S)
    others = [each.info for each in psutil.process_iter(asked) if each.pid != os.getpid()]
    taken = [each["cpu_percent"] or 0.0 for each in others]
    if not taken:
        return 0.0, ""
    most = others[taken.index(max(taken))]
    return sum(taken) / 100, f"{most['name'] or 'a program'} (process {most['pid']})"
