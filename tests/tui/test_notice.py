"""A notice is seen in full, moves nothing, and comes to an end."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.widgets import Static

from localspec_tui.screens.dialogs import NoteScreen
from localspec_tui.widgets import notice
from localspec_tui.widgets.notice import Notice
from tests.scripted import Gate, says
from tests.tui.desktop import Desktop, desktop
from tests.tui.settled import until
from tests.tui.styled import STYLES

pytestmark = pytest.mark.asyncio

ERROR = "The engine stopped: out of memory. It is started again; the text so far is saved, nothing is lost."


class Host(App[None]):
    CSS_PATH = STYLES
    CSS = "Vertical { layers: base above; }"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static("\n".join(f"row {number}" for number in range(10)))
            yield Notice()

    @property
    def notice(self) -> Notice:
        return self.query_one(Notice)

    @property
    def rows(self) -> list[str]:
        return [strip.text.strip(" ▌▐▊") for strip in self.screen._compositor.render_strips()]


async def test_a_notice_covers_rows_and_is_wrapped_in_full() -> None:
    app = Host()
    async with app.run_test(size=(60, 10)) as pilot:
        before = app.rows
        app.notice.say(ERROR)
        await until(pilot, lambda: "nothing is lost" in app.rows[-1])
        assert " ".join(app.rows[-2:]) == ERROR
        assert app.rows[:-2] == before[:-2]
        app.notice.end()
        await until(pilot, lambda: app.rows == before)


async def test_a_very_long_notice_keeps_its_end_which_says_what_to_do() -> None:
    app = Host()
    async with app.run_test(size=(40, 10)) as pilot:
        app.notice.say("word " * 60 + "press Enter")
        await until(pilot, lambda: app.rows[-1].endswith("press Enter"))
        assert app.notice.size.height == notice.MAX_ROWS


async def test_line_breaks_and_control_characters_are_not_drawn() -> None:
    app = Host()
    async with app.run_test(size=(60, 10)) as pilot:
        app.notice.say("disk\nfull, \x1b[31mred\x1b[0m\x07 word")
        await until(pilot, lambda: app.rows[-1] == "disk full, red word")


async def test_a_notice_ends_by_itself_and_an_error_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "READING_S", 0.01)
    monkeypatch.setattr(notice, "CHARACTERS_PER_S", 1e9)
    app = Host()
    async with app.run_test(size=(60, 10)) as pilot:
        app.notice.say("theme nord")
        assert await until(pilot, lambda: not app.notice.said)
        app.notice.say("models are loading", about="models")
        await pilot.pause(0.02)
        assert app.notice.said
        app.notice.say(ERROR, is_error=True)
        await pilot.pause(0.02)
        assert app.notice.said == ERROR
        await pilot.click(Notice)
        assert not app.notice.said


async def test_a_notice_under_a_dialog_waits_until_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice, "READING_S", 0.01)
    monkeypatch.setattr(notice, "COVERED_S", 0.01)
    monkeypatch.setattr(notice, "CHARACTERS_PER_S", 1e9)
    app = Host()
    async with app.run_test(size=(60, 10)) as pilot:
        app.push_screen(NoteScreen("Figures", "tall"))
        await until(pilot, lambda: isinstance(app.screen, NoteScreen))
        said = app.screen_stack[0].query_one(Notice)
        said.say("theme nord")
        await pilot.pause(0.05)
        assert said.said == "theme nord"
        said.say("another")  # takes its place
        await pilot.pause(0.05)
        assert said.said == "another"
        await pilot.press("escape")
        assert await until(pilot, lambda: not said.said)


async def test_an_error_about_models_stays_while_other_things_succeed() -> None:
    app = Host()
    async with app.run_test(size=(60, 10)):
        app.notice.say("no memory for them", is_error=True, about="models")
        app.notice.clear_error()
        assert app.notice.said
        app.notice.over("models")
        assert not app.notice.said


def rows_of(desk: Desktop) -> list[str]:
    return desk.screen_text().splitlines()


@pytest.mark.slow
async def test_nothing_on_the_screen_moves_when_a_notice_comes_and_goes(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one two ", gate, "three"), size=(80, 24)) as desk:
        await desk.enter("a question")
        await desk.shows("one two")
        before, places = rows_of(desk), [widget.region for widget in desk.chat.query("*")]
        for text, is_error in (("a short one", False), (f"{ERROR} {ERROR}", True)):
            desk.chat.pane.notice.say(text, is_error=is_error)
            await desk.until(lambda: desk.chat.pane.notice.region.height)
            shown = desk.chat.pane.notice.region
            now = rows_of(desk)
            assert all(now[y] == before[y] for y in range(24) if not shown.y <= y < shown.bottom)
            assert desk.status().splitlines()[-1].startswith("auto")  # the figures stay
            await desk.press("escape") if not desk.chat.pane.answering else desk.chat.pane.notice.end()
            await desk.until(lambda: rows_of(desk) == before)
        assert [widget.region for widget in desk.chat.query("*")] == places
        gate.open()


@pytest.mark.slow
async def test_escape_at_the_prompt_ends_an_error(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/foo")
        await desk.shows("there is no command")
        await desk.press("escape")
        await desk.until(lambda: "there is no command" not in desk.screen_text())
