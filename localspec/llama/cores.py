"""How many of the CPU's cores this process may use: what it may run on, what its container gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path

import psutil


def physical_cores(root: Path = Path("/")) -> int:
    """Return the number of usable hardware threads; `root` contains /proc and /sys."""
    return max(1, ceil(min((allowed_cores(), *core_limits(root)))))


def allowed_cores() -> int:
    """Return the number of physical CPU cores this process may use."""
    physical = psutil.cpu_count(logical=False) or 0
    logical = psutil.cpu_count(logical=True) or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical
    if not physical or allowed == logical:
        return max(1, physical or allowed)
    return max(1, min(physical, allowed))


def core_limits(root: Path) -> Iterator[float]:
    """Yield how many cores' worth of time every control group around this process may use."""
    for folder in control_groups(root, ""):
        quota, _, period = text_in(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            yield int(quota) / max(1, int(period))
    for folder in control_groups(root, "cpu"):
        quota_us = number_in(folder / "cpu.cfs_quota_us")
        period_us = number_in(folder / "cpu.cfs_period_us")
        if quota_us is not None and period_us and quota_us > 0:
            yield quota_us / period_us


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it."""
    mount = root / "sys/fs/cgroup" / controller
    for line in text_in(root / "proc/self/cgroup").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if controller in names.split(","):
            inside = Path(os.path.normpath(path.lstrip("/"))) if path.strip("/") else Path()
            for folder in (inside, *inside.parents):
                yield mount / folder


def number_in(path: Path) -> int | None:
    """Read a number from a system file; None without one."""
    text = text_in(path)
    return int(text) if text.lstrip("-").isdigit() else None


def text_in(path: Path) -> str:
    """Read a system file; empty if it is missing."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""
