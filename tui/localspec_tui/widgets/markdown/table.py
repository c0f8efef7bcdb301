"""Tables of Markdown: drawn as columns where they fit, else as a list, and copied as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from textual.content import Content

from localspec_tui.widgets.markdown.blocks import Block, CopiedLine, TextPlace, source_between

_NARROWEST = 5  # of a table's column
_SEPARATOR = " │ "
_DELIMITERS = {"left": "---", "center": ":---:", "right": "---:"}

_Cell = tuple[int, int]  # row and column


@dataclass(frozen=True, slots=True)
class _DrawnLine:
    """A line of a drawn table; `pieces` say from where to where it has text of which cells."""

    content: Content
    pieces: Sequence[tuple[_Cell, int, int]] = ()


@dataclass(frozen=True, slots=True)
class Table(Block):
    """Rows of cells, the first being the header."""

    rows: tuple[tuple[Content, ...], ...] = ()
    aligned: tuple[str, ...] = ()

    def at(self, width: int) -> Content:
        """Draw the table within a width; if columns do not fit, list its cells by their headers."""
        return Content("\n").join(line.content for line in self._drawn(width))

    def copied(self, width: int, start: TextPlace, end: TextPlace) -> list[CopiedLine]:
        """Return whole rows from the header on as Markdown, and other selected cells with tabs between."""
        cells = self._selected_cells(width, start, end)
        rows = sorted({row for row, _ in cells})
        texts = [[text for (of, _), text in sorted(cells.items()) if of == row] for row in rows]
        all_rows = [list(map(_source, row)) for row in self.rows]
        if len(texts) > 1 and texts == all_rows[: len(texts)]:
            lines = list(self._in_markdown(texts))
        elif texts and texts == all_rows[1:] and not self._fits(width):  # each of them has the header
            lines = list(self._in_markdown(all_rows))
        else:
            lines = ["\t".join(row) for row in texts if any(row)]
        return self._marked(lines, start) if lines else []

    def _fits(self, width: int) -> bool:
        return bool(_column_widths(self.rows, width))

    def _in_markdown(self, rows: Sequence[Sequence[str]]) -> Iterator[str]:
        for number, row in enumerate(rows):
            yield f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |"
            if number == 0:
                yield f"| {' | '.join(_DELIMITERS[side] for side in self.aligned)} |"

    def _selected_cells(self, width: int, start: TextPlace, end: TextPlace) -> dict[_Cell, str]:
        """Return the text of each cell that is selected, at least in part."""
        pieces: dict[_Cell, list[str]] = {}
        cut: set[_Cell] = set()
        for number, line in enumerate(self._drawn(width)):
            plain = line.content.plain
            first = start.character if number == start.line else 0
            last = end.character if number == end.line else len(plain)
            is_reached = start.line <= number <= end.line
            for cell, begin, stop in line.pieces:
                if not is_reached or first > begin or last < stop:
                    cut.add(cell)
                if is_reached:
                    piece = plain[max(first, begin) : min(last, stop)].strip()
                    pieces.setdefault(cell, []).extend([piece] * bool(piece))
        return {
            (row, column): " ".join(texts) if (row, column) in cut else _source(self.rows[row][column])
            for (row, column), texts in pieces.items()
            if texts or (row, column) not in cut
        }

    def _drawn(self, width: int) -> list[_DrawnLine]:
        widths = _column_widths(self.rows, width)
        return list(self._columns(widths) if widths else self._stacked())

    def _columns(self, widths: Sequence[int]) -> Iterator[_DrawnLine]:
        separator = Content.styled(_SEPARATOR, ".prose--mark")
        for number, row in enumerate(self.rows):
            cells = [cell.wrap(width) for cell, width in zip(row, widths, strict=True)]
            for line in zip_longest(*cells, fillvalue=Content()):
                padded = list(map(_padded, line, widths, self.aligned))
                content = separator.join(padded)
                pieces = []
                at = 0
                for column, (piece, whole) in enumerate(zip(line, padded, strict=True)):
                    begin = at + whole.plain.find(piece.plain)
                    pieces.append(((number, column), begin, begin + len(piece.plain)))
                    at += len(whole.plain) + len(_SEPARATOR)
                yield _DrawnLine(content.stylize("bold") if number == 0 else content, pieces)
            if number == 0:
                across = "─┼─".join("─" * width for width in widths)
                yield _DrawnLine(Content.styled(across, ".prose--mark"))

    def _stacked(self) -> Iterator[_DrawnLine]:
        for number, row in list(enumerate(self.rows))[1:] or [(0, self.rows[0])]:
            for column, (name, cell) in enumerate(zip(self.rows[0], row, strict=True)):
                content = Content.assemble(name.stylize("bold"), ": ", cell)
                begin = len(name.plain) + len(": ")
                yield _DrawnLine(content, [((number, column), begin, len(content.plain))])


def _source(cell: Content) -> str:
    """Return a cell's text as it was written, in one line."""
    end = TextPlace(cell.plain.count("\n"), len(cell.plain))
    return " ".join(source_between(cell, TextPlace(0, 0), end).split())


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
