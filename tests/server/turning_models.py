"""Open models that write words in turns, one at each step that a test allows, and die when told to."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from localspec.errors import EngineDied
from localspec.inference.interface import check_room
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    Paused,
    PromptProgress,
    RoundDone,
    RoundStats,
    Summary,
    TextDelta,
    TextPiece,
)
from localspec.types.models import SavedConversations
from localspec.types.request import EngineSettings, Message, Request, TemplateVariables
from tests.cli.fake_runtime import FakeRuntime
from tests.letter_tokens import LetterTokens

ROUND = RoundStats(0, 0, DraftOrigin.NONE, 0.0, 0.0, 0.0, 0.0)


@dataclass
class TurningModels(LetterTokens, FakeRuntime):
    """Each answer is `max_tokens` times the first letter of its prompt; `steps` allows rounds."""

    size: int = 1  # times that letter in a round
    steps: threading.Semaphore | None = None
    written: list[str] = field(default_factory=list)  # the prompt's first letter for each round, in order
    reads: list[str] = field(default_factory=list)  # prompts, in order
    dropped: list[int] = field(default_factory=list)
    cancels: threading.Event = field(default_factory=threading.Event)
    pauses: threading.Event = field(default_factory=threading.Event)
    dies: threading.Event = field(default_factory=threading.Event)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    still: dict[int, Iterator[GenerationEvent]] = field(default_factory=dict)

    def choose_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        return replace(settings or EngineSettings(), mode="off"), "made up"

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.requests.append(request)
        prompt = request.prompt
        words = len(prompt.split()) if isinstance(prompt, str) else self.count_tokens(prompt)
        check_room(words, self.target)
        yield from self._until_paused(self._rounds(request))

    def read(self, request: Request) -> Iterator[GenerationEvent]:
        """Read a token at each step."""
        said = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
        self.reads.append(said)
        self.cancels.clear()
        for done in range(1, len(said) + 1):
            if self.steps is not None:
                self.steps.acquire(timeout=20)
            if self.dies.is_set():
                raise EngineDied("the model process was ended by the system (SIGKILL)")
            if self.cancels.is_set():
                yield Finished("cancelled", Summary(prompt_tokens=done - 1))
                return
            yield PromptProgress(done, len(said))
        yield Finished("length", Summary(prompt_tokens=len(said)))

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        yield from self._until_paused(self.still.pop(number))

    def pause(self) -> None:
        self.pauses.set()

    def cancel(self) -> None:
        self.cancels.set()

    def drop(self, number: int) -> None:
        self.dropped.append(number)
        del self.still[number]

    def keep_conversations(self, limit: int, on_disk: int = 0) -> None:
        pass

    def saved(self) -> SavedConversations:
        if self.dies.is_set():
            raise EngineDied("the model process was ended by the system (SIGKILL)")
        return SavedConversations(len(self.still))

    def count_tokens(
        self, messages: Sequence[Message], tools: Sequence[str] = (), variables: TemplateVariables = ()
    ) -> int:
        return sum(len(message.content.split()) for message in messages)

    def _until_paused(self, rounds: Iterator[GenerationEvent]) -> Iterator[GenerationEvent]:
        self.pauses.clear()
        self.cancels.clear()
        for event in rounds:
            yield event
            if self.pauses.is_set() and not isinstance(event, Finished):
                number = next(self.numbers)
                self.still[number] = rounds
                yield Paused(number)
                return

    def _rounds(self, request: Request) -> Iterator[GenerationEvent]:
        said = request.prompt if isinstance(request.prompt, str) else request.prompt[-1].content
        letter, number = said[:1], 0
        yield PromptProgress(1, 1)
        while number < (request.max_tokens or 1_000_000) and not self.cancels.is_set():
            if self.steps is not None:
                self.steps.acquire(timeout=20)
            else:
                self.cancels.wait(0.001)  # no models write faster
            if self.dies.is_set():
                raise EngineDied("the model process was ended by the system (SIGKILL)")
            number += 1
            self.written.append(letter)
            yield TextDelta((TextPiece(letter * self.size, Provenance.TARGET),))
            yield RoundDone(ROUND, 1)
        reason: FinishReason = "cancelled" if self.cancels.is_set() else "length"
        yield Finished(reason, Summary(prompt_tokens=len(said), tokens=number))
