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


class LoaderRig:
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
        """Let the load in progress succeed."""
        models = ScriptedModels()
        self.opening().end(models)
        while not isinstance(self.told(), Ready):
            pass
        return models


@pytest.fixture
def rig() -> Iterator[LoaderRig]:
    rig = LoaderRig()
    yield rig
    rig.loader.close()


def test_models_are_opened_once_and_the_way_there_is_reported(rig: LoaderRig) -> None:
    assert rig.loader.state == Closed()
    rig.loader.start()
    assert rig.loader.ready is None
    rig.loader.start()
    opening, models = rig.opening(), ScriptedModels()
    for fraction in (0.25, 0.2501, 0.5):
        opening.progress(fraction)
    opening.end(models)
    assert [rig.told() for _ in range(4)] == [Loading(0.0), Loading(0.25), Loading(0.5), Ready(models)]
    rig.loader.start()
    assert not rig.is_opening
    assert rig.loader.models() is models
    assert rig.loader.ready is models


def test_a_worker_waits_for_the_models(rig: LoaderRig) -> None:
    rig.loader.start()
    got: SimpleQueue[OpenModels] = SimpleQueue()
    waiter = threading.Thread(target=lambda: got.put(rig.loader.models()), daemon=True)
    waiter.start()
    with pytest.raises(UserError, match="still being opened"):
        rig.loader.models(wait=False)
    assert rig.open() is got.get(timeout=WAIT_S)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PairingError("other words", "take another"), "other words; take another"),
        (EngineError("no memory"), "no memory"),
        (EngineDied("killed"), "killed"),
        (OSError("broken"), "opening the models failed: OSError('broken')"),
    ],
)
def test_a_failure_is_reported_and_does_not_repeat_itself(
    rig: LoaderRig, error: Exception, words: str
) -> None:
    rig.loader.start()
    rig.opening().end(error)
    assert rig.told() == Loading()
    state = rig.told()
    assert isinstance(state, Failed)
    assert (str(state.error), state.hint) == (words, "")
    with pytest.raises((PairingError, EngineError)) as raised:
        rig.loader.models()
    assert raised.value is state.error
    rig.loader.reopen()
    assert not rig.is_opening
    rig.loader.start()
    assert rig.open() is rig.loader.models()


def test_a_cancelled_load_stops_and_can_be_started_again(rig: LoaderRig) -> None:
    rig.loader.start()
    opening = rig.opening()
    failed: SimpleQueue[BaseException] = SimpleQueue()

    def wait() -> None:
        try:
            rig.loader.models()
        except Cancelled as error:
            failed.put(error)

    threading.Thread(target=wait, daemon=True).start()
    rig.loader.cancel()
    assert rig.loader.state == Closed()
    assert isinstance(failed.get(timeout=WAIT_S), Cancelled)
    opening.progress(0.5)
    assert not opening.wanted
    rig.loader.start()
    assert not rig.is_opening, "the first load is still at work"
    late = ScriptedModels()
    opening.end(late)
    models = rig.open()
    assert late.closed
    assert rig.loader.models() is models


def test_a_load_that_stops_itself_is_not_a_failure(rig: LoaderRig) -> None:
    rig.loader.start()
    rig.opening().end(Cancelled())
    assert [rig.told(), rig.told()] == [Loading(), Closed()]


def test_cancelling_leaves_open_models_alone(rig: LoaderRig) -> None:
    rig.loader.start()
    models = rig.open()
    rig.loader.cancel()
    assert rig.loader.models() is models
    assert not models.closed


def test_models_that_died_are_replaced_once(rig: LoaderRig) -> None:
    rig.loader.start()
    first = rig.open()
    rig.loader.reopen(first)
    second = rig.open()
    assert first.closed
    rig.loader.reopen(first)
    assert rig.loader.models() is second
    assert not second.closed


def test_models_that_keep_dying_are_dropped(rig: LoaderRig) -> None:
    rig.loader.start()
    for _ in range(3):
        rig.open()
        rig.now_s += 19.0
        rig.loader.reopen()
    last = rig.open()
    rig.loader.reopen()
    state = rig.loader.state
    assert isinstance(state, Failed)
    assert "4 times within a minute" in str(state.error)
    assert "a shorter context or a smaller model may help" in state.hint
    assert last.closed
    with pytest.raises(EngineError, match="4 times"):
        rig.loader.models()
    rig.loader.start()
    rig.open()
    rig.loader.reopen()
    assert rig.open() is rig.loader.models(), "who asks for them anew gives them another chance"


def test_deaths_far_apart_are_forgiven(rig: LoaderRig) -> None:
    rig.loader.start()
    for _ in range(6):
        rig.open()
        rig.now_s += 20.0
        rig.loader.reopen()
    assert rig.open() is rig.loader.models()


def test_closing_closes_the_models_for_good(rig: LoaderRig) -> None:
    rig.loader.start()
    models = rig.open()
    rig.loader.close()
    rig.loader.close()
    assert models.closed
    for act in (rig.loader.start, rig.loader.reopen, rig.loader.cancel):
        act()
    assert not rig.is_opening
    assert rig.loader.state == Closed()
    with pytest.raises(Cancelled):
        rig.loader.models()


def test_closing_while_loading_leaves_nothing_open(rig: LoaderRig) -> None:
    rig.loader.start()
    opening, late = rig.opening(), ScriptedModels()
    rig.loader.on_change = lambda _closed: opening.end(late)
    rig.loader.close()
    assert late.closed
    assert rig.loader.state == Closed()


def test_others_take_the_place_of_the_open_models(rig: LoaderRig) -> None:
    rig.loader.start()
    first, others = rig.open(), ScriptedModels()
    rig.loader.switch(lambda _on_progress: others)
    assert rig.loader.models() is others
    assert first.closed
    assert not rig.loader.cancel()
    rig.loader.reopen()
    assert rig.loader.models() is others
    assert not rig.is_opening


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_models_before_come_back_where_others_do_not_open(rig: LoaderRig, is_cancelled: bool) -> None:
    others: SimpleQueue[Opening] = SimpleQueue()

    def open_others(on_progress: Callable[[float], bool]) -> OpenModels:
        opening = Opening(on_progress)
        others.put(opening)
        return opening.result()

    rig.loader.start()
    first = rig.open()
    rig.loader.switch(open_others)
    opening = others.get(timeout=WAIT_S)
    rig.loader.switch(open_others)  # the latest counts, and what was really open comes back
    assert first.closed
    if is_cancelled:
        assert rig.loader.cancel()
        assert rig.loader.state == Loading()
    opening.end(UserError("not even here"))
    if not is_cancelled:
        others.get(timeout=WAIT_S).end(UserError("no room"))
    again = rig.open()
    assert rig.loader.state == Ready(again, "" if is_cancelled else "no room")
    assert rig.loader.open_now == (again.target, again.draft)
