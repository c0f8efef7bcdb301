"""Write one answer while it comes: itself to standard output, the thinking before it to standard error."""

from __future__ import annotations

import sys
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Self

from localspec import units
from localspec.chat.thinking import ThinkingReader
from localspec.cli.shared.console import (
    ConsoleStatus,
    Styled,
    is_terminal,
    on_interrupt,
    say,
    write_aside,
)
from localspec.safe_text import safe_text
from localspec.thinking_tags import Stretch, StretchKind, tags_of
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, ModeChanged, PromptProgress, TextDelta, TextPiece, ThinkingOpened

if TYPE_CHECKING:
    from localspec.chat.answer_turns import AnswerTurn
    from localspec.chat.answering import AnswerEvent
    from localspec.inference.interface import OpenModels

STUCK_S = 2.0  # after `stop`, without an end: the engine does not respond
LONG_PROMPT = 512  # tokens; reading fewer is not worth a progress line
_POLL_S = 0.1  # on Windows a waiting main thread hears Ctrl+C only between waits
_RESET = "\x1b[0m"
_STYLES = {
    Provenance.TARGET: ("", "target"),
    Provenance.ACCEPTED: ("\x1b[32m", "accepted draft"),
    Provenance.PREPARED: ("\x1b[36m", "prepared draft"),
    Provenance.BONUS: ("\x1b[33m", "bonus"),
}
LEGEND = Styled(", ".join(f"{style}{word}{_RESET if style else ''}" for style, word in _STYLES.values()))


def stream(
    models: OpenModels, answer: Iterator[AnswerEvent], cancel: Callable[[], None] | None = None
) -> Generator[AnswerEvent]:
    """Yield the events of one answer; Ctrl+C ends it with `Finished("cancelled")`, not with an exception.

    `cancel` does that, if it is given, in place of the models' own.

    Only models that do not react to it are closed, at the next one, which raises KeyboardInterrupt.
    Close it when leaving early: that stops the computation, and the models if they do not react.
    """
    events: SimpleQueue[AnswerEvent | BaseException | None] = SimpleQueue()

    def generate() -> None:
        try:
            for event in answer:
                events.put(event)
            events.put(None)
        except BaseException as error:  # noqa: BLE001 - the reader raises it again
            events.put(error)

    cancel = cancel or models.cancel
    thread = threading.Thread(target=generate, name="localspec-generate", daemon=True)
    ended = False
    is_stuck = False
    stopped_s = 0.0

    def stop() -> None:
        nonlocal stopped_s
        if is_stuck:
            raise KeyboardInterrupt
        stopped_s = stopped_s or time.monotonic()
        cancel()

    with on_interrupt(stop), ConsoleStatus() as status:
        thread.start()
        try:
            while not ended:
                if stopped_s:
                    cancel()  # again and again: before their first step models hear nothing
                    if not is_stuck and time.monotonic() - stopped_s >= STUCK_S:
                        is_stuck = True
                        say("note: the model process is not responding; Ctrl+C again ends it")
                try:
                    event = events.get(timeout=_POLL_S)
                except Empty:
                    if (seconds := models.first_call_s()) is not None:
                        status.update(units.first_call(seconds))
                    continue
                status.clear()
                ended = event is None or isinstance(event, BaseException)
                if isinstance(event, BaseException):
                    raise event
                if event is not None:
                    yield event
        finally:
            ends = time.monotonic() + STUCK_S
            while not ended and thread.is_alive():
                (models.close if is_stuck or time.monotonic() >= ends else cancel)()
                thread.join(_POLL_S)
            thread.join()


@dataclass(frozen=True, slots=True)
class AnswerOutput:
    """What is written of an answer, and how."""

    answer: bool = True
    thinking: bool = False
    colours: bool = False  # by origin

    @classmethod
    def asked(cls, args: Namespace) -> AnswerOutput:
        """Return the options of the flags; by default, thinking goes to a terminal's standard error."""
        shows = args.show_thinking
        if shows is None:
            shows = is_terminal(sys.stderr) and not args.json
        return cls(not args.json, shows, bool(args.color))


@dataclass(slots=True)
class StreamedAnswer:
    """What has come of an answer so far, the thinking apart."""

    written: list[str] = field(default_factory=list)
    thought: list[str] = field(default_factory=list)
    changes: list[ModeChanged] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def text(self) -> str:
        """Return the answer so far, without thinking."""
        return "".join(self.written)

    @property
    def thinking(self) -> str:
        """Return the thinking before the answer."""
        return "".join(self.thought)

    @property
    def is_thought_alone(self) -> bool:
        """Return whether the model thought, and said nothing."""
        return bool(self.thinking.strip()) and not self.text.strip()


def write_answer(
    models: OpenModels,
    events: Iterator[AnswerEvent],
    output: AnswerOutput,
    *,
    is_bare: bool = False,
    turn: AnswerTurn | None = None,
) -> StreamedAnswer:
    """Print the answer while it comes, and return it; of a bare completion all is answer.

    Calls of tools wait for consent at the desk of its `turn`.
    """
    writer = _Writer(output, is_bare=is_bare)
    status = ConsoleStatus()
    answer = writer.answer
    with writer, closing(stream(models, events, None if turn is None else turn.cancel)) as streamed:
        for event in streamed:
            if turn is not None:
                _tell_step(event, turn, writer)
            if not isinstance(event, PromptProgress):
                status.clear()
            match event:
                case PromptProgress():
                    if event.total >= LONG_PROMPT:
                        status.update(f"reading the prompt: {event.done / event.total:.0%}")
                case ThinkingOpened():
                    writer.open(event)
                case TextDelta():
                    writer.take(event)
                case ModeChanged():
                    answer.changes.append(event)
                case Finished():
                    answer.finished = event
    writer.end_line()
    if answer.finished is not None and answer.finished.reason == "circles":
        goes_on = "add --ignore-circles to continue, or -n N for up to N tokens"
        say(f"note: the answer was ended because it repeats itself; {goes_on}")
    elif answer.finished is not None and answer.finished.reason != "cancelled" and writer.is_thinking:
        say("note: the model was still thinking when its turn ended")
    elif answer.finished is not None and answer.finished.reason == "stop" and answer.is_thought_alone:
        say("note: the model ended its turn after thinking, without an answer")
    return answer


def _tell_step(event: AnswerEvent, turn: AnswerTurn, writer: _Writer) -> None:
    """Print a step of an answer that calls tools, and ask about a call."""
    from localspec.chat.answering import AnswerSaved, ResultSaved
    from localspec.chat.messages import SAID_NOTHING
    from localspec.chat.tool_use.consent import CallAsked
    from localspec.cli.shared.consent import ConsoleConsent, tell_calls, tell_result

    if isinstance(event, AnswerSaved) and event.goes_on:
        writer.begin_another()
        tell_calls(event.message)
    elif isinstance(event, AnswerSaved) and event.message.is_silent:
        say(f"note: {SAID_NOTHING}")
    elif isinstance(event, CallAsked):
        ConsoleConsent(turn).ask(event)
    elif isinstance(event, ResultSaved):
        tell_result(event.message)


class _Writer:
    """Writes the text of one answer where it belongs, and in the end all of it."""

    def __init__(self, output: AnswerOutput, *, is_bare: bool) -> None:
        self.answer = StreamedAnswer()
        self._output = output
        self._is_bare = is_bare
        self._reader = ThinkingReader()
        self._origins = deque[TextPiece]()  # of the text that the parser holds back
        self._last: StretchKind = "tag"
        self._line_is_open = False  # on standard error

    @property
    def is_thinking(self) -> bool:
        """Return whether the text ends inside thinking."""
        return not self._is_bare and self._reader.is_thinking

    def open(self, event: ThinkingOpened) -> None:
        """Take note that the prompt has opened the thinking."""
        self._reader = ThinkingReader(tags_of(event.opening))

    def take(self, delta: TextDelta) -> None:
        """Write new text, up to the part that is still uncertain."""
        if self._is_bare:
            self._say(delta.pieces)
            return
        self._origins += delta.pieces
        self._tell(self._reader.feed(delta.text))

    def begin_another(self) -> None:
        """End a message: another follows in the same answer."""
        if not self._is_bare:
            self._tell(self._reader.feed("", more=False))
        self._end_thinking("\n")
        self._reader = ThinkingReader()
        if self.answer.written and not self.answer.written[-1].endswith("\n"):
            self.end_line()
            self.answer.written.append("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_bare:
            self._tell(self._reader.feed("", more=False))
        self._end_thinking("\n")

    def end_line(self) -> None:
        """End the last line of the answer."""
        if self._output.answer and self.answer.written and not self.answer.written[-1].endswith("\n"):
            sys.stdout.write("\n")

    def _tell(self, stretches: Iterable[Stretch]) -> None:
        for kind, text in stretches:
            pieces = self._next_pieces(len(text))
            if kind == "answer":
                self._end_thinking("\n\n")
                self._say(pieces)
            elif kind == "thinking":
                self._think(text, goes_on=self._last == kind)
            self._last = kind

    def _say(self, pieces: Sequence[TextPiece]) -> None:
        self.answer.written += [piece.text for piece in pieces if piece.text]
        if self._output.answer:
            show(pieces, colours=self._output.colours)

    def _think(self, text: str, *, goes_on: bool) -> None:
        between = "\n\n" if self.answer.thought and not goes_on else ""
        self.answer.thought.append(between + text)
        if self._output.thinking:
            heading = between if self._line_is_open else "Thinking:\n"
            self._line_is_open = True
            write_aside(heading + text)

    def _end_thinking(self, between: str) -> None:
        """Separate the answer from the thinking above it."""
        if self._line_is_open:
            write_aside(between)
            self._line_is_open = False

    def _next_pieces(self, count: int) -> list[TextPiece]:
        """Return the next `count` characters of the text with their origins."""
        found = list[TextPiece]()
        while count:
            piece = self._origins.popleft()
            found.append(TextPiece(piece.text[:count], piece.provenance))
            if rest := piece.text[count:]:
                self._origins.appendleft(TextPiece(rest, piece.provenance))
            count -= len(found[-1].text)
        return found


def show(pieces: Sequence[TextPiece], *, colours: bool) -> None:
    """Write new text of an answer to standard output at once."""
    for piece in pieces:
        text = safe_text(piece.text) if is_terminal(sys.stdout) else piece.text
        style, _ = _STYLES[piece.provenance] if colours else ("", "")
        sys.stdout.write(Styled(f"{style}{text}{_RESET}") if style else text)
    sys.stdout.flush()
