"""Where tokens come from: by colour, without colour, live, and in the legend."""

from __future__ import annotations

import pytest
from textual.color import Color
from textual.geometry import Region

from localspec.chat.answering import pieces_of
from localspec.chat.messages import Span
from localspec.cli.shared.answer import LEGEND
from localspec.types.drafts import Provenance
from localspec.types.events import TextPiece
from localspec_tui.widgets.origins import WORDS, GrowingOrigins, OriginText, shares
from tests.tui.transcripts import Host, said, shown, until

SPANS = (
    Span(4, Provenance.TARGET),
    Span(6, Provenance.ACCEPTED),
    Span(5, Provenance.PREPARED),
    Span(5, Provenance.BONUS),
)
TEXT = "The *quick brown fox"


def joined(pieces: list[TextPiece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_words_are_those_of_the_command_line() -> None:
    assert all(word in LEGEND for word, _ in WORDS.values())


def test_text_is_cut_by_its_spans() -> None:
    assert [piece.text for piece in pieces_of(TEXT, SPANS)] == ["The ", "*quick", " brow", "n fox"]
    assert [piece.text for piece in pieces_of(TEXT, SPANS, 8)] == ["ck", " brow", "n fox"]
    assert pieces_of("ab", (Span(1, Provenance.BONUS),))[1] == TextPiece("b", Provenance.TARGET)
    assert joined(pieces_of("abc", (Span(9, Provenance.BONUS),))) == "abc"
    assert pieces_of("", SPANS) == []


def test_growing_text_keeps_its_lines_and_loses_nothing() -> None:
    growing = GrowingOrigins()
    text = "first line\nsecond " + "word " * 600 + "\n\nlast"
    for start in range(0, len(text), 7):
        growing.append([TextPiece(text[start : start + 7], Provenance.ACCEPTED)])
    plain = [block.content.plain for block in growing.blocks]
    assert plain[0] == "first line"
    assert plain[-2:] == ["", "last"]
    assert "".join(plain).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    assert growing.append([TextPiece(".", Provenance.BONUS)]) == len(growing.blocks) - 1


def test_shares_are_of_the_text() -> None:
    assert shares(SPANS)[Provenance.ACCEPTED] == pytest.approx(0.3)
    assert shares([]) == {}


def luminance(color: Color) -> float:
    parts = [part / 255 for part in color.rgb]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.asyncio
@pytest.mark.parametrize("theme", ["textual-dark", "textual-light"])
async def test_origins_differ_by_colour_and_without_it(theme: str) -> None:
    host = Host()
    async with host.run_test(size=(80, 24)) as pilot:
        host.theme = theme
        host.transcript.origins = True
        await host.transcript.show([shown(2, TEXT, spans=SPANS)])
        await until(pilot, TEXT)
        text = host.query_one(OriginText)
        styles = [text.get_visual_style(f"origin--{origin.value}") for origin in Provenance]
        assert len({(bool(style.bold), bool(style.underline)) for style in styles}) == len(styles)
        assert len({style.foreground for style in styles}) == len(styles)
        for style in styles:
            assert style.foreground is not None
            assert style.background is not None
            light, dark = sorted((luminance(style.foreground), luminance(style.background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, style


@pytest.mark.asyncio
async def test_legend_reports_the_shares_of_the_latest_answer() -> None:
    host = Host()
    async with host.run_test(size=(120, 24)) as pilot:
        await host.transcript.show([shown(1), shown(2, TEXT, spans=SPANS)])
        assert "accepted draft" not in host.text()
        host.transcript.origins = True
        await until(pilot, ["accepted draft (underlined) 30%", "bonus (bold) 25%", TEXT])
        host.transcript.origins = False
        await until(pilot, "The *quick brown fox")
        assert not host.query(OriginText)
        assert "accepted draft" not in host.text()


@pytest.mark.slow
@pytest.mark.asyncio
async def test_origins_are_live_and_stay_at_the_end() -> None:
    host = Host()
    async with host.run_test(size=(100, 20)) as pilot:
        host.transcript.origins = True
        item = shown(2, " ", state="writing")
        await host.transcript.show([said(item, "", "writing")])
        text = ""
        for number in range(40):
            piece = TextPiece(f"piece {number}\n", list(Provenance)[number % 4])
            host.transcript.stream(piece.text, [piece])
            text += piece.text
            await pilot.pause()
        await until(pilot, "piece 39")
        assert host.query(OriginText)
        spans = (Span(len(text), Provenance.BONUS),)
        ended = said(item, text)
        await host.transcript.replace(shown(2, ended.message.content, spans=spans))
        await until(pilot, ["piece 39", "(bold) 100%"])


@pytest.mark.asyncio
async def test_indentation_has_no_line_under_it_and_the_words_do() -> None:
    host = Host()
    text = "one two\n        three"
    async with host.run_test(size=(80, 24)) as pilot:
        host.transcript.origins = True
        await host.transcript.show([shown(2, text, spans=(Span(len(text), Provenance.ACCEPTED),))])
        await until(pilot, text.split("\n"))
        strips = host.query_one(OriginText).render_lines(Region(0, 0, 40, 2))
        marked = ["".join(s.text for s in strip if s.style and s.style.underline) for strip in strips]
        assert marked == ["one two", "three"]


@pytest.mark.asyncio
async def test_answers_without_spans_stay_markdown() -> None:
    host = Host()
    async with host.run_test(size=(100, 20)) as pilot:
        host.transcript.origins = True
        await host.transcript.show([shown(1, "a *question*"), shown(2, "an **old** answer")])
        await until(pilot, ["a *question*", "an old answer"])


@pytest.mark.asyncio
async def test_switching_while_text_comes_loses_nothing() -> None:
    host = Host()
    async with host.run_test(size=(100, 30)) as pilot:
        item = shown(2, " ", state="writing")
        await host.transcript.show([said(item, "", "writing")])
        for number in range(24):
            host.transcript.stream(f"w{number}. ", [TextPiece(f"w{number}. ", Provenance.TARGET)])
            if number % 5 == 4:
                host.transcript.origins = not host.transcript.origins
                await pilot.pause()
        host.transcript.origins = False
        await until(pilot, [f"w{number}." for number in range(24)])
