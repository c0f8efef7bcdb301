"""The cost model: consistent with the rules that measured costs are judged by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.decoding.speed_model import PredictedSpeed, plain_speed, predict, ranked, sd_speed
from localspec.hardware.bandwidth import Rates
from localspec.hardware.device_info import Machine
from localspec.hardware.memory.needs import LayerSplit, MemoryRequest
from localspec.hardware.placement.passes import Pass, Passes, ahead_speed
from localspec.models.shape import ModelShape
from tests.hardware.machines import GB, LARGE, MIDDLE, SMALL, TINY, apple, card, cpu, machine, mixture, model

TWO = machine((card(0, 24), 900), (card(1, 8), 300))


def passes(shape: ModelShape = MIDDLE, where: Machine = TWO) -> Passes:
    return Passes(shape, Rates(where), 8)


@pytest.mark.parametrize("known", [None, 0.0, 0.4, 1.0])
@pytest.mark.parametrize("step_s", [0.002, 0.03])
def test_on_devices_of_their_own_speeds_equal_the_engine_s_predictions(
    known: float | None, step_s: float
) -> None:
    def target(tokens: int) -> Pass:
        return Pass(0.02 + 0.0004 * tokens, {"CUDA0": 1.0})

    def draft(tokens: int) -> Pass:
        return Pass(step_s + 0.0001 * tokens, {"CUDA1": 1.0})

    measured = LatencyModel(
        CostCurve({size: target(size).seconds for size in range(1, 10)}),
        CostCurve({size: draft(size).seconds for size in range(1, 10)}),
    )
    waiting = sd_speed(measured.verify, measured.step, known)
    ahead = ahead_speed(target, draft, take_turns=False, acceptance=known)
    ours = ranked([plain_speed(measured.verify), waiting, ahead])
    for known_speed, prediction in zip(ours, predict(measured, measured, known), strict=True):
        assert (known_speed.mode, known_speed.draft_length) == (prediction.mode, prediction.draft_length)
        assert known_speed.tokens_per_s == pytest.approx(prediction.tokens_per_s)


def test_a_pass_takes_as_long_as_reading_the_weights() -> None:
    read_s = (LARGE.read_bytes) / (900 * GB)
    seconds = passes(LARGE).take(LayerSplit(("CUDA0",), (64,)), 1, 1).seconds
    assert read_s < seconds < 1.2 * read_s


def test_verifying_more_is_nearly_free_on_a_gpu_and_not_on_the_cpu() -> None:
    def growth(split: LayerSplit) -> float:
        return passes().take(split, 5, 8).seconds / passes().take(split, 1, 8).seconds

    assert growth(LayerSplit(("CUDA0",), (32,))) < 1.1
    assert growth(LayerSplit()) > 2


def test_floats_verify_more_cheaply_than_quants_on_the_cpu() -> None:
    quant, floats = (
        passes(model(4, 32, quant=name)).take(LayerSplit(), 5, 8).seconds for name in ("Q4_K_M", "BF16")
    )
    assert floats < quant


def test_several_tokens_of_a_mixture_read_more_experts() -> None:
    split = LayerSplit(("CUDA0",), (48,))
    sparse, dense = passes(mixture(16, 48, 0.1)), passes(model(16, 48))
    one, five = (sparse.take(split, tokens, 1).seconds for tokens in (1, 5))
    assert one < 0.2 * dense.take(split, 1, 1).seconds
    assert five > 2.3 * one


@pytest.mark.parametrize(
    ("tokens", "measured"), [(2, 1.83), (3, 2.63), (4, 3.51), (5, 4.51), (6, 4.74), (8, 6.56), (16, 12.4)]
)
def test_experts_on_the_cpu_are_read_and_computed_with_at_once(tokens: int, measured: float) -> None:
    """Measured with layers of Qwen3-30B-A3B's size (8 of 128 experts), independent tokens, one core."""
    shape = replace(mixture(16, 48, 8 / 128), output_bytes=0)
    where = machine(processor=cpu(64), rate=15)  # GB/s that a core got through
    experts = Passes(shape, Rates(where), 1)
    one, several = (experts.take(LayerSplit(), count, 1).seconds for count in (1, tokens))
    assert several / one == pytest.approx(measured, rel=0.2)


def reading(shape: ModelShape, split: LayerSplit, text: MemoryRequest | None, tokens: int = 1) -> float:
    return Passes(shape, Rates(TWO), 8, text).take(split, tokens, 8).seconds


def text_of(length: int) -> MemoryRequest:
    return MemoryRequest(LayerSplit(), length)


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_gpu_reads_the_cache_of_a_text_once_for_all_tokens_of_a_pass(tokens: int) -> None:
    split, cached = LayerSplit(("CUDA0",), (32,)), 32 * 4096 * 2 * 1024 * 2
    empty, filled = (reading(MIDDLE, split, text, tokens) for text in (None, text_of(4096)))
    assert filled - empty == pytest.approx(cached / (900 * GB), rel=0.1)


@pytest.mark.parametrize("tokens", [1, 4])
def test_the_cpu_goes_through_the_cache_for_every_head_of_every_token(tokens: int) -> None:
    """Measured with 32 heads of 128, 4 of them with keys, a text of 4096 tokens, one core: 17 and 42 ms."""
    attended = 4096 / 1024 * 32 * 4096 * 2 * 1024 * 2  # as many heads to each key, layers, cells, floats
    empty, filled = (reading(MIDDLE, LayerSplit(), text, tokens) for text in (None, text_of(4096)))
    assert filled - empty == pytest.approx(tokens * attended / (50 * GB), rel=0.05)
    without = replace(text_of(4096), flash_attention=False)
    assert reading(MIDDLE, LayerSplit(), without, tokens) < filled


@pytest.mark.parametrize("split", [LayerSplit(), LayerSplit(("CUDA0",), (32,))])
def test_of_a_long_text_only_a_window_is_read(split: LayerSplit) -> None:
    windowed = replace(MIDDLE, layers=tuple(replace(layer, window=512) for layer in MIDDLE.layers))
    short, long = (reading(windowed, split, text_of(length)) for length in (2048, 65536))
    assert short == long
    assert reading(MIDDLE, split, text_of(65536)) > 1.3 * long


def test_every_boundary_between_devices_costs() -> None:
    equal = machine((card(0, 24), 900), (card(1, 24), 900))
    whole = passes(where=equal).take(LayerSplit(("CUDA0",), (32,)), 1, 1).seconds
    split = passes(where=equal).take(LayerSplit(("CUDA0", "CUDA1"), (16, 16)), 1, 1).seconds
    assert 0 < split - whole < 1e-3


def test_two_on_one_gpu_or_memory_take_turns() -> None:
    def both(
        split: LayerSplit, draft: LayerSplit, where: Machine = TWO
    ) -> tuple[PredictedSpeed, PredictedSpeed]:
        def verify(tokens: int) -> Pass:
            return passes(LARGE, where).take(split, tokens, 8)

        def step(width: int) -> Pass:
            return passes(SMALL, where).take(draft, width, 8)

        waiting = sd_speed(lambda n: verify(n).seconds, lambda n: step(n).seconds)
        return waiting, ahead_speed(verify, step, take_turns=False)

    first = LayerSplit(("CUDA0",), (64,))
    waiting, ahead = both(first, LayerSplit(("CUDA0",), (28,)))
    assert ahead.tokens_per_s < waiting.tokens_per_s
    waiting, ahead = both(first, LayerSplit(("CUDA1",), (28,)))
    assert ahead.tokens_per_s > waiting.tokens_per_s
    waiting, ahead = both(LayerSplit(("Metal",), (64,)), LayerSplit(("Metal",), (28,)), apple())
    assert ahead.tokens_per_s < waiting.tokens_per_s


def test_plain_decoding_stays_first_where_speculation_gains_little() -> None:
    order = ranked([PredictedSpeed("off", 100), PredictedSpeed("sd", 104), PredictedSpeed("ssd", 90)])
    assert [speed.mode for speed in order] == ["off", "sd", "ssd"]
    order = ranked([PredictedSpeed("off", 100), PredictedSpeed("sd", 106), PredictedSpeed("ssd", 90)])
    assert [speed.mode for speed in order] == ["sd", "off", "ssd"]


def test_links_follow_from_the_slot_or_an_assumption() -> None:
    rates = Rates(in_slots(generation=4, width=8))
    slot = 0.7 * 1.97 * GB * 8
    assert rates.link("CPU", "CUDA0") == pytest.approx(slot)
    assert rates.link("CUDA0", "CUDA1") == pytest.approx(slot / 2)
    assert rates.link("CUDA0", "CUDA0") is None
    assert Rates(in_slots(None, None)).link("CPU", "CUDA0") == 6 * GB
    assert Rates(apple()).link("CPU", "Metal") is None


def in_slots(generation: int | None, width: int | None) -> Machine:
    devices = tuple(
        replace(device, pcie_generation=generation, pcie_width=width) if device.kind == "gpu" else device
        for device in TWO.devices
    )
    return replace(TWO, devices=devices)


def test_one_thread_reads_less_than_all() -> None:
    one, all_ = (passes().take(LayerSplit(), 1, threads).seconds for threads in (1, 8))
    assert one > 2 * all_


def test_a_core_multiplies_only_so_much() -> None:
    computed = replace(TWO, rates=(*TWO.rates[:-1], replace(TWO.rates[-1], weights=20 * GB)))
    for threads in (1, 8):
        seconds = passes(where=computed).take(LayerSplit(), 1, threads).seconds
        assert seconds == pytest.approx(MIDDLE.read_bytes * 8 / threads / (20 * GB), rel=0.02)
    floats = model(4, 32, quant="BF16")
    for where in (TWO, computed):  # which their own kind of arithmetic limits
        assert passes(floats, where).take(LayerSplit(), 1, 8) == passes(floats).take(LayerSplit(), 1, 8)


def test_a_chip_is_known_by_its_name_and_its_cores_reach_less_of_its_memory() -> None:
    rates = Rates(apple()).of
    assert (rates["Metal"].read, rates["Metal"].origin) == (0.7 * 400 * GB, "name")
    assert (rates["CPU"].read, rates["CPU"].origin) == (0.5 * 400 * GB, "name")


def test_taking_turns_is_slower_than_working_at_once() -> None:
    def speed(*, take_turns: bool) -> float:
        verify, step = (lambda n: Pass(0.02, {})), (lambda n: Pass(0.002, {}))
        return ahead_speed(verify, step, take_turns=take_turns).tokens_per_s

    assert speed(take_turns=True) < 0.95 * speed(take_turns=False)


def test_what_stays_in_the_cores_own_caches_keeps_no_memory_busy() -> None:
    few, many = (Passes(TINY, Rates(TWO), cores).take(LayerSplit(), 1, cores) for cores in (4, 16))
    assert (set(few.busy), set(many.busy)) == ({"CPU"}, set())


def test_the_logits_have_to_come_back_from_a_gpu() -> None:
    def seconds(width: int) -> float:
        where = in_slots(generation=4, width=width)
        return passes(where=where).take(LayerSplit(("CUDA0",), (32,)), 2, 1).seconds

    logits, inputs, lane = 2 * MIDDLE.vocabulary * 4, 2 * MIDDLE.width * 4, 0.7 * 1.97 * GB
    assert seconds(1) - seconds(4) == pytest.approx((logits + inputs) * (1 / lane - 1 / (4 * lane)))
