from __future__ import annotations

import threading

import pytest

from localspec.engines.costs import Experience
from localspec.engines.measure import measure
from localspec.errors import Cancelled, EngineError
from localspec.testing.fake import FakeModel
from tests.engines.toys import PATIENCE_S


def filled(model: FakeModel, tokens: int) -> FakeModel:
    if tokens:
        model.evaluate([number % 16 for number in range(tokens)], 0)
    return model


def assert_plausible(found: Experience) -> None:
    verify, step = found.verify.points(), found.step.points()
    assert {1, 2, 5} <= set(verify)
    assert 1 in step
    assert min(*verify.values(), *step.values()) > 0
    assert found.seconds_per_token == verify[1]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("budget_s", [0.0, 0.02])
@pytest.mark.parametrize("tokens", [0, 7, 100])
def test_measuring_leaves_no_trace_in_the_caches(together: bool, budget_s: float, tokens: int) -> None:
    target, draft = filled(FakeModel(), tokens), filled(FakeModel(sequences=18), tokens)
    before = target.tokens(), draft.tokens()
    assert_plausible(measure(target, draft, budget_s, together=together))
    assert (target.tokens(), draft.tokens()) == before
    assert {draft.length(sequence) for sequence in range(1, 18)} == {0}
    assert "measure" not in {thread.name for thread in threading.enumerate()}


def test_without_a_budget_a_curve_is_measured_all_the_same() -> None:
    found = measure(FakeModel(), FakeModel(sequences=5), 0.0, together=False)
    assert len(found.verify.points()) >= 3
    assert found.step.points()


def test_no_more_branches_are_tried_than_there_are() -> None:
    found = measure(FakeModel(), FakeModel(sequences=3), 0.02, together=False)
    assert max(found.step.points()) <= 3


def test_a_target_alone_can_be_measured() -> None:
    assert_plausible(measure(FakeModel(), None, 0.0, together=False))


def test_a_failing_draft_model_is_heard_of_and_leaves_no_trace() -> None:
    failed = threading.Event()
    target, draft = FakeModel(), FakeModel(sequences=4)

    def fail() -> None:
        if len(draft.calls) > 1:  # the first gives the caches something to hold
            failed.set()
            raise EngineError("broken")

    draft._delay = fail
    target._delay = lambda: wait_for(failed) if len(target.calls) > 2 else None
    with pytest.raises(EngineError, match="broken"):
        measure(target, draft, 0.0, together=True)
    assert target.length() == draft.length() == 0


def wait_for(event: threading.Event) -> None:
    assert event.wait(PATIENCE_S)


@pytest.mark.parametrize("together", [True, False])
def test_a_cancel_ends_measuring_and_leaves_no_trace(together: bool) -> None:
    target, draft = filled(FakeModel(), 5), filled(FakeModel(sequences=18), 5)
    target._delay = lambda: target.cancel() if len(target.calls) == 4 else None
    with pytest.raises(Cancelled):
        measure(target, draft, 5.0, together=together)
    assert target.tokens() == draft.tokens() == [0, 1, 2, 3, 4]
    assert "measure" not in {thread.name for thread in threading.enumerate()}


class RebuildingModel(FakeModel):
    """A fake model whose calls take five times as long where their size differs from the last one's."""

    @property
    def busy_s(self) -> float:
        sizes = zip([0, *self.calls], self.calls, strict=False)
        return sum(1.0 if size == before else 5.0 for before, size in sizes)


def test_plain_decoding_is_measured_as_it_runs_one_size_after_the_other() -> None:
    costs = measure(RebuildingModel(), None, 1.0, together=False)
    assert costs.verify(1) == 1.0
    assert costs.verify(5) == 5.0
