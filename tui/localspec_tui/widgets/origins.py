"""The sources of an answer's tokens, shown by colour, underline and bold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final

from textual.content import Content
from textual.widgets import Static

from localspec.chat.messages import Span
from localspec.types.drafts import Provenance
from localspec.types.events import TextPiece
from localspec_tui.widgets.explained import ExplainedWidget
from localspec_tui.widgets.markdown.blocks import Block, cleaned_source, with_tabs_spelt
from localspec_tui.widgets.markdown.prose import Prose

WORDS: Final = {
    Provenance.TARGET: ("target", "plain"),
    Provenance.ACCEPTED: ("accepted draft", "underlined"),
    Provenance.PREPARED: ("prepared draft", "bold, underlined"),
    Provenance.BONUS: ("bonus", "bold"),
}
_GAPS: Final = re.compile(r"(\n[ \t]*|  +|\t+)")
_BLOCK = 1_000  # characters that are wrapped together at most

_COMPONENTS: Final = {f"origin--{provenance.value}" for provenance in Provenance}


class GrowingOrigins:
    """Blocks of coloured text that grows at its end."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._open = Content()
        self._closed = 0

    def append(self, pieces: Iterable[TextPiece]) -> int:
        """Take more pieces; return the number of the first block that changed."""
        first = self._closed
        del self.blocks[first:]
        more = Content.assemble(*(part for piece in pieces for part in _marked(piece)))
        lines = Content.assemble(self._open, with_tabs_spelt(more)).split("\n", allow_blank=True)
        *closed, self._open = [part for line in lines for part in _parts(line)]
        self.blocks += map(Block, closed)
        self._closed = len(self.blocks)
        if self._open:
            self.blocks.append(Block(self._open))
        return first


def _marked(piece: TextPiece) -> Iterator[str | tuple[str, str]]:
    """Yield a piece with its words marked, without a line under indentation or gaps."""
    for number, text in enumerate(_GAPS.split(cleaned_source(piece.text))):
        yield text if number % 2 else (text, f".origin--{piece.provenance.value}")


def _parts(line: Content) -> list[Content]:
    """Cut a long line at its spaces, so only its end is laid out again."""
    cuts = []
    start = 0
    while len(line) - start > _BLOCK:
        start = line.plain.rfind(" ", start, start + _BLOCK) + 1 or start + _BLOCK
        cuts.append(start)
    *parts, end = line.divide(cuts)
    return [*(part.rstrip() for part in parts), end]


class OriginText(Prose):
    """An answer with its characters marked by source, instead of Markdown."""

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
    """Return the share of characters by source; empty for an empty text."""
    counts: Counter[Provenance] = Counter()
    for span in spans:
        counts[span.provenance] += span.length
    return {provenance: counts[provenance] / counts.total() for provenance in Provenance if counts.total()}


class OriginLegend(Static, ExplainedWidget):
    """What the colours mean, and how much of the latest answer came from where."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = _COMPONENTS

    def show(self, spans: Iterable[Span]) -> None:
        """Show the shares of an answer."""
        parts = []
        known = shares(spans)
        for provenance, (word, look) in WORDS.items():
            figure = f" {known[provenance]:.0%}" if known else ""
            name = Content.styled(word, f".origin--{provenance.value}")
            parts.append(Content.assemble(name, f" ({look}){figure}"))
        self.update(Content("   ").join(parts))
