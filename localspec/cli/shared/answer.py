"""Write one answer to standard output while it comes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, assert_never

from localspec.app.answer_options import AnswerOptions
from localspec.chat.answer_settings import Answered, Choice, Chooser, PairKnowledge
from localspec.cli.shared.console import StatusLine, on_interrupt, say, show
from localspec.cli.shared.opening import note
from localspec.inference.interface import OpenModels
from localspec.storage.profiles import Speculation
from localspec.types import (
    Finished,
    GenerationEvent,
    Mode,
    ModeChanged,
    PromptProgress,
    Request,
    RoundDone,
    TextDelta,
)

if TYPE_CHECKING:
    from localspec.inference.runtime import Runtime


_POLL_S = 0.1  # on Windows a waiting main thread hears Ctrl+C only between waits


def stream(runtime: Runtime, request: Request) -> Generator[GenerationEvent]:
    """Yield the events of one answer; Ctrl+C ends it with `Finished("cancelled")`, not with an exception.

    Close it when leaving early: that stops the computation and waits for it.
    """
    events: SimpleQueue[GenerationEvent | BaseException | None] = SimpleQueue()

    def generate() -> None:
        try:
            for event in runtime.generate(request):
                events.put(event)
            events.put(None)
        except BaseException as error:  # noqa: BLE001 - the reader raises it again
            events.put(error)

    thread = threading.Thread(target=generate, name="localspec-generate", daemon=True)
    ended, unwanted = False, threading.Event()

    def stop() -> None:
        unwanted.set()
        runtime.cancel()

    with on_interrupt(stop):
        thread.start()
        try:
            while not ended:
                if unwanted.is_set():
                    runtime.cancel()  # again and again: before their first step models hear nothing
                try:
                    event = events.get(timeout=_POLL_S)
                except Empty:
                    continue
                ended = event is None or isinstance(event, BaseException)
                if isinstance(event, BaseException):
                    raise event
                if event is not None:
                    yield event
        finally:
            while not ended and thread.is_alive():
                runtime.cancel()
                thread.join(_POLL_S)
            thread.join()


LONG_PROMPT = 512  # tokens; reading fewer is not worth a progress line


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


def write_answer(runtime: Runtime, request: Request, *, silent: bool, colours: bool) -> StreamedAnswer:
    """Print the answer while it comes, unless `silent`, and return it."""
    answer, status = StreamedAnswer(), StatusLine()
    with closing(stream(runtime, request)) as events:
        for event in events:
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
                case RoundDone():
                    pass
                case ModeChanged():
                    answer.changes.append(event)
                case Finished():
                    answer.finished = event
                case _:
                    assert_never(event)
    if not silent and answer.text and not answer.text.endswith("\n"):
        sys.stdout.write("\n")
    if answer.finished is not None and answer.finished.reason == "circles":
        say("note: the answer was ended because it repeats itself; with -n N it goes on to N tokens")
    return answer


class Decider:
    """Options and settings of the next answer; of the profile `auto` also whom it follows."""

    def __init__(
        self, models: OpenModels, experience: PairKnowledge, options: AnswerOptions, asked: Speculation
    ) -> None:
        """Begin with what the flags ask for."""
        self._chooser = Chooser(models, experience, note)
        self._experience = experience
        self._given = options = options.on(models.target.path)
        self._asked = asked
        self.options = options.under([])

    @property
    def choice(self) -> Choice:
        """Return how the next answer is decoded, as far as is known without its question."""
        return self._chooser.choose(self.options.profile, self._asked)

    def take(self, questions: Sequence[str]) -> str:
        """Decide for an answer to the last of the questions; return what is new to say about that."""
        before, self.options = self.options.profile, self._given.under(questions)
        changed = self.options.profile is not before
        return f"{self._given.profile.name}: {self.options.profile.name}" if changed else ""

    def learn(self, choice: Choice, answer: StreamedAnswer) -> None:
        """Count an answer in, where that is wanted."""
        if answer.finished is not None:
            steady, summary = not answer.changes, answer.finished.summary
            self._experience.learn(Answered(self.options.profile.task, choice.settings, summary, steady))

    def choose_mode(self, mode: Mode | None) -> None:
        """Decode the next answers in a mode, or in the one that pays."""
        self._asked = replace(self._asked, mode=mode)

    def set_temperature(self, temperature: float) -> None:
        """Pick the tokens of the next answers at a temperature."""
        self._given = replace(self._given, flags=replace(self._given.flags, temperature=temperature))
        self.options = replace(self.options, flags=self._given.flags)
