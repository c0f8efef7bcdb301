"""Scripts with spacing marks: every word is on the screen, and edges stay where they are."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len, chop_cells

from localspec_tui.cell_widths import MarksMeasured, count_spacing_marks
from localspec_tui.widgets.markdown.parse import build
from localspec_tui.widgets.markdown.prose import BlockLayout
from tests.scripted import Script
from tests.tui.desktop import desktop

TEXTS = {
    "Hindi": "किसान अपने खेतों में दिन रात काम करते थे और शांति से रहते थे।",
    "Bengali": "আমি বাংলায় গান গাই, আমি বাংলার গান গাই।",
    "Tamil": "தமிழ் மொழி மிகவும் பழமையான மொழிகளில் ஒன்று.",
    "Telugu": "తెలుగు భాష చాలా మధురమైనది మరియు ప్రాచీనమైనది.",
    "Malayalam": "മലയാളം കേരളത്തിലെ ഭാഷയാണ്, ന്\u200dറ എന്ന അക്ഷരം.",
    "Burmese": "မြန်မာဘာသာစကားသည် ကောင်းပါသည် နေကောင်းလား။",
    "Khmer": "ភាសាខ្មែរ គឺជាភាសាជាតិ របស់កម្ពុជា។",
    "Sinhala": "ශ්\u200dරී ලංකාව ක්\u200dෂණිකව ලස්සන රටකි.",
    "Kannada": "ಕನ್ನಡ ಭಾಷೆಯು ಬಹಳ ಹಳೆಯದು ಮತ್ತು ಸುಂದರವಾದದ್ದು.",
    "Gujarati": "ગુજરાતી ભાષા ખૂબ જ મીઠી છે.",
    "Punjabi": "ਪੰਜਾਬੀ ਭਾਸ਼ਾ ਬਹੁਤ ਮਿੱਠੀ ਹੈ।",
    "Odia": "ଓଡ଼ିଆ ଭାଷା ବହୁତ ମଧୁର ଅଟେ।",
    "Javanese": "ꦧꦱꦗꦮ ꦥꦤꦶꦏ",
}


@pytest.fixture(autouse=True)
def marks_take_cells() -> Iterator[None]:
    count_spacing_marks(True)
    yield
    count_spacing_marks(True)


def cells_of(text: str) -> int:
    """Return the cells that most terminals take: marks above and below a letter have none."""
    return sum(unicodedata.category(character) not in {"Mn", "Me", "Cf"} for character in text)


@pytest.mark.parametrize("language", TEXTS)
def test_no_row_is_wider_than_the_screen_and_no_word_is_missing(language: str) -> None:
    text = TEXTS[language]
    for width in (8, 13, 20, 33, 60):
        layout = BlockLayout(build(f"{text}\n\n- {text}"), width)
        for block, content in zip(layout.blocks, layout.contents, strict=True):
            rows = content.wrap(layout.text_width(block))
            assert all(cells_of(row.plain) <= layout.text_width(block) for row in rows)
            assert "".join("".join(row.plain for row in rows).split()) == "".join(text.split())


@pytest.mark.parametrize("language", TEXTS)
def test_columns_of_a_table_meet(language: str) -> None:
    first, second, *_ = TEXTS[language].split()
    (table,) = build(f"| {first} | n |\n|---|---|\n| {second} | 1 |\n| x | 2 |")
    edges = {cells_of(line.partition("│")[0]) for line in table.at(60).plain.split("\n") if "│" in line}
    assert len(edges) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="wcwidth is glibc's")
def test_marks_are_as_wide_as_the_c_library_says() -> None:
    import ctypes
    import locale

    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
        width = ctypes.CDLL(None).wcwidth
        marks = [chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code)) == "Mc"]
        wrong = [mark for mark in marks if width(ord(mark)) not in (cell_len(mark), -1)]
    except (AttributeError, locale.Error):
        pytest.skip("there is no such C library")
    finally:
        locale.setlocale(locale.LC_CTYPE, before)
    assert not wrong


def test_joiners_between_letters_hide_nothing_and_those_of_emoji_still_do() -> None:
    assert cell_len("ශ්\u200dර") == 2
    assert cell_len("👨\u200d👩") == 2
    assert "".join(chop_cells("ක්\u200dෂ" * 5, 3)) == "ක්\u200dෂ" * 5


@pytest.mark.asyncio
async def test_the_edges_of_the_prompt_stay(tmp_path: Path) -> None:
    async with desktop(tmp_path, Script("fine"), size=(60, 24)) as screen:
        screen.composer.text = f"{TEXTS['Hindi']} {TEXTS['Tamil']}"
        await screen.shows("किसान", "रहते थे।")
        rows = [row for row in screen.screen_text().split("\n") if row.count("│") == 2]
        assert len(rows) >= 2
        assert len({cells_of(row.rstrip("│")) for row in rows}) == 1


@pytest.mark.asyncio
async def test_a_terminal_that_gives_marks_no_cell_is_believed(tmp_path: Path) -> None:
    async with desktop(tmp_path, Script(TEXTS["Hindi"]), size=(60, 24)) as screen:
        await screen.answered("?")
        assert cell_len("का") == 2
        screen.app.post_message(MarksMeasured(take_cells=False))
        await screen.until(lambda: cell_len("का") == 1)
        await screen.shows("किसान")
        for strip in screen.app.screen._compositor.render_strips():
            assert strip.cell_length == cell_len(strip.text) == 60
