"""The free memory of this process, within the system and its container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from localspec.llama.cores import control_groups, number_in, text_in

_GROUP_FILES = (  # of both kinds of control groups: their controller, their limit, their use
    ("", "memory.max", "memory.current"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_GIVES_WAY = ("inactive_file", "active_file", "slab_reclaimable")
_STAYS = ("anon", "rss", "shmem", "unevictable")  # `rss` is what the first kind calls `anon`
_LIMITLESS = 2**60  # the first kind of control groups writes a huge number for "no limit"


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate; `root` contains /proc and /sys."""
    left = (max(0, limit - used) for limit, used in memory_limits(root))
    available: int = psutil.virtual_memory().available
    return min((available, *left))


def memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of every control group of this process, and its use."""
    for controller, most, now in _GROUP_FILES:
        for folder in control_groups(root, controller):
            limit = number_in(folder / most)
            used = number_in(folder / now)
            if limit is not None and used is not None and limit < _LIMITLESS:
                yield limit, _held(used, _statistics(folder))


def _held(used: int, statistics: Mapping[str, int]) -> int:
    """Return the bytes of a control group that cannot be reclaimed.

    As in `MemAvailable`, the page cache and idle kernel objects can be reclaimed.
    """
    gives_way = sum(statistics.get(name, 0) for name in _GIVES_WAY)
    stays = sum(statistics.get(name, 0) for name in _STAYS)
    return min(used, max(used - gives_way, stays))


def _statistics(folder: Path) -> dict[str, int]:
    """Return the figures of a control group with all groups in it, which the first kind calls `total_`."""
    lines = (line.partition(" ") for line in text_in(folder / "memory.stat").splitlines())
    found = {key: int(value) for key, _, value in lines if value.isdigit()}
    return found | {key.removeprefix("total_"): found[key] for key in found if key.startswith("total_")}
