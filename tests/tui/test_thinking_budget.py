"""A budget for thinking on the screen: set by a command, and counted while the model thinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripted import Gate, says
from tests.tui.desktop import desktop


@pytest.mark.slow
@pytest.mark.asyncio
async def test_thinking_is_counted_in_the_status_line(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("<think>hm hm hm", gate, "</think>\n\nfine")) as desk:
        await desk.enter("/thinking 1024")
        await desk.shows("thinking takes at most 1,024 tokens, saved with this chat")
        await desk.enter("question")
        await desk.until(gate.reached.is_set)
        desk.chat.pane.notice.say("")
        await desk.shows("thinking 3 of 1,024")
        gate.open()
        await desk.until(lambda: desk.path[-1].state == "complete" and not desk.chat.pane.working)
        assert "thinking 3" not in desk.status()
        assert desk.models.requests[0].thinking_budget == 1024
