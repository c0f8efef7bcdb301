"""What calls cost: which measurements are made and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from localspec.decoding.measurements import CallCosts, CostRequest
from localspec.tuning.costs import call_costs, measure
from localspec.types.models import ModelInfo, ModelOptions
from tests.fake_model import Pacing
from tests.paced_pair import open_paced
from tests.tuning.fake_models import open_once

INFO = ModelInfo(Path("m.gguf"), "m", "llama", 1, 1, 4096, 4096, 16, ("CPU",))


@dataclass
class Measured:
    """Models whose speed drifts as a test says, measurement by measurement."""

    drifts: Sequence[float] = ()
    context: int = 4096
    has_draft: bool = True
    token_s: float = 0.001
    wishes: list[CostRequest] = field(default_factory=list)

    @property
    def target(self) -> ModelInfo:
        return replace(INFO, context=self.context)

    @property
    def draft(self) -> ModelInfo | None:
        return INFO if self.has_draft else None

    def perform(self, task: object, wish: CostRequest) -> CallCosts:
        assert task is call_costs
        return self.measure_costs(wish)

    def measure_costs(self, wish: CostRequest) -> CallCosts:
        drift = self.drifts[len(self.wishes)] if len(self.wishes) < len(self.drifts) else 1.0
        self.wishes.append(wish)
        verify = tuple((size, self.token_s * size) for size in wish.verify_sizes)
        return CallCosts(wish.depth, wish.together, verify, (), drift)

    def places(self) -> list[tuple[int, bool]]:
        return [(wish.depth, wish.together) for wish in self.wishes]


def measured(models: Measured, budget_s: float = 8.0) -> list[CallCosts]:
    return list(measure(open_once(models), depths=(64, 1500), budget_s=budget_s))


def test_calls_are_measured_alone_and_together_at_both_depths() -> None:
    models = Measured()
    found = measured(models)
    assert models.places() == [(64, False), (64, True), (1500, False), (1500, True)]
    assert [(calls.depth, calls.together) for calls in found] == models.places()
    assert sum(wish.budget_s for wish in models.wishes) == 8.0


def test_without_a_draft_model_nothing_works_together() -> None:
    models = Measured(has_draft=False)
    measured(models)
    assert models.places() == [(64, False), (1500, False)]


def test_a_small_context_or_a_slow_model_is_measured_as_far_as_possible() -> None:
    models = Measured(context=1024)
    measured(models)
    assert [depth for depth, _ in models.places()] == [64, 64, 768, 768]
    for models in (Measured(context=128), Measured(token_s=0.02)):  # 100 tokens are read in 2 seconds
        measured(models)
        assert [depth for depth, _ in models.places()] == [64, 64]
    models = Measured(token_s=0.005)
    measured(models)
    assert [depth for depth, _ in models.places()] == [64, 64, 400, 400]


@pytest.mark.parametrize(
    ("drifts", "kept", "count"),
    [([1.3, 1.05], 1.05, 5), ([0.7, 1.5], 0.7, 5), ([1.2, 0.7], 1.2, 5), ([1.09], 1.09, 4)],
)
def test_a_measurement_that_drifted_is_repeated_once(drifts: list[float], kept: float, count: int) -> None:
    models = Measured(drifts)
    assert [calls.drift for calls in measured(models)] == [kept, 1.0, 1.0, 1.0]
    assert len(models.wishes) == count


@pytest.mark.slow
def test_a_real_pair_is_measured_on_pretended_gpus(demo_target: Path, demo_draft: Path) -> None:
    verify, step = Pacing(0.02, 0.02), Pacing(0.005, 0.01)
    target = ModelOptions(demo_target, context=512)
    with open_paced(target, replace(target, path=demo_draft), verify, step, max_fan_out=4) as models:
        found = list(measure(open_once(models), depths=(32, 100), budget_s=0.2))
        assert [(calls.depth, calls.together) for calls in found] == [(32, False), (32, True)]
        assert all(seconds >= verify(size) for calls in found for size, seconds in calls.verify)
        assert all(seconds >= step(width) for calls in found for width, seconds in calls.step)
