"""Turn the rounds of an answer into what its reader sees."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from localspec.decoding.circles import Circles
from localspec.decoding.loop import Round
from localspec.decoding.tally import Stopwatch, Tally
from localspec.decoding.text import AnswerText
from localspec.types import (
    Finished,
    FinishReason,
    GenerationEvent,
    ModeChanged,
    PromptProgress,
    RoundDone,
    TextDelta,
)

Happenings = Generator[PromptProgress | Round | ModeChanged, None, None]


class Answer:
    """The text and the figures of one answer."""

    def __init__(
        self,
        text: AnswerText,
        tally: Tally,
        end_tokens: frozenset[int],
        stopwatch: Stopwatch,
        limit: int | None = None,
    ) -> None:
        """Start with nothing; the answer ends with an end token, a stop string of the text, or in circles.

        One that has a limit of its own, in tokens, may go in circles up to there.
        """
        self._text = text
        self._end_tokens = end_tokens
        self._stopwatch = stopwatch
        self._limit = limit
        self._circles = Circles() if limit is None else None
        self._ending: FinishReason | None = None
        self.tally = tally

    @property
    def ending(self) -> FinishReason:
        """Return why there is no more of it: of its own accord, else at its limit or that of the context."""
        return self._ending or ("length" if self.tally.tokens == self._limit else "context")

    def events(self, happenings: Happenings) -> Iterator[GenerationEvent]:
        """Translate what the token layer reports, until the answer ends itself; the caller closes it."""
        for happening in happenings:
            match happening:
                case Round():
                    self._take(happening)
                    self.tally.add(happening.stats, len(happening.tokens), self._stopwatch.seconds())
                case ModeChanged():
                    self.tally.change(happening.mode)
                case PromptProgress():
                    pass
            with self._stopwatch.paused():
                yield from self._shown(happening)
            if self._ending is not None:
                return

    def finish(self, reason: FinishReason, cached_tokens: int) -> Iterator[GenerationEvent]:
        """Yield the rest of the text, and why the answer ended and what it cost."""
        if pieces := self._text.finish():
            yield TextDelta(pieces)
        yield Finished(reason, self.tally.summary(cached_tokens))

    def _take(self, round_: Round) -> None:
        """Add a round's tokens to the text, up to that with which the answer ends itself."""
        for token, provenance in zip(round_.tokens, round_.provenance, strict=True):
            if token in self._end_tokens or self._text.add(token, provenance):
                self._ending = "stop"
            elif self._circles is not None and self._circles.add(token):
                self._ending = "circles"
            if self._ending is not None:
                return

    def _shown(self, happening: PromptProgress | Round | ModeChanged) -> Iterator[GenerationEvent]:
        if not isinstance(happening, Round):
            yield happening
            return
        if pieces := self._text.take():
            yield TextDelta(pieces)
        yield RoundDone(happening.stats, len(happening.tokens))
