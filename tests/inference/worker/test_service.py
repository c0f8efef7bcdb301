"""What the child does with requests, on models that are slow to hear."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, cast

import pytest

from localspec.errors import EngineError
from localspec.inference.runtime import Runtime
from localspec.inference.worker import child
from localspec.inference.worker.child import ModelService, Outbox
from localspec.inference.worker.wire import (
    Call,
    Cancel,
    Event,
    Failure,
    FirstCall,
    LogLine,
    Measuring,
    Result,
    Told,
)
from localspec.types.events import Finished, GenerationEvent, Summary

CANCELLED = Finished("cancelled", Summary())


class HardOfHearing:
    """Models that miss the first cancel, as the runtime does before its first step."""

    lacks_costs = False

    def __init__(self) -> None:
        self.cancels = 0
        self.begun, self._heard = threading.Event(), threading.Event()
        self.has_read = threading.Event()

    def generate(self, _request: object) -> Iterator[GenerationEvent]:
        self.begun.set()
        self._heard.wait()
        yield CANCELLED

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
    assert line.read(2) == [Event(1, CANCELLED), Result(1, None)]
    assert line.models.cancels > 1


def test_nothing_waits_for_a_long_text(line: Line) -> None:
    line.service.take(Call(1, "tokenize", ("megabytes",)))
    line.service.take(Call(2, "tokenize", ("as many",)))
    line.service.take(Call(3, "count_tokens", ((1, 2),)))
    assert line.read(1) == [Result(3, 2)]
    line.models.has_read.set()
    assert len(line.read(2)) == 2


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
    assert line.read(2) == [Event(1, CANCELLED), Result(1, None)]


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
    assert line.read(3) == [Measuring(is_under_way=False), Event(2, CANCELLED), Result(2, None)]
