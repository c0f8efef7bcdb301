"""The processor and its memory, as far as this program may use them: a container may set limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import psutil

_LIMITLESS = 2**60  # the first kind of control groups writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class Processor:
    """What this program may use; `limits` says in words what a container takes away."""

    cores: int
    sockets: int
    memory_total: int
    memory_free: int
    limits: tuple[str, ...] = ()


def processor(cores: int, root: Path = Path("/")) -> Processor:
    """Look at the processor, which has so many physical cores for us; `root` holds /proc and /sys."""
    memory = psutil.virtual_memory()
    total, free, limits = memory.total, memory.available, []
    for limit, used in _memory_limits(root):
        total = min(total, limit)
        free = min(free, max(0, limit - used))
    if total < memory.total:
        limits.append(
            f"this program may use {total / 2**30:.1f} of {memory.total / 2**30:.1f} GiB memory: "
            "the limit of its container"
        )
    share = min(_core_limits(root), default=float(cores))
    if share < cores:
        limits.append(f"this program may use {share:g} of {cores} cores: the limit of its container")
        cores = max(1, ceil(share))
    return Processor(cores, _sockets(root), total, free, tuple(limits))


def _sockets(root: Path) -> int:
    lines = _text(root / "proc/cpuinfo").splitlines()
    return max(1, len({line.split(":")[-1].strip() for line in lines if line.startswith("physical id")}))


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit and use of every control group around this process; the cache of files gives way."""
    for folder in _groups(root, ""):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            yield limit, used - _reclaimable(folder, "inactive_file")
    for folder in _groups(root, "memory"):
        limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _LIMITLESS:
            yield limit, used - _reclaimable(folder, "total_inactive_file")


def _core_limits(root: Path) -> Iterator[float]:
    """Yield how many cores' worth of time every control group around this process may use."""
    for folder in _groups(root, ""):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            yield int(quota) / max(1, int(period))
    for folder in _groups(root, "cpu"):
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota_us is not None and period_us and quota_us > 0:
            yield quota_us / period_us


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it."""
    mount = root / "sys/fs/cgroup" / controller
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if controller in names.split(","):
            inside = Path(os.path.normpath(path.lstrip("/"))) if path.strip("/") else Path()
            for folder in (inside, *inside.parents):
                yield mount / folder


def _reclaimable(folder: Path, name: str) -> int:
    for line in _text(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
