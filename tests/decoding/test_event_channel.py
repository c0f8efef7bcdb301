"""Events from one thread to another."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from localspec.decoding import event_channel
from localspec.decoding.event_channel import EventChannel
from localspec.errors import Cancelled


def sent(channel: EventChannel[int], events: Iterator[int]) -> threading.Thread:
    thread = threading.Thread(target=channel.send_all, args=(events,))
    thread.start()
    return thread


def test_events_come_in_their_order_and_all_of_them() -> None:
    channel = EventChannel[int]()
    thread = sent(channel, iter(range(10_000)))
    assert [*channel.received()] == [*range(10_000)]
    thread.join()


def test_the_first_event_comes_at_once_and_the_others_while_more_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_channel, "PACE_S", 60.0)
    channel = EventChannel[int]()
    has_come = threading.Event()

    def events() -> Iterator[int]:
        yield 0
        assert has_come.wait(10)
        yield from (1, 2)

    thread = sent(channel, events())
    received = channel.received()
    assert next(received) == 0
    has_come.set()
    assert [*received] == [1, 2]  # the end does not wait for the pace
    thread.join()


def test_the_error_that_ends_events_comes_after_them() -> None:
    def events() -> Iterator[int]:
        yield 1
        raise Cancelled("the answer was stopped")

    channel = EventChannel[int]()
    channel.send_all(events())
    received = channel.received()
    assert next(received) == 1
    with pytest.raises(Cancelled):
        next(received)


def test_a_reader_that_has_left_can_wait_for_the_end() -> None:
    channel = EventChannel[int]()
    goes_on = threading.Event()

    def events() -> Iterator[int]:
        yield 1
        assert goes_on.wait(10)
        yield 2

    thread = sent(channel, events())
    assert next(channel.received()) == 1
    goes_on.set()
    channel.wait()
    assert channel.is_over
    thread.join()
