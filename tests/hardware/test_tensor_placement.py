"""Where a split by tensor puts a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.hardware.bandwidth import Rates
from localspec.hardware.device_info import Machine, SumCost
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.place import place
from localspec.hardware.placement.plan import placed_as
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape
from localspec.types.models import ModelOptions
from tests.hardware.machines import GIB, LARGE, MIDDLE, SMALL, asking, card, divisible, machine

TWO = machine((card(0, 24), 900), (card(1, 24), 900))
TARGET = divisible(LARGE)


def test_every_device_holds_its_share_of_every_layer() -> None:
    found = place(TWO, TARGET, None, asking(split_mode="tensor"))
    assert (found.target.devices, found.target.layers, found.target.shares) == (
        ("CUDA0", "CUDA1"),
        (64, 64),
        (1.0, 1.0),
    )
    here, there, _ = found.target.needs
    whole = sum(layer.weight_bytes for layer in TARGET.layers) + TARGET.output_bytes
    assert here.weights == pytest.approx(there.weights)
    assert here.weights + there.weights == pytest.approx(whole, rel=0.001)
    assert here.compute == there.compute
    assert any("is divided: " in reason for reason in found.reasons)


def test_shares_are_those_given() -> None:
    found = place(TWO, TARGET, None, asking(split_mode="tensor", tensor_split=(3, 1)))
    here, there, _ = found.target.needs
    assert here.weights == pytest.approx(3 * there.weights, rel=0.01)
    assert here.cache == 3 * there.cache


def test_the_model_is_opened_as_placed() -> None:
    request = asking(split_mode="tensor", tensor_split=(3, 1))
    options = placed_as(place(TWO, TARGET, None, request), OpenPlan(ModelOptions(Path("a.gguf")))).target
    assert (options.split_mode, options.devices) == ("tensor", ("CUDA0", "CUDA1"))
    assert (options.gpu_layers, options.tensor_split) == (65, (3, 1))
    even = place(TWO, TARGET, None, asking(split_mode="tensor"))
    assert placed_as(even, OpenPlan(ModelOptions(Path("a.gguf")))).target.tensor_split == ()


def test_as_many_layers_are_divided_as_fit() -> None:
    small = machine((card(0, 8), 900), (card(1, 24), 900))
    found = place(small, TARGET, None, asking(split_mode="tensor", context=4096))
    assert found.target.devices == ("CUDA0", "CUDA1")
    assert 10 < found.target.layers[0] == found.target.layers[1] < 64
    here = found.target.needs[0]
    assert 6.5 * GIB < here.total <= 7.5 * GIB
    fewer = place(TWO, TARGET, None, asking(split_mode="tensor", gpu_layers=20))
    assert fewer.target.layers == (19, 19)


def test_layers_that_do_not_fit_are_rejected_with_a_number_that_does() -> None:
    small = machine((card(0, 8), 900), (card(1, 8), 900))
    with pytest.raises(UserError, match=r"CUDA0 has .* CUDA1 has .* to give") as refused:
        place(small, TARGET, None, asking(split_mode="tensor", gpu_layers=99, context=512))
    assert "put fewer layers on the GPUs (-ngl " in refused.value.hint


def test_the_draft_is_on_one_device() -> None:
    found = place(TWO, divisible(MIDDLE), SMALL, asking(split_mode="tensor", mode="sd"))
    assert found.draft is not None
    assert len(found.draft.devices) == 1


def test_half_a_read_is_faster_and_sums_take_time() -> None:
    layers = place(TWO, TARGET, None, asking(devices=("CUDA0", "CUDA1"), tensor_split=(1, 1), mode="off"))
    divided = place(TWO, TARGET, None, asking(split_mode="tensor", mode="off"))
    assert layers.tokens_per_s is not None
    assert divided.tokens_per_s is not None
    assert 1.2 * layers.tokens_per_s < divided.tokens_per_s < 2 * layers.tokens_per_s


def summing(delay_s: float, rate: float = 20e9, *, where: Machine = TWO) -> Machine:
    """Return a machine on which sums over the first two GPUs were measured."""
    return replace(where, sums=(SumCost(("CUDA0", "CUDA1"), delay_s, rate),))


def is_divided(where: Machine, target: ModelShape = TARGET, asked: PairRequest | None = None) -> bool:
    return bool(place(where, target, None, asked or asking()).target.shares)


@pytest.mark.parametrize(("delay_s", "divides"), [(2e-5, True), (1e-4, False)])
def test_the_measured_cost_of_sums_decides_for_equal_gpus(delay_s: float, divides: bool) -> None:
    """Half a read of 18 GiB saves 10 ms, for 128 sums a token."""
    found = place(summing(delay_s), TARGET, None, asking())
    assert bool(found.target.shares) is divides
    described = [other.description for other in found.rejected]
    assert ("target on CUDA0 and CUDA1, every matrix divided" in described) is not divides
    told = (
        f"a token takes 128 sums over these devices, {128 * (delay_s + 5120 * 4 / 20e9) * 1e3:.1f} ms in all"
    )
    assert any(told in reason for reason in found.reasons) is divides


def test_the_width_of_a_sum_counts() -> None:
    assert is_divided(summing(1e-6, 20e9))
    assert not is_divided(summing(1e-6, 0.2e9))


def test_a_model_is_divided_unasked_only_where_all_is_known_and_nothing_else_is_asked() -> None:
    quick = summing(1e-6)
    assert is_divided(quick)
    assert not is_divided(TWO)  # not measured
    for asked in (
        asking(split_mode="layer"),
        asking(gpu_layers=60),
        asking(tensor_split=(1, 1)),
        asking(flash_attention=False),
        asking(devices=("CUDA0",)),
    ):
        assert not is_divided(quick, asked=asked)
    assert not is_divided(quick, replace(TARGET, splits_by_tensor=False))
    hybrid = tuple(replace(layer, state_bytes=2**20) for layer in TARGET.layers)
    assert not is_divided(quick, replace(TARGET, layers=hybrid))


def test_only_equal_gpus_are_divided_between_unasked() -> None:
    other_rate = machine((card(0, 24), 900), (card(1, 24), 790))
    assert not is_divided(summing(1e-6, where=other_rate))
    other_model = replace(TWO, devices=(replace(TWO.devices[0], name="Another card"), *TWO.devices[1:]))
    assert not is_divided(summing(1e-6, where=other_model))
    three = machine((card(0, 24), 900), (card(1, 24), 900), (card(2, 8), 300))
    found = place(summing(1e-6, where=three), TARGET, None, asking())
    assert found.target.devices == ("CUDA0", "CUDA1")


def test_more_than_two_devices_take_more_rounds_of_sums() -> None:
    pairs = [("CUDA0", "CUDA1"), ("CUDA0", "CUDA2"), ("CUDA1", "CUDA2")]
    three = machine(*((card(number, 24), 900) for number in range(3)))
    rates = Rates(replace(three, sums=tuple(SumCost(pair, 1e-5, 1e9) for pair in pairs)))
    assert rates.sum_s(("CUDA0", "CUDA1"), 1000) == pytest.approx(1.1e-5)
    assert rates.sum_s(("CUDA0", "CUDA1", "CUDA2"), 1000) == pytest.approx(2.2e-5)
    assert rates.knows_sums(("CUDA0", "CUDA1", "CUDA2"))
    assert not rates.knows_sums(("CUDA0", "CPU"))
