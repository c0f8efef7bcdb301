"""From tokens to text: provenance, stop strings, whole characters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Literal, Protocol

from localspec.decoding.rounds import Round
from localspec.decoding.tally import Stopwatch, Tally
from localspec.errors import UserError
from localspec.thinking_tags import LeadingThinking, Stretch, ThinkingTags
from localspec.types.drafts import Provenance
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    ModeChanged,
    PromptProgress,
    RoundDone,
    Summary,
    TextDelta,
    TextPiece,
    TokenScore,
    TokensScored,
)

_MOST_OVER = 16  # tokens of thinking over its budget, until a character or a closing tag is complete
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Detokenizer(Protocol):
    """Turns a stream of tokens into text; bytes of an incomplete character wait inside."""

    def feed(self, token: int) -> str:
        """Return the text that this token completes, possibly none."""

    @property
    def has_pending(self) -> bool:
        """Whether bytes of an incomplete character wait."""

    def flush(self) -> str:
        """Return the pending bytes."""

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token adds to the text."""


class AnswerText:
    """The text of one answer, which ends before the first complete stop string.

    Text that may become a stop string is held back. If one character completes several stop strings, the
    longest counts. Stop strings in the thinking before the answer do not count.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        known_spaces: int = 0,
        thinking: LeadingThinking | None = None,
        *,
        needs_answer: bool = False,
        thinking_budget: int | None = None,
    ) -> None:
        """Start empty; the first `known_spaces` spaces are already before the answer.

        `thinking` tracks the thinking; without it, everything is the answer. With `needs_answer`, a turn
        does not end in the thinking. `thinking_budget` is in tokens.
        """
        if "" in stop:
            raise UserError("a stop string is empty", "leave it out, or give it at least one character")
        self._detokenizer = detokenizer
        self._known_spaces = known_spaces
        self._thinking = thinking
        self._needs_answer = needs_answer
        self._tokens = 0
        self.thinking_tokens = 0  # up to the end of the thinking
        self._thinking_budget = thinking_budget
        self._thought = 0  # tokens of the thinking without its opening tags
        self._stop = tuple(sorted(stop, key=len, reverse=True))
        self._ready: list[tuple[str, Provenance]] = []
        self._held: list[tuple[str, Provenance]] = []  # characters
        self._last = Provenance.TARGET
        self.stopped_by: str | None = None  # a stop string that is complete; later tokens are ignored

    @property
    def stopped(self) -> bool:
        """Return whether a stop string is complete."""
        return self.stopped_by is not None

    def add(self, token: int, provenance: Provenance) -> bool:
        """Append a token's text and return whether a stop string is now complete.

        A character that several tokens spell belongs to the last of them.
        """
        if not self.stopped:
            self._last = provenance
            self._tokens += 1
            was_thinking = self.open_tags is not None
            self._append(self._detokenizer.feed(token))
            self._thought += was_thinking
            if was_thinking or self.open_tags is not None:
                self.thinking_tokens = self._tokens
        return self.stopped

    @property
    def open_tags(self) -> ThinkingTags | None:
        """Return the tags of the thinking that continues, None where there is none."""
        return None if self._thinking is None else self._thinking.tags

    @property
    def has_spent_thinking(self) -> bool:
        """Whether the thinking that continues has spent its budget.

        It may take a few tokens more to complete a character, or what may become the closing tag.
        """
        if self._thinking is None or self._thinking.tags is None or self._thinking_budget is None:
            return False
        over = self._thought - self._thinking_budget
        is_undecided = self._detokenizer.has_pending or self._thinking.is_undecided
        return over >= (_MOST_OVER if is_undecided else 0)

    @property
    def lacks_answer(self) -> bool:
        """Return whether nothing has come of an answer that is needed."""
        return self._needs_answer and self.open_tags is not None

    def named(self, score: TokenScore) -> TokenScore:
        """Return a score with the bytes of its tokens."""
        piece = self._detokenizer.piece
        best = tuple((token, piece(token), logprob) for token, _, logprob in score.top)
        return replace(score, data=piece(score.token), top=best)

    def take(self) -> tuple[TextPiece, ...]:
        """Return the text that has become certain since the last call, joined by provenance."""
        runs = groupby(self._ready, key=itemgetter(1))
        pieces = tuple(TextPiece("".join(text for text, _ in run), provenance) for provenance, run in runs)
        self._ready = []
        return pieces

    def finish(self) -> tuple[TextPiece, ...]:
        """End the answer and return the rest of its text, without an unfinished character."""
        if not self.stopped:
            self._append(self._detokenizer.flush().rstrip(_BROKEN), more=False)
            if not self.stopped:
                self._release(len(self._held))
        return self.take()

    def _append(self, text: str, *, more: bool = True) -> None:
        if self._known_spaces and text:
            text = self._without_known_spaces(text)
        stretches: Iterable[Stretch] = [("answer", text)]
        if self._thinking is not None:
            stretches = self._thinking.feed(text, more=more)
        if not self._stop:
            self._ready += [(text, self._last)] if text else []
            deque(stretches, maxlen=0)
            return
        self._held += [(character, self._last) for character in text]
        for kind, stretch in stretches:
            if kind == "answer":
                self._look_for_stops(len(stretch))
            else:
                self._release(len(stretch))

    def _look_for_stops(self, new: int) -> None:
        """Release the certain part of the held text, which ends in `new` new characters of the answer."""
        held = "".join(character for character, _ in self._held)
        found = self._stop_found(held, len(held) - new)
        if found is not None:
            end, self.stopped_by = found
            self._release(end)
        else:
            self._release(len(held) - self._undecided(held))

    def _release(self, count: int) -> None:
        """Move the first `count` held characters to the ready text."""
        self._ready += self._held[:count]
        del self._held[:count]

    def _without_known_spaces(self, text: str) -> str:
        rest = text.lstrip(" ")
        dropped = min(self._known_spaces, len(text) - len(rest))
        self._known_spaces = 0 if rest else self._known_spaces - dropped
        return text[dropped:]

    def _stop_found(self, held: str, new: int) -> tuple[int, str] | None:
        """Return the start of the first complete stop string, and the string; `held[new:]` is new."""
        found = [
            (start + len(stop), start, stop)
            for stop in self._stop
            if (start := held.find(stop, max(0, new + 1 - len(stop)))) >= 0
        ]
        return min(found)[1:] if found else None

    def _undecided(self, held: str) -> int:
        """Return the length of the longest suffix of `held` that is a prefix of a stop string."""
        longest = min(len(held), len(self._stop[0]) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(held[-length:]) for stop in self._stop):
                return length
        return 0


Circles = Literal["end", "end_unlimited", "go_on"]
"""Which answers endless repetition ends: all, those without a token limit, or none."""

COPIES = 3  # of one stretch of text, one right after the other, ...
TOKENS = 256  # ... and at least this many tokens: tables and rows of zeros repeat for good reasons
_LATEST = 8  # tokens by which an earlier copy is found


class LoopDetector:
    """Watch the tokens of an answer as they come."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # of the latest tokens, wherever they occurred last
        self._length = 0  # of the stretch that is repeated; 0: none
        self._repeated = 0  # tokens that equal those a stretch earlier

    def add(self, token: int) -> bool:
        """Add the next token and return whether the text now ends in a repetition loop."""
        tokens = self._tokens
        length = self._length
        goes_on = length > 0 and tokens[-length] == token
        tokens.append(token)
        latest = tuple(tokens[-_LATEST:])
        end = len(tokens)
        if goes_on:
            self._repeated += 1
        elif earlier := self._ends.get(latest):
            self._length = end - earlier
            self._repeated = _LATEST
        else:
            self._length = self._repeated = 0
        self._ends[latest] = end
        whole = self._length + self._repeated
        return self._length > 0 and whole >= max(COPIES * self._length, TOKENS)


def _goes_on(event: PromptProgress | Round | ModeChanged) -> bool:
    """Return whether more follows that can as well follow later."""
    return isinstance(event, PromptProgress) or (isinstance(event, Round) and not event.is_last)


DecodeEvents = Generator[PromptProgress | Round | ModeChanged, None, None]


class AnswerEvents:
    """The text and the figures of one answer."""

    def __init__(
        self,
        text: AnswerText,
        tally: Tally,
        end_tokens: frozenset[int],
        stopwatch: Stopwatch,
        limit: int | None = None,
        *,
        circles: Circles = "end_unlimited",
    ) -> None:
        """Start empty; the answer ends with an end token, a stop string, or in endless repetition.

        `circles` says which answers endless repetition ends. Unless it is "go_on", thinking that repeats
        itself is closed, and so is thinking that ends without a required answer: once, where repetition ends
        the answer. Thinking whose budget is spent is closed, and any that follows it at once.
        """
        self._text = text
        self._end_tokens = end_tokens
        self._stopwatch = stopwatch
        self._limit = limit
        self._loop_detector = None if circles == "go_on" else LoopDetector()
        self._ends_circles = circles == "end" or (circles == "end_unlimited" and limit is None)
        self._ending: FinishReason | None = None
        self._may_close_thinking = True
        self._closes_thinking = False  # after this round
        self._is_closing = False  # until the forced tag has come
        self.thinking_is_to_be_closed = self._is_spent()  # by the decoder, which then continues
        self.paused = False
        self.tally = tally

    @property
    def ending(self) -> FinishReason:
        """Return the reason of the end: the answer itself, else its limit or the context's."""
        return self._ending or ("length" if self.tally.tokens == self._limit else "context")

    def events(
        self, events: DecodeEvents, wants_pause: Callable[[], bool] = lambda: False
    ) -> Iterator[GenerationEvent]:
        """Translate events of the token layer until the answer ends; the caller closes it.

        It stops earlier if the thinking has to be closed or a pause is requested, during which time does not
        count. More events may follow.
        """
        self.paused = self.thinking_is_to_be_closed = False
        self._stopwatch.go_on()
        for event in events:
            goes_on = _goes_on(event)
            if isinstance(event, Round):
                taken = self._take(event)
                # thinking is closed at the same token in every mode: later tokens of the round are dropped
                cut = event.up_to(taken if self._closes_thinking else taken + 1)
                goes_on = goes_on or len(cut.tokens) < len(event.tokens)
                if cut.tokens:
                    self.tally.add(cut.stats, len(cut.tokens), self._stopwatch.seconds())
                    with self._stopwatch.paused():
                        yield from self._told(event.scores[:taken])
                        yield RoundDone(cut.stats, len(cut.tokens))
            else:
                if isinstance(event, ModeChanged):
                    self.tally.change(event.mode)
                with self._stopwatch.paused():
                    yield event
            if self._ending is not None:
                return
            if self._closes_thinking:
                self._closes_thinking = False
                self.thinking_is_to_be_closed = goes_on
                return
            if wants_pause() and goes_on:
                self.paused = True
                self._stopwatch.stop()
                return

    def _told(self, scores: Sequence[TokenScore]) -> Iterator[GenerationEvent]:
        if scores:
            yield TokensScored(tuple(map(self._text.named, scores)))
        if pieces := self._text.take():
            yield TextDelta(pieces)

    def interrupt(self) -> None:
        """Stop counting time; events follow later as after a pause."""
        self.paused = True
        self._stopwatch.stop()

    def finish(self, reason: FinishReason, cached_tokens: int, slot: int = 0) -> Iterator[GenerationEvent]:
        """Yield the rest of the text, and the end with its reason and figures."""
        if pieces := self._text.finish():
            yield TextDelta(pieces)
        yield Finished(reason, self.summary(cached_tokens), self._text.stopped_by, slot)

    def summary(self, cached_tokens: int) -> Summary:
        """Return the figures so far."""
        return replace(self.tally.summary(cached_tokens), thinking_tokens=self._text.thinking_tokens)

    def _take(self, round_: Round) -> int:
        """Add a round's tokens to the text, up to that with which the answer ends itself.

        Returns how many there are before that, or up to where the thinking is to be closed.
        """
        for place, (token, provenance) in enumerate(zip(round_.tokens, round_.provenance, strict=True)):
            if token in self._end_tokens:
                if self._text.lacks_answer and self._closing():
                    return place
                self._ending = "stop"
            elif self._text.add(token, provenance):
                self._ending = "stop"
            elif self._is_spent():
                self._closes_thinking = True
                return place + 1
            elif self._goes_in_circles(token):
                if self._text.open_tags is not None and self._closing():
                    return place + 1
                if self._ends_circles:
                    self._ending = "circles"
            if self._ending is not None:
                return place
        return len(round_.tokens)

    def _is_spent(self) -> bool:
        """Return whether thinking is to be closed because its budget is spent; true once for each."""
        was_closing = self._is_closing and self._text.open_tags is not None
        self._is_closing = was_closing or self._text.has_spent_thinking
        return self._is_closing and not was_closing

    def _closing(self) -> bool:
        """Have the thinking closed; where nothing else would end an answer that opens it again, once."""
        self._closes_thinking = self._is_closing = self._may_close_thinking
        self._may_close_thinking = not self._ends_circles
        return self._closes_thinking

    def _goes_in_circles(self, token: int) -> bool:
        is_watched = self._ends_circles or self._text.open_tags is not None
        if self._loop_detector is None or not is_watched or not self._loop_detector.add(token):
            return False
        self._loop_detector = LoopDetector()
        return True
