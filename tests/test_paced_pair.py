"""Two pretended GPUs behind the interface of open models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.decoding.measurements import CostRequest
from localspec.errors import EngineError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.interface import TunableModels
from localspec.inference.runtime import Runtime
from localspec.tuning.costs import call_costs
from localspec.tuning.trace import trace
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings
from tests.decoding.toys import broken
from tests.fake_model import FakeModel, Hold, Pacing
from tests.inference.runtimes import OFF, answer, greedy
from tests.paced_pair import open_paced

VERIFY, STEP = Pacing(0.02, 0.02), Pacing(0.005, 0.01)
WISH = CostRequest(depth=40, together=True, budget_s=0.0)


class Clock:
    """A clock that only sleeping and computing move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("tests.fake_model.time.perf_counter", lambda: self.now)
        monkeypatch.setattr("tests.fake_model.time.sleep", self.pass_by)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("tokens", "computing_s", "took_s"), [(1, 0.25, 1.0), (3, 0.25, 2.0), (9, 0.25, 6.0), (1, 3.0, 3.0)]
)
def test_a_call_is_held_until_its_cost_has_passed(
    monkeypatch: pytest.MonkeyPatch, tokens: int, computing_s: float, took_s: float
) -> None:
    clock = Clock(monkeypatch)
    hold = Hold(Pacing(1.0, 0.5), chunk=4)
    model = FakeModel(delay=lambda: clock.pass_by(computing_s), hold=hold)
    model.evaluate([1] * tokens)
    assert clock.now == took_s
    assert hold.seconds == model.busy_s - 1e-3 == pytest.approx(took_s - computing_s)


def test_a_call_that_fails_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    model = FakeModel(delay=broken, hold=Hold(Pacing(1.0, 0.0)))
    with pytest.raises(EngineError):
        model.evaluate([1])
    assert clock.now == 0.0


@pytest.fixture(scope="module")
def paced(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    target = ModelOptions(demo_target_q8, context=512, micro_batch=32)
    with open_paced(target, replace(target, path=demo_draft), VERIFY, STEP, max_fan_out=8) as opened:
        yield opened


@pytest.mark.slow
def test_costs_are_those_of_the_pretended_gpus(paced: Runtime) -> None:
    models: TunableModels = paced
    found = models.perform(call_costs, WISH)
    for points, pacing in ((found.verify, VERIFY), (found.step, STEP)):
        assert all(seconds >= pacing(size) for size, seconds in points)
    assert {1, 2, 8} <= {width for width, _ in found.step} <= {1, 2, 3, 4, 6, 8}


@pytest.mark.slow
def test_everything_works_as_with_other_models(
    paced: Runtime, demo_target_q8: Path, demo_draft: Path
) -> None:
    request = greedy(max_tokens=12)
    options = ModelOptions(demo_target_q8, context=512, micro_batch=32, threads=1)
    with Runtime.open(OpenPlan(options, replace(options, path=demo_draft))) as plain:
        expected, _ = answer(plain, request)
        traced = trace(plain, request)
    for mode in ("off", "sd", "ssd"):
        text, end = answer(paced, replace(request, settings=EngineSettings(mode=mode)))
        assert text == expected
        assert end.summary.verify_s >= VERIFY(1) * end.summary.rounds
    found = trace(paced, replace(request, settings=OFF))
    assert found.tokens.tolist() == traced.tokens.tolist()
    assert found.decode_s >= 11 * VERIFY(1)


@pytest.mark.slow
def test_a_larger_vocabulary_changes_no_answer(demo_target_q8: Path, demo_draft: Path) -> None:
    target = ModelOptions(demo_target_q8, context=512, micro_batch=32)
    request = greedy(max_tokens=12)
    texts = set()
    for vocabulary in (None, 20_000):
        with open_paced(
            target, replace(target, path=demo_draft), Pacing(0.001, 0.0), None, vocabulary=vocabulary
        ) as opened:
            assert opened._contexts.target.vocabulary_size == (vocabulary or opened.target.vocabulary)
            texts |= {
                answer(opened, replace(request, settings=EngineSettings(mode=mode)))[0]
                for mode in ("off", "sd", "ssd")
            }
    assert len(texts) == 1


@pytest.mark.slow
def test_a_model_without_pacing_is_as_it_is(demo_target: Path, demo_draft: Path) -> None:
    target = ModelOptions(demo_target, context=128)
    with open_paced(target, replace(target, path=demo_draft), Pacing(0.1, 0.0), None) as opened:
        found = call_costs(opened, replace(WISH, together=False))
        assert dict(found.verify)[1] >= 0.1 > dict(found.step)[1]
