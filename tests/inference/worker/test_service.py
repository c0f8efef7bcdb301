"""What the child does with requests, on models that are slow to hear."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, cast

import pytest

from localspec.errors import EngineError, UserError
from localspec.inference.runtime import Runtime
from localspec.inference.worker import child
from localspec.inference.worker.child import ModelService, Outbox
from localspec.inference.worker.rest import Surroundings
from localspec.inference.worker.wire import (
    Call,
    Cancel,
    Events,
    Failure,
    FirstCall,
    LogLine,
    Measuring,
    Read,
    ReadSoFar,
    Result,
    Told,
)
from localspec.types.drafts import DraftOrigin, Provenance
from localspec.types.events import (
    Finished,
    GenerationEvent,
    ReadAhead,
    RoundDone,
    RoundStats,
    Summary,
    TextDelta,
    TextPiece,
)
from localspec.types.request import Request

CANCELLED = Finished("cancelled", Summary())


class HardOfHearing:
    """Models that miss the first cancel, as the runtime does before its first step."""

    lacks_costs = False
    seats = 1
    uses_processor = False
    keeps_on_disk = True

    def __init__(self) -> None:
        self.cancels = 0
        self.begun, self._heard = threading.Event(), threading.Event()
        self.has_read = threading.Event()

    def generate(self, _request: object) -> Iterator[GenerationEvent]:
        self.begun.set()
        self._heard.wait()
        yield CANCELLED

    def until_cancelled(self) -> None:
        self.begun.set()
        self._heard.wait()

    def writes_in_s(self) -> float | None:
        return None

    def cancel(self) -> None:
        self.cancels += 1
        if self.cancels > 1:
            self._heard.set()

    def count_tokens(self, messages: tuple[object, ...]) -> int:
        return len(messages)

    def tokenize(self, _text: str) -> list[int]:
        self.has_read.wait()
        return []

    def measure_plain(self) -> None:
        raise MemoryError


@dataclass
class Line:
    """A service, and the other end of its pipe."""

    service: ModelService
    outbox: Outbox
    models: HardOfHearing
    stream: IO[bytes]

    def read(self, count: int) -> list[Told]:
        items: list[Told] = []
        while len(items) < count:
            items += pickle.load(self.stream)
        return items


@pytest.fixture
def line() -> Iterator[Line]:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write, "wb", buffering=0) as sink:
        outbox, models = Outbox(sink), HardOfHearing()
        service = ModelService(outbox)
        service._runtime = cast(Runtime, models)
        yield Line(service, outbox, models, stream)
        outbox.flush(timeout_s=20)


def test_a_cancel_that_was_missed_is_repeated(line: Line) -> None:
    line.service.take(Call(1, "generate", ("prompt",)))
    line.models.begun.wait()
    line.service.take(Cancel(1))
    assert line.read(2) == [Events(1, (CANCELLED,)), Result(1, None)]
    assert line.models.cancels > 1


def test_nothing_waits_for_a_long_text(line: Line) -> None:
    line.service.take(Call(1, "tokenize", ("megabytes",)))
    line.service.take(Call(2, "tokenize", ("as many",)))
    line.service.take(Call(3, "count_tokens", ((1, 2),)))
    assert line.read(1) == [Result(3, 2)]
    line.models.has_read.set()
    assert len(line.read(2)) == 2


def test_measuring_after_an_answer_gives_way_to_the_next_call(line: Line) -> None:
    line.models.measure_plain = line.models.until_cancelled  # type: ignore[method-assign]
    line.service.take(Call(1, "measure_plain", ()))
    line.models.begun.wait()
    line.models.cancels = 1  # it hears the next one
    line.service.take(Call(2, "generate", ("prompt",)))
    assert line.read(3) == [Result(1, None), Events(2, (CANCELLED,)), Result(2, None)]


def test_of_many_cancels_one_is_repeated(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    insisted: list[object] = []
    monkeypatch.setattr(line.service, "_insist", insisted.append)
    line.service.take(Call(1, "generate", ("prompt",)))
    line.models.begun.wait()
    for _ in range(3):
        line.service.take(Cancel(1))
    for thread in threading.enumerate():
        if thread.name == "localspec-cancel":
            thread.join()
    assert len(insisted) == 1
    line.models.cancel()
    line.models.cancel()
    assert line.read(2) == [Events(1, (CANCELLED,)), Result(1, None)]


def test_a_cancel_of_what_has_ended_or_waits_leaves_the_running_call_alone(line: Line) -> None:
    line.service.take(Call(1, "generate", ("prompt",)))
    line.models.begun.wait()
    line.service.take(Call(2, "generate", ("prompt",)))
    line.service.take(Cancel(2))
    line.service.take(Cancel(7))
    line.service.take(Call(3, "count_tokens", ((1, 2),)))
    assert line.read(1) == [Result(3, 2)]
    assert line.models.cancels == 0
    line.service.take(Cancel(1))
    assert [item for item in line.read(4) if isinstance(item, Result)] == [Result(1, None), Result(2, None)]


def test_stopping_cancels_everything(line: Line) -> None:
    for number in (1, 2):
        line.service.take(Call(number, "generate", ("prompt",)))
    line.service.stop(patience_s=20)
    assert len(line.read(4)) == 4


def test_want_of_memory_is_reported_in_words(line: Line) -> None:
    line.service.take(Call(1, "measure_plain", ()))
    (failure,) = line.read(1)
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, EngineError)
    assert "not enough memory" in str(failure.error)


def test_nothing_can_be_asked_before_models_are_open(line: Line) -> None:
    line.service._runtime = None
    line.service.take(Call(1, "memory", ()))
    (failure,) = line.read(1)
    assert isinstance(failure, Failure)
    assert "no models are open" in str(failure.error)


@pytest.mark.slow
def test_a_reader_that_lags_gets_everything_in_order(line: Line) -> None:
    lines = [LogLine(10, "name", "x" * 100) for _ in range(10_000)]  # more than a pipe holds
    for item in lines:
        line.outbox.put(item)
    assert line.read(10_000) == lines


def test_writing_to_no_one_ends_quietly(line: Line) -> None:
    line.stream.close()
    line.outbox.put(LogLine(10, "name", "text"))
    line.outbox.flush(timeout_s=20)


def test_gpus_that_begin_and_end_making_programs_are_reported_once_each(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = [None, 2.5, 3.0, 3.5, None, None]

    class Models:
        uses_cards = True

        def first_call_s(self) -> float | None:
            self.uses_cards = len(looks) > 1
            return looks.pop(0)

    monkeypatch.setattr(child, "_WATCH_S", 0.0)
    line.service._watch(cast(Runtime, Models()))
    assert line.read(2) == [FirstCall(2.5), FirstCall(None)]


class Unwritten(HardOfHearing):
    """Models with a conversation that is to be written to disk."""

    def __init__(self) -> None:
        super().__init__()
        self.left_s: float | None = 0.0
        self.written = threading.Event()
        self.left: list[float] = []  # limits within which the rest was to be written

    def writes_in_s(self) -> float | None:
        return self.left_s

    def write_resting(self) -> None:
        self.left_s = None
        self.written.set()

    def write_before_leaving(self, limit_s: float) -> None:
        self.left.append(limit_s)


def test_a_conversation_that_rests_is_written_between_calls(line: Line) -> None:
    models = Unwritten()
    line.service._runtime = models  # type: ignore[assignment]
    line.service.take(Call(1, "nothing", ()))
    assert models.written.wait(20)
    line.service.stop(patience_s=20)
    line.service.write_before_leaving(5.0)
    assert models.left == [5.0]


def test_models_that_hang_write_nothing_at_the_end(line: Line) -> None:
    models = Unwritten()
    line.service._runtime = models  # type: ignore[assignment]
    line.service.take(Call(1, "generate", ("prompt",)))
    assert models.begun.wait(20)
    line.service.write_before_leaving(5.0)
    assert models.left == []
    line.service.stop(patience_s=20)


class LackingCosts(HardOfHearing):
    """Models that measure costs until they are cancelled."""

    lacks_costs = True

    def measure_between_answers(self, wanted: Callable[[], bool]) -> None:
        assert not wanted()
        self.begun.set()
        assert self._heard.wait(20)

    def cancel(self) -> None:
        self._heard.set()


def test_it_reports_that_it_measures_and_a_question_ends_that(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_IDLE_S", 0.0)
    line.service._runtime = cast(Runtime, models := LackingCosts())
    line.service.take(Call(1, "measure_plain", ()))  # after which no one asks anything
    told = line.read(2)
    assert isinstance(told[0], Failure)
    assert told[1] == Measuring(is_under_way=True)
    assert models.begun.wait(20)
    models.lacks_costs = False
    line.service.take(Call(2, "generate", ("prompt",)))
    assert line.read(3) == [Measuring(is_under_way=False), Events(2, (CANCELLED,)), Result(2, None)]


class Reading(HardOfHearing):
    """Models that read ahead a piece at a time, and wait after the first until they are cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[object] = []
        self.goes_on = threading.Event()

    def read_now(self, request: object, wanted: Callable[[], bool]) -> Iterator[ReadAhead]:
        self.asked.append(request)
        for tokens in (64, 128) if wanted() else ():
            yield ReadAhead(tokens, 128)
            self.begun.set()
            assert self.goes_on.wait(20)
            if self.cancels:
                return

    def cancel(self) -> None:
        super().cancel()
        self.goes_on.set()


@pytest.fixture
def reading(line: Line) -> Reading:
    models = Reading()
    line.service._runtime = cast(Runtime, models)
    return models


ONE, OTHER = (Request(text) for text in ("one", "other"))


def test_it_reads_ahead_and_reports_how_far_it_is(line: Line, reading: Reading) -> None:
    reading.goes_on.set()
    line.service.take(Read(7, ONE))
    assert line.read(2) == [ReadSoFar(7, ReadAhead(64, 128)), ReadSoFar(7, ReadAhead(128, 128))]


def test_a_call_ends_reading_ahead_for_good(line: Line, reading: Reading) -> None:
    line.service.take(Read(7, ONE))
    assert line.read(1) == [ReadSoFar(7, ReadAhead(64, 128))]
    line.service.take(Call(1, "measure_plain", ()))
    (failure,) = line.read(1)
    assert isinstance(failure, Failure)
    line.service.take(Call(2, "measure_plain", ()))
    line.read(1)
    assert reading.asked == [ONE]


def test_short_calls_do_not_end_reading_ahead(line: Line, reading: Reading) -> None:
    line.service.take(Read(7, ONE))
    line.read(1)
    line.service.take(Call(1, "count_tokens", ((1, 2),)))
    assert line.read(1) == [Result(1, 2)]
    assert not reading.cancels
    reading.goes_on.set()
    assert line.read(1) == [ReadSoFar(7, ReadAhead(128, 128))]


@pytest.mark.parametrize("later", [OTHER, None])
def test_something_else_to_read_takes_its_place(line: Line, reading: Reading, later: Request | None) -> None:
    line.service.take(Read(7, ONE))
    line.read(1)
    line.service.take(Read(8, later))
    reading.goes_on.set()
    then = [ReadSoFar(7, ReadAhead(128, 128))]  # what is under way ends its piece
    if later is not None:
        then += [ReadSoFar(8, ReadAhead(64, 128)), ReadSoFar(8, ReadAhead(128, 128))]
    assert line.read(len(then)) == then
    line.service.take(Call(1, "measure_plain", ()))
    line.read(1)
    assert reading.asked == [ONE, *([later] if later is not None else [])]


def test_reading_waits_for_the_calls(line: Line, reading: Reading) -> None:
    line.service.take(Call(1, "generate", ("prompt",)))
    reading.begun.wait()
    line.service.take(Read(7, ONE))
    assert not reading.asked
    line.service.take(Cancel(1))
    ended: list[Told] = [Events(1, (CANCELLED,)), Result(1, None)]
    assert line.read(3) == [*ended, ReadSoFar(7, ReadAhead(64, 128))]


class Refusing(Reading):
    """Models for which every prompt is too long."""

    def read_now(self, request: object, wanted: Callable[[], bool]) -> Iterator[ReadAhead]:
        self.asked.append(request)
        raise UserError("the prompt is too long", "shorten it")


def test_what_cannot_be_read_is_left_to_the_answer_to_report(line: Line) -> None:
    line.service._runtime = cast(Runtime, models := Refusing())
    line.service.take(Read(7, ONE))
    line.service.take(Call(1, "measure_plain", ()))
    (failure,) = line.read(1)
    assert isinstance(failure, Failure)
    assert models.asked in ([ONE], [])  # the call may have come first
    assert line.service._to_read is None


class OutOfMemory(Reading):
    """Models that fail at reading ahead as nobody expects."""

    def read_now(self, request: object, wanted: Callable[[], bool]) -> Iterator[ReadAhead]:
        self.begun.set()
        raise MemoryError


def test_an_unexpected_error_ends_reading_ahead_alone(line: Line) -> None:
    line.service._runtime = cast(Runtime, models := OutOfMemory())
    line.service.take(Read(7, ONE))
    assert models.begun.wait(20)
    line.service.take(Call(1, "generate", ("prompt",)))
    line.service.take(Cancel(1))
    assert line.read(2) == [Events(1, (CANCELLED,)), Result(1, None)]
    assert line.service._to_read is None


def test_reading_goes_on_after_a_rest(line: Line, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = ["on battery", "", "busy"]
    monkeypatch.setattr(Surroundings, "call_for_rest", lambda _: reasons.pop(0) if reasons else "")
    monkeypatch.setattr(child, "_REST_S", 0.0)
    reading.goes_on.set()
    line.service.take(Read(7, ONE))
    whole = [ReadSoFar(7, ReadAhead(64, 128)), ReadSoFar(7, ReadAhead(128, 128))]
    assert line.read(3) == [whole[0], *whole]  # it rests before the first piece, and after it
    assert not reasons


class Writing(HardOfHearing):
    """Models that write rounds of one token, each when it may."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._rounds = rounds
        self.may = threading.Semaphore(0)

    def generate(self, _request: object) -> Iterator[GenerationEvent]:
        for number in range(self._rounds):
            assert self.may.acquire(timeout=20)
            yield TextDelta((TextPiece(str(number), Provenance.TARGET),))
            yield ROUND
        yield CANCELLED


ROUND = RoundDone(RoundStats(0, 0, DraftOrigin.NONE, 0.01, 0.0, 0.0, 0.001), 1)


def written(items: Iterable[Told]) -> str:
    """Return the text in messages of a call."""
    events = (event for item in items if isinstance(item, Events) for event in item.events)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize("pace_s", [60.0, 0.0])
def test_a_rounds_events_go_together_and_the_first_text_at_once(
    line: Line, monkeypatch: pytest.MonkeyPatch, pace_s: float
) -> None:
    monkeypatch.setattr(child, "_PACE_S", pace_s)
    line.service._runtime = cast(Runtime, models := Writing(3))
    line.service.take(Call(1, "generate", ("prompt",)))
    models.may.release()
    (first,) = line.read(1)
    assert isinstance(first, Events)
    assert (len(first.events), written([first])) == (2, "0")
    models.may.release(2)
    later = line.read(1)
    while not isinstance(later[-1], Result):
        later += line.read(1)
    assert written(later) == "12"
    if pace_s:  # what could wait went with the end
        assert len(later) <= 2


def test_events_that_can_wait_do_not_wait_for_the_next(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_PACE_S", 0.05)
    line.service._runtime = cast(Runtime, models := Writing(9))
    line.service.take(Call(1, "generate", ("prompt",)))
    models.may.release(2)
    found: list[Told] = []
    while written(found) != "01":
        found += line.read(1)
    models.may.release(7)
    while not isinstance(found[-1], Result):
        found += line.read(1)
    assert written(found) == "012345678"
