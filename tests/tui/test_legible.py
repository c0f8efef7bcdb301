"""Whatever the theme, everything on the screen stands out from what lies behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.color import Color as RichColor
from rich.segment import Segment
from textual.color import Color

from localspec.storage.config import Config
from tests.scripted import MARKDOWN, says
from tests.tui.desktop import Desktop, desktop

LEAST = 0.15  # of the way from black to white
_RIM = " ─"  # may be faint


def segments(desk: Desktop) -> Iterator[Segment]:
    for strip in desk.app.screen._compositor.render_strips():
        yield from (each for each in strip if each.style and each.text.strip(_RIM))


def contrast(segment: Segment) -> float:
    style = segment.style
    assert style is not None
    if style.color is None or style.bgcolor is None:
        return 1.0
    return abs(brightness(style.color) - brightness(style.bgcolor))


def brightness(colour: RichColor) -> float:
    return Color.from_rich_color(colour).brightness


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("theme", ["localspec-dark", "localspec-light"])
@pytest.mark.parametrize("colourless", [False, True])
async def test_all_signs_can_be_read(
    theme: str, colourless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if colourless:
        monkeypatch.setenv("NO_COLOR", "1")
    config = Config(theme=theme, sidebar=False)
    async with desktop(tmp_path, says(MARKDOWN), config=config) as desk:
        await desk.press("f3")
        await desk.answered("How do I sort a list?")
        seen = list(segments(desk))
        assert {"•", "│"} <= set("".join(segment.text for segment in seen))
        assert [segment.text for segment in seen if contrast(segment) < LEAST] == []
