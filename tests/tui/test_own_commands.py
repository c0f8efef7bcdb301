"""Commands that a user has made are found where the others are, and send their prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.storage.paths import config_dir
from tests.scripted import says
from tests.tui.desktop import desktop

pytestmark = pytest.mark.asyncio


def keep(name: str, text: str) -> None:
    folder = config_dir() / "commands"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.slow
async def test_own_command_is_typed_completed_and_sent_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the file", encoding="utf-8")
    async with desktop(tmp_path, says("Fine.")) as desk:
        keep("tidy.md", "# Make it neat\nTidy this: $ARGUMENTS")  # while the program runs
        await desk.press(*"/tid", "tab")
        await desk.until(lambda: desk.composer.text == "/tidy ")
        await desk.press(*"@a.txt please", "enter")
        await desk.until(lambda: len(desk.path) == 2 and not desk.chat.pane.working)
        assert desk.texts[0].startswith("Tidy this: ")
        assert [file.text for file in desk.path[0].attachments] == ["the file"]


@pytest.mark.slow
async def test_own_commands_stand_in_help_and_palette(tmp_path: Path) -> None:
    keep("tidy.md", "# Make it neat\nTidy this: $ARGUMENTS")
    async with desktop(tmp_path) as desk:
        await desk.press("f1", *"tidy")
        await desk.shows("/tidy [TEXT]", "Make it neat")
        await desk.press("escape", "escape", *"my text", "ctrl+p")
        await desk.shows("Search for commands")
        await desk.press(*"tidy")
        await desk.shows("Make it neat")
        await desk.press("enter")
        await desk.until(lambda: desk.composer.text == "/tidy my text")


@pytest.mark.slow
async def test_what_is_wrong_with_one_is_reported_once(tmp_path: Path) -> None:
    keep("mode.md", "x")
    async with desktop(tmp_path) as desk:
        await desk.until(lambda: desk.app._notifications)
        (told,) = desk.app._notifications
        assert told.message == "commands/mode.md is not used: /mode is a command already"
        await desk.enter("/mode off")
        await desk.until(lambda: desk.chat.session.mode == "off")
        await desk.enter("/tidy")
        await desk.shows("there is no command `/tidy`")
        assert len(desk.app._notifications) == 1
