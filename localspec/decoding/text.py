"""From tokens to text: provenance, stop strings, whole characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.errors import UserError
from localspec.types import Provenance, TextPiece

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """Turns a stream of tokens into text; bytes of an incomplete character wait inside."""

    def feed(self, token: int) -> str:
        """Return the text that this token completes, possibly none."""
        ...

    def flush(self) -> str:
        """Return what still waits."""
        ...


class AnswerText:
    """The text of one answer, which ends before the first stop string that is complete.

    Text that may yet become a stop string is held back. Where one character completes several stop strings,
    the longest counts.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = (), known_spaces: int = 0) -> None:
        """Start with nothing; the first `known_spaces` spaces are already before the answer."""
        if "" in stop:
            raise UserError("a stop string is empty", "leave it out, or give it at least one character")
        self._detokenizer = detokenizer
        self._known_spaces = known_spaces
        self._stop = tuple(sorted(stop, key=len, reverse=True))
        self._ready: list[TextPiece] = []
        self._held: list[TextPiece] = []
        self._last = Provenance.TARGET
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Return whether a stop string is complete; later tokens are ignored."""
        return self._stopped

    def add(self, token: int, provenance: Provenance) -> bool:
        """Append a token's text and return whether a stop string is now complete.

        A character that several tokens spell belongs to the last of them.
        """
        if not self._stopped:
            self._last = provenance
            self._append(self._detokenizer.feed(token))
        return self._stopped

    def take(self) -> tuple[TextPiece, ...]:
        """Return the text that has become certain since the last call, joined by provenance."""
        pieces, self._ready = tuple(self._ready), []
        return pieces

    def finish(self) -> tuple[TextPiece, ...]:
        """End the answer and return the rest of its text, without an unfinished character."""
        if not self._stopped:
            self._append(self._detokenizer.flush().rstrip(_BROKEN))
            self._release(sum(len(piece.text) for piece in self._held))
        return self.take()

    def _append(self, text: str) -> None:
        if self._known_spaces and text:
            text = self._without_known_spaces(text)
        if not text:
            return
        self._held.append(TextPiece(text, self._last))
        if not self._stop:
            self._release(len(text))
            return
        held = "".join(piece.text for piece in self._held)
        end = self._stop_start(held, len(held) - len(text))
        if end is not None:
            self._stopped = True
            self._release(end)
            self._held.clear()
        else:
            self._release(len(held) - self._undecided(held))

    def _without_known_spaces(self, text: str) -> str:
        rest = text.lstrip(" ")
        dropped = min(self._known_spaces, len(text) - len(rest))
        self._known_spaces = 0 if rest else self._known_spaces - dropped
        return text[dropped:]

    def _stop_start(self, held: str, new: int) -> int | None:
        """Return where the stop string begins that is complete first; `held[new:]` has just arrived."""
        found = [
            (start + len(stop), start)
            for stop in self._stop
            if (start := held.find(stop, max(0, new + 1 - len(stop)))) >= 0
        ]
        return min(found)[1] if found else None

    def _undecided(self, held: str) -> int:
        """Return the length of the longest end of `held` with which a stop string begins."""
        longest = min(len(held), len(self._stop[0]) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(held[-length:]) for stop in self._stop):
                return length
        return 0

    def _release(self, count: int) -> None:
        """Move the first `count` held characters to what is ready."""
        while count > 0:
            piece = self._held.pop(0)
            if len(piece.text) > count:
                self._held.insert(0, TextPiece(piece.text[count:], piece.provenance))
                piece = TextPiece(piece.text[:count], piece.provenance)
            count -= len(piece.text)
            if self._ready and self._ready[-1].provenance is piece.provenance:
                piece = TextPiece(self._ready.pop().text + piece.text, piece.provenance)
            self._ready.append(piece)
