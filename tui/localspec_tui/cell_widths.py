"""Cells that characters take where terminals and rich differ: spacing marks, and joiners between letters.

Vowel signs of Hindi, Tamil, Burmese and other scripts (category Mc) take a cell of their own in most
terminals, and none in rich's table. A joiner only takes away the character after it between emoji.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Final

from rich import cells
from rich._unicode_data import load as _load
from textual.message import Message

PROBE: Final = "\u0915\u093e"
"""A letter with a spacing mark: as wide as the terminal says, one or two cells."""

_LETTER_JOINER = re.compile("\u200d(?![\u2600-\u27bf\U0001f000-\U0001faff])")
_NO_WIDTH = "\u200c"  # of one character, as the joiner, but without a meaning for rich
_LOAD = "load_cell_table"  # which rich.cells imports, and calls for every character
_WIDE_MARKS = "\u302e\u302f\U00016ff0\U00016ff1"  # of Hangul and Chinese

# rich has no public place for other widths; everything it and Textual draw is measured by these three.
_measure = cells._cell_len  # noqa: SLF001
_split = cells.split_graphemes


class MarksMeasured(Message):
    """The terminal has told whether spacing marks take cells."""

    def __init__(self, take_cells: bool) -> None:
        super().__init__()
        self.take_cells = take_cells


def count_spacing_marks(counts: bool) -> bool:
    """Count a cell for each spacing mark, or none, from now on; return whether that is a change."""
    is_change = counts != (getattr(cells, _LOAD) is _table)
    cells._cell_len = _cell_len  # noqa: SLF001
    cells.split_graphemes = _split_graphemes
    setattr(cells, _LOAD, _table if counts else _load)
    cells.get_character_cell_size.cache_clear()
    cells.cached_cell_len.cache_clear()
    return is_change


def _cell_len(text: str, unicode_version: str) -> int:
    return _measure(_without_letter_joiners(text), unicode_version)


def _split_graphemes(text: str, unicode_version: str = "auto") -> tuple[list[cells.CellSpan], int]:
    return _split(_without_letter_joiners(text), unicode_version)


def _without_letter_joiners(text: str) -> str:
    return _LETTER_JOINER.sub(_NO_WIDTH, text) if "\u200d" in text else text


@cache
def _table(unicode_version: str = "auto") -> cells.CellTable:
    """Return rich's table with a cell for each spacing mark."""
    table = _load(unicode_version)
    widths: list[tuple[int, int, int]] = []
    for first, last, width in table.widths:
        for code in range(first, last + 1) if not width else ():
            own = _width_of_mark(chr(code))
            if widths and widths[-1][1] == code - 1 and widths[-1][2] == own:
                widths[-1] = (widths[-1][0], code, own)
            else:
                widths.append((code, code, own))
        if width:
            widths.append((first, last, width))
    return table._replace(widths=widths)


def _width_of_mark(character: str) -> int:
    if unicodedata.category(character) != "Mc":
        return 0
    return 2 if character in _WIDE_MARKS else 1
