"""Where the tokens of an answer come from, told by colour and by underline and bold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from textual.content import Content
from textual.content import Span as Stretch
from textual.widgets import Static

from localspec.chat.messages import Span
from localspec.types import Provenance, TextPiece
from localspec_tui.widgets.markdown.blocks import Block, clean
from localspec_tui.widgets.markdown.prose import Prose

WORDS: Final = {
    Provenance.TARGET: ("target", "plain"),
    Provenance.ACCEPTED: ("accepted draft", "underlined"),
    Provenance.PREPARED: ("prepared draft", "bold, underlined"),
    Provenance.BONUS: ("bonus", "bold"),
}
_BLOCK = 1_000  # characters that are wrapped together at most

_COMPONENTS: Final = {f"origin--{provenance.value}" for provenance in Provenance}


def pieces_of(text: str, spans: Iterable[Span], begin: int = 0) -> list[TextPiece]:
    """Return a text from `begin` on cut by its spans; what they do not cover is the target's own."""
    pieces, start = [], 0
    for span in (*spans, Span(len(text), Provenance.TARGET)):
        end = min(start + span.length, len(text))
        if end > max(start, begin):
            pieces.append(TextPiece(text[max(start, begin) : end], span.provenance))
        start = end
    return pieces


class GrowingOrigins:
    """Blocks of coloured text that grows at its end."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open: list[TextPiece] = []
        self._closed = 0

    def append(self, pieces: Iterable[TextPiece]) -> int:
        """Take more pieces; return the number of the first block that changed."""
        first = self._closed
        del self.blocks[first:]
        for piece in pieces:
            *lines, rest = clean(piece.text).split("\n")
            for line in lines:
                self._add(line, piece.provenance)
                self._close()
            self._add(rest, piece.provenance)
        if self._open:
            self.blocks.append(_coloured(self._open))
        return first

    def _add(self, text: str, provenance: Provenance) -> None:
        for start in range(0, len(text), _BLOCK):
            if sum(len(piece.text) for piece in self._open) >= _BLOCK:
                self._split()
            self._open.append(TextPiece(text[start : start + _BLOCK], provenance))

    def _split(self) -> None:
        """Close a long line at its last space, so that only its end is laid out with what follows."""
        last = next(
            (n for n in range(len(self._open) - 1, 0, -1) if self._open[n].text.startswith(" ")), None
        )
        kept = self._open[last:] if last else []
        self._open = self._open[:last] if last else self._open
        self._close()
        self._open = (
            [TextPiece(kept[0].text.removeprefix(" "), kept[0].provenance), *kept[1:]] if kept else []
        )

    def _close(self) -> None:
        self.blocks.append(_coloured(self._open))
        self._open = []
        self._closed = len(self.blocks)


def _coloured(pieces: Sequence[TextPiece]) -> Block:
    stretches, start = [], 0
    for piece in pieces:
        end = start + len(piece.text)
        stretches.append(Stretch(start, end, f".origin--{piece.provenance.value}"))
        start = end
    return Block(Content("".join(piece.text for piece in pieces), spans=stretches))


class OriginText(Prose):
    """An answer whose characters show where they come from, in place of Markdown."""

    COMPONENT_CLASSES: ClassVar[set[str]] = _COMPONENTS

    def __init__(self, pieces: Iterable[TextPiece]) -> None:
        self._growing = GrowingOrigins()
        self._growing.append(pieces)
        super().__init__(self._growing.blocks)

    def append(self, pieces: Iterable[TextPiece]) -> None:
        """Add to the end."""
        first = self._growing.append(pieces)
        self.set_blocks(self._growing.blocks[first:], first)


def shares(spans: Iterable[Span]) -> dict[Provenance, float]:
    """Return which share of the characters came from where; nothing for an empty text."""
    counts: Counter[Provenance] = Counter()
    for span in spans:
        counts[span.provenance] += span.length
    return {provenance: counts[provenance] / counts.total() for provenance in Provenance if counts.total()}


class OriginLegend(Static):
    """What the colours mean, and how much of the latest answer came from where."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = _COMPONENTS

    def show(self, spans: Iterable[Span]) -> None:
        """Show the shares of an answer."""
        parts, known = [], shares(spans)
        for provenance, (word, look) in WORDS.items():
            figure = f" {known[provenance]:.0%}" if known else ""
            name = Content.styled(word, f".origin--{provenance.value}")
            parts.append(Content.assemble(name, f" ({look}){figure}"))
        self.update(Content("   ").join(parts))
