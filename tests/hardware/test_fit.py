from __future__ import annotations

import re
from dataclasses import replace

import pytest

from localspec.errors import UserError
from localspec.hardware.device_info import DeviceInfo, Machine
from localspec.hardware.memory.budget import Models, check_fit, parse_reserve, reserve_on
from localspec.hardware.memory.needs import DeviceNeed, LayerSplit, MemoryRequest, estimate
from localspec.models.shape import LayerShape, ModelShape

GIB = 1 << 30


def machine(*cards: float, memory: float = 32) -> Machine:
    """Cards and a CPU with N GiB free."""
    found = [
        DeviceInfo(
            f"CUDA{number}", "gpu", "CUDA", "card", int(size * GIB), int(size * GIB), drives_display=False
        )
        for number, size in enumerate(cards)
    ]
    processor = DeviceInfo("CPU", "cpu", "CPU", "processor", int(memory * GIB), int(memory * GIB), cores=8)
    return Machine((*found, processor))


def shape(layers: int = 32, layer_bytes: int = GIB // 4) -> ModelShape:
    layer = LayerShape(layer_bytes, layer_bytes, 1024, 1024)
    weights = (layers + 2) * layer_bytes
    return ModelShape(
        name="Large",
        architecture="llama",
        quant="Q8_0",
        parameters=int(weights * 8 / 8.5),
        file_bytes=weights,
        layers=(layer,) * layers,
        input_bytes=layer_bytes,
        output_bytes=layer_bytes,
        width=4096,
        feed_forward=14336,
        heads=32,
        vocabulary=32000,
        training_context=131072,
        vocabulary_family="gpt2",
    )


def refusal(models: Models, on: Machine, reserve: str = "") -> UserError:
    needs = [need for each, request in models for need in estimate(each, request)]
    with pytest.raises(UserError) as refused:
        check_fit(needs, on, parse_reserve(reserve) if reserve else (), models)
    return refused.value


def fits(models: Models, on: Machine) -> bool:
    try:
        check_fit([need for each, request in models for need in estimate(each, request)], on)
    except UserError:
        return False
    return True


def on_card(context: int, layers: int = 32) -> Models:
    return ((shape(), MemoryRequest(LayerSplit(("CUDA0",), (layers,)), context)),)


def test_what_fits_is_let_through() -> None:
    check_fit([DeviceNeed("CUDA0", 7 * GIB, GIB // 4, 0), DeviceNeed("CPU", GIB, 0, 0)], machine(8))


def test_the_default_reserve_counts() -> None:
    with pytest.raises(UserError, match=r"CUDA0 has 8\.0 GiB free, 0\.5 GiB of it in reserve, and 7\.8 GiB"):
        check_fit([DeviceNeed("CUDA0", 7 * GIB, 3 * GIB // 4, 0)], machine(8))
    with pytest.raises(UserError, match=r"CPU has 8\.0 GiB free, 0\.8 GiB of it in reserve"):
        check_fit([DeviceNeed("CPU", 15 * GIB // 2, 0, 0)], machine(memory=8))


def test_a_given_reserve_counts_instead() -> None:
    need = [DeviceNeed("CUDA0", 7 * GIB, 3 * GIB // 4, 0)]
    check_fit(need, machine(8), parse_reserve("0=0"))
    with pytest.raises(UserError, match=r"2\.0 GiB of it in reserve"):
        check_fit(need, machine(8), parse_reserve("cuda0=2GiB"))


def test_the_context_that_is_named_fits_and_no_larger_one() -> None:
    error = refusal(on_card(65536), machine(14))
    context = int(re.findall(r"\(-c (\d+)\)", error.hint)[0])
    assert 8192 < context < 65536
    assert fits(on_card(context), machine(14))
    assert not fits(on_card(context + 256), machine(14))


def test_the_layers_that_are_named_fit_and_no_more() -> None:
    error = refusal(on_card(8192), machine(8))
    count = int(re.findall(r"\(-ngl (\d+)\)", error.hint)[0]) - 1
    assert 0 < count < 32
    assert fits(on_card(8192, count), machine(8))
    assert not fits(on_card(8192, count + 1), machine(8))


def test_the_quant_that_is_named_is_the_largest_that_fits() -> None:
    assert "choose Large as Q6_K (about 6.6 GiB)" in refusal(on_card(8192), machine(9)).hint
    assert "choose Large as Q5_K_M (about 5.7 GiB)" in refusal(on_card(8192), machine(7.2)).hint


def test_ways_that_lead_nowhere_are_not_named() -> None:
    error = refusal(on_card(512), machine(1, memory=2))
    assert error.hint == "close other programs, or choose smaller models"
    assert "take a context" not in refusal(on_card(8192), machine(4)).hint


def test_a_gpu_without_room_for_a_single_layer_is_left_out() -> None:
    assert "(-ngl 0)" in refusal(on_card(8192), machine(0.6)).hint


def test_the_quant_that_a_model_has_is_not_a_way_out() -> None:
    [(first, request)] = on_card(8192)
    wider = replace(first, parameters=int(first.parameters * 8.5 / 8.6))
    [need] = [need for need in estimate(wider, request) if need.device == "CUDA0"]
    hint = refusal(((wider, request),), machine(need.total / GIB + 0.5 - 0.02)).hint
    assert "as Q8_0" not in hint
    assert "as Q6_K" in hint


def test_all_short_devices_are_named() -> None:
    models = ((shape(), MemoryRequest(LayerSplit(("CUDA0", "CUDA1"), (20, 12)), 8192)),)
    error = refusal(models, machine(4, 2))
    assert "CUDA0 has" in error.message
    assert "CUDA1 has" in error.message
    count = int(re.findall(r"GPUs \(-ngl (\d+)\)", error.hint)[0])
    assert 0 < count < 33


def test_memory_that_gpu_and_cpu_share_is_counted_once() -> None:
    both = machine(16, memory=16)
    shared = Machine((replace(both.devices[0], kind="integrated"), both.devices[1]))
    needs = [DeviceNeed("CUDA0", 9 * GIB, 0, 0), DeviceNeed("CPU", 6 * GIB, 0, 0)]
    check_fit(needs, both)
    with pytest.raises(UserError, match="not enough memory"):
        check_fit(needs, shared)


def test_a_draft_model_counts_and_may_stay() -> None:
    draft = (shape(4, GIB // 16), MemoryRequest(LayerSplit(("CUDA0",), (4,)), 8192, sequences=17))
    assert fits(on_card(8192), machine(12))
    error = refusal((*on_card(8192), draft), machine(10.1))
    assert "-ngl" in error.hint


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0=1GiB,1=2GiB,cpu=4GiB", (("0", GIB), ("1", 2 * GIB), ("cpu", 4 * GIB))),
        ("CUDA0 = 512 MiB", (("CUDA0", GIB // 2),)),
        ("0=1.5g", (("0", 3 * GIB // 2),)),
        ("cpu=2GB", (("cpu", 2 * 10**9),)),
        ("0=0", (("0", 0),)),
    ],
)
def test_reserves(text: str, wanted: tuple[tuple[str, int], ...]) -> None:
    assert parse_reserve(text) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "1GiB", "0=", "0=much", "=1GiB", "0=1GiB,0=2GiB", "0=1XB", "0=-1", "0=1e400", f"0={10**400}"],
)
def test_what_is_not_a_reserve(text: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_reserve(text)
    assert refused.value.hint


def test_devices_of_a_reserve() -> None:
    there = machine(8, 8)
    assert reserve_on(there, (("1", 5), ("CPU", 6))) == (("CUDA1", 5), ("CPU", 6))
    with pytest.raises(UserError, match="there is no device 2") as refused:
        reserve_on(there, (("2", 5),))
    assert "1 (CUDA1), cpu" in refused.value.hint
    with pytest.raises(UserError, match="names CUDA1 twice"):
        reserve_on(there, (("1", 5), ("cuda1", 5)))
