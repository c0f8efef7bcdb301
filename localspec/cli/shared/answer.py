"""Write one answer to standard output while it comes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from localspec import units
from localspec.cli.shared.console import StatusLine, Styled, is_terminal, on_interrupt, say
from localspec.safe_text import safe_text
from localspec.types import Finished, ModeChanged, PromptProgress, Provenance, TextDelta

if TYPE_CHECKING:
    from localspec.chat.answering import AnswerEvent
    from localspec.inference.interface import OpenModels

STUCK_S = 2.0  # without a sign of stopping: the engine hears nothing any more
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


def stream(models: OpenModels, answer: Iterator[AnswerEvent]) -> Generator[AnswerEvent]:
    """Yield the events of one answer; Ctrl+C ends it with `Finished("cancelled")`, not with an exception.

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

    thread = threading.Thread(target=generate, name="localspec-generate", daemon=True)
    ended, is_stuck, stopped_s = False, False, 0.0

    def stop() -> None:
        nonlocal stopped_s
        if is_stuck:
            raise KeyboardInterrupt
        stopped_s = stopped_s or time.monotonic()
        models.cancel()

    with on_interrupt(stop), StatusLine() as status:
        thread.start()
        try:
            while not ended:
                if stopped_s:
                    models.cancel()  # again and again: before their first step models hear nothing
                    if not is_stuck and time.monotonic() - stopped_s >= STUCK_S:
                        is_stuck = True
                        say("note: the engine does not react; Ctrl+C again ends it")
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
                (models.close if is_stuck or time.monotonic() >= ends else models.cancel)()
                thread.join(_POLL_S)
            thread.join()


@dataclass(slots=True)
class StreamedAnswer:
    """What has come of an answer so far."""

    pieces: list[str] = field(default_factory=list)
    changes: list[ModeChanged] = field(default_factory=list)
    finished: Finished | None = None

    @property
    def text(self) -> str:
        """Return the answer as far as it has come."""
        return "".join(self.pieces)


def write_answer(
    models: OpenModels, events: Iterator[AnswerEvent], *, silent: bool, colours: bool
) -> StreamedAnswer:
    """Print the answer while it comes, unless `silent`, and return it."""
    answer, status = StreamedAnswer(), StatusLine()
    with closing(stream(models, events)) as streamed:
        for event in streamed:
            if not isinstance(event, PromptProgress):
                status.clear()
            match event:
                case PromptProgress():
                    if event.total >= LONG_PROMPT:
                        status.update(f"reading the prompt: {event.done / event.total:.0%}")
                case TextDelta():
                    answer.pieces.append(event.text)
                    if not silent:
                        show(event, colours=colours)
                case ModeChanged():
                    answer.changes.append(event)
                case Finished():
                    answer.finished = event
    if not silent and answer.text and not answer.text.endswith("\n"):
        sys.stdout.write("\n")
    if answer.finished is not None and answer.finished.reason == "circles":
        goes_on = "it goes on with --ignore-circles, or with -n N to N tokens"
        say(f"note: the answer was ended because it repeats itself; {goes_on}")
    return answer


def show(delta: TextDelta, *, colours: bool) -> None:
    """Write new text of an answer to standard output at once."""
    for piece in delta.pieces:
        text = safe_text(piece.text) if is_terminal(sys.stdout) else piece.text
        style, _ = _STYLES[piece.provenance] if colours else ("", "")
        sys.stdout.write(Styled(f"{style}{text}{_RESET}") if style else text)
    sys.stdout.flush()
