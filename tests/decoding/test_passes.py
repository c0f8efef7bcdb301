"""Who is in which call of answers that share a model, and what becomes of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

from localspec.decoding.model import EFFICIENT_READ, SeveralSeats
from localspec.decoding.passes import APART, Participant, Seat, SharedPasses
from localspec.errors import Cancelled, EngineError
from localspec.types.candidates import FullRows, Rows, TokenRun

WAIT_S = 20.0


class Model:
    """Counts the tokens of its sequences, and can hold a call or let it fail."""

    name = "toy"
    max_sequences = 1
    max_draft = 100
    vocabulary_size = 4

    def __init__(
        self,
        *,
        cells: int = 2000,
        max_tokens: int = 100,
        is_unified: bool = True,
        reads_apart: bool = False,
    ) -> None:
        self.seats = 4
        self.reads_apart = reads_apart
        self.context_size = self.cells = cells
        self.max_tokens = self.max_rows = max_tokens
        self.is_unified = is_unified
        self.busy_s = 0.0
        self.calls: list[list[int]] = []  # the sequences in each
        self.lengths = [0] * self.seats
        self.is_stopped = False
        self.stops = 0
        self.on_call: Callable[[], None] = lambda: None

    def seat(self, number: int) -> int:
        return number

    def length(self, sequence: int = 0) -> int:
        return self.lengths[sequence]

    def choose(self, count: int | None) -> None:
        pass

    def evaluate_runs(self, runs: Sequence[TokenRun]) -> list[Rows]:
        self.calls.append([run.sequence for run in runs])
        self.on_call()
        if self.is_stopped:
            raise Cancelled("the computation was stopped")
        for run in runs:
            self.lengths[run.sequence] += len(run.tokens)
        return [FullRows(np.zeros((run.rows, self.vocabulary_size), np.float32)) for run in runs]

    def cancel(self) -> None:
        self.is_stopped = True
        self.stops += 1

    def resume(self) -> None:
        self.is_stopped = False


@dataclass
class Answer:
    """An answer that asks for some tokens one after another, in a thread of its own."""

    passes: SharedPasses
    number: int
    participant: Participant = field(default_factory=Participant)
    told: list[object] = field(default_factory=list)
    error: BaseException | None = None
    thread: threading.Thread | None = None

    @property
    def seat(self) -> Seat:
        return self.passes.seats[self.number][0]

    def start(self, *asked: int, between: Callable[[], object] = lambda: None) -> Answer:
        """Ask for runs of so many tokens; `between` is called after each, in the passes' thread."""
        self.seat.participant = self.participant

        def events() -> Iterator[int]:
            for count in asked:
                self.seat.evaluate([1] * count)
                between()
                yield count

        def take() -> None:
            try:
                self.told += self.passes.written(self.participant, events())
            except BaseException as error:  # noqa: BLE001  the test looks at it
                self.error = error

        self.thread = threading.Thread(target=take, daemon=True)
        self.thread.start()
        return self

    def join(self) -> Answer:
        assert self.thread is not None
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive(), "an answer hangs"
        return self


class Gate:
    """Holds calls of a model until they may go on."""

    def __init__(self, model: Model, calls: int = 1) -> None:
        self._left = calls
        self.has_come = threading.Event()
        self._opens = threading.Event()
        model.on_call = self._pass

    def _pass(self) -> None:
        if self._left:
            self._left -= 1
            self.has_come.set()
            assert self._opens.wait(WAIT_S)

    def open(self) -> None:
        self._opens.set()


def shared(model: Model) -> SharedPasses:
    return SharedPasses(cast(SeveralSeats, model))


def arrived(passes: SharedPasses, count: int) -> None:
    """Wait until some answers wait for the end of a call to begin."""
    for _ in range(10_000):
        with passes._changed:
            if len(passes._arrived) == count:
                return
        threading.Event().wait(0.001)
    raise AssertionError("the answers have not come")


def two_beside_a_held_call(model: Model, *asked: int, **more: Any) -> tuple[Gate, Answer, Answer]:  # noqa: ANN401
    """Start two answers whose first calls are made together, after a call of the first one alone."""
    passes, gate = shared(model), Gate(model)
    first = Answer(passes, 0).start(1, *asked, **more)
    assert gate.has_come.wait(WAIT_S)
    second = Answer(passes, 1).start(*asked, **more)
    arrived(passes, 1)
    return gate, first, second


def test_answers_are_in_one_call_from_the_moment_that_both_ask() -> None:
    model = Model()
    gate, first, second = two_beside_a_held_call(model, 1, 1)
    gate.open()
    assert (first.join().told, second.join().told) == ([1, 1, 1], [1, 1])
    assert [sorted(call) for call in model.calls] == [[0], [0, 1], [0, 1]]


def test_an_answer_that_was_cancelled_before_it_begins_makes_no_call() -> None:
    model = Model()
    passes = shared(model)
    answer = Answer(passes, 0)
    passes.cancel(answer.participant)
    assert isinstance(answer.start(1).join().error, Cancelled)
    assert model.calls == []


def test_a_waiting_answer_that_is_cancelled_during_a_call_of_another_is_in_no_later_call() -> None:
    model = Model(max_tokens=1)  # of two that ask, one is in the call
    passes, gate = shared(model), Gate(model)
    first = Answer(passes, 0).start(1, 1, 1)
    assert gate.has_come.wait(WAIT_S)
    second = Answer(passes, 1).start(1, 1)
    third = Answer(passes, 2).start(1, 1)
    arrived(passes, 2)
    held = Gate(model)
    gate.open()
    assert held.has_come.wait(WAIT_S)
    in_call = model.calls[-1]
    waiting = next(each for each in (first, second, third) if each.number not in in_call)
    calls = len(model.calls)
    passes.cancel(waiting.participant)
    held.open()
    for each in (first, second, third):
        each.join()
    assert isinstance(waiting.error, Cancelled)
    assert all(waiting.number not in call for call in model.calls[calls:])
    assert [each.error for each in (first, second, third) if each is not waiting] == [None, None]


def test_an_answer_that_is_cancelled_while_it_works_asks_for_nothing_more() -> None:
    model = Model()
    passes = shared(model)
    answer = Answer(passes, 0)
    answer.start(1, 1, 1, between=lambda: passes.cancel(answer.participant))
    assert isinstance(answer.join().error, Cancelled)
    assert len(model.calls) == 1


def test_a_call_is_stopped_when_all_its_answers_are_cancelled_and_the_next_one_is_not() -> None:
    model = Model()
    passes, gate = shared(model), Gate(model, calls=2)
    first = Answer(passes, 0).start(1)
    assert gate.has_come.wait(WAIT_S)
    second = Answer(passes, 1).start(1)
    arrived(passes, 1)
    passes.cancel(first.participant)
    assert model.stops == 1
    gate.open()
    assert isinstance(first.join().error, Cancelled)
    assert second.join().told == [1]


def test_a_call_goes_on_for_those_that_are_not_cancelled() -> None:
    model = Model()
    gate, first, second = two_beside_a_held_call(model, 1, 1)
    held = Gate(model)
    gate.open()
    assert held.has_come.wait(WAIT_S)
    first.passes.cancel(second.participant)
    held.open()
    assert first.join().told == [1, 1, 1]
    assert isinstance(second.join().error, Cancelled)
    assert model.stops == 0


def test_each_answer_of_a_call_that_fails_gets_its_error() -> None:
    model = Model()
    gate, first, second = two_beside_a_held_call(model, 1)

    def fail() -> None:
        raise EngineError("llama.cpp failed to decode")

    gate.open()
    model.on_call = fail
    errors = [answer.join().error for answer in (first, second)]
    assert [str(error) for error in errors] == ["llama.cpp failed to decode"] * 2
    assert errors[0] is not errors[1]


@pytest.mark.parametrize("returns", [False, True])
def test_the_answer_that_came_last_leaves_where_there_is_no_room(returns: bool) -> None:
    model = Model(cells=7)
    passes, gate = shared(model), Gate(model)
    first = Answer(passes, 0).start(1) if returns else None
    if first is not None:  # and goes on later, as after thinking that was closed
        gate.open()
        first.join()
        gate = Gate(model)
    other = Answer(passes, 1).start(3, 3)
    assert gate.has_come.wait(WAIT_S)
    participant = Participant() if first is None else first.participant
    again = Answer(passes, 0, participant).start(2)
    arrived(passes, 1)
    gate.open()
    last, stays = (other, again) if returns else (again, other)
    assert isinstance(last.join().error, Cancelled)
    assert last.participant.is_crowded_out
    assert stays.join().error is None


def test_conversations_with_cells_of_their_own_take_none_of_others() -> None:
    model = Model(cells=8, is_unified=False)
    gate, first, second = two_beside_a_held_call(model, 3, 3)
    gate.open()
    assert (first.join().told, second.join().told) == ([1, 3, 3], [3, 3])


@pytest.mark.parametrize(
    ("reads_apart", "is_unified", "text", "is_apart"),
    [
        (True, True, APART, True),
        (True, True, APART - 20, False),
        (True, False, 0, True),
        (False, True, APART, False),
        (False, False, APART, False),
    ],
)
def test_long_pieces_of_a_prompt_and_an_answer_take_turns_where_they_are_read_apart(
    reads_apart: bool, is_unified: bool, text: int, is_apart: bool
) -> None:
    model = Model(max_tokens=1000, is_unified=is_unified, reads_apart=reads_apart)
    model.lengths[0] = text
    passes, gate = shared(model), Gate(model)
    writing = Answer(passes, 0).start(*[1] * 9)
    assert gate.has_come.wait(WAIT_S)
    reading = Answer(passes, 1).start(700)
    arrived(passes, 1)
    gate.open()
    assert (writing.join().error, reading.join().error) == (None, None)
    pieces = 4  # of 64, 128, 256 and 252: they took no time
    expected = [[0], *[[1], [0]] * pieces] if is_apart else [[0], *[[0, 1]] * pieces]
    assert [sorted(call) for call in model.calls[: len(expected)]] == expected
    assert sum(0 in call for call in model.calls) == 9


def test_a_question_is_read_beside_an_answer_also_where_long_pieces_are_not() -> None:
    model = Model(max_tokens=1000, is_unified=False, reads_apart=True)
    passes, gate = shared(model), Gate(model)
    writing = Answer(passes, 0).start(1, 1, 1)
    assert gate.has_come.wait(WAIT_S)
    reading = Answer(passes, 1).start(EFFICIENT_READ - 1)
    arrived(passes, 1)
    gate.open()
    assert (writing.join().error, reading.join().error) == (None, None)
    assert [sorted(call) for call in model.calls] == [[0], [0, 1], [0]]


def test_the_time_of_a_call_for_prompts_counts_for_the_answer_that_waits() -> None:
    model = Model(max_tokens=1000, is_unified=False, reads_apart=True)
    passes = shared(model)
    seat = passes.seats[0][0]
    seen = list[tuple[float, bool]]()
    gate = Gate(model)
    writing = Answer(passes, 0)
    writing.start(1, 1, 1, between=lambda: seen.append((seat.spent_s, seat.was_reading)))
    assert gate.has_come.wait(WAIT_S)
    reading = Answer(passes, 1).start(EFFICIENT_READ + 9)
    arrived(passes, 1)

    def take_a_second() -> None:
        model.busy_s += 1.0

    model.on_call = take_a_second
    gate.open()
    assert (writing.join().error, reading.join().error) == (None, None)
    assert seen == [(0.0, False), (2.0, True), (3.0, False)]


def test_the_prompt_that_came_first_and_the_shortest_take_turns() -> None:
    model = Model(max_tokens=1000)
    passes, gate = shared(model), Gate(model)
    held = Answer(passes, 3).start(1)
    assert gate.has_come.wait(WAIT_S)
    answers = [Answer(passes, number).start(size) for number, size in ((0, 600), (1, 700), (2, 400))]
    arrived(passes, 3)
    first, _ = passes._arrived[0]

    def take_a_second() -> None:
        model.busy_s += 1.0

    model.on_call = take_a_second
    gate.open()
    for answer in (held, *answers):
        assert answer.join().error is None
    came = next(answer.number for answer in answers if answer.participant is first)
    assert model.calls[1] == [came]
    assert model.calls[2] == [2]
    for answer in answers:  # a prompt that waits has not taken the time of others
        assert answer.seat.spent_s == sum(answer.number in call for call in model.calls)


@pytest.mark.parametrize(("token_s", "pieces"), [(0.005, [100]), (0.012, [64, 36])])
def test_the_end_of_a_prompt_goes_with_the_piece_before_it_where_that_takes_no_second_more(
    token_s: float, pieces: list[int]
) -> None:
    model = Model(max_tokens=1000)
    passes, gate = shared(model), Gate(model)
    held = Answer(passes, 3).start(1)
    assert gate.has_come.wait(WAIT_S)
    passes._fit_piece(passes.seats[0][0].model, EFFICIENT_READ, EFFICIENT_READ * token_s)
    reading = Answer(passes, 0).start(100)
    writing = Answer(passes, 1).start(1, 1)
    arrived(passes, 2)
    lengths = [0]
    model.on_call = lambda: lengths.append(model.lengths[0])
    gate.open()
    for answer in (held, reading, writing):
        assert answer.join().error is None
    lengths.append(model.lengths[0])
    assert [b - a for a, b in pairwise(lengths) if b > a] == pieces
