"""How a plan opens with tuned options that are relative to it, and what a machine lets the tuner try."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.hardware.placement.candidates import DeviceAssignment, Placement
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.hardware.placement.plan import placed_as
from localspec.llama.overrides import experts_override
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.storage.pair_identity import MachineFacts
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.load_options import MachineLimits
from localspec.tuning.plan import TunePlan
from localspec.tuning.run import limits_of
from localspec.types.models import ModelOptions, TensorOverride
from tests.llama import tiny

CARD = MachineFacts("a processor", 8, devices=("CUDA0: a card",))
OWN = TensorOverride("attn_q", "CPU")  # what the user moves stays moved


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.mixture(tmp_path_factory.mktemp("mixture") / "mixture.gguf")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.llama(tmp_path_factory.mktemp("dense") / "dense.gguf")


def planned(
    path: Path,
    *,
    experts_at_home: int = 0,
    parts: tuple[str, ...] = (),
    layers: int = tiny.LAYERS,
    micro_batch: int = 512,
    overrides: tuple[TensorOverride, ...] = (),
) -> OpenPlan:
    assignment = DeviceAssignment(
        ("CUDA0",), (layers,), 8, 512, (), experts_at_home=experts_at_home, parts_at_home=parts
    )
    placement = Placement(assignment, None, "off", 10.0, (), micro_batch=micro_batch)
    return placed_as(placement, OpenPlan(ModelOptions(path, overrides=overrides)))


@pytest.mark.parametrize(("more", "number"), [(-2, 0), (-1, 0), (0, 1), (1, 2), (5, 2)])
def test_experts_in_ram_are_counted_from_the_plan(mixture: Path, more: int, number: int) -> None:
    plan = planned(mixture, experts_at_home=1)
    target = plan.opened_with(LoadOptions(more_experts_at_home=more)).target
    assert target == replace(plan.target, experts_at_home=number)


@pytest.mark.parametrize(("more", "number"), [(-1, 1), (1, 2), (-2, 0)])
def test_a_part_of_a_layer_counts_as_a_layer_and_does_not_stay_behind(
    mixture: Path, more: int, number: int
) -> None:
    plan = planned(mixture, experts_at_home=1, parts=("ffn_up_exps",), overrides=(OWN,))
    assert plan.target.overrides == (OWN, experts_override([1], ["ffn_up_exps"]))
    target = plan.opened_with(LoadOptions(more_experts_at_home=more)).target
    assert (target.experts_at_home, target.overrides) == (number, (OWN,))
    assert plan.opened_with(LoadOptions()) == plan


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (LoadOptions(), 1024),
        (LoadOptions(micro_batch_factor=0.5), 512),
        (LoadOptions(micro_batch_factor=2.0), 2048),
        (LoadOptions(micro_batch=256), 256),  # of version 0.2
    ],
)
def test_micro_batches_are_multiples_of_the_planned_one(
    mixture: Path, options: LoadOptions, size: int
) -> None:
    plan = planned(mixture, experts_at_home=1, micro_batch=1024)
    plan = replace(plan, draft=replace(plan.target, batch=1024))
    opened = plan.opened_with(options)
    assert opened.draft is not None
    assert (opened.target.micro_batch, opened.draft.micro_batch) == (size, size)
    assert (opened.target.batch, opened.draft.batch) == (2048, max(1024, size))


def limits(plan: OpenPlan) -> MachineLimits:
    return limits_of(TunePlan(plan, ()), CARD)


def test_the_cpu_works_beside_a_gpu_where_experts_are_in_ram(mixture: Path) -> None:
    found = limits(planned(mixture, experts_at_home=1, parts=("ffn_up_exps",)))
    assert (found.target_on_card, found.expert_layers, found.experts_at_home) == (False, 2, 2)
    part = limits(planned(mixture, parts=("ffn_up_exps",)))
    assert (part.target_on_card, part.expert_layers, part.experts_at_home) == (False, 2, 1)
    assert not limits(planned(mixture, experts_at_home=1)).target_on_card
    whole = limits(planned(mixture))
    assert (whole.target_on_card, whole.expert_layers, whole.experts_at_home) == (True, 2, 0)


def test_the_cpu_works_beside_a_gpu_that_has_not_all_of_a_model(dense: Path) -> None:
    assert limits(planned(dense)).target_on_card
    assert not limits(planned(dense, layers=1)).target_on_card
    assert not limits(planned(dense, overrides=(OWN,))).target_on_card
    assert not limits(OpenPlan(ModelOptions(dense, devices=(), gpu_layers=0))).target_on_card
    home = planned(dense)
    assert not limits(replace(home, target=replace(home.target, output_at_home=True))).target_on_card
    assert limits(planned(dense, layers=1)).expert_layers == 0


def test_layers_on_the_cpu_have_no_experts_to_move(mixture: Path) -> None:
    assert limits(planned(mixture, layers=1)).expert_layers == 0


def test_a_cache_of_quantised_values_brings_flash_attention_back(dense: Path) -> None:
    plan = OpenPlan(ModelOptions(dense, flash_attention=False))
    target = plan.opened_with(LoadOptions(target_kv_type="q8_0")).target
    assert (target.kv_type_v, target.flash_attention) == ("q8_0", None)


def test_without_a_plan_a_target_on_the_cpu_has_the_same_attention(demo_target: Path) -> None:
    files = PairFiles(demo_target, None)
    here = as_asked(files, PairRequest(), on_processor=True).target
    assert (here.flash_attention, here.micro_batch) == (False, 128)
    anywhere = as_asked(files, PairRequest()).target
    assert (anywhere.flash_attention, anywhere.micro_batch) == (None, 512)
