"""Whom `auto` follows is seen and can be pinned; stale settings are reported."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from localspec.chat.answer_settings import TunedChoice
from localspec.storage.config import Config
from localspec.types.request import EngineSettings, TaskType
from localspec_tui.widgets import notice
from localspec_tui.widgets.status import TitleBar
from tests.scripted import says
from tests.tui.desktop import desktop

pytestmark = pytest.mark.asyncio
FOUND: dict[TaskType, TunedChoice] = {
    "coding": TunedChoice(EngineSettings(mode="sd", draft_length=5), "tuned today: 1.8x plain (1.7-1.9)"),
    "dialogue": TunedChoice(
        None, "", "tuned settings for dialogue are from other files; run `localspec tune`"
    ),
}
CODE, TALK = "Write a Python function.", "What should I cook tonight?"


@pytest.mark.slow
@pytest.mark.parametrize("size", [(110, 30), (160, 45)])
async def test_auto_shows_whom_it_follows_until_a_profile_is_pinned(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    config = Config(sidebar=False, profile="auto")
    async with desktop(tmp_path, says("word " * 30), size=size, config=config) as screen:
        await screen.answered(CODE)
        assert "profile auto: coding" in screen.status()
        assert screen.chat.query_one(TitleBar).profile == ""
        await screen.answered(TALK)
        assert "profile auto: general" in screen.status()
        await screen.enter("/profile coding")
        await screen.shows("profile Coding")
        await screen.answered(TALK)
        assert "profile auto" not in screen.status()
        await screen.enter("/profile auto")
        await screen.shows("profile Auto: Coding for questions about programs")
        await screen.answered(CODE)
        assert screen.chat.query_one(TitleBar).profile == ""
        assert screen.models.requests[-1].sampling.temperature == 0.2


@pytest.mark.slow
async def test_reason_of_tuned_settings_is_seen_and_stale_ones_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned_for = FOUND.get
    async with desktop(tmp_path, says("word " * 30), size=(200, 30), tuned_for=tuned_for) as screen:
        await screen.answered(TALK)
        assert ["from other files" in note.message for note in screen.app._notifications] == [True]
        await screen.enter("/profile coding")
        await screen.shows("profile Coding")
        monkeypatch.setattr(notice, "monotonic", lambda: monotonic() + 60)  # that was read
        await screen.answered(CODE)
        assert "tuned today: 1.8x plain" in screen.status()
        assert screen.models.requests[-1].settings.draft_length == 5
        await screen.enter("/stats")
        await screen.shows("tuned today: 1.8x plain (1.7-1.9)")
