from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from localspec.chat.loading import Closed, Failed, Loading, LoadState, ModelLoader, Ready
from localspec.errors import Cancelled, EngineDied, EngineError, PairingError, UserError
from localspec.inference.interface import OpenModels
from tests.scripted import ScriptedModels

WAIT_S = 10.0


class Opening:
    """One call of the opener, which does what the test says."""

    def __init__(self, on_progress: Callable[[float], bool]) -> None:
        self._on_progress = on_progress
        self._outcome: SimpleQueue[OpenModels | BaseException] = SimpleQueue()
        self.wanted = True

    def progress(self, fraction: float) -> None:
        self.wanted = self._on_progress(fraction)

    def end(self, outcome: OpenModels | BaseException) -> None:
        self._outcome.put(outcome)

    def result(self) -> OpenModels:
        outcome = self._outcome.get(timeout=WAIT_S)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Desk:
    """A loader with everything around it in the hands of the test."""

    def __init__(self) -> None:
        self._openings: SimpleQueue[Opening] = SimpleQueue()
        self._states: SimpleQueue[LoadState] = SimpleQueue()
        self.now_s = 0.0
        self.loader = ModelLoader(self._open, self._states.put, clock=lambda: self.now_s)

    def _open(self, on_progress: Callable[[float], bool]) -> OpenModels:
        opening = Opening(on_progress)
        self._openings.put(opening)
        return opening.result()

    def opening(self) -> Opening:
        return self._openings.get(timeout=WAIT_S)

    @property
    def is_opening(self) -> bool:
        return not self._openings.empty()

    def told(self) -> LoadState:
        return self._states.get(timeout=WAIT_S)

    def open(self) -> ScriptedModels:
        """Let the load under way succeed."""
        models = ScriptedModels()
        self.opening().end(models)
        while not isinstance(self.told(), Ready):
            pass
        return models


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.loader.close()


def test_models_are_opened_once_and_the_way_there_is_told(desk: Desk) -> None:
    assert desk.loader.state == Closed()
    desk.loader.start()
    assert desk.loader.ready is None
    desk.loader.start()
    opening, models = desk.opening(), ScriptedModels()
    for fraction in (0.25, 0.2501, 0.5):
        opening.progress(fraction)
    opening.end(models)
    assert [desk.told() for _ in range(4)] == [Loading(0.0), Loading(0.25), Loading(0.5), Ready(models)]
    desk.loader.start()
    assert not desk.is_opening
    assert desk.loader.models() is models
    assert desk.loader.ready is models


def test_a_worker_waits_for_the_models(desk: Desk) -> None:
    desk.loader.start()
    got: SimpleQueue[OpenModels] = SimpleQueue()
    waiter = threading.Thread(target=lambda: got.put(desk.loader.models()), daemon=True)
    waiter.start()
    with pytest.raises(UserError, match="still being opened"):
        desk.loader.models(wait=False)
    assert desk.open() is got.get(timeout=WAIT_S)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (PairingError("other words", "take another"), Failed("other words", "take another", can_retry=False)),
        (EngineError("no memory"), Failed("no memory", can_retry=True)),
        (EngineDied("killed"), Failed("killed", can_retry=True)),
        (OSError("broken"), Failed("opening the models failed: OSError('broken')", can_retry=True)),
    ],
)
def test_a_failure_is_told_and_does_not_repeat_itself(desk: Desk, error: Exception, state: Failed) -> None:
    desk.loader.start()
    desk.opening().end(error)
    assert [desk.told(), desk.told()] == [Loading(), state]
    with pytest.raises((PairingError, EngineError)):
        desk.loader.models()
    desk.loader.reopen()
    assert not desk.is_opening
    desk.loader.start()
    assert desk.open() is desk.loader.models()


def test_a_cancelled_load_stops_and_can_be_started_again(desk: Desk) -> None:
    desk.loader.start()
    opening = desk.opening()
    failed: SimpleQueue[BaseException] = SimpleQueue()

    def wait() -> None:
        try:
            desk.loader.models()
        except Cancelled as error:
            failed.put(error)

    threading.Thread(target=wait, daemon=True).start()
    desk.loader.cancel()
    assert desk.loader.state == Closed()
    assert isinstance(failed.get(timeout=WAIT_S), Cancelled)
    opening.progress(0.5)
    assert not opening.wanted
    desk.loader.start()
    assert not desk.is_opening, "the first load is still at work"
    late = ScriptedModels()
    opening.end(late)
    models = desk.open()
    assert late.closed
    assert desk.loader.models() is models


def test_a_load_that_stops_itself_is_no_failure(desk: Desk) -> None:
    desk.loader.start()
    desk.opening().end(Cancelled())
    assert [desk.told(), desk.told()] == [Loading(), Closed()]


def test_cancelling_leaves_open_models_alone(desk: Desk) -> None:
    desk.loader.start()
    models = desk.open()
    desk.loader.cancel()
    assert desk.loader.models() is models
    assert not models.closed


def test_models_that_died_are_replaced_once(desk: Desk) -> None:
    desk.loader.start()
    first = desk.open()
    desk.loader.reopen(first)
    second = desk.open()
    assert first.closed
    desk.loader.reopen(first)
    assert desk.loader.models() is second
    assert not second.closed


def test_models_that_keep_dying_are_given_up(desk: Desk) -> None:
    desk.loader.start()
    for _ in range(3):
        desk.open()
        desk.now_s += 19.0
        desk.loader.reopen()
    last = desk.open()
    desk.loader.reopen()
    state = desk.loader.state
    assert isinstance(state, Failed)
    assert "4 times within a minute" in state.message
    assert state.can_retry
    assert last.closed
    with pytest.raises(EngineError, match="4 times"):
        desk.loader.models()
    desk.loader.start()
    desk.open()
    desk.loader.reopen()
    assert desk.open() is desk.loader.models(), "who asks for them anew gives them another chance"


def test_deaths_far_apart_are_forgiven(desk: Desk) -> None:
    desk.loader.start()
    for _ in range(6):
        desk.open()
        desk.now_s += 20.0
        desk.loader.reopen()
    assert desk.open() is desk.loader.models()


def test_closing_closes_the_models_for_good(desk: Desk) -> None:
    desk.loader.start()
    models = desk.open()
    desk.loader.close()
    desk.loader.close()
    assert models.closed
    for act in (desk.loader.start, desk.loader.reopen, desk.loader.cancel):
        act()
    assert not desk.is_opening
    assert desk.loader.state == Closed()
    with pytest.raises(Cancelled):
        desk.loader.models()


def test_closing_while_loading_leaves_nothing_open(desk: Desk) -> None:
    desk.loader.start()
    opening, late = desk.opening(), ScriptedModels()
    desk.loader.on_change = lambda _closed: opening.end(late)
    desk.loader.close()
    assert late.closed
    assert desk.loader.state == Closed()
