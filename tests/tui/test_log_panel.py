from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import Log

from localspec.inference.worker.wire import LogLine
from localspec_tui.widgets.log_panel import KEPT, LogPanel, written
from tests.tui.desktop import desktop
from tests.tui.styled import STYLES


class Host(App[None]):
    CSS_PATH = STYLES

    def __init__(self) -> None:
        super().__init__()
        self.new: deque[LogLine] = deque()

    def compose(self) -> ComposeResult:
        yield LogPanel(self.new)

    def on_mount(self) -> None:
        self.panel.action_level(logging.DEBUG)

    @property
    def panel(self) -> LogPanel:
        return self.query_one(LogPanel)

    @property
    def log_widget(self) -> Log:
        return self.query_one(Log)

    @property
    def lines(self) -> list[str]:
        return [line for line in self.log_widget.lines if line]


def info(text: str) -> LogLine:
    return LogLine(logging.INFO, "engine", text)


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await pilot.pause(0.01)
    raise AssertionError("what was waited for did not come")


@pytest.mark.asyncio
async def test_lines_from_another_thread_appear_and_are_followed() -> None:
    app = Host()
    async with app.run_test() as pilot:
        lines = [info(f"line {number}") for number in range(50)]
        thread = Thread(target=lambda: deque(map(app.new.append, lines), maxlen=0))
        thread.start()
        thread.join()
        await until(pilot, lambda: len(app.lines) == 50)
        await pilot.pause()
        assert app.lines[-1] == "info     engine: line 49"
        assert app.log_widget.is_vertical_scroll_end


@pytest.mark.slow
@pytest.mark.asyncio
async def test_scrolling_back_keeps_the_position() -> None:
    app = Host()
    async with app.run_test() as pilot:
        for number in range(KEPT):
            app.new.append(info(f"line {number}"))
        await until(pilot, lambda: bool(app.lines) and app.lines[-1].endswith(f"line {KEPT - 1}"))
        app.log_widget.scroll_to(y=500, animate=False, immediate=True)
        await pilot.pause()
        read = app.log_widget.lines[round(app.log_widget.scroll_y)]
        for number in range(100):
            app.new.append(info(f"more {number}"))
        await until(pilot, lambda: app.lines[-1].endswith("more 99"))
        await pilot.pause()
        assert app.log_widget.lines[round(app.log_widget.scroll_y)] == read


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_flood_keeps_the_newest() -> None:
    app = Host()
    async with app.run_test() as pilot:
        for number in range(3 * KEPT):
            app.new.append(info(f"line {number}"))
        await until(pilot, lambda: bool(app.lines) and app.lines[-1].endswith(f"line {3 * KEPT - 1}"))
        assert len(app.lines) <= KEPT
        assert len(app.panel.text().splitlines()) == KEPT


@pytest.mark.asyncio
@pytest.mark.parametrize(("key", "count"), [("d", 4), ("i", 3), ("w", 2), ("e", 1)])
async def test_keys_choose_the_level(key: str, count: int) -> None:
    app = Host()
    async with app.run_test() as pilot:
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            app.new.append(LogLine(level, "engine", f"of level {level}"))
        await until(pilot, lambda: len(app.lines) == 4)
        app.log_widget.focus()
        await pilot.press(key)
        assert len(app.lines) == count
        assert len(app.panel.text().splitlines()) == count


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_log_opens_on_warnings_and_a_key_shows_all(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        for level, text in ((logging.INFO, "chatter of llama.cpp"), (logging.WARNING, "something is wrong")):
            desk.log.new.append(LogLine(level, "engine", text))
        await until(desk.pilot, lambda: not desk.log.new)  # the panel has them, and is hidden
        await desk.press("ctrl+l")
        await desk.shows("something is wrong", "Showing warnings (1 of 2 lines)")
        assert "chatter" not in desk.screen_text()
        desk.log.query_one(Log).focus()
        await desk.press("d")
        await desk.shows("chatter of llama.cpp", "something is wrong")


@pytest.mark.asyncio
async def test_all_shown_lines_can_be_copied() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.new.append(info("[b]no markup[/b]"))
        app.log_widget.focus()
        await pilot.press("y")
        assert app.clipboard == "info     engine: [b]no markup[/b]"


@pytest.mark.asyncio
async def test_a_hidden_panel_keeps_lines_for_later() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.panel.display = False
        app.new.append(info("while hidden"))
        await pilot.pause()
        assert "while hidden" in app.panel.text()
        app.panel.display = True
        await until(pilot, lambda: app.lines == ["info     engine: while hidden"])


def test_control_characters_are_written_out() -> None:
    line = LogLine(logging.WARNING, "lla\x1bma", "red\x1b[31m\r\x00 \x9b1m \u202ereversed\tend\n")
    text = written(line)
    assert text.isprintable()
    assert r"red\x1b[31m\r\x00 \x9b1m \u202ereversed" in text


def test_levels_between_the_known_ones_have_a_name() -> None:
    assert written(LogLine(5, "a", "b")).startswith("debug")
    assert written(LogLine(35, "a", "b")).startswith("warning")
    assert written(LogLine(99, "a", "b")).startswith("fatal")
