"""Every slow test has its turn, and quick ones are always run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.turns import TURNS, pytest_collection_modifyitems, turn_of


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
