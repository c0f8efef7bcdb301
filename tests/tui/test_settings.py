"""What a person settles: it takes effect, is kept where they say, and is found again at the next start."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from localspec.storage.config import read_config
from localspec.storage.paths import config_dir
from tests.tui.desktop import desktop

pytestmark = pytest.mark.asyncio


def written(text: str) -> Path:
    """Return the person's config.toml, which says this."""
    path = config_dir() / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


async def test_theme_is_kept_and_so_are_the_comments_of_the_file(tmp_path: Path) -> None:
    path = written("# mine\n\n[chat]\nsidebar = false  # too wide\n")
    async with desktop(tmp_path) as desk:
        await desk.enter("/theme nord")
        await desk.shows("theme nord, kept in config.toml")
    text = path.read_text(encoding="utf-8")
    assert read_config(path).theme == "nord"
    assert text.endswith("# mine\n\n[chat]\nsidebar = false  # too wide\n")


async def test_theme_that_cannot_be_kept_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    async with desktop(tmp_path) as desk:
        monkeypatch.setattr(tempfile, "mkstemp", refuse)
        await desk.enter("/theme nord")
        await desk.shows("config.toml`: Permission denied")
        assert desk.app.theme == "nord"
        monkeypatch.undo()
