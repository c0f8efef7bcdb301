"""What happens while the user is away: idle models write titles, and a long answer rings the bell."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from textual.drivers.headless_driver import HeadlessDriver
from textual.events import AppBlur, AppFocus

from localspec.storage.config import Config
from localspec_tui.screens.chat import elsewhere
from localspec_tui.widgets.composer.composer import PromptEntered
from localspec_tui.widgets.status import TitleBar
from tests.scripted import Gate, Script, says
from tests.tui.desktop import Desktop, desktop


def ended(screen: Desktop, messages: int) -> bool:
    return len(screen.path) == messages and not screen.chat.pane.working


pytestmark = pytest.mark.asyncio


@pytest.mark.slow
async def test_title_is_shown_and_gives_way_to_a_question_at_once(tmp_path: Path) -> None:
    gate = Gate()
    scripts = (says("Blue."), says("The blue sky"), says("Green."), says("On", gate), says("Red."))
    async with desktop(tmp_path, *scripts, config=Config(sidebar=True)) as screen:
        screen.chat.session.shared.titles = True
        await screen.answered("why is the sky blue")
        assert screen.chat.query_one(TitleBar).chat_title == "The blue sky"
        await screen.shows("▌ The blue sky")
        await screen.enter("/new")
        await screen.enter("why is grass green")
        await screen.until(gate.reached.is_set)  # the title is being written
        await screen.press(*"and roses", "enter")
        await screen.until(lambda: screen.texts[-1:] == ["Red."] and not screen.chat.pane.working)
        assert screen.chat.session.chat.info.title == "why is grass green"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("notify", "term", "told"),
    [
        ("bell", "", ["\a"]),
        ("desktop", "xterm", ["\x1b]9;a question\a"]),
        ("desktop", "foot", ["\x1b]777;notify;LocalSpec;a question\a"]),
        ("off", "", []),
    ],
)
async def test_long_answer_is_reported_to_who_looks_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notify: str, term: str, told: list[str]
) -> None:
    written: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, data: written.append(data))
    monkeypatch.setattr(elsewhere, "WAITING_S", 0.0)
    monkeypatch.setenv("TERM", term)
    monkeypatch.delenv("VTE_VERSION", raising=False)
    async with desktop(tmp_path, Script("one"), config=Config(sidebar=False, notify=notify)) as screen:
        for number, (is_away, waiting_s) in enumerate([(False, 0.0), (True, 0.0), (True, 60.0)], 1):
            monkeypatch.setattr(elsewhere, "WAITING_S", waiting_s)
            screen.app.post_message(AppBlur() if is_away else AppFocus())
            screen.chat.pane.post_message(PromptEntered("a question"))  # a key would bring the focus
            await screen.until(partial(ended, screen, 2 * number))
            await screen.pilot.pause()
            notices = [data for data in written if "\a" in data and not data.startswith("\x1b]22;")]
            assert notices == (told if is_away else [])
