from __future__ import annotations

import re
from functools import partial

import pytest
from textual.app import App, ComposeResult
from textual.content import Content

from localspec.chat.figures import Figures
from localspec.types.models import DeviceMemory
from localspec_tui.widgets.status import (
    FigureRow,
    StatusLine,
    StatusPart,
    context_part,
    lay_out,
    short_name,
    shortened,
    thousands,
)
from tests.tui.settled import until
from tests.tui.styled import STYLES

METER = "context 5.1k/32k ▓░░░░"
SSD = Figures("SSD", 58.3, 1.9, 0.71, 3.4, 0.82)
FIGURES = "SSD  71% accepted  58 tokens/s  1.9× plain"
ALL = f"{FIGURES}  3.4 tokens/round  82% prepared"
CPU = DeviceMemory("CPU", int(1.2 * 2**30), 24 * 2**30)


class Host(App[None]):
    CSS_PATH = STYLES

    def compose(self) -> ComposeResult:
        yield StatusLine()

    @property
    def line(self) -> StatusLine:
        return self.query_one(StatusLine)

    @property
    def text(self) -> str:
        return self.line.render().plain


async def shown(width: int, figures: Figures, used: int = 5234, choice: tuple[str, str] = ("", "")) -> str:
    app = Host()
    async with app.run_test(size=(width, 5)) as pilot:
        app.line.figures, app.line.memory = figures, (CPU,)
        app.line.route, app.line.reason = choice
        app.line.meter = (context_part(used, 32768, estimated=False),)
        await pilot.pause()
        assert all(Content(row).cell_length <= width - 2 for row in app.text.split("\n"))
        return app.text


@pytest.mark.asyncio
async def test_everything_where_there_is_room() -> None:
    text = await shown(160, SSD)
    left, right = ALL, "context 5.1k/32k ▓░░░░  CPU 1.2/24 GiB"
    assert text.split() == f"{left} {right}".split()
    assert text.startswith(left)
    assert text.endswith(right)
    assert len(text) == 158


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("width", "words"),
    [
        (112, f"{ALL} {METER}"),
        (74, f"{FIGURES} {METER}"),
        (62, f"SSD 58 tokens/s 1.9× plain {METER}"),
        (38, "SSD 58 tokens/s 1.9× plain"),
        (8, "SSD"),
    ],
)
async def test_less_important_figures_drop_out_completely(width: int, words: str) -> None:
    assert (await shown(width, SSD)).split() == words.split()


RIGHT = f"{METER} CPU 1.2/24 GiB"
TUNED = "tuned 2 days ago: 1.8x plain (1.7-1.9)"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("width", "words"),
    [
        (
            210,
            f"auto: {ALL} profile auto: coding {TUNED} {RIGHT}",
        ),
        (104, f"auto: {FIGURES} profile auto: coding {METER}"),
        (94, f"auto: SSD 58 tokens/s 1.9× plain profile auto: coding {METER}"),
    ],
)
async def test_whom_auto_followed_stays_and_the_reason_is_reported_where_there_is_room(
    width: int, words: str
) -> None:
    assert (await shown(width, SSD, choice=("profile auto: coding", TUNED))).split() == words.split()


@pytest.mark.asyncio
@pytest.mark.parametrize(("width", "words"), [(80, "auto: plain is fastest here"), (62, "auto: plain")])
async def test_that_plain_is_fastest_is_said_where_it_costs_no_figure(width: int, words: str) -> None:
    text = await shown(width, Figures("plain", 8.5), choice=("", "measured"))
    assert text.split("  8.5 tokens/s  ")[0] == words
    assert METER in text


@pytest.mark.asyncio
async def test_what_was_asked_for_goes_without_saying() -> None:
    assert "asked" not in await shown(160, SSD, choice=("", "asked for"))


@pytest.mark.asyncio
async def test_the_mode_reports_under_the_pointer_why_it_was_chosen() -> None:
    app = Host()
    async with app.run_test(size=(100, 5)) as pilot:
        app.line.figures = SSD
        app.line.route, app.line.reason = "profile auto: coding", TUNED
        await pilot.pause()
        await pilot.hover(StatusLine, (2, 0))
        assert TUNED in str(app.line.tooltip)
        await pilot.hover(StatusLine, (app.text.index("profile") + 2, 0))
        assert "/profile NAME stays" in str(app.line.tooltip)


@pytest.mark.asyncio
async def test_unknown_figures_are_omitted() -> None:
    app = Host()
    async with app.run_test(size=(160, 5)) as pilot:
        app.line.figures = Figures("plain", 31.2)
        await pilot.pause()
        assert app.text.split() == ["plain", "31", "tokens/s"]


@pytest.mark.asyncio
@pytest.mark.parametrize("width", [110, 190])
async def test_a_reason_is_seen_next_to_the_figures(width: int) -> None:
    reason = "SSD was slower than plain decoding: 18.1 against 31.0 tokens/s"
    text = await shown(width, Figures("speculative", 31.2, 1.0, 0.31, 1.6, None, reason), used=32000)
    assert "SSD was slower" in text
    assert "31 tokens/s" in text
    assert "nearly full" in text
    assert (reason in text) is (width == 190)


@pytest.mark.asyncio
async def test_loading_shows_how_far_and_how_to_cancel() -> None:
    app = Host()
    async with app.run_test(size=(80, 5)) as pilot:
        app.line.loaded = 0.5
        await pilot.pause()
        assert "Loading the models ██████░░░░░░  50%  Esc cancels" in app.text
        app.line.loaded = None
        assert app.text == ""


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("SmolLM2 135M Instruct", "SmolLM2 135M"),
        ("Qwen3-14B-Q4_K_M", "Qwen3-14B"),
        ("Qwen2.5-Coder-1.5B-Instruct-GGUF", "Qwen2.5-Coder-1.5B"),
        ("gemma-3-4b-it-IQ3_XS", "gemma-3-4b"),
        ("gpt-oss 20B MXFP4", "gpt-oss 20B"),
        ("demo target", "demo target"),
        ("chatty", "chatty"),
        ("it", "it"),
    ],
)
def test_a_model_is_called_without_its_variant(model: str, short: str) -> None:
    assert short_name(model) == short


@pytest.mark.asyncio
async def test_each_figure_explains_itself() -> None:
    app = Host()
    async with app.run_test(size=(90, 5)) as pilot:
        app.line.figures = SSD
        app.line.meter = (context_part(5234, 32768, estimated=True),)
        await pilot.pause()
        for word, meaning in (
            ("accepted", "acceptance rate"),
            ("tokens/s", "per second"),
            ("context", "about 5,234 of 32,768"),
        ):
            await pilot.hover(StatusLine, (app.text.index(word) + 2, 0))
            assert meaning in str(app.line.tooltip)
        await pilot.hover(StatusLine, (app.text.index("context") - 1, 0))
        assert app.line.tooltip is None


@pytest.mark.parametrize(
    ("used", "words"),
    [
        (0, "░░░░░"),
        (60, "▏░░░░"),
        (900, "▏░░░░"),
        (1100, "▓░░░░"),
        (6000, "▓▓▓░░"),
        (8200, "▓▓▓▓░ filling"),
        (9600, "▓▓▓▓▓ nearly full"),
    ],
)
def test_the_meter_says_in_words_that_it_fills(used: int, words: str) -> None:
    part = context_part(used, 10_000, estimated=False)
    assert part.text.endswith(words)


def test_an_estimate_is_called_one() -> None:
    part = context_part(2048, 8192, estimated=True)
    assert part.text.startswith("context ~2k/8k")


def test_thousands() -> None:
    assert [thousands(tokens) for tokens in (0, 999, 5234, 32768)] == ["0", "999", "5.1k", "32k"]


@pytest.mark.parametrize("width", range(60))
def test_parts_never_overlap(width: int) -> None:
    parts = [
        StatusPart("mode", "", 0),
        StatusPart("a reason of some length", "", 4, least=8),
        StatusPart("right", "", 3, side="right"),
        StatusPart("memory", "", 9, side="right"),
    ]
    row = lay_out(width, parts)
    assert row.cell_length <= width
    texts = [text.rstrip("…") for text in re.split(" {2,}", row.plain) if text]
    shown = [part for text in texts for part in parts if part.text.startswith(text)]
    assert shown == [part for part in parts if part in shown]
    assert len(shown) == len(texts)


def test_wide_characters_are_shortened_by_columns() -> None:
    assert shortened("日本語の文", 6) == "日本…"
    assert shortened("short", 5) == "short"


@pytest.mark.asyncio
async def test_figures_under_an_answer_fall_away_whole() -> None:
    class Row(App[None]):
        CSS_PATH = STYLES

        def compose(self) -> ComposeResult:
            yield FigureRow()

    app = Row()
    async with app.run_test(size=(100, 5)) as pilot:
        row = app.query_one(FigureRow)
        row.text = "101 tokens in 2.2 s  first token after 0.25 s  speculative  46.3 tokens/s  0.3× plain"

        def is_drawn(width: int) -> bool:
            return row.region.right == width

        without_wait = row.text.replace("first token after 0.25 s  ", "")
        for width, text in (
            (100, row.text),
            (80, without_wait),
            (55, without_wait.removesuffix("  0.3× plain")),
            (15, "speculative"),
        ):
            await pilot.resize_terminal(width, 5)
            assert await until(pilot, partial(is_drawn, width))
            assert row.render().plain == text
