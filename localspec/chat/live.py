"""Hand an answer from the thread that generates it to a screen that looks ten times a second."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from localspec.chat.answering import joined
from localspec.chat.messages import RoundMark, Shown, Span, StoredMessage
from localspec.chat.open_chat import AnswerEvent, Saved, Started
from localspec.types import Finished, ModeChanged, PromptProgress, RoundDone, TextDelta, TextPiece


@dataclass(frozen=True, slots=True)
class LiveUpdate:
    """What has come since the last look; of the progress only the latest."""

    started: StoredMessage | None = None
    text: str = ""
    pieces: tuple[TextPiece, ...] = ()  # of `text`, neighbours of different provenance
    rounds: tuple[RoundMark, ...] = ()
    progress: PromptProgress | None = None
    changes: tuple[ModeChanged, ...] = ()
    finished: Finished | None = None
    saved: Saved | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Pending:
    """An update that is being filled."""

    started: StoredMessage | None = None
    pieces: list[TextPiece] = field(default_factory=list)
    rounds: list[RoundMark] = field(default_factory=list)
    progress: PromptProgress | None = None
    changes: list[ModeChanged] = field(default_factory=list)
    finished: Finished | None = None
    saved: Saved | None = None
    error: BaseException | None = None

    def update(self) -> LiveUpdate:
        pieces = joined(self.pieces)
        return LiveUpdate(
            self.started,
            "".join(piece.text for piece in pieces),
            pieces,
            tuple(self.rounds),
            self.progress,
            tuple(self.changes),
            self.finished,
            self.saved,
            self.error,
        )


class LiveAnswer:
    """One answer under way: one thread puts events in, another takes out what they come to; neither waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending = _Pending()
        self._started: StoredMessage | None = None
        self._drained: list[TextPiece] = []

    def take(self, event: AnswerEvent) -> None:
        """Add the next event."""
        with self._lock:
            pending = self._pending
            match event:
                case TextDelta(pieces):
                    pending.pieces += pieces
                case RoundDone(stats, tokens):
                    pending.rounds.append(RoundMark(stats, tokens))
                case PromptProgress():
                    pending.progress = event
                case ModeChanged():
                    pending.changes.append(event)
                case Finished():
                    pending.finished = event
                case Started(message):
                    pending.started = message
                case Saved():
                    pending.saved = event

    def fail(self, error: BaseException) -> None:
        """Add that the answer ended with an error."""
        with self._lock:
            self._pending.error = error

    def drain(self) -> LiveUpdate:
        """Return what has come since the last call."""
        with self._lock:
            pending, self._pending = self._pending, _Pending()
        update = pending.update()
        self._started = update.started or self._started
        self._drained += update.pieces
        return update

    def so_far(self) -> Shown | None:
        """Return the message with what was drained, for a screen that shows it anew; None before `started`.

        It belongs to the thread that drains. The spans are those of the new text alone.
        """
        if self._started is None:
            return None
        pieces = joined(self._drained)
        text = self._started.content + "".join(piece.text for piece in pieces)
        spans = tuple(Span(len(piece.text), piece.provenance) for piece in pieces)
        return Shown(replace(self._started, content=text), spans=spans)
