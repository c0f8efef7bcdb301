"""A Python of its own: its messages, its limits, and how its end is reported."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from localspec.child_process import (
    Child,
    ChildEndedError,
    ChildOverLimitError,
    Limits,
    marked_text,
    pickled,
    write_marked_text,
)

ECHO = """
import pickle
from localspec.child_process import take_pipes
requests, replies = take_pipes()
while True:
    order = pickle.load(requests)
    if isinstance(order, str):
        exec(order)
    for number in range(order if isinstance(order, int) else 1):
        pickle.dump((order, number), replies)
    replies.flush()
"""
SOON = Limits(60.0)


@pytest.fixture
def child() -> Iterator[Child[object]]:
    child = Child(ECHO, "the echo", pickled)
    yield child
    child.end()
    assert child.has_ended


def test_a_message_is_answered_by_as_many_as_the_child_sends(child: Child[object]) -> None:
    assert child.ask(2, SOON) == (2, 0)
    assert child.receive(SOON) == (2, 1)
    child.greet(Limits(0.0))  # it has greeted long since
    assert child.ask(1) == (1, 0)


def test_what_the_child_prints_is_not_a_message(child: Child[object]) -> None:
    assert child.ask("print('hello', flush=True)", SOON) == ("print('hello', flush=True)", 0)


def test_a_child_that_takes_too_long_is_ended(child: Child[object]) -> None:
    assert child.ask(1, SOON) == (1, 0)
    with pytest.raises(ChildOverLimitError) as caught:
        child.receive(Limits(0.05))
    assert (caught.value.limit, child.has_ended) == ("seconds", True)


def test_a_child_that_takes_too_much_memory_is_ended(child: Child[object]) -> None:
    with pytest.raises(ChildOverLimitError) as caught:
        child.ask("kept = bytearray(2**28)\nwhile True: pass", Limits(60.0, memory=2**27))
    assert (caught.value.limit, child.has_ended) == ("memory", True)


@pytest.mark.skipif(sys.platform == "win32", reason="has no signals")
def test_how_a_child_ended_is_reported(child: Child[object]) -> None:
    with pytest.raises(ChildEndedError) as caught:
        child.ask("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", SOON)
    assert (caught.value.how, child.has_ended) == ("SIGSEGV", True)
    other = Child(ECHO, "the echo", pickled)
    with pytest.raises(ChildEndedError) as caught:
        other.ask("raise SystemExit(7)", SOON)
    assert caught.value.how == "exit code 7"


def test_a_marked_text_is_read_up_to_its_limit() -> None:
    def written(text: bytes) -> io.BytesIO:
        stream = io.BytesIO()
        write_marked_text(stream, 2, text)
        stream.seek(0)
        return stream

    assert marked_text(written("h\u00e9".encode()), None) == (2, "h\u00e9")
    assert marked_text(written(b"\xff"), 1) == (2, "\ufffd")
    with pytest.raises(EOFError):
        marked_text(written(b"four"), 3)
    with pytest.raises(EOFError):
        marked_text(io.BytesIO(written(b"four").getvalue()[:-1]), None)
