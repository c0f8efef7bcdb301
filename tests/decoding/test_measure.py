from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from localspec.decoding.measure import REREAD, measure, time_calls
from localspec.decoding.measurements import CallCosts, CostRequest
from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.errors import Cancelled, EngineError
from localspec.types.candidates import Rows
from tests.decoding.toys import TIMEOUT_S
from tests.fake_model import FakeModel, Pacing


def filled(model: FakeModel, tokens: int) -> FakeModel:
    if tokens:
        model.evaluate([number % 16 for number in range(tokens)], 0)
    return model


def assert_plausible(found: LatencyModel) -> None:
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


def test_what_is_read_again_is_measured_with_a_verification() -> None:
    class Rereading(FakeModel):
        rereads = True

    target = Rereading()
    found = measure(target, None, 0.0, together=False)
    read = {size: min(size - 1, REREAD) for size in found.verify.points()}
    assert max(read.values()) > 2
    assert {size + again for size, again in read.items()} <= set(target.calls)


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
    assert event.wait(TIMEOUT_S)


@pytest.mark.parametrize("on_card", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_cancel_ends_measuring_and_leaves_no_trace(together: bool, on_card: bool) -> None:
    target, draft = filled(FakeModel(), 5), filled(FakeModel(sequences=18), 5)
    target._delay = lambda: target.cancel() if len(target.calls) == 4 else None
    with pytest.raises(Cancelled):
        measure(target, draft, 5.0, together=together, on_card=on_card)
    assert len(target.calls) < 6
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


WISH = CostRequest(depth=50, together=False, budget_s=0.0)


class PacedFake(FakeModel):
    """A fake model whose calls take N seconds by their size, in virtual time."""

    def __init__(self, first_s: float, further: float, **options: int) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._pacing = Pacing(first_s, further)
        self.depths: set[int] = set()

    @property
    def busy_s(self) -> float:
        return sum(map(self._pacing, self.calls))

    def step(self, tokens: Sequence[int], sequences: Sequence[int]) -> Rows:
        self.depths |= {self.length(sequence) for sequence in sequences}
        return super().step(tokens, sequences)


class CardFake(PacedFake):
    """A fake model on a GPU that compiles something at the first call of every size."""

    compile_s = 50.0

    @property
    def busy_s(self) -> float:
        return super().busy_s + self.compile_s * len(set(self.calls))


class DisturbedFake(PacedFake):
    """A fake model that something else disturbs during the calls of some numbers."""

    disturbed: Sequence[int] = ()

    @property
    def busy_s(self) -> float:
        return super().busy_s + sum(number < len(self.calls) for number in self.disturbed)


def assert_paced(found: LatencyModel | CallCosts, target: PacedFake, draft: PacedFake) -> None:
    for curve, model in ((found.verify, target), (found.step, draft)):
        points = curve.points() if isinstance(curve, CostCurve) else dict(curve)
        assert points == pytest.approx({size: model._pacing(size) for size in points})


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_what_a_gpu_compiles_is_not_a_cost(together: bool) -> None:
    target, draft = CardFake(0.03, 0.02), CardFake(0.004, 0.01, sequences=25)
    found = measure(target, draft, 0.0, together=together, on_card=True)
    assert_paced(found, target, draft)
    target, draft = CardFake(0.03, 0.02), CardFake(0.004, 0.01, sequences=25)
    wished = time_calls(target, draft, replace(WISH, together=together), on_card=True)
    assert_paced(wished, target, draft)
    assert wished.drift == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("compile_s", "sizes", "widths"),
    [
        (0.0, [1, 2, 3, 5, 9], [1, 2, 4, 8, 16]),
        (0.5, [1, 2, 3, 5, 9], [1, 2, 4, 8, 16]),
        (50.0, [1, 2, 5], [1, 2, 4]),  # an answer does not wait for more
    ],
)
def test_a_gpu_compiles_outside_of_the_budget(
    compile_s: float, sizes: list[int], widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CardFake, "compile_s", compile_s)
    target, draft = CardFake(0.03, 0.02), CardFake(0.004, 0.01, sequences=17)

    def clock() -> float:
        return target.busy_s + draft.busy_s

    monkeypatch.setattr("localspec.decoding.measure.time.perf_counter", clock)
    found = measure(target, draft, 0.4, together=False, on_card=True)
    assert list(found.verify.points()) == sizes
    assert list(found.step.points()) == widths
    assert_paced(found, target, draft)


def test_a_cpu_is_spared_the_calls_that_are_not_timed() -> None:
    target, draft = FakeModel(), FakeModel(sequences=17)
    measure(target, draft, 0.0, together=False)
    text, first, lap = [32], [1], [1, 1, 2, 5]
    assert target.calls == [*text, *first, *lap, *lap]


@pytest.mark.parametrize("number", range(2, 11))
def test_a_single_disturbance_is_not_a_cost(number: int) -> None:
    target, draft = DisturbedFake(0.03, 0.02), DisturbedFake(0.004, 0.01, sequences=17)
    target.disturbed = draft.disturbed = (number,)
    assert_paced(measure(target, draft, 0.0, together=False), target, draft)


def test_a_curve_that_makes_no_sense_is_measured_again() -> None:
    target = DisturbedFake(0.03, 0.02)
    target.disturbed = (5, 9)  # both times a call of five tokens
    found = measure(target, None, 0.0, together=False)
    assert [target.calls[number] for number in target.disturbed] == [5, 5]
    assert found.verify.points() == pytest.approx({size: target._pacing(size) for size in (1, 2, 5)})


def test_curves_that_never_make_sense_are_dropped() -> None:
    class Nonsense(FakeModel):
        @property
        def busy_s(self) -> float:
            return sum(1.0 / size**2 for size in self.calls)

    target = Nonsense()
    assert measure(target, None, 0.0, together=False).verify(5) == pytest.approx(1 / 25)
    assert len(target.calls) < 20


@pytest.mark.parametrize("together", [True, False])
def test_wished_calls_are_timed_at_their_depth_and_leave_no_trace(together: bool) -> None:
    target, draft = PacedFake(0.03, 0.02), PacedFake(0.004, 0.01, sequences=25)
    found = time_calls(target, draft, replace(WISH, together=together, budget_s=0.05))
    assert (found.depth, found.together) == (50, together)
    assert draft.depths == {50}
    assert [size for size, _ in found.verify] == sorted({size for size, _ in found.verify})
    for points, pacing in ((found.verify, target._pacing), (found.step, draft._pacing)):
        assert [seconds for _, seconds in points] == pytest.approx([pacing(size) for size, _ in points])
    assert max(width for width, _ in found.step) <= 25
    assert found.drift == pytest.approx(1.0)
    assert found.spread == pytest.approx(0.0)
    assert target.tokens() == draft.tokens() == []


@pytest.mark.parametrize("together", [True, False])
def test_a_few_calls_that_tell_most_are_always_timed(together: bool) -> None:
    found = time_calls(FakeModel(), FakeModel(sequences=65), replace(WISH, together=together))
    assert {1, 2, 16} <= {size for size, _ in found.verify}
    assert together or len(found.verify) < 16  # together the draft may need longer for its calls
    assert {1, 2, 64} <= {width for width, _ in found.step}


def test_the_target_works_on_until_a_slow_draft_model_has_done_its_calls() -> None:
    target, draft, far = FakeModel(), FakeModel(sequences=4), threading.Event()
    target._delay = lambda: far.set() if len(target.calls) > 60 else None
    draft._delay = lambda: wait_for(far) if len(draft.calls) == 3 else None
    found = time_calls(target, draft, replace(WISH, together=True))
    assert {1, 2, 4} <= {width for width, _ in found.step}
    assert len(target.calls) > 60


def test_a_depth_beyond_the_context_is_cut_and_a_target_can_be_alone() -> None:
    found = time_calls(FakeModel(context=64), None, replace(WISH, depth=500, together=True))
    assert (found.depth, found.together, found.step) == (48, False, ())
    assert [width for width, _ in time_calls(FakeModel(), FakeModel(), WISH).step] == [1]


def test_a_machine_that_slows_down_is_noticed() -> None:
    class Slowing(FakeModel):
        @property
        def busy_s(self) -> float:
            return 1e-3 * len(self.calls) ** 2

    found = time_calls(Slowing(), None, WISH)
    assert found.drift > 1.3
    assert found.spread > 0.1


@pytest.mark.parametrize("together", [True, False])
def test_a_cancel_ends_wished_calls_too(together: bool) -> None:
    target, draft = FakeModel(), FakeModel(sequences=18)
    target._delay = lambda: target.cancel() if len(target.calls) == 12 else None
    with pytest.raises(Cancelled):
        time_calls(target, draft, replace(WISH, together=together, budget_s=5.0))
    assert target.tokens() == draft.tokens() == []


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("widths", [(), (64,)])
def test_a_wish_without_a_possible_draft_call_times_the_target(
    together: bool, widths: tuple[int, ...]
) -> None:
    request = CostRequest(8, together, verify_sizes=(1, 2), step_widths=widths, budget_s=0.0)
    found = time_calls(FakeModel(), FakeModel(sequences=4), request)
    assert [size for size, _ in found.verify] == [1, 2]
    assert found.step == ()
