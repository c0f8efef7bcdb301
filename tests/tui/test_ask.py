from __future__ import annotations

import pytest
from textual.app import App
from textual.widgets import Button, Static

from localspec_tui.screens import dialogs
from localspec_tui.screens.dialogs import AskScreen
from tests.tui.styled import STYLES


class Host(App[None]):
    CSS_PATH = STYLES

    def __init__(self, *, is_careful: bool = False) -> None:
        super().__init__()
        self.results: list[bool | None] = []
        self._is_careful = is_careful

    def on_mount(self) -> None:
        ask = AskScreen("Delete [all] of it?", "Delete", "Keep", is_careful=self._is_careful)
        self.push_screen(ask, self.results.append)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        (["y"], True),
        (["n"], False),
        (["escape"], False),
        (["enter"], True),
        (["right", "enter"], False),
        (["down", "up", "enter"], True),
        (["tab", "left", "enter"], True),
    ],
)
async def test_keys_answer(keys: list[str], answer: bool) -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.press(*keys)
        assert app.results == [answer]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        ([*"yes please", "enter"], False),
        ([*"why not", "enter"], False),
        (["enter"], False),
        ([*"Only", "escape"], False),
        ([*"xy", "left", "enter"], True),
        (["left", "enter"], True),
        (["n"], False),
    ],
)
async def test_who_writes_on_does_not_agree_to_what_takes_something_away(
    keys: list[str], answer: bool
) -> None:
    app = Host(is_careful=True)
    async with app.run_test() as pilot:
        await pilot.press(*keys)
        assert app.results == [answer]


@pytest.mark.asyncio
async def test_letter_that_stays_alone_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialogs, "WRITING_S", 0.01)
    app = Host(is_careful=True)
    async with app.run_test() as pilot:
        await pilot.press("y")
        for _ in range(500):
            await pilot.pause(0.01)
            if app.results:
                break
        assert app.results == [True]


@pytest.mark.asyncio
async def test_letter_that_comes_before_anybody_can_have_read_agrees_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialogs, "WRITING_S", 0.01)
    monkeypatch.setattr(dialogs, "READING_S", 3600.0)
    app = Host(is_careful=True)
    async with app.run_test() as pilot:
        await pilot.press("y")
        await pilot.pause(0.05)
        assert app.results == []
        monkeypatch.setattr(dialogs, "READING_S", 0.0)
        await pilot.press("y")
        for _ in range(500):
            await pilot.pause(0.01)
            if app.results:
                break
        assert app.results == [True]


@pytest.mark.asyncio
@pytest.mark.parametrize("letters", ["no, that is wrong", "yes", "why", "n"])
async def test_text_that_comes_before_anybody_can_have_read_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, letters: str
) -> None:
    monkeypatch.setattr(dialogs, "WRITING_S", 0.0)
    monkeypatch.setattr(dialogs, "READING_S", 3600.0)
    app = Host(is_careful=True)
    async with app.run_test() as pilot:
        await pilot.press(*letters[:-1])
        if letters == "why":  # its last letter comes late
            monkeypatch.setattr(dialogs, "READING_S", 0.0)
        await pilot.press(letters[-1])
        await pilot.pause(0.05)
        assert app.results == []
        await pilot.press("enter")
        assert app.results == [False]


@pytest.mark.asyncio
async def test_keys_that_come_before_anybody_can_have_read_press_no_button_that_deletes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dialogs, "READING_S", 3600.0)
    app = Host(is_careful=True)
    async with app.run_test() as pilot:
        app.screen.query_one("#yes", Button).active_effect_duration = 0  # it may be pressed again at once
        await pilot.press("left", "enter")
        assert app.results == []
        monkeypatch.setattr(dialogs, "READING_S", 0.0)
        await pilot.press("enter")
        await pilot.pause()
        assert app.results == [True]


@pytest.mark.asyncio
@pytest.mark.parametrize(("button", "answer"), [("#yes", True), ("#no", False)])
async def test_buttons_answer(button: str, answer: bool) -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.click(button)
        await pilot.pause()
        assert app.results == [answer]


@pytest.mark.asyncio
async def test_question_and_answers_are_shown_as_they_are() -> None:
    app = Host()
    async with app.run_test() as pilot:
        await pilot.pause()
        assert str(app.screen.query_one("#question", Static).content) == "Delete [all] of it?"
        assert [str(button.label) for button in app.screen.query(Button)] == ["Delete  y", "Keep  n"]
