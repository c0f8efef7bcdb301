"""The row of keys at the bottom: follows the focus, in whole words, with the keys that are really bound."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from localspec.storage.config import Config
from localspec_tui.keys import KeyFooter
from localspec_tui.keys import _words as footer_words
from tests.scripted import Gate, says
from tests.tui.desktop import Desktop, desktop
from tests.tui.test_help import KEYS

pytestmark = pytest.mark.asyncio


def row(desk: Desktop) -> str:
    return desk.app.screen.query_one(KeyFooter).render().plain


async def click(desk: Desktop, word: str) -> None:
    """Click a word of the row."""
    footer = desk.app.screen.query_one(KeyFooter)
    await desk.pilot.click(footer, (row(desk).index(word) + 1, 0))
    await desk.pilot.pause()


@pytest.mark.slow
async def test_the_row_follows_the_focus_and_the_width(tmp_path: Path) -> None:
    config = Config(keys=(("chat.new", "ctrl+t"), ("message.copy", "x,f12"), ("chat.thinking", "f11")))
    async with desktop(tmp_path, says("an answer"), size=(80, 24), config=config) as desk:
        await desk.answered("a question")
        assert row(desk).startswith("Enter Send  F1 Help  Ctrl+J New line  Ctrl+Up Messages  Ctrl+T New chat")
        assert len(row(desk)) <= 78
        narrow = row(desk)
        await desk.pilot.resize_terminal(160, 45)
        await desk.pilot.pause()
        assert row(desk).startswith(f"{narrow}  ")
        assert len(row(desk)) <= 158
        await desk.press("ctrl+up")
        await desk.pilot.pause()
        assert row(desk).startswith("x Copy  e Edit  r Again")
        assert "Esc To the prompt" in row(desk)
        await desk.press("tab")
        await desk.pilot.pause()
        assert row(desk).startswith("Enter Send")
        await click(desk, "Help")
        assert row(desk).startswith("Esc Close the help")
        await desk.press("escape")
        await desk.pilot.resize_terminal(80, 19)
        await desk.pilot.pause()
        assert not desk.chat.query_one(KeyFooter).display


@pytest.mark.slow
async def test_the_first_word_stops_an_answer_by_a_click(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate, "two"), size=(80, 24)) as desk:
        assert "Stop" not in row(desk)
        await desk.enter("a question")
        await desk.until(lambda: row(desk).startswith("Esc Stop  Enter Send"))
        await click(desk, "Stop")
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)
        await desk.until(lambda: "Stop" not in row(desk))


@pytest.mark.slow
async def test_words_are_underlined_under_the_mouse_alone(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(80, 24)) as desk:
        for y, word in ((0, "large"), (23, "Enter")):

            def underlined(y: int = y) -> list[str]:
                strip = desk.app.screen._compositor.render_strips()[y]
                return [text for text, style, _ in strip if style and style.underline]

            assert underlined() == []
            x = desk.screen_text().split("\n")[y].index(word)
            await desk.pilot.hover(offset=(x + 1, y))
            await desk.until(lambda: underlined() == [word])  # noqa: B023


@pytest.mark.slow
async def test_a_setting_hides_the_row_everywhere(tmp_path: Path) -> None:
    async with desktop(tmp_path, config=Config(footer=False)) as desk:
        assert not desk.chat.query_one(KeyFooter).display
        await desk.press("f1")
        await desk.pilot.pause()
        assert not desk.app.screen.query_one(KeyFooter).display


async def test_every_word_belongs_to_a_binding() -> None:
    assert set(footer_words()) <= set(tomllib.loads(KEYS.read_text(encoding="utf-8"))["bindings"])
