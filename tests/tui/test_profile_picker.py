"""Profiles are chosen from a list, copied, changed and deleted there; included ones stay."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from textual.containers import Vertical

from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from localspec_tui.screens.profiles import ProfilesScreen
from localspec_tui.screens.settings import SettingsScreen
from localspec_tui.widgets.status import TitleBar
from tests.tui.desktop import Desktop, burst, desktop

pytestmark = pytest.mark.asyncio


async def opened(desk: Desktop) -> ProfilesScreen:
    await desk.enter("/profile")
    await desk.shows("Profiles", "Coding", "included")
    assert isinstance(desk.app.screen, ProfilesScreen)
    return desk.app.screen


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (160, 45)])
async def test_profile_is_found_by_typing_and_taken_by_enter_or_mouse(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    async with desktop(tmp_path, size=size) as desk:
        await desk.enter("/profile")
        await burst(desk, [*"stories", "enter"])
        await desk.shows("profile Writing: Stories")
        assert desk.chat.session.profile.name == "writing"
        bar = desk.chat.query_one(TitleBar)
        await desk.pilot.click(bar, offset=(bar.render().plain.index("Writing") + 1, 0))
        await desk.until(lambda: isinstance(desk.app.screen, ProfilesScreen))
        await desk.shows("Math")
        lines = desk.screen_text().splitlines()
        row = next(at for at, line in enumerate(lines) if "Calculations" in line)
        await desk.pilot.click(offset=(lines[row].index("Calculations"), row))
        await desk.until(lambda: desk.chat.session.profile.name == "math")


@pytest.mark.slow
async def test_profile_is_copied_changed_taken_for_new_chats_and_deleted(tmp_path: Path) -> None:
    file = config_dir() / "profiles" / "my-poems.toml"
    async with desktop(tmp_path) as desk:
        await opened(desk)
        await burst(desk, [*"stories", "ctrl+n"])
        await desk.shows("Title of the copy of Writing")
        frame = desk.app.screen.query_one(Vertical)
        assert frame.size.height < 4
        await burst(desk, ["enter", *"Auto", "enter"])  # which is not free
        await desk.shows("`auto` cannot be the name of a profile")
        await burst(desk, [*["backspace"] * 4, *"My Poems", "enter"])
        await desk.shows("My Poems is a copy that you can edit")
        await desk.press("escape", *"poems", "ctrl+d")
        await desk.shows("new chats use My Poems, saved in config.toml")
        assert read_config(config_dir() / "config.toml").profile == "my-poems"
        await desk.press("ctrl+o")
        await desk.until(lambda: isinstance(desk.app.screen, SettingsScreen) and desk.app.screen.focused)
        await burst(desk, ["down", *"1.5", "f2"])
        await desk.shows("saved: Temperature in profile My Poems")
        assert "temperature = 1.5" in file.read_text(encoding="utf-8")
        await opened(desk)
        await desk.press(*"poems", "delete")
        await desk.shows("Delete the profile My Poems (file my-poems.toml)?")
        assert "built-in" not in desk.screen_text()
        await desk.press("y")
        await desk.shows("My Poems is deleted")
        await desk.until(lambda: read_config(config_dir() / "config.toml").profile == "auto")
        assert desk.chat.session.profile.name == "auto"


@pytest.mark.slow
async def test_own_profile_is_deleted_after_a_question_and_an_included_one_stays(tmp_path: Path) -> None:
    folder = config_dir() / "profiles"
    folder.mkdir()
    file = folder / "writing.toml"
    file.write_text('title = "Mine"\ntask = "writing"', encoding="utf-8")
    async with desktop(tmp_path) as desk:
        await opened(desk)
        await desk.press(*"mine", "delete")
        await desk.shows("Delete the profile Mine (file writing.toml)?", "included profile")
        await desk.press("n")
        await desk.until(lambda: isinstance(desk.app.screen, ProfilesScreen))
        await desk.press("delete")
        await desk.shows("Delete the profile Mine")
        await desk.press("y")
        await desk.shows("Mine is deleted")
        assert not file.exists()
        await desk.press("escape")
        await desk.shows("Writing")
        await desk.press("delete")
        await desk.shows("comes with LocalSpec and cannot be deleted")


@pytest.mark.slow
async def test_file_of_a_profile_is_edited_in_the_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "editor.py"
    script.write_text("import sys, pathlib\npath = pathlib.Path(sys.argv[1])\n"
                      "path.write_text(path.read_text().replace('\"Math\"', '\"Sums\"'))\n")  # fmt: skip
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    async with desktop(tmp_path) as desk:
        await opened(desk)
        await desk.press(*"math", "ctrl+g")
        await desk.shows("an editor cannot be opened in this terminal")
        monkeypatch.setattr(desk.app, "suspend", nullcontext)
        await desk.press("ctrl+g")
        await desk.shows("saved")
        await desk.press("enter")
        await desk.shows("profile Sums: Calculations")
