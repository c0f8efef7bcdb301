"""Answers in a thread of their own end when that is wanted, however early."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from localspec.cli.shared.answer import stream
from localspec.types import Finished, GenerationEvent, Provenance, Request, TextDelta, TextPiece
from tests.cli.fake_runtime import SUMMARY, FakeRuntime

REQUEST = Request("Hi")
WORD = TextDelta((TextPiece("word", Provenance.TARGET),))


class HardOfHearing(FakeRuntime):
    """Misses the first wish to stop, as models do before their first step."""

    cancels = 0

    def cancel(self) -> None:
        self.cancels += 1
        if self.cancels > 1:
            self.cancelled.set()


def models(*, pressed: bool) -> HardOfHearing:
    """Return models that write until they hear that they should stop; Ctrl+C may be pressed at the start."""

    def script(_request: Request) -> Iterator[GenerationEvent]:
        if pressed:
            os.kill(os.getpid(), signal.SIGINT)
        yield WORD
        yield Finished("cancelled" if found.cancelled.wait(timeout=20) else "stop", SUMMARY)

    found = HardOfHearing([script])
    return found


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_ctrl_c_before_the_first_step_is_heard() -> None:
    found = models(pressed=True)
    with closing(stream(found, found.generate(REQUEST))) as events:
        assert list(events) == [WORD, Finished("cancelled", SUMMARY)]


def test_who_leaves_before_the_first_step_need_not_wait_for_the_last() -> None:
    found = models(pressed=False)
    events = stream(found, found.generate(REQUEST))
    assert next(events) == WORD
    events.close()
    assert found.cancelled.is_set()
