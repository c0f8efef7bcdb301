"""Pieces of text that are laid out one by one: paragraphs, code, tables; pure values, no widgets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from rich.cells import cell_len
from textual.content import Content

_NARROWEST = 5  # of a table's column
_SEPARATOR = " │ "
# Without control characters a text cannot move the cursor or retitle the window.
_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_ENDS = {0x0B: "\n", 0x0C: "\n", 0x85: "\n", 0x2028: "\n", 0x2029: "\n"}
_TABLE = _CONTROL | _LINE_ENDS
_TAB = "    "


def printable(text: str) -> str:
    """Return a text without control characters, its lines ended by line feeds."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return text.replace("\r\n", "\n").translate(_TABLE)


def clean(text: str) -> str:
    """Return a text without control characters, its lines ended by line feeds and tabs spelt as spaces."""
    return printable(text).replace("\t", _TAB)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A text that is wrapped on its own; `first` and `rest` stand before its lines.

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

    def is_same(self, other: Block) -> bool:
        """Tell whether the other block looks the same."""
        return (
            type(self) is type(other)
            and (self.first, self.rest, self.style, self.gap)
            == (other.first, other.rest, other.style, other.gap)
            and self.content.is_same(other.content)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Rule(Block):
    """A line across."""

    def at(self, width: int) -> Content:
        """Return as much of a line as fits."""
        return Content.styled("─" * width, ".prose--mark")


@dataclass(frozen=True, slots=True, eq=False)
class Table(Block):
    """Rows of cells, the first being the header."""

    rows: tuple[tuple[Content, ...], ...] = ()
    aligned: tuple[str, ...] = ()

    def at(self, width: int) -> Content:
        """Return the table drawn within a width; without room for columns, its cells by their headers."""
        widths = _column_widths(self.rows, width)
        return Content("\n").join(self._columns(widths) if widths else self._stacked())

    def is_same(self, other: Block) -> bool:
        """Tell whether the other table has the same cells."""
        return (
            isinstance(other, Table)
            and Block.is_same(self, other)
            and self.aligned == other.aligned
            and [len(row) for row in self.rows] == [len(row) for row in other.rows]
            and all(map(Content.is_same, chain(*self.rows), chain(*other.rows)))
        )

    def _columns(self, widths: Sequence[int]) -> list[Content]:
        separator = Content.styled(_SEPARATOR, ".prose--mark")
        lines: list[Content] = []
        for number, row in enumerate(self.rows):
            cells = [cell.wrap(width) for cell, width in zip(row, widths, strict=True)]
            lines += [
                separator.join(
                    _padded(cell[line] if line < len(cell) else Content(), width, side)
                    for cell, width, side in zip(cells, widths, self.aligned, strict=True)
                )
                for line in range(max(len(cell) for cell in cells))
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
    """Return the widths of the columns, the widest giving way first; none if there is no room."""
    widths = [max(1, *(cell.cell_length for cell in column)) for column in zip(*rows, strict=True)]
    room = width - cell_len(_SEPARATOR) * (len(widths) - 1)
    if room < sum(min(_NARROWEST, wish) for wish in widths):
        return []
    while sum(widths) > room:
        widest = max(widths)
        second = max((wish for wish in widths if wish < widest), default=_NARROWEST)
        fattest = [index for index, wish in enumerate(widths) if wish == widest]
        surplus = min(sum(widths) - room, max(1, widest - second) * len(fattest))
        for turn, index in enumerate(fattest):
            widths[index] -= surplus // len(fattest) + (turn < surplus % len(fattest))
    return widths
