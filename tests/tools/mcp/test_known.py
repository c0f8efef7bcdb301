"""What is known of a server: asked once at a time, remembered, and asked again once it is old."""

from __future__ import annotations

from threading import Event

from localspec.errors import UserError
from localspec.tools.mcp.known import FRESH_S, Known, Memory


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_answer_comes_in_the_background_and_is_asked_for_once() -> None:
    memory, goes_on, came, asked = Memory(Clock()), Event(), Event(), list[int]()
    memory.on_news = came.set

    def ask() -> str:
        asked.append(1)
        assert goes_on.wait(10)
        return "answer"

    waiting: Known[str] = Known(is_asked=True)
    assert memory.known("x") == Known()
    assert [memory.known("x", ask) for _ in range(3)] == [waiting] * 3
    goes_on.set()
    assert came.wait(10)
    assert [memory.known("x", ask) for _ in range(3)] == [Known("answer")] * 3
    assert asked == [1]


def test_an_old_answer_stays_until_the_new_one_is_there() -> None:
    clock, came = Clock(), Event()
    memory = Memory(clock)
    memory.on_news = came.set
    memory.put("x", Known("old"))
    clock.now = FRESH_S + 1
    assert memory.known("x") == Known("old")
    assert memory.known("x", lambda: "new") == Known("old", is_asked=True)
    assert came.wait(10)
    assert memory.known("x") == Known("new")


def test_a_failure_is_remembered_and_not_repeated_at_once() -> None:
    memory, came, asked = Memory(Clock()), Event(), list[int]()
    memory.on_news = came.set

    def fail() -> str:
        asked.append(1)
        raise UserError("it died")

    memory.known("x", fail)
    assert came.wait(10)
    assert memory.known("x", fail) == Known(problem="it died")
    assert asked == [1]


def test_few_answers_are_remembered() -> None:
    memory = Memory(Clock())
    for number in range(100):
        memory.put(number, Known(number))
    assert sum(memory.known(number) != Known() for number in range(100)) == 16
