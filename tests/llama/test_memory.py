from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from localspec.errors import UserError
from localspec.llama import memory, model
from localspec.llama.model import Model
from localspec.types.models import ModelOptions

MIB = 2**20


def in_a_container(root: Path, limit: int, used: int) -> None:
    """Write the files in which Linux describes a container with these bytes."""
    files = {
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": f"{limit}\n",
        "sys/fs/cgroup/box/memory.current": f"{used}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("used", "free"), [(300, 212), (600, 0)])
def test_a_container_leaves_what_its_programs_do_not_hold(tmp_path: Path, used: int, free: int) -> None:
    in_a_container(tmp_path, 512 * MIB, used * MIB)
    assert memory.free_memory(tmp_path) == free * MIB


def test_without_a_container_the_system_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = psutil.virtual_memory()._replace(available=123)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: seen)
    assert memory.free_memory(tmp_path) == 123


def test_weights_that_do_not_fit_the_container_are_rejected(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_container(tmp_path, 512 * MIB, 512 * MIB - 1000)
    monkeypatch.setattr(model, "free_memory", lambda: memory.free_memory(tmp_path))
    with pytest.raises(UserError, match=r"0 MiB of memory are free"):
        Model.open(ModelOptions(path=tiny_llama, devices=()))
