"""Answers in a thread of their own end when that is wanted, however early."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing

import pytest

from localspec.cli.shared import answer
from localspec.cli.shared.answer import stream
from localspec.errors import EngineDied
from localspec.types.drafts import Provenance
from localspec.types.events import Finished, GenerationEvent, TextDelta, TextPiece
from localspec.types.request import Request
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


class Deaf(FakeRuntime):
    """Hears nothing, and ends only when it is closed."""

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        self.cancelled.set()


def deaf() -> Deaf:
    def script(_request: Request) -> Iterator[GenerationEvent]:
        yield WORD
        assert found.cancelled.wait(timeout=20)
        raise EngineDied("the model process was ended")

    found = Deaf([script])
    return found


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_models_that_do_not_react_to_ctrl_c_are_closed_at_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def press_again(text: str) -> None:
        said.append(text)
        os.kill(os.getpid(), signal.SIGINT)

    found, said = deaf(), list[str]()
    monkeypatch.setattr(answer, "STUCK_S", 0.1)
    monkeypatch.setattr(answer, "say", press_again)
    events = stream(found, found.generate(REQUEST))
    assert next(events) == WORD
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(events)
    assert found.cancelled.is_set()
    assert said == ["note: the model process is not responding; Ctrl+C again ends it"]


def test_who_leaves_does_not_wait_for_models_that_do_not_react(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "STUCK_S", 0.1)
    found = deaf()
    events = stream(found, found.generate(REQUEST))
    assert next(events) == WORD
    events.close()
    assert found.cancelled.is_set()
