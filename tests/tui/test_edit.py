from __future__ import annotations

import pytest
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.widgets import Static

from localspec_tui.screens.dialogs import EditScreen
from tests.tui.styled import STYLES


class Host(App[None]):
    CSS_PATH = STYLES

    def __init__(self, screen: EditScreen) -> None:
        super().__init__()
        self.shown = screen
        self.results: list[str | None] = []

    def on_mount(self) -> None:
        self.push_screen(self.shown, self.results.append)

    @property
    def hint(self) -> str:
        return str(self.shown.query_one("#hint", Static).content)


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["ctrl+s", "ctrl+enter"])
async def test_a_text_is_changed_and_saved(key: str) -> None:
    app = Host(EditScreen("Edit", "one\ntwo"))
    async with app.run_test() as pilot:
        await pilot.press("enter", *"three", key)
        assert app.results == ["one\ntwo\nthree"]


@pytest.mark.asyncio
async def test_escape_leaves_an_unchanged_text_at_once() -> None:
    app = Host(EditScreen("Edit", "same"))
    async with app.run_test() as pilot:
        await pilot.press("escape")
        assert app.results == [None]


@pytest.mark.asyncio
async def test_escape_gives_up_a_change_only_the_second_time_in_a_row() -> None:
    app = Host(EditScreen("Edit", "same"))
    async with app.run_test() as pilot:
        await pilot.press("x", "escape")
        assert app.results == []
        assert "changed" in app.hint
        await pilot.press("y", "escape")
        assert app.results == []
        await pilot.press("escape")
        assert app.results == [None]


@pytest.mark.asyncio
async def test_a_text_typed_ahead_is_saved_whole() -> None:
    app = Host(EditScreen("Title", "Old"))
    async with app.run_test() as pilot:
        await pilot.pause()
        for event in XTermParser().feed(" and new\x13"):
            app.post_message(event)
        await pilot.pause()
        assert app.results == ["Old and new"]


@pytest.mark.asyncio
async def test_the_hint_names_the_keys_of_the_user() -> None:
    app = Host(EditScreen("Edit", "text"))
    app.set_keymap({"edit.save": "f9"})
    async with app.run_test() as pilot:
        await pilot.pause()
        assert app.hint.startswith("F9 saves")
        await pilot.press("f9")
        assert app.results == ["text"]
