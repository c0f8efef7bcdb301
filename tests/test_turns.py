"""Every slow test has its turn, and quick ones are always run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.turns import TURNS, pytest_collection_modifyitems, turn_of

ROOT = Path(__file__).resolve().parents[1]


@dataclass(eq=False)
class Named:
    """A collected test, as far as turns look at it."""

    nodeid: str
    keywords: dict[str, bool] = field(default_factory=dict)


def chosen(names: list[str], slow: str, *, is_slow: bool = True) -> list[str]:
    """Return the tests that a run with `--slow` keeps."""
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    config: Any = SimpleNamespace(option=SimpleNamespace(slow=slow), hook=hook)
    items = [Named(name, {"slow": True} if is_slow else {}) for name in names]
    pytest_collection_modifyitems(config, cast(list[pytest.Item], items))
    return [item.nodeid for item in items]


NAMES = [f"tests/test_x.py::test_{number}" for number in range(800)]


def test_each_slow_test_has_one_turn() -> None:
    found = Counter(name for turn in range(TURNS) for name in chosen(NAMES, str(turn)))
    assert found == Counter(NAMES)


def test_turns_are_about_equally_long() -> None:
    lengths = Counter(map(turn_of, NAMES))
    assert all(length > len(NAMES) / TURNS / 2 for length in lengths.values())


@pytest.mark.parametrize("slow", ["all", ""])
def test_without_a_turn_all_are_run(slow: str) -> None:
    assert chosen(NAMES, slow) == NAMES


def test_quick_tests_are_always_run() -> None:
    assert chosen(NAMES, "3", is_slow=False) == NAMES


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_run_of_all_tests_leaves_out_other_turns(processes: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\ntestpaths = ['.']\nmarkers = ['slow']\naddopts = ['-p', 'tests.turns']\n"
    )
    (tmp_path / "test_x.py").write_text(
        "import pytest\n@pytest.mark.slow\n@pytest.mark.parametrize('number', range(80))\n"
        "def test_slow(number): pass\ndef test_quick(): pass\n"
    )
    here = sum(turn_of(f"test_x.py::test_slow[{number}]") == 0 for number in range(80))  # without git, turn 0
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert f"{here + 1} passed" in ran.stdout
