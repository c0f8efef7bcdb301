"""One answer from its first event to its last: kept while it comes, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass

from localspec.chat.messages import AnswerRecord, State, StoredMessage
from localspec.chat.tree import Branches
from localspec.chat.writing import Writing
from localspec.errors import Cancelled, EngineError, StoreError
from localspec.inference.interface import OpenModels
from localspec.types import FinishReason, GenerationEvent, Request, TextDelta

SAVE_EVERY_S = 0.4  # a kill loses no more of the text

_STATES: dict[FinishReason, State] = {
    "stop": "complete",
    "length": "length",
    "context": "context",
    "circles": "circles",
    "cancelled": "stopped",
}


@dataclass(frozen=True, slots=True)
class Started:
    """The answer has its place in the chat; a continued one comes with the text that it goes on from."""

    message: StoredMessage


@dataclass(frozen=True, slots=True)
class Saved:
    """The answer as it is kept."""

    message: StoredMessage
    record: AnswerRecord | None


AnswerEvent = Started | GenerationEvent | Saved


class Answering:
    """An answer on its way from the models into the tree; good for one use."""

    def __init__(
        self,
        branches: Branches,
        place: StoredMessage,
        record: AnswerRecord,
        clock: Callable[[], float],
    ) -> None:
        """Prepare an answer to `place` if that is a question, else the continuation of that answer."""
        self._branches = branches
        self._record = record
        self._clock = clock
        self._trouble: StoreError | None = None
        self._earlier = place if place.role == "assistant" else None
        if self._earlier is None:
            self._id = branches.add(place.id, "assistant", "", state="writing").id
            self._writing = Writing(record.settings.mode)
        else:
            earlier = branches.record(place.id)
            self._id = place.id
            self._writing = Writing(record.settings.mode, place.content, earlier.spans if earlier else ())
            self._keep(place.content, "writing")
        self._saved_s = clock()

    def events(self, models: OpenModels, request: Request) -> Generator[AnswerEvent]:
        """Yield the answer as `OpenChat.answer` promises it."""
        failure: BaseException | None = None
        generated: Iterator[GenerationEvent] = iter(())
        try:
            yield Started(self._branches.message(self._id))
            generated = models.generate(request)
            for event in generated:
                self._take(event)
                yield event
            finished = self._writing.finished
            state: State = _STATES[finished.reason] if finished else "failed"
        except GeneratorExit:
            self._end("stopped")
            if self._trouble is not None:
                raise self._trouble from None
            raise
        except Cancelled:
            state = "stopped"
        except BaseException as error:  # noqa: BLE001 - raised again when what came is kept
            state, failure = "failed", error
        finally:
            _close(generated)
        if (saved := self._end(state)) is not None:
            yield saved
        failure = failure or self._trouble
        if failure is not None:
            raise failure

    def _take(self, event: GenerationEvent) -> None:
        self._writing.take(event)
        if isinstance(event, TextDelta) and self._clock() - self._saved_s >= SAVE_EVERY_S:
            self._keep(self._writing.text, "writing")
            self._saved_s = self._clock()

    def _end(self, state: State) -> Saved | None:
        """Keep the answer as it stands at its end; None if nothing came of it."""
        text, earlier = self._writing.text, self._earlier
        if earlier is not None and text == earlier.content:
            self._keep(text, "complete" if state == "complete" else earlier.state)
        elif text or state == "complete":
            self._keep(text, state, self._writing.completed(self._record))
        else:
            self._give_up()
            return None
        return Saved(self._branches.message(self._id), self._branches.record(self._id))

    def _keep(self, text: str, state: State, record: AnswerRecord | None = None) -> None:
        """Write to tree and store; trouble with the store is over when a later write succeeds."""
        try:
            self._branches.write(self._id, text, state, record)
            self._trouble = None
        except StoreError as error:
            self._trouble = error

    def _give_up(self) -> None:
        try:
            self._branches.give_up(self._id)
        except StoreError as error:
            self._trouble = error


def _close(generated: Iterator[GenerationEvent]) -> None:
    """Let the models stop at once, rather than when the iterator is collected."""
    if isinstance(generated, Generator):
        with suppress(EngineError):
            generated.close()
