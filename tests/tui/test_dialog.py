"""Screens over the chat close once, however fast the keys come."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripted import says
from tests.tui.desktop import burst, desktop
from tests.tui.settled import settled

pytestmark = pytest.mark.asyncio


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("/delete", ["n", "n", "n"]),
        ("/stats", ["q", "q", "q"]),
        ("/profile", ["escape"] * 3),
        ("/settings", ["escape"] * 3),
        ("/system", ["escape"] * 3),
        ("/search answer", ["enter"] * 3),
        ("/model", ["escape", "f8", "escape"]),
        ("/theme", ["escape"] * 3),
    ],
)
async def test_keys_that_close_a_screen_several_times_leave_the_chat(
    tmp_path: Path, command: str, keys: list[str]
) -> None:
    async with desktop(tmp_path, says("an answer"), size=(80, 24)) as desk:
        await desk.answered("question")
        await desk.enter(command)
        await desk.until(lambda: desk.app.screen is not desk.chat)
        await settled(desk.pilot)
        await burst(desk, keys)
        await desk.until(lambda: desk.app.screen is desk.chat)
        await settled(desk.pilot)
        assert desk.app.screen is desk.chat
        assert desk.chat in desk.app.screen_stack
