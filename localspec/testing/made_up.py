"""Rounds that an engine might have needed for a given text, with costs that are made up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from re import findall

from localspec.decoding.tally import Tally
from localspec.types import (
    DraftOrigin,
    Finished,
    FinishReason,
    Mode,
    Provenance,
    Request,
    RoundDone,
    RoundStats,
    TextDelta,
    TextPiece,
)

PLAIN_S = 0.030  # a verification with no draft takes,
PER_DRAFTED_S = 0.001  # and so much more with each token of one
DRAFTING_S = 0.002  # a drafted token takes
HANDING_OVER_S = 0.0004
PYTHON_S = 0.0002
READING_S = 0.0005  # a token of the prompt takes
PLAIN_TOKENS_PER_S = 1 / (PLAIN_S + PYTHON_S)

_ROUNDS = ((4, 4), (5, 3), (3, 0), (6, 6), (4, 2))  # (drafted, accepted), over and over
_PREPARED = (False, True, True, True)  # so many rounds of ssd, over and over


class MadeUpAnswer:
    """Cuts words into rounds as the engine of a mode would, and adds up what they did."""

    def __init__(self, prompt_tokens: int, request: Request, context: int) -> None:
        self._mode: Mode = request.settings.mode
        self._prompt_tokens = prompt_tokens
        self._tally = Tally(prompt_tokens, self._mode)
        self._work_s = 0.0
        self._sizes, self._prepared = cycle(_ROUNDS), cycle(_PREPARED)
        self._room: dict[FinishReason, int] = {"context": context - prompt_tokens}
        if request.max_tokens is not None:
            self._room["length"] = request.max_tokens

    @property
    def tokens(self) -> int:
        """Return how many words were written."""
        return self._tally.tokens

    @property
    def limit(self) -> FinishReason | None:
        """Return the limit that was reached, if any."""
        return next((reason for reason, room in self._room.items() if self.tokens >= room), None)

    def change(self, mode: Mode) -> None:
        """Go on in another mode."""
        self._mode = mode
        self._tally.change(mode)

    def finished(self, reason: FinishReason) -> Finished:
        """Return the end of the answer with its sums."""
        return Finished(reason, self._tally.summary())

    def write(self, text: str) -> Iterator[TextDelta | RoundDone]:
        """Yield the rounds that write a text, as far as the limits let them."""
        words = words_of(text)[: min(self._room.values()) - self.tokens]
        while words:
            stats = self._round(len(words))
            emitted, words = words[: stats.accepted + 1], words[stats.accepted + 1 :]
            self._work_s += stats.verify_s + stats.draft_s + stats.wait_s + stats.python_s
            self._tally.add(stats, len(emitted), self._work_s)
            yield TextDelta(_pieces(emitted, stats))
            yield RoundDone(stats, len(emitted))

    def _round(self, words_left: int) -> RoundStats:
        if not self.tokens:
            reading_s = PLAIN_S + READING_S * self._prompt_tokens
            return RoundStats(0, 0, DraftOrigin.NONE, reading_s, 0.0, 0.0, PYTHON_S)
        if self._mode == "off":
            return RoundStats(0, 0, DraftOrigin.NONE, PLAIN_S, 0.0, 0.0, PYTHON_S)
        drafted, accepted = next(self._sizes)
        origin = DraftOrigin.NGRAM if self._mode == "ngram" else DraftOrigin.FRESH
        if self._mode == "ssd" and next(self._prepared):
            origin = DraftOrigin.AHEAD
        return RoundStats(
            drafted,
            min(accepted, words_left - 1),
            origin,
            PLAIN_S + PER_DRAFTED_S * drafted,
            DRAFTING_S * drafted if origin is DraftOrigin.FRESH else 0.0,
            HANDING_OVER_S if origin is DraftOrigin.AHEAD else 0.0,
            PYTHON_S,
            DRAFTING_S * drafted if origin is DraftOrigin.AHEAD else 0.0,
        )


def words_of(text: str) -> list[str]:
    """Return a text in pieces that each hold a word, or the blank space at the end."""
    return findall(r"\s*\S+|\s+", text)


def _pieces(words: Sequence[str], stats: RoundStats) -> tuple[TextPiece, ...]:
    *accepted, last = words
    whole = stats.drafted and stats.accepted == stats.drafted
    own = TextPiece(last, Provenance.BONUS if whole else Provenance.TARGET)
    drafted = Provenance.PREPARED if stats.origin is DraftOrigin.AHEAD else Provenance.ACCEPTED
    return (TextPiece("".join(accepted), drafted), own) if accepted else (own,)
