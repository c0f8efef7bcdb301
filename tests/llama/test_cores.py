from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from localspec.llama.cores import physical_cores


def test_there_is_a_core() -> None:
    assert physical_cores() >= 1


@pytest.mark.parametrize(
    ("physical", "allowed", "found"), [(4, 8, 4), (4, 2, 2), (4, 6, 4), (None, 8, 8), (None, 2, 2)]
)
def test_cores_are_those_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, physical: int | None, allowed: int, found: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda *, logical: 8 if logical else physical)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(allowed)), raising=False)
    assert physical_cores(tmp_path) == found


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"proc/self/cgroup": "0::/box/inner", "sys/fs/cgroup/box/cpu.max": "150000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "1600000 100000"}, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "nonsense"}, 4),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/box",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "210000",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_the_time_that_a_container_gives_counts_as_cores_rounded_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], found: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda *, logical: 8 if logical else 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    assert physical_cores(tmp_path) == found
