"""Separates the calls of tools from an answer's text, whose pieces keep their provenance."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator

from localspec.chat.calls.pieces import Piece
from localspec.chat.calls.reader import AnswerReader
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, GenerationEvent, TextDelta, TextPiece, ThinkingOpened

_CLOSES_THINKING = re.compile(r"\s*(?:</[^<>]{1,40}>|\[/THINK\]|<\|end\|>|<channel\|>)")


def calls_apart(
    events: Iterable[GenerationEvent], reader: AnswerReader
) -> Generator[GenerationEvent | Piece]:
    """Yield an answer's events with its text alone, and in between the pieces of its calls.

    Text that calls nothing comes through unchanged, with its tags of thinking. What stands between two calls,
    and after them, comes without the tags around it.
    """
    text = _RawText()
    for event in events:
        if isinstance(event, ThinkingOpened):
            reader.open(event)
            yield event
        elif isinstance(event, TextDelta):
            text.add(event.pieces)
            yield from _parted(text, reader.feed(event.text))
        elif isinstance(event, Finished):
            yield from _parted(text, reader.feed("", more=False, is_cut=event.reason != "stop"))
            yield from () if reader.answers_directly else _delta(text.rest())
            yield event
        else:
            yield event


def _parted(text: _RawText, pieces: Iterable[Piece]) -> Iterator[GenerationEvent | Piece]:
    for piece in pieces:
        if piece.kind != "call":
            yield from _delta(text.up_to(piece.text, is_thinking=piece.kind == "thinking"))
            continue
        if piece.id:
            yield from _delta(text.call_begins())
        yield piece


def _delta(pieces: tuple[TextPiece, ...]) -> Iterator[TextDelta]:
    if pieces:
        yield TextDelta(pieces)


class _RawText:
    """What a model wrote and the reader has not passed on yet."""

    def __init__(self) -> None:
        self._pieces: list[TextPiece] = []
        self._has_called = self._called_last = self._thought_last = False

    def add(self, pieces: Iterable[TextPiece]) -> None:
        """Add what the model wrote."""
        self._pieces += pieces

    def up_to(self, read: str, *, is_thinking: bool) -> tuple[TextPiece, ...]:
        """Return the text up to the end of what was read, with the tags before it unless a call was read."""
        raw = "".join(piece.text for piece in self._pieces)
        start = raw.find(read)
        if start < 0:  # the reader has put blank lines before it
            read = read.lstrip("\n")
            start = raw.find(read)
        if start < 0:
            return (TextPiece(read, Provenance.TARGET),)
        self._thought_last = is_thinking
        before = self._take(start)
        if self._has_called:
            before = (TextPiece("\n\n", Provenance.TARGET),) if self._called_last else ()
        self._called_last = False
        return (*before, *self._take(len(read)))

    def call_begins(self) -> tuple[TextPiece, ...]:
        """Return the tag that ends the thinking, if there is one before the call."""
        raw = "".join(piece.text for piece in self._pieces)
        closing = _CLOSES_THINKING.match(raw) if self._thought_last else None
        is_first = not self._has_called
        self._thought_last = False
        self._has_called = self._called_last = True
        return self._take(closing.end()) if closing and is_first else ()

    def rest(self) -> tuple[TextPiece, ...]:
        """Return the text that was not passed on, unless a call was read."""
        return () if self._has_called else self._take(sum(len(piece.text) for piece in self._pieces))

    def _take(self, length: int) -> tuple[TextPiece, ...]:
        taken: list[TextPiece] = []
        while length > 0:
            piece = self._pieces[0]
            part = TextPiece(piece.text[:length], piece.provenance)
            taken.append(part)
            length -= len(part.text)
            if len(part.text) == len(piece.text):
                del self._pieces[0]
            else:
                self._pieces[0] = TextPiece(piece.text[len(part.text) :], piece.provenance)
        return tuple(taken)
