"""Tests on real devices of kind `gpu`: only where they are asked for (`-m gpu`), and on those there are."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from localspec.hardware.devices import look
from localspec.llama.backends import BackendDevice

COLD_S = 3600  # Mesa's software driver compiles for minutes what a GPU's driver compiles in seconds
_ROWS = pytest.StashKey[list["Row"]]()
_NONE = "gpu: no device of kind `gpu` here, nothing was run; tests/gpu/lane.sh FOLDER makes two in software"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table that the lane ends with."""

    what: str
    where: str
    figure: str


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless they are asked for, and say so where there is no GPU."""
    ours = [item for item in items if item.get_closest_marker("gpu")]
    config.stash[_ROWS] = []
    if ours and ("gpu" not in config.option.markexpr or not found()):
        config.hook.pytest_deselected(items=ours)
        items[:] = [item for item in items if item not in ours]
        if "gpu" in config.option.markexpr:
            config.stash[_ROWS].append(Row(_NONE, "", ""))
    for item in ours:
        item.add_marker(pytest.mark.timeout(COLD_S))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was run, and how fast."""
    rows = config.stash.get(_ROWS, [])
    for row in rows:
        terminalreporter.write_line(f"{row.what:26}{row.where:34}{row.figure}".rstrip())


def found() -> tuple[BackendDevice, ...]:
    """Return the GPUs; raises `UserError` for a backend that cannot be loaded."""
    return tuple(device for device in look().found.devices if device.kind == "gpu")


@pytest.fixture(scope="session")
def cards() -> tuple[str, ...]:
    """Return the names of at most two GPUs."""
    return tuple(device.name for device in found())[:2]


@pytest.fixture(scope="session")
def second(cards: tuple[str, ...]) -> str:
    """Return the second GPU; without one the test is skipped."""
    if len(cards) < 2:
        pytest.skip("one card alone")
    return cards[1]


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> list[Row]:
    """Take the rows of the table."""
    return pytestconfig.stash[_ROWS]
