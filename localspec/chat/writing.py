"""An answer under way: its text, where each part of it comes from, and the record of it at the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from localspec.chat.live_stats import seconds
from localspec.chat.messages import AnswerRecord, RoundMark, Span
from localspec.decoding.tally import Tally
from localspec.types import (
    Finished,
    GenerationEvent,
    Mode,
    ModeChanged,
    Provenance,
    RoundDone,
    TextDelta,
    TextPiece,
)


class Writing:
    """Collects the events of one answer; it may go on from text that is already there."""

    def __init__(self, mode: Mode, text: str = "", spans: Sequence[Span] = ()) -> None:
        """Begin, or go on from a text; what its spans do not cover counts as the target's own."""
        self._texts = [text]
        self._spans = list(spans)
        uncovered = text[sum(span.length for span in spans) :]
        _lengthen(self._spans, TextPiece(uncovered, Provenance.TARGET))
        self._rounds: list[RoundMark] = []
        self._changes: list[ModeChanged] = []
        self._tally = Tally(0, mode)
        self._work_s = 0.0
        self.finished: Finished | None = None

    def take(self, event: GenerationEvent) -> None:
        """Add the next event."""
        match event:
            case TextDelta(pieces):
                for piece in pieces:
                    self._texts.append(piece.text)
                    _lengthen(self._spans, piece)
            case RoundDone(stats, tokens):
                self._rounds.append(RoundMark(stats, tokens))
                self._work_s += seconds(stats)
                self._tally.add(stats, tokens, self._work_s)
            case ModeChanged():
                self._changes.append(event)
                self._tally.change(event.mode)
            case Finished():
                self.finished = event
            case _:
                pass  # reading the prompt leaves no trace

    @property
    def text(self) -> str:
        """Return the whole text so far."""
        self._texts = ["".join(self._texts)]
        return self._texts[0]

    def completed(self, record: AnswerRecord) -> AnswerRecord:
        """Return a record with what has come of the answer filled in.

        Of an answer that was continued the spans cover the whole text; all else is of the continuation,
        so that speeds, rounds and seed belong together. The summary of an answer that ended without one is
        added up from its rounds; the size of the prompt is then not known.
        """
        summary = self.finished.summary if self.finished else self._tally.summary()
        return replace(
            record,
            summary=summary,
            rounds=tuple(self._rounds),
            spans=tuple(self._spans),
            changes=tuple(self._changes),
        )


def joined(pieces: Iterable[TextPiece]) -> tuple[TextPiece, ...]:
    """Return the same text with neighbours of equal provenance as one piece."""
    groups = groupby((piece for piece in pieces if piece.text), key=lambda piece: piece.provenance)
    return tuple(TextPiece("".join(piece.text for piece in group), origin) for origin, group in groups)


def _lengthen(spans: list[Span], piece: TextPiece) -> None:
    """Add the span of a piece, as a part of the last where they share their provenance."""
    length = len(piece.text)
    if spans and spans[-1].provenance is piece.provenance:
        length += spans.pop().length
    if length:
        spans.append(Span(length, piece.provenance))
