"""In every theme, the selected row of every list stands out, and its text from what lies behind it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from rich.color import Color as RichColor
from rich.segment import Segment
from textual.app import App
from textual.color import Color
from textual.widgets import OptionList

from localspec.storage.config import Config
from localspec_tui.widgets.sidebar import ChatList
from tests.scripted import says
from tests.tui.desktop import Desktop, desktop
from tests.tui.styled import STYLES

LEAST = 4.5  # of text, by WCAG 2
DIM = 0.5  # of the way to the background, about what terminals do

Scene = Callable[[Desktop], Awaitable[None]]


async def chats(desk: Desktop) -> None:
    await desk.press("ctrl+b", "down")


async def profiles(desk: Desktop) -> None:
    await desk.enter("/profile")
    await desk.shows("Everyday questions")


async def search(desk: Desktop) -> None:
    await desk.press("ctrl+k", *"word")
    await desk.shows("…", "Today")
    await desk.press("down")


async def completions(desk: Desktop) -> None:
    await desk.press("slash", "m", "o")
    await desk.shows("/model")


async def exchanges(desk: Desktop) -> None:
    await desk.enter("/room")
    await desk.shows("Free up context")


async def palette(desk: Desktop) -> None:
    await desk.press("ctrl+p")
    await desk.shows("/branch")


async def themes(desk: Desktop) -> None:
    await desk.enter("/theme")
    await desk.shows("nord")


def selected(desk: Desktop) -> Iterator[Segment]:
    """Yield what is on the selected rows of the lists on the screen."""
    strips = desk.app.screen._compositor.render_strips()
    rows = [
        (options._index_to_line[options.highlighted] - options.scroll_offset.y, options.content_region)
        for options in desk.app.screen.query(OptionList)
        if options.region and options.highlighted is not None
    ] + [
        (chats.cursor - chats.scroll_offset.y, chats.content_region)
        for chats in desk.app.screen.query(ChatList)
        if chats.region and chats.cursor is not None
    ]
    assert rows
    for y, region in rows:
        strip = strips[region.y + y]
        yield from (each for each in strip.crop(region.x, region.right) if each.text.strip(" ▊▌▐"))


def contrast(segment: Segment) -> float:
    """Return the contrast ratio of WCAG 2."""
    style = segment.style
    assert style is not None
    assert style.color is not None
    assert style.bgcolor is not None
    front, back = luminance(style.color), luminance(style.bgcolor)
    if style.dim:
        front += DIM * (back - front)
    return ratio(front, back)


def ratio(front: float, back: float) -> float:
    return (max(front, back) + 0.05) / (min(front, back) + 0.05)


def luminance(colour: RichColor) -> float:
    channels = (channel / 255 for channel in colour.get_truecolor())
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.asyncio
async def test_selected_rows_can_be_read_in_every_theme(tmp_path: Path) -> None:
    ratios = {}
    async with desktop(tmp_path) as desk:
        for name, theme in desk.app.available_themes.items():
            desk.app.set_reactive(App.theme, name)  # not drawn
            colours = desk.app.get_css_variables()
            text, back = (
                Color.parse(colours[f"block-cursor-{each}"]) for each in ("foreground", "background")
            )
            if not theme.ansi:  # whose colours are the terminal's
                ratios[name] = ratio(luminance(text.rich_color), luminance(back.rich_color))
    assert {"localspec-dark", "localspec-light", "nord"} <= set(ratios)
    assert {name: round(each, 2) for name, each in ratios.items() if each < LEAST} == {}


def test_selected_rows_have_these_colours_in_the_style_sheet() -> None:
    rules = re.findall(
        r"(?:option-highlighted|:focus \.cursor) \{([^}]*block-cursor[^}]*)\}", STYLES.read_text()
    )
    assert len(rules) == 3  # lists, waiting prompts, chats
    for colour in ("color: $block-cursor-foreground;", "background: $block-cursor-background;"):
        assert all(colour in rule for rule in rules)


@pytest.mark.slow
@pytest.mark.asyncio
@pytest.mark.parametrize("scene", [chats, profiles, search, completions, exchanges, palette, themes])
async def test_every_part_of_a_selected_row_can_be_read(scene: Scene, tmp_path: Path) -> None:
    async with desktop(tmp_path, says("word " * 30), says("word"), config=Config(sidebar=False)) as desk:
        await desk.answered("a question")
        await desk.enter("/new")
        await desk.answered("another word")
        await scene(desk)
        parts = list(selected(desk))
        assert parts
        assert [part.text for part in parts if contrast(part) < LEAST] == []
