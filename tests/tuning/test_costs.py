"""What calls cost: which measurements are made, repeated and kept."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from localspec.decoding.measurements import CallCosts, CostRequest, Costs, Overhead
from localspec.inference.interface import TunableModels
from localspec.tuning.costs import keep_costs, measure, recall_costs
from localspec.types import ModelInfo, ModelOptions
from tests.fake_model import Pacing
from tests.paced_pair import open_paced

INFO = ModelInfo(Path("m.gguf"), "m", "llama", 1, 1, 4096, 4096, 16, ("CPU",))
CALLS = CallCosts(64, False, ((1, 0.01), (16, 0.02)), ((1, 0.001), (8, 0.002)), 1.01, 0.05)
COSTS = Costs(
    (CALLS, replace(CALLS, depth=1536, together=True, step=())),
    (Overhead("off", 1e-4), Overhead("ssd", 1e-4, 2e-5, 1.1, 0.9, 3e-4)),
)


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

    def measure_costs(self, wish: CostRequest) -> CallCosts:
        drift = self.drifts[len(self.wishes)] if len(self.wishes) < len(self.drifts) else 1.0
        self.wishes.append(wish)
        verify = tuple((size, self.token_s * size) for size in wish.verify_sizes)
        return CallCosts(wish.depth, wish.together, verify, (), drift)

    def places(self) -> list[tuple[int, bool]]:
        return [(wish.depth, wish.together) for wish in self.wishes]


def measured(models: Measured, budget_s: float = 8.0) -> list[CallCosts]:
    return list(measure(cast(TunableModels, models), depths=(64, 1500), budget_s=budget_s))


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


def test_costs_are_kept_for_their_key_alone(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    assert recall_costs(path, "pair") is None
    keep_costs(path, "pair", COSTS)
    assert recall_costs(path, "pair") == COSTS
    assert recall_costs(path, "another") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    keep_costs(path, "another", replace(COSTS, overheads=()))
    assert recall_costs(path, "pair") is None
    assert recall_costs(path, "another") == replace(COSTS, overheads=())
    keep_costs(path, "pair", replace(COSTS, left_out=(("ssd", "it crashed"),)))
    assert recall_costs(path, "pair") == replace(COSTS, left_out=(("ssd", "it crashed"),))


def test_damaged_costs_are_none(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    keep_costs(path, "k", COSTS)
    text = path.read_text(encoding="utf-8")
    for end in range(0, len(text) - 2, 7):
        path.write_text(text[:end], encoding="utf-8")
        assert recall_costs(path, "k") is None
    value = json.loads(text)
    call, overhead = value["calls"][0], value["overheads"][0]
    damaged: tuple[object, ...] = (
        value | {"schema": 1},  # with times of calls that compiled something
        value | {"calls": []},
        value | {"calls": [call | {"verify": [[1, -0.5]]}]},
        value | {"calls": [call | {"verify": []}]},
        value | {"calls": [call | {"verify": [[1, 0.5, 2]]}]},
        value | {"calls": [call | {"drift": float("nan")}]},
        value | {"calls": [{}]},
        value | {"overheads": [overhead | {"mode": "warp"}]},
        value | {"overheads": [overhead | {"step": "fast"}]},
        value | {"overheads": [overhead | {"verify": -1.0}]},
        value | {"overheads": [7]},
        value | {"left_out": [["warp", "it crashed"]]},
        value | {"left_out": [["ssd"]]},
        [],
    )
    for broken in damaged:
        path.write_text(json.dumps(broken), encoding="utf-8")
        assert recall_costs(path, "k") is None, broken
    path.write_bytes(b"\xff\xfe")
    assert recall_costs(path, "k") is None


def test_a_real_pair_is_measured_on_pretended_cards(demo_target: Path, demo_draft: Path) -> None:
    verify, step = Pacing(0.02, 0.02), Pacing(0.005, 0.01)
    target = ModelOptions(demo_target, context=512)
    with open_paced(target, replace(target, path=demo_draft), verify, step, max_fan_out=4) as models:
        found = list(measure(models, depths=(32, 100), budget_s=0.2))
        assert [(calls.depth, calls.together) for calls in found] == [(32, False), (32, True)]
        assert all(seconds >= verify(size) for calls in found for size, seconds in calls.verify)
        assert all(seconds >= step(width) for calls in found for width, seconds in calls.step)
