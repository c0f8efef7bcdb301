"""One answer from its first event to its last: saved as it comes, and passed on to the caller."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from time import monotonic
from typing import TypeVar

from localspec.chat.calls.pieces import Piece
from localspec.chat.calls.reader import AnswerReader
from localspec.chat.messages import AnswerRecord, Span, State, StoredMessage
from localspec.chat.tool_use.calls_apart import calls_apart
from localspec.chat.tool_use.calls_run import CallStarted
from localspec.chat.tool_use.consent import CallAsked
from localspec.chat.tree import Branches
from localspec.decoding.tally import Tally
from localspec.errors import Cancelled, EngineError, LocalSpecError, StoreError
from localspec.types.drafts import Provenance
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    ModeChanged,
    PromptProgress,
    RoundDone,
    TextDelta,
    TextPiece,
    ThinkingOpened,
)
from localspec.types.request import Request, ToolCall

T = TypeVar("T")
SAVE_EVERY_S = 0.3  # with the time that a save takes, a kill loses no text that is older than 0.5 s
ALIVE_S = 3.0  # between saves without new text: another program takes an answer for dead that is not saved

_STATES: dict[FinishReason, State] = {
    "stop": "complete",
    "length": "length",
    "context": "context",
    "circles": "circles",
    "cancelled": "stopped",
}


def joined(pieces: Iterable[TextPiece]) -> tuple[TextPiece, ...]:
    """Return the same text with neighbours of equal provenance as one piece."""
    groups = groupby((piece for piece in pieces if piece.text), key=lambda piece: piece.provenance)
    return tuple(TextPiece("".join(piece.text for piece in group), origin) for origin, group in groups)


def pieces_of(text: str, spans: Iterable[Span], begin: int = 0) -> list[TextPiece]:
    """Cut a text from `begin` by its spans; text outside of them is the target's own."""
    pieces = []
    start = 0
    for span in (*spans, Span(len(text), Provenance.TARGET)):
        end = min(start + span.length, len(text))
        if end > max(start, begin):
            pieces.append(TextPiece(text[max(start, begin) : end], span.provenance))
        start = end
    return pieces


@dataclass(frozen=True, slots=True)
class Started:
    """The answer has its place in the chat; a continued one comes with the text that it continues from.

    The record says how it is going to be written.
    """

    message: StoredMessage
    record: AnswerRecord


@dataclass(frozen=True, slots=True)
class AnswerSaved:
    """The answer as it is saved; one that calls tools `goes_on` with another message, after their results."""

    message: StoredMessage
    record: AnswerRecord | None
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class ResultSaved:
    """The result of a call, or a step of the question, as it is saved."""

    message: StoredMessage


@dataclass(frozen=True, slots=True)
class Titling:
    """The chat is getting a title, which may be cut short here."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """The model splits the question into steps, which may be cut short here."""


@dataclass(frozen=True, slots=True)
class Summarising:
    """The older part of the chat is being summarised, and this many tokens of that have come."""

    what: str  # and for about how long
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Summarised:
    """A summary stands for the older part of the chat from here on; `words` say what that changes."""

    words: str


AnswerEvent = (
    Started
    | GenerationEvent
    | Piece
    | AnswerSaved
    | CallAsked
    | CallStarted
    | ResultSaved
    | Titling
    | Splitting
    | Summarising
    | Summarised
)
Generate = Callable[[Request], Iterator[GenerationEvent]]
"""Writes an answer, as `OpenModels.generate` does."""


class AnswerRecorder:
    """An answer that goes from the models into the tree; it can be used once."""

    def __init__(
        self,
        branches: Branches,
        place: StoredMessage,
        record: AnswerRecord,
        asked_s: float | None = None,
        reader: AnswerReader | None = None,
    ) -> None:
        """Prepare an answer to `place`, or the continuation of that if it is an answer.

        The time to its first token counts from `asked_s` of the monotonic clock, if that is given. With a
        `reader` the answer may call tools.
        """
        self._reader = reader
        self._calls = list[ToolCall]()
        self._asked_s = asked_s
        self._before_s = 0.0
        self._branches = branches
        self._record = record
        self._trouble: LocalSpecError | None = None
        self._over = threading.Event()
        self._saver = threading.Thread(target=self._save_as_it_comes, name="localspec-save", daemon=True)
        self._rounds: list[RoundDone] = []
        self._changes: list[ModeChanged] = []
        self._tally = Tally(0, record.settings.mode)
        self._work_s = 0.0
        self._finished: Finished | None = None
        self._pieces: list[TextPiece] = []
        self._opening = ""  # of the thinking, as long as nothing has come of it
        self._earlier = place if place.role == "assistant" else None
        if self._earlier is None:
            self._id = branches.add(place.id, "assistant", "", state="writing").id
        else:
            self._id = place.id
            earlier = branches.record(place.id)
            self._pieces = pieces_of(place.content, earlier.spans if earlier is not None else ())
            self._keep("writing")

    def events(self, generate: Generate, request: Request) -> Generator[AnswerEvent]:
        """Yield the answer as `OpenChat.answer` promises it.

        Thinking that the prompt has opened is saved with its opening tag, so the text alone shows what
        it is. `ThinkingOpened` is not passed on.
        """
        failure: BaseException | None = None
        generated: Iterator[GenerationEvent] = iter(())
        self._saver.start()
        try:
            yield Started(self._branches.message(self._id), self._record)
            self._before_s = 0.0 if self._asked_s is None else monotonic() - self._asked_s
            generated = generate(request)
            for event in generated if self._reader is None else calls_apart(generated, self._reader):
                if isinstance(event, Piece):
                    self._take_call(event)
                    yield event
                    continue
                if isinstance(event, ThinkingOpened):
                    self._opening = "" if self._pieces else event.opening
                    continue
                completed = self._since_asked(self._with_opening(event))
                self._take(completed)
                yield completed
            state: State = _STATES[self._finished.reason] if self._finished else "failed"
        except GeneratorExit:
            self._end("stopped")
            if self._trouble is not None:
                raise self._trouble from None
            raise
        except Cancelled:
            state = "stopped"
        except BaseException as error:  # noqa: BLE001 - raised again once the text so far is saved
            state = "failed"
            failure = error
        finally:
            if isinstance(generated, Generator):  # stop the models at once, not when it is collected
                with suppress(EngineError):
                    generated.close()
        if (saved := self._end(state)) is not None:
            yield saved
        failure = failure or self._trouble
        if failure is not None:
            raise failure

    def _with_opening(self, event: GenerationEvent) -> GenerationEvent:
        """Return an event; before the first text put the tag that the prompt has opened the thinking with."""
        if not isinstance(event, TextDelta) or not self._opening:
            return event
        opening = TextPiece(self._opening, Provenance.TARGET)
        self._opening = ""
        return TextDelta((opening, *event.pieces))

    def _since_asked(self, event: GenerationEvent) -> GenerationEvent:
        """Return an event; the end tells when the first token came after the question was asked."""
        if not isinstance(event, Finished):
            return event
        summary = event.summary
        return replace(event, summary=replace(summary, first_token_s=summary.first_token_s + self._before_s))

    def _take(self, event: GenerationEvent) -> None:
        match event:
            case TextDelta(pieces):
                self._pieces += pieces
            case RoundDone(stats, tokens):
                self._rounds.append(event)
                self._work_s += stats.seconds
                self._tally.add(stats, tokens, self._work_s)
            case ModeChanged():
                self._changes.append(event)
                self._tally.change(event.mode)
            case Finished():
                self._finished = event
            case _:
                pass  # reading the prompt leaves no trace

    def _take_call(self, piece: Piece) -> None:
        if piece.id:
            self._calls.append(ToolCall(piece.id, piece.name, ""))
        self._calls[-1] = replace(self._calls[-1], arguments=self._calls[-1].arguments + piece.text)

    @property
    def _text(self) -> str:
        return "".join(piece.text for piece in self._pieces)

    def _save_as_it_comes(self) -> None:
        """Save new text at every interval, even while the models pause or write other answers."""
        saved = 0
        saved_s = monotonic()
        while not self._over.wait(SAVE_EVERY_S):
            is_new = len(self._pieces) > saved or self._trouble is not None
            if is_new or monotonic() - saved_s >= ALIVE_S:
                saved = len(self._pieces)
                saved_s = monotonic()
                self._keep("writing")

    def _end(self, state: State) -> AnswerSaved | None:
        """Save the finished answer; None if there is no text."""
        self._over.set()
        self._saver.join()  # no earlier state may be written after this one
        text = self._text
        earlier = self._earlier
        if earlier is not None and text == earlier.content and not self._calls:
            self._keep("complete" if state == "complete" else earlier.state)
        elif text or self._calls or state == "complete":
            self._keep(state, self._completed(), self._calls)
        else:
            try:
                self._branches.give_up(self._id)
            except StoreError as error:
                self._trouble = error
            return None
        return AnswerSaved(self._branches.message(self._id), self._branches.record(self._id))

    def _completed(self) -> AnswerRecord:
        """Return the record of the answer so far.

        For a continued answer, the spans cover the whole text and everything else describes the continuation,
        so speeds, rounds and seed belong together. If an answer ended without a summary, its rounds are
        added up; the size of the prompt is then unknown.
        """
        return replace(
            self._record,
            summary=self._finished.summary if self._finished else self._tally.summary(),
            rounds=tuple(self._rounds),
            spans=tuple(Span(len(piece.text), piece.provenance) for piece in joined(self._pieces)),
            changes=tuple(self._changes),
        )

    def _keep(self, state: State, record: AnswerRecord | None = None, calls: Sequence[ToolCall] = ()) -> None:
        """Write to the tree and the store; a store error is forgotten when a later write succeeds."""
        try:
            self._branches.write(self._id, self._text, state, record, calls)
            self._trouble = None
        except LocalSpecError as error:
            self._trouble = error


@dataclass(frozen=True, slots=True)
class LiveUpdate:
    """What has come of one message since the last look; of the progress only the latest."""

    started: Started | None = None
    pieces: tuple[TextPiece, ...] = ()  # neighbours of different provenance
    rounds: tuple[RoundDone, ...] = ()
    progress: PromptProgress | None = None
    changes: tuple[ModeChanged, ...] = ()
    calls: tuple[Piece, ...] = ()
    finished: Finished | None = None
    saved: AnswerSaved | None = None
    asked: CallAsked | None = None
    running: tuple[CallStarted, ...] = ()
    results: tuple[StoredMessage, ...] = ()
    error: BaseException | None = None
    summarising: Summarising | None = None
    summarised: Summarised | None = None
    splitting: Splitting | None = None

    @property
    def text(self) -> str:
        """Return the new text."""
        return "".join(piece.text for piece in self.pieces)


class LiveAnswer:
    """An answer in progress: one thread adds events, another takes out the result so far; neither waits."""

    def __init__(self) -> None:
        self._events: list[AnswerEvent | BaseException] = []
        self._seen = 0  # of these

    def take(self, event: AnswerEvent | BaseException) -> None:
        """Add the next event, or the error that the answer ended with."""
        self._events.append(event)

    @property
    def is_behind(self) -> bool:
        """Return whether events have come since the last call of `drain`."""
        return self._seen < len(self._events)

    def drain(self) -> LiveUpdate:
        """Return the text and events since the last call, up to the beginning of another message."""
        events = self._events[self._seen :]
        later = (at for at, event in enumerate(events) if at and isinstance(event, Started))
        events = events[: next(later, None)]
        self._seen += len(events)
        return _update(events)

    def drain_all(self) -> LiveUpdate:
        """Return the same of the whole message in progress, for a view that has seen none of it."""
        begun = (at for at, event in enumerate(self._events) if isinstance(event, Started))
        self._seen = max(begun, default=0)
        update = self.drain()
        return replace(update, progress=None) if update.rounds else update


def _update(events: Sequence[AnswerEvent | BaseException]) -> LiveUpdate:
    return LiveUpdate(
        _latest(Started, events),
        joined(piece for event in events if isinstance(event, TextDelta) for piece in event.pieces),
        tuple(event for event in events if isinstance(event, RoundDone)),
        _latest(PromptProgress, events),
        tuple(event for event in events if isinstance(event, ModeChanged)),
        tuple(event for event in events if isinstance(event, Piece)),
        _latest(Finished, events),
        _latest(AnswerSaved, events),
        _latest(CallAsked, events),
        tuple(event for event in events if isinstance(event, CallStarted)),
        tuple(event.message for event in events if isinstance(event, ResultSaved)),
        _latest(BaseException, events),
        _latest(Summarising, events),
        _latest(Summarised, events),
        _latest(Splitting, events),
    )


def _latest(kind: type[T], events: Sequence[object]) -> T | None:
    return next((event for event in reversed(events) if isinstance(event, kind)), None)
