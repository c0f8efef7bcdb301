"""An engine that lives but does not react holds no one up: not the answer, not the chats, not the way out."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.tui.terminal import Terminal

pytestmark = pytest.mark.slow

if not sys.platform.startswith("linux"):
    pytest.skip("the engine's process is found and stopped as on Linux", allow_module_level=True)

ENDLESS = ("--temp", "0", "--ignore-circles", "-c", "16384", "--mode", "off")
SONG = "la " * 16  # continues for ever


class Stuck:
    """The program with an engine that someone has stopped in the middle of an answer."""

    def __init__(self, terminal: Terminal, folder: Path) -> None:
        self.terminal = terminal
        self._folder = folder
        terminal.shows("Ask anything", "demo target")
        terminal.send(SONG)
        terminal.shows("la la la")
        terminal.send("\r")
        terminal.until(lambda: self.answers() and len(self.answers()[-1][1]) > 20)
        self.engine = self.engines()[0]
        os.kill(self.engine, signal.SIGSTOP)
        self.kept = self.answers()[-1][1]

    def engines(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.terminal.process.pid).children()]

    def answers(self) -> list[tuple[str, str]]:
        """Return state and text of the answers that are on the disk."""
        file = self._folder / "data" / "chats.db"
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            return connection.execute(
                "SELECT state, content FROM messages WHERE role = 'assistant' ORDER BY id"
            ).fetchall()

    def is_reopened(self) -> bool:
        return self.engines() not in ([], [self.engine])


@pytest.fixture
def stuck(tmp_path: Path, demo_target: Path) -> Iterator[Callable[[], Stuck]]:
    folders = {f"LOCALSPEC_{kind}_DIR": str(tmp_path / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")}
    with Terminal(
        ("-m", str(demo_target), *ENDLESS), variables={"HOME": str(tmp_path), **folders}
    ) as terminal:
        yield lambda: Stuck(terminal, tmp_path)


@pytest.mark.parametrize("key", ["\x1b", "\x03"], ids=["escape", "ctrl+c"])
def test_second_press_ends_an_engine_that_does_not_react(stuck: Callable[[], Stuck], key: str) -> None:
    found = stuck()
    found.terminal.send(key)
    found.terminal.shows("the model process is not responding")
    found.terminal.send(key)
    found.terminal.until(lambda: found.answers()[-1][0] == "failed")
    assert found.answers()[-1][1].startswith(found.kept)
    found.terminal.until(found.is_reopened)
    found.terminal.send("And another.")
    found.terminal.shows("another.")
    found.terminal.send("\r")
    found.terminal.until(lambda: len(found.answers()) == 2 and found.answers()[-1][1])


def test_leaving_the_chat_waits_for_nothing_and_another_ends_the_engine_of_both(
    stuck: Callable[[], Stuck],
) -> None:
    found = stuck()
    found.terminal.send("\x0e")
    found.terminal.shows("goes on")
    found.terminal.send("And another.")
    found.terminal.shows("another.")
    found.terminal.send("\r")
    found.terminal.shows("Enter queues")
    found.terminal.send("\x1b")
    found.terminal.shows("the model process is not responding")
    found.terminal.send("\x1b")
    found.terminal.until(lambda: found.answers()[0][0] == "failed")
    assert found.answers()[0][1].startswith(found.kept)
    found.terminal.until(found.is_reopened)


@pytest.mark.parametrize("after", ["", "\x1b", "\x0e"], ids=["at once", "after escape", "after new chat"])
def test_quitting_does_not_wait_for_an_engine_that_does_not_react(
    stuck: Callable[[], Stuck], after: str
) -> None:
    found = stuck()
    found.terminal.send(after)
    found.terminal.send("\x11")
    assert found.terminal.leave() == 0  # the engine never would
    assert found.answers()[-1][1].startswith(found.kept)
    assert found.answers()[-1][0] != "writing"
