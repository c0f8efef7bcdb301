"""Which slow tests are run: all of them take long, so each commit runs an eighth, by turns."""

from __future__ import annotations

import subprocess
import zlib
from pathlib import Path
from typing import Protocol

import pytest

TURNS = 8


class ProcessOfXdist(Protocol):
    """`WorkerController` of xdist, which has no types."""

    config: pytest.Config
    workerinput: dict[str, str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow",
        default="",
        metavar="TURN",
        help=f"of all slow tests, run those of turn 0 to {TURNS - 1}, or `all` (default: the commit's turn)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the turn of a run of all tests; tests that are named are all run."""
    if hasattr(config, "workerinput"):  # a process of xdist, which parses its options again
        config.option.slow = config.workerinput["slow"]
        return
    is_chosen = config.option.slow or config.option.markexpr or config.option.keyword
    if not is_chosen and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        config.option.slow = str(_commits(config.rootpath) % TURNS)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_configure_node(node: ProcessOfXdist) -> None:
    """Tell a process of xdist the turn."""
    node.workerinput["slow"] = node.config.option.slow


def pytest_report_header(config: pytest.Config) -> str:
    """Say which slow tests are left out."""
    turn = config.option.slow
    return f"slow tests: turn {turn} of {TURNS} (--slow all runs all)" if turn.isdigit() else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the slow tests of other turns."""
    if not config.option.slow.isdigit():
        return
    turn = int(config.option.slow)
    left_out = [item for item in items if "slow" in item.keywords and turn_of(item.nodeid) != turn]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def turn_of(name: str) -> int:
    """Return the turn of a test, the same in every process."""
    return zlib.crc32(name.encode()) % TURNS


def _commits(folder: Path) -> int:
    """Return the number of commits, 0 where git or its history is missing."""
    command = ["git", "-C", str(folder), "rev-list", "--count", "HEAD"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0
