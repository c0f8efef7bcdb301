"""The tuner moves experts beside a server of this machine, which stands in for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.app.tuning import StopSignal, opener
from localspec.hardware.placement.candidates import DeviceAssignment, Placement
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.plan import placed_as
from localspec.storage.pair_identity import MachineFacts
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.load_options import try_load_options
from localspec.tuning.plan import TunePlan
from localspec.tuning.run import limits_of
from localspec.types.models import ModelOptions
from tests.llama import tiny
from tests.llama.conftest import ChatMl
from tests.llama.servers import sharing, use_servers
from tests.llama.test_rpc import PROMPTS, SETTINGS, request, text


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenPlan]:
    """Plan a mixture on the device, with the experts of one layer and a part of the next in RAM."""
    path = tiny.mixture(tmp_path / "mixture.gguf", template=ChatMl)
    target = DeviceAssignment(
        ("RPC0",), (tiny.LAYERS,), 2, 512, (), experts_at_home=1, parts_at_home=("ffn_up_exps",)
    )
    with sharing() as address:
        use_servers(address, monkeypatch)
        yield placed_as(Placement(target, None, "off", 10.0, ()), OpenPlan(ModelOptions(path)))


@pytest.mark.slow
def test_experts_of_more_and_fewer_layers_are_opened_and_answer_the_same(plan: OpenPlan) -> None:
    open_models = opener(plan, StopSignal())
    answers = {}
    for more in (0, -1, -2, 1):
        with open_models(LoadOptions(more_experts_at_home=more)) as models:
            answers[more] = text(models, PROMPTS[0], SETTINGS[0])
    assert len(set(answers.values())) == 1
    assert answers[0]


@pytest.mark.slow
def test_attempts_move_experts_and_a_failed_one_has_its_reason(plan: OpenPlan) -> None:
    limits = limits_of(TunePlan(plan, ()), MachineFacts("a processor", 2, devices=("RPC0: a server",)))
    asked = (replace(request(PROMPTS[0], SETTINGS[0]), max_tokens=8),)
    attempts = list(try_load_options(opener(plan, StopSignal()), limits, asked, 1e9))
    assert {-2, -1} <= {each.workplace.more_experts_at_home for each in attempts}
    assert [each.failure for each in attempts if each.failure] == []
    odd = replace(plan, target=replace(plan.target, devices=("RPC7",)))
    (failed,) = try_load_options(opener(odd, StopSignal()), limits, asked, 1e9)
    assert "RPC7" in failed.failure
