"""Who sits where on invented machines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.errors import UserError
from localspec.hardware.device_info import Machine, RateFailure
from localspec.hardware.memory import budget
from localspec.hardware.memory.needs import DeviceNeed, MemoryRequest, estimate
from localspec.hardware.placement import measured
from localspec.hardware.placement.candidates import Placement
from localspec.hardware.placement.place import place
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape, MovedWeights
from tests.hardware.machines import (
    HUGE,
    LARGE,
    MIDDLE,
    SMALL,
    TINY,
    apple,
    asking,
    card,
    cpu,
    machine,
    mixture,
    model,
    recurrent,
)


def assignments(
    where: Machine,
    target: ModelShape,
    draft: ModelShape | None,
    constraints: PairRequest | None = None,
) -> Placement:
    return place(where, target, draft, constraints or asking())


def told(placement: Placement, *words: str) -> bool:
    return any(all(word in reason for word in words) for reason in placement.reasons)


def test_one_big_gpu_holds_both_and_they_take_turns() -> None:
    found = assignments(machine((card(0, 24), 900)), LARGE, SMALL)
    assert (found.target.devices, found.target.layers) == (("CUDA0",), (64,))
    assert found.draft is not None
    assert found.draft.devices == ("CUDA0",)
    assert found.mode == "sd"
    assert told(found, "the target needs", "fits on CUDA0", "23.7 GiB free, 512 MiB of it reserved")
    assert told(found, "with the target", "work alternately")


def test_what_a_small_gpu_cannot_hold_stays_with_the_cpu() -> None:
    found = assignments(machine((card(0, 12), 360)), LARGE, SMALL)
    assert found.target.devices == ("CUDA0",)
    assert 25 < sum(found.target.layers) < 45
    on_card = {need.device: need.total for need in found.target.needs}
    assert on_card["CUDA0"] < 11.2 * 2**30
    assert told(found, f"{sum(found.target.layers)} of 64 layers", "on the CPU")


def test_the_draft_sits_on_the_smaller_gpu_and_works_ahead() -> None:
    found = assignments(machine((card(0, 24), 900), (card(1, 8), 300)), LARGE, SMALL)
    assert found.target.devices == ("CUDA0",)
    assert found.draft is not None
    assert found.draft.devices == ("CUDA1",)
    assert found.mode == "ssd"
    assert told(found, "is on CUDA1, so it drafts while the target verifies: SSD")
    [same] = [
        other for other in found.rejected if other.description == "the same placement in mode speculative"
    ]
    assert same.tokens_per_s is not None
    assert found.tokens_per_s is not None
    assert same.tokens_per_s < found.tokens_per_s
    [shared] = [other for other in found.rejected if "draft on CUDA0" in other.description][:1]
    assert shared.reason == "slower"


def test_the_order_of_the_gpus_does_not_matter() -> None:
    found = assignments(machine((card(0, 8), 300), (card(1, 24), 900)), LARGE, SMALL)
    assert found.target.devices == ("CUDA1",)
    assert found.draft is not None
    assert found.draft.devices == ("CUDA0",)


def test_two_equal_gpus_share_a_target_that_neither_holds() -> None:
    found = assignments(machine((card(0, 24), 900), (card(1, 24), 900)), HUGE, SMALL)
    assert sorted(found.target.devices) == ["CUDA0", "CUDA1"]
    assert sum(found.target.layers) == 80
    assert min(found.target.layers) > 30
    assert told(found, "the target needs", "is split")


def test_three_unequal_gpus_fill_from_the_fastest() -> None:
    where = machine((card(0, 8), 250), (card(1, 24), 900), (card(2, 16), 500))
    found = assignments(where, HUGE, SMALL)
    layers = dict(zip(found.target.devices, found.target.layers, strict=True))
    assert sum(layers.values()) == 80
    assert layers["CUDA1"] > layers["CUDA2"] > layers["CUDA0"]
    assert found.target.devices[-1] == "CUDA1"
    without_last = assignments(machine((card(1, 24), 900), (card(2, 16), 500)), HUGE, SMALL)
    assert (without_last.tokens_per_s or 0) < (found.tokens_per_s or 0)


def test_a_slow_gpu_and_many_cores_draft_on_the_cpu() -> None:
    found = assignments(machine((card(0, 24), 300), processor=cpu(60, 32), rate=120), LARGE, SMALL)
    assert found.target.devices == ("CUDA0",)
    assert found.draft is not None
    assert found.draft.devices == ()
    assert found.mode == "ssd"
    assert (found.target.threads, found.draft.threads) == (1, 31)


def test_without_gpus_a_bulky_draft_takes_turns() -> None:
    found = assignments(machine(), model(4.2, 32, quant="BF16"), SMALL)
    assert found.target.devices == ()
    assert found.draft is not None
    assert found.mode == "sd"
    assert (found.target.threads, found.draft.threads) == (8, 8)
    assert told(found, "finds no GPU")
    assert told(found, "they work alternately")


def test_without_gpus_cores_are_split_where_the_draft_stays_in_the_caches() -> None:
    target = model(0.2, 8, width=512, vocabulary=4096, quant="BF16")
    target = replace(
        target, layers=tuple(replace(each, key_values=64, value_values=64) for each in target.layers)
    )
    # many thin layers: cores mostly wait for each other, which more of them do not shorten
    thin = replace(TINY.layers[0], weight_bytes=2**18, read_bytes=2**18, key_values=16, value_values=16)
    draft = replace(TINY, layers=(thin,) * 48, width=64)
    found = assignments(machine(processor=cpu(60, 32), rate=60), target, draft, asking(context=1024))
    assert found.mode == "ssd"
    assert told(found, "24 cores for the target, 8 for drafting ahead (SSD)")


def test_apple_memory_is_counted_once_and_gives_nothing_for_working_at_once() -> None:
    found = assignments(apple(32), LARGE, SMALL)
    assert found.target.devices == ("Metal",)
    assert found.mode == "sd"
    assert told(found, "Metal's memory rate was not measured: 280 GB/s")
    with pytest.raises(UserError, match="does not fit"):
        assignments(apple(16), LARGE, SMALL)


def test_a_gpu_that_drives_a_display_keeps_more_free() -> None:
    target = model(5.8, 32)
    silent = assignments(machine((card(0, 8), 360)), target, None)
    busy = assignments(machine((card(0, 8, display=True), 360)), target, None)
    assert silent.target.context == 8192
    assert busy.target.context < 8192 or sum(busy.target.layers) < 32
    assert told(silent, "512 MiB of it reserved")
    assert told(busy, "1.0 GiB of it reserved")


def test_a_smaller_context_worth_its_speed_is_taken_and_reported() -> None:
    where = machine((card(0, 8), 360))
    target = model(6.2, 32)
    found = assignments(where, target, None)
    assert found.target.context == 4096
    assert told(found, "the context is 4,096 tokens", "instead of")
    asked = assignments(where, target, None, asking(context=8192))
    assert asked.target.context == 8192
    assert sum(asked.target.layers) < 32


def test_what_fits_nowhere_is_rejected_with_numbers_and_three_ways_out() -> None:
    with pytest.raises(UserError) as refused:
        assignments(machine((card(0, 8), 360), processor=cpu(8)), HUGE, SMALL)
    assert "does not fit" in refused.value.message
    assert "GiB are needed" in refused.value.message
    assert "three ways out" in refused.value.hint
    assert refused.value.hint.count(";") == 2


def test_a_mixture_of_experts_gains_less() -> None:
    where = machine((card(0, 24), 900), (card(1, 8), 300))

    def gain(target: ModelShape) -> float:
        plain = assignments(where, target, None).tokens_per_s or 0
        return (assignments(where, target, SMALL, asking(mode="ssd")).tokens_per_s or 0) / plain

    experts = mixture(16, 48, 0.1)
    assert gain(experts) < 0.6 * gain(model(16, 48))
    assert told(assignments(where, experts, SMALL), "mixture of experts")
    assert not told(assignments(where, LARGE, SMALL), "mixture of experts")


def test_a_draft_that_does_not_pay_sits_ready() -> None:
    found = assignments(machine((card(0, 24), 900)), mixture(16, 48, 0.1), SMALL)
    assert found.mode == "off"
    assert found.draft is not None
    assert told(found, "ready if measured costs favour it")


def test_what_the_draft_s_file_reports_of_its_acceptance_counts() -> None:
    here = machine((card(0, 24), 900), (card(1, 12), 360))
    unknown, poor, good = (
        place(here, LARGE, replace(SMALL, acceptance=share), asking()) for share in (None, 0.1, 0.95)
    )
    speeds = [found.tokens_per_s or 0.0 for found in (poor, unknown, good)]
    assert speeds[0] < speeds[1] < speeds[2]
    assert "if 95% of the draft's tokens are accepted, as its file claims" in " ".join(good.reasons)
    assert "if 70% of the draft's tokens are accepted and 70%" in " ".join(unknown.reasons)


def test_without_a_draft_decoding_is_plain() -> None:
    found = assignments(machine((card(0, 12), 360)), MIDDLE, None)
    assert (found.draft, found.mode) == (None, "off")
    assert not told(found, "draft")


@pytest.mark.parametrize(("target", "draft"), [(recurrent(4, 32), SMALL), (MIDDLE, recurrent(0.4, 28))])
def test_models_with_a_recurrent_state_speculate(target: ModelShape, draft: ModelShape) -> None:
    found = assignments(machine((card(0, 24), 900)), target, draft)
    assert found.draft is not None
    assert found.mode != "off"


@pytest.mark.parametrize(
    ("asked", "snapshots"),
    [
        (PairRequest(), 8),
        (PairRequest(mode="ngram"), 8),
        (PairRequest(mode="sd", draft_length=3), 3),
        (PairRequest(draft_length=40), 8),
        (PairRequest(mode="off", draft_length=3), 0),
    ],
)
def test_states_are_planned_for_the_longest_draft(asked: PairRequest, snapshots: int) -> None:
    target = replace(recurrent(4, 32), architecture="qwen35")
    found = place(machine((card(0, 24), 900)), target, None, asked)
    off = place(machine((card(0, 24), 900)), target, None, PairRequest(mode="off"))
    states = sum(need.cache for need in found.target.needs) - sum(need.cache for need in off.target.needs)
    assert states == snapshots * target.state_bytes


def test_fewer_states_leave_room_for_layers() -> None:
    target = recurrent(9, 32)
    layers = tuple(replace(each, state_bytes=each.state_bytes and 40 << 20) for each in target.layers)
    target = replace(target, architecture="qwen35", layers=layers)
    where = machine((card(0, 12), 360))
    usual, short, off = (
        place(where, target, None, request).target.layers
        for request in (PairRequest(), PairRequest(draft_length=3), PairRequest(mode="off"))
    )
    assert sum(usual) < sum(short) < sum(off)


def test_a_draft_without_room_stays_closed() -> None:
    where = machine(processor=cpu(8))
    found = assignments(where, MIDDLE, model(4.1, 32), asking(context=4096))
    assert found.draft is None
    assert told(found, "it does not fit on any device")
    assert any("does not fit: CPU has" in other.reason for other in found.rejected)


def test_a_rate_that_no_one_measured_is_reported() -> None:
    where = machine((card(0, 24), 900))
    bare = replace(where, rates=(), devices=(replace(where.devices[0], theoretical_rate=1e12), cpu()))
    found = assignments(bare, LARGE, SMALL)
    assert told(found, "CUDA0's memory rate was not measured: 700 GB/s, 70% of its theoretical rate")
    assert not told(assignments(where, LARGE, SMALL), "not measured")


def test_a_device_that_could_not_be_measured_is_neither_believed_in_nor_to_be_measured_again() -> None:
    where = machine((card(0, 24), 900))
    failed = (RateFailure("CUDA0", "it took longer than 84 s"),)
    slow = replace(where, rates=where.rates[1:], failures=failed)
    found = assignments(slow, SMALL, None, asking(devices=("CUDA0",), gpu_layers=99))
    why = "CUDA0's memory rate could not be measured (it took longer than 84 s): 50 GB/s"
    assert told(found, f"{why}, assumed to be as fast as the CPU's")
    assert not told(found, "localspec devices")
    assert found.tokens_per_s is not None
    assert found.tokens_per_s < 1.2 * 50e9 / SMALL.weight_bytes  # at 250 GB/s it would be 430


def test_a_slow_gpu_that_is_named_holds_the_model_all_the_same() -> None:
    where = machine((card(0, 24), 1), (card(1, 24), 1))
    for names in (("CUDA0",), ("CUDA0", "CUDA1")):
        assert assignments(where, SMALL, None, asking(devices=names)).target.devices
    assert not assignments(where, SMALL, None).target.devices


def test_a_slow_rate_is_reported_with_its_decimal() -> None:
    where = machine((card(0, 24), 900))
    slow = replace(where, rates=where.rates[1:], devices=(replace(card(0, 24), theoretical_rate=1e9), cpu()))
    constraints = asking(devices=("CUDA0",), gpu_layers=99)
    assert told(assignments(slow, SMALL, None, constraints), "not measured: 0.7 GB/s")


def test_layers_are_taken_back_where_the_exact_need_is_more_than_a_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def need(shape: ModelShape, request: MemoryRequest) -> tuple[DeviceNeed, ...]:
        count = request.split.on_cards
        return tuple(
            replace(found, cache=found.cache + (64 - count) * count * 2**20)
            if found.device != "CPU"
            else found
            for found in estimate(shape, request)
        )

    where = machine((card(0, 12), 360))
    usual = assignments(where, LARGE, None)
    monkeypatch.setattr(measured, "estimate", need)
    monkeypatch.setattr(budget, "estimate", need)
    found = place(where, LARGE, None, asking())
    assert 20 < sum(found.target.layers) < sum(usual.target.layers)


def test_a_machine_is_placed_the_same_way_every_time() -> None:
    where = machine((card(0, 24), 900), (card(1, 24), 900))
    assert assignments(where, HUGE, SMALL) == assignments(where, HUGE, SMALL)


@pytest.mark.parametrize(("micro_batch", "takes_on"), [(64, False), (65, True)])
def test_a_gpu_copies_weights_only_for_batches_that_it_takes_on(micro_batch: int, takes_on: bool) -> None:
    found = assignments(machine((card(0, 8), 600)), LARGE, None, asking(micro_batch=micro_batch))
    assert told(found, "layers", "on the CPU")
    assert told(found, "copies weights from RAM") is takes_on


def test_experts_that_the_user_moves_to_ram_are_read_like_those_of_a_plan() -> None:
    experts = mixture(16, 48, 0.1)
    bare = replace(experts.layers[0], weight_bytes=0, read_bytes=0, experts=())
    moved = tuple(
        MovedWeights("CPU", number, layer.weight_bytes, layer.read_bytes)
        for number, layer in enumerate(experts.layers)
    )
    by_name = replace(experts, layers=(bare,) * 48, moved=moved)
    by_count = asking(context=4096)
    by_count = replace(by_count, target=replace(by_count.target, experts_at_home="all"))
    where = machine((card(0, 12), 360))
    found = assignments(where, by_name, None, asking(context=4096))
    planned = assignments(where, experts, None, by_count)
    assert told(found, "-ot keeps 16.0 GiB of the target's layers in RAM")
    assert (found.micro_batch, found.mmap) == (planned.micro_batch, planned.mmap) == (2048, False)


def test_with_a_long_context_experts_go_to_ram_before_layers_with_their_caches() -> None:
    shape = mixture(17, 48, 8 / 128)
    shape = replace(
        shape, layers=tuple(replace(layer, key_values=512, value_values=512) for layer in shape.layers)
    )
    for context in (4096, 32768, 131072):
        found = assignments(machine((card(0, 16), 360), rate=60), shape, None, asking(context=context))
        assert found.target.layers == (48,)
        assert found.target.experts_at_home > 0
