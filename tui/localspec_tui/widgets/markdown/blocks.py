"""Pieces of text that are laid out one by one: paragraphs, code, tables; pure values, no widgets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from textual.content import Content

from localspec.safe_text import safe_text

_NARROWEST = 5  # of a table's column
_SEPARATOR = " │ "
_TAB = "    "


_EMOJI = "[\u2600-\u27bf\U0001f000-\U0001faff]"
_TONES = "[\U0001f3fb-\U0001f3ff]"
_JOINER = re.compile(f"\u200d(?={_EMOJI})|(?<={_EMOJI}){_TONES}")
_JOINED = re.compile(f"(?:\u200d{_EMOJI}\ufe0f?|(?<={_EMOJI}){_TONES})+")


def clean(text: str) -> str:
    """Return a text without control characters, its lines ended by line feeds and tabs spelt as spaces.

    Joined emoji are separated and lose their skin tone: terminals draw them in different widths, and a row
    has one width.
    """
    return parted(safe_text(text)).replace("\t", _TAB)


def parted(text: str) -> str:
    """Return a text without what joins emoji."""
    return _JOINER.sub("", text)


def first_emoji(text: str) -> str:
    """Return a text of the same length and width that shows of joined emoji the first alone."""
    return _JOINED.sub(lambda found: "\u200b" * len(found[0]), text)


@dataclass(frozen=True, slots=True)
class Block:
    """A text that is wrapped separately; `first` and `rest` are the prefixes of its lines.

    `style` is the component class of its whole lines, `gap` counts the empty lines above.
    """

    content: Content = Content()  # noqa: RUF009 - immutable
    first: str = ""
    rest: str = ""
    style: str = ""
    gap: int = 0

    def at(self, width: int) -> Content:
        """Return the text to be wrapped at a width."""
        return self.content


@dataclass(frozen=True, slots=True)
class Rule(Block):
    """A line across."""

    def at(self, width: int) -> Content:
        """Return as much of a line as fits."""
        return Content.styled("─" * width, ".prose--mark")


@dataclass(frozen=True, slots=True)
class Table(Block):
    """Rows of cells, the first being the header."""

    rows: tuple[tuple[Content, ...], ...] = ()
    aligned: tuple[str, ...] = ()

    def at(self, width: int) -> Content:
        """Draw the table within a width; if columns do not fit, list its cells by their headers."""
        widths = _column_widths(self.rows, width)
        return Content("\n").join(self._columns(widths) if widths else self._stacked())

    def _columns(self, widths: Sequence[int]) -> list[Content]:
        separator = Content.styled(_SEPARATOR, ".prose--mark")
        lines: list[Content] = []
        for number, row in enumerate(self.rows):
            cells = [cell.wrap(width) for cell, width in zip(row, widths, strict=True)]
            lines += [
                separator.join(map(_padded, line, widths, self.aligned))
                for line in zip_longest(*cells, fillvalue=Content())
            ]
            if number == 0:
                lines = [line.stylize("bold") for line in lines]
                lines.append(Content.styled("─┼─".join("─" * width for width in widths), ".prose--mark"))
        return lines

    def _stacked(self) -> list[Content]:
        header, *rows = self.rows
        return [
            Content.assemble(name.stylize("bold"), ": ", cell)
            for row in rows or [header]
            for name, cell in zip(header, row, strict=True)
        ]


def _padded(cell: Content, width: int, side: str) -> Content:
    free = max(0, width - cell.cell_length)
    left = {"right": free, "center": free // 2}.get(side, 0)
    return cell.pad(left, free - left)


def _column_widths(rows: Sequence[Sequence[Content]], width: int) -> list[int]:
    """Return the widths of the columns, shrinking the widest first; none if they do not fit."""
    widths = [max(1, *(cell.cell_length for cell in column)) for column in zip(*rows, strict=True)]
    room = width - cell_len(_SEPARATOR) * (len(widths) - 1)
    if room < sum(min(_NARROWEST, wish) for wish in widths):
        return []
    widths = [min(wish, room) for wish in widths]
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return widths
