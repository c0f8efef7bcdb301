"""What holds for every machine: nothing is overfull, nothing is lost, and better is never worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from localspec.decoding.speed_model import MIN_GAIN
from localspec.errors import UserError
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate
from localspec.hardware.memory.budget import MemoryBudget
from localspec.hardware.memory.needs import LayerSplit, experts_at_home
from localspec.hardware.placement.candidates import (
    DeviceAssignment,
    Placement,
    PlacementSearch,
)
from localspec.hardware.placement.place import place
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape
from localspec.types.request import Mode
from tests.hardware.machines import GB, GIB, apple, asking, beside, card, cpu, machine, mixture, model, remote

SEEDS = range(60)


def invented(random: Random) -> tuple[Machine, ModelShape, ModelShape | None]:
    """Return a machine with 0 to 4 GPUs, a target and mostly a draft."""
    if random.random() < 0.1:
        where = apple(random.choice([16, 32, 64]))
    else:
        cards = [
            (
                card(n, random.choice([4, 6, 8, 12, 16, 24]), display=random.random() < 0.3),
                random.choice([90, 200, 360, 500, 900]),
            )
            for n in range(random.randrange(5))
        ]
        where = machine(
            *cards,
            processor=cpu(random.uniform(12, 60), random.choice([2, 4, 8, 16, 32])),
            rate=random.choice([20, 50, 120]),
        )
    layers = random.choice([16, 28, 32, 48, 64])
    size = random.uniform(1, 20)
    target = mixture(size, layers, 0.15) if random.random() < 0.4 else model(size, layers)
    draft = model(random.uniform(0.1, 1.5), random.choice([12, 24, 28]), width=1024)
    return where, target, draft if random.random() < 0.8 else None


def placed(
    where: Machine, target: ModelShape, draft: ModelShape | None, context: int = 4096
) -> Placement | None:
    try:  # a micro-batch of its own may trade speed for prompts that are read faster
        return place(where, target, draft, asking(context=context, micro_batch=512))
    except UserError:
        return None


def assignments(found: Placement) -> list[tuple[DeviceAssignment, bool]]:
    return [(found.target, False)] + ([(found.draft, True)] if found.draft else [])


@pytest.mark.parametrize("seed", SEEDS)
def test_no_device_gives_more_than_it_has(seed: int) -> None:
    where, target, draft = invented(Random(seed))
    found = place_or_skip(where, target, draft)
    budget = MemoryBudget(where)
    left = dict(budget.free)
    for assignment, _ in assignments(found):
        for need in assignment.needs:
            left[need.device] -= need.total
            if need.device == "Metal":
                left["CPU"] -= need.total
    assert min(left.values()) >= 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_layer_sits_somewhere_once(seed: int) -> None:
    where, target, draft = invented(Random(seed))
    found = place_or_skip(where, target, draft)
    ids = {device.id for device in where.devices} - {"CPU"}
    for assignment, is_draft in assignments(found):
        shape = draft if is_draft else target
        assert shape is not None
        assert len(assignment.devices) == len(set(assignment.devices)) == len(assignment.layers)
        assert set(assignment.devices) <= ids
        assert sum(assignment.layers) <= len(shape.layers)
        assert min(assignment.layers, default=1) > 0
        weights = sum(need.weights for need in assignment.needs)
        assert weights == shape.weight_bytes
    assert found == place(where, target, draft, asking(context=4096, micro_batch=512))


def place_or_skip(where: Machine, target: ModelShape, draft: ModelShape | None) -> Placement:
    found = placed(where, target, draft)
    if found is None:
        pytest.skip("this one fits nowhere")
    return found


def more_memory(where: Machine, random: Random) -> Machine:
    at = random.randrange(len(where.devices))
    devices = list(where.devices)
    devices[at] = replace(
        devices[at],
        memory_total=devices[at].memory_total + 3 * GIB,
        memory_free=devices[at].memory_free + 3 * GIB,
    )
    return replace(where, devices=tuple(devices))


def a_little_more_memory(where: Machine, random: Random) -> Machine:
    at, more = random.randrange(len(where.devices)), random.randrange(2**20, GIB // 2)
    devices = list(where.devices)
    devices[at] = replace(
        devices[at],
        memory_total=devices[at].memory_total + more,
        memory_free=devices[at].memory_free + more,
    )
    return replace(where, devices=tuple(devices))


def faster(where: Machine, random: Random) -> Machine:
    if not where.rates:
        return where
    at = random.randrange(len(where.rates))
    rates = list(where.rates)
    rates[at] = MemoryRate(rates[at].device, 1.7 * rates[at].read)
    return replace(where, rates=tuple(rates))


def another_card(where: Machine, random: Random) -> Machine:
    extra: DeviceInfo = card(9, random.choice([6, 12, 24]))
    rates = (*where.rates, MemoryRate(extra.id, random.choice([200, 900]) * GB))
    return replace(where, devices=(*where.devices[:-1], extra, where.devices[-1]), rates=rates)


@pytest.mark.slow
@pytest.mark.parametrize("better", [more_memory, a_little_more_memory, faster, another_card])
@pytest.mark.parametrize("context", [4096, 32768])
@pytest.mark.parametrize("seed", SEEDS[::3])
def test_a_better_machine_is_never_slower(
    better: Callable[[Machine, Random], Machine], context: int, seed: int
) -> None:
    random = Random(seed)
    where, target, draft = invented(random)
    before, after = (placed(machine_, target, draft, context) for machine_ in (where, better(where, random)))
    if before is None:
        return
    assert after is not None
    # plain decoding is kept where speculation would win by less than this
    assert (after.tokens_per_s or 0) * MIN_GAIN * 1.001 >= (before.tokens_per_s or 0)


def overridden(where: Machine, random: Random) -> PairRequest:
    cards = [device.id for device in where.devices if device.kind != "cpu"]
    modes: list[Mode | None] = [None, None, "off", "ngram", "sd", "ssd"]
    return asking(
        context=random.choice([0, 512, 4096, 32768]),
        devices=random.choice([None, (), tuple(random.sample(cards, len(cards)))]),
        draft_devices=random.choice([None, (), tuple(cards[:1]), tuple(cards)]),
        gpu_layers=random.choice([None, None, 0, 1, 5, 99]),
        draft_gpu_layers=random.choice([None, None, 0, 1, 99]),
        tensor_split=random.choice([(), (), (1.0,), (0.0, 1.0), (3.0, 1.0, 1.0)]),
        threads=random.choice([None, 1, 4]),
        draft_threads=random.choice([None, 1, 3]),
        mode=random.choice(modes),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_any_flags_give_a_plan_or_a_plain_refusal(seed: int) -> None:
    random = Random(seed)
    where, target, draft = invented(random)
    constraints = overridden(where, random)
    refusals: list[UserError] = []
    try:
        check_flags(place(where, target, draft, constraints), constraints, target, draft)
    except UserError as error:
        refusals.append(error)
    for refused in refusals:
        assert "GiB" in refused.message or "MiB" in refused.message
        assert "three ways out" in refused.hint


def check_flags(
    found: Placement, constraints: PairRequest, target: ModelShape, draft: ModelShape | None
) -> None:
    if constraints.target.gpu_layers:
        assert sum(found.target.layers) <= min(constraints.target.gpu_layers - 1, len(target.layers))
    if constraints.mode in {"sd", "ssd"} and draft is not None:
        assert found.mode == constraints.mode
    if constraints.mode in {"off", "ngram"}:
        assert (found.mode, found.draft) == ("off", None)


def tight_mixture(random: Random, most_cards: int = 3) -> tuple[Machine, ModelShape]:
    """Return a mixture whose dense weights fit on GPUs that can hold some of its experts."""
    layers = random.choice([24, 36, 48])
    shape = mixture(random.uniform(8, 60), layers, random.uniform(0.03, 0.15))
    dense = 2**20 * random.randrange(10, 60)
    heavier = tuple(
        replace(
            layer,
            weight_bytes=layer.weight_bytes + dense,
            read_bytes=layer.read_bytes + dense,
            window=1024 if random.random() < 0.3 else None,
        )
        for layer in shape.layers
    )
    sizes = [random.choice([4, 6, 8, 12, 16]) for _ in range(random.randrange(1, most_cards + 1))]
    cards = ((card(number, size), random.choice([300, 500, 900])) for number, size in enumerate(sizes))
    return machine(*cards, processor=cpu(96)), replace(shape, layers=heavier)


def on_gpus(found: Placement, shape: ModelShape) -> int:
    """Return the bytes of experts on GPUs."""
    split = found.target.split
    there = shape.layers[len(shape.layers) - split.on_cards :]
    kept = (expert.bytes for _, experts in experts_at_home(shape, split) for expert in experts)
    return sum(layer.expert_bytes for layer in there) - sum(kept)


@pytest.mark.parametrize("seed", SEEDS)
def test_experts_in_ram_and_on_gpus_are_all_of_them(seed: int) -> None:
    where, shape = tight_mixture(Random(seed))
    found = place_or_skip(where, shape, None)
    left = MemoryBudget(where).left(found.target.needs)
    assert min(left.values()) >= 0
    assert sum(need.weights for need in found.target.needs) == shape.weight_bytes
    experts = {need.device: need.experts for need in found.target.needs}
    assert sum(experts.values()) == shape.expert_bytes
    assert experts["CPU"] == shape.expert_bytes - on_gpus(found, shape)
    split = found.target.split
    largest = max(layer.weight_bytes for layer in shape.layers)
    if split.experts_at_home + split.parts_at_home and len(split.devices) == 1:
        assert left[split.devices[0]] < largest  # else one more layer's experts would fit


@pytest.mark.parametrize("context", [4096, 32768])
@pytest.mark.parametrize("seed", SEEDS)
def test_with_more_memory_no_fewer_experts_are_on_a_gpu(seed: int, context: int) -> None:
    random = Random(seed)
    where, shape = tight_mixture(random, most_cards=1)  # of several, the faster ones come before more experts
    found = placed(where, shape, None, context)
    if found is None:
        return
    for _ in range(4):
        where = a_little_more_memory(where, random)
        more = placed(where, shape, None, context)
        assert more is not None
        assert on_gpus(more, shape) >= on_gpus(found, shape)
        found = more


@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_context_shrinks_only_for_room_or_speed(seed: int) -> None:
    where, target, draft = invented(Random(seed))
    found = placed(where, target, draft, 0)
    if found is None:
        assert placed(where, target, draft, 512) is None
    elif found.target.context == 4096:
        usual = placed(where, target, draft, 8192)
        assert usual is None or 1.2 * (usual.tokens_per_s or 0) <= (found.tokens_per_s or 0)
    elif found.target.context < 4096:
        assert placed(where, target, draft, 2 * found.target.context) is None


@pytest.mark.parametrize(("link", "trip_s"), [(117e6, 3e-4), (30e6, 3e-3)])
def test_what_needs_another_machine_goes_there_and_its_draft_stays_here(link: float, trip_s: float) -> None:
    there = MemoryRate("RPC0", 900 * GB, link)
    where = machine((card(0, 4), 800), processor=cpu(6))
    where = replace(where, devices=(remote(48, trip_s), *where.devices), rates=(there, *where.rates))
    found = place(where, model(24, 48), model(0.5, 24, width=1024), asking(context=4096))
    assert "RPC0" in found.target.devices
    assert found.draft is not None
    assert found.draft.devices == ("CUDA0",)
    small = place(where, model(1.5, 28), None, asking(context=4096))
    assert small.target.devices == ("CUDA0",)  # the way there would take longer than it saves


WIDE = model(24, 48, vocabulary=152_000)
USUAL = asking(context=4096)


@pytest.mark.parametrize("draft", [None, model(0.5, 24, width=1024)])
def test_after_a_slow_line_the_output_layer_stays_here(draft: ModelShape | None) -> None:
    slow, fast = (place(beside(link, 3e-3), WIDE, draft, USUAL) for link in (12e6, 12e9))
    assert slow.target.output_at_home
    assert not fast.target.output_at_home
    assert slow.target.threads == 8  # which multiply by its matrix
    (told,) = (reason for reason in slow.reasons if "output" in reason)
    assert told == "the output layer stays here: 16 KiB a token over the network instead of 594 KiB"
    there = next(each for each in slow.rejected if f"{each.description}, ".startswith("target on RPC0, "))
    assert (there.tokens_per_s or 0) < (slow.tokens_per_s or 0)
    assert any("the CPU (the output layer)" in other.description for other in fast.rejected)
    assert not any("output" in reason for reason in fast.reasons)


def test_next_to_the_output_alone_a_draft_gets_half_of_the_cores() -> None:
    search = PlacementSearch(beside(12e6, 3e-3), (WIDE, model(0.5, 24, width=1024)), USUAL)
    for at_home, together in ((False, (1, 7)), (True, (4, 4))):
        split = LayerSplit(("RPC0",), (48,), at_home)
        assert search.threads(split, LayerSplit()).together == together


def test_the_output_goes_to_a_gpu_that_is_here() -> None:
    found = place(beside(12e6, 3e-3, (card(0, 6), 400)), WIDE, None, USUAL).target
    assert found.devices == ("RPC0", "CUDA0")
    assert not found.output_at_home
    small = place(beside(12e6, 3e-3, (card(0, 6), 400)), model(1.5, 28, vocabulary=152_000), None, USUAL)
    assert small.target.devices == ("CUDA0",)
    assert not any("output" in reason for reason in small.reasons)


def test_without_the_output_more_layers_fit_there() -> None:
    where, shape = beside(12e6, 3e-3, free=16), replace(WIDE, output_bytes=2 * GIB)
    at = PlacementSearch(where, (shape, None), USUAL).at(4096)
    fits = [each.target for each in at if not each.shortages]
    most = {
        home: max(each.on_cards for each in fits if each.output_at_home == home) for home in (False, True)
    }
    assert most[True] >= most[False] + 3
    assert place(where, shape, None, USUAL).target.layers == (most[True],)


def test_a_cpu_that_is_there_is_not_taken_for_a_gpu() -> None:
    def gain(further: float) -> float:
        there = replace(beside(1e9, 3e-4).rates[0], further=further)
        where = beside(1e9, 3e-4)
        where = replace(where, rates=(there, *where.rates[1:]))
        speeds = {}
        for mode in ("off", "sd"):
            asked = asking(context=4096, devices=("RPC0",), mode=mode)
            speeds[mode] = place(where, WIDE, model(0.5, 24, width=1024), asked).tokens_per_s or 0.0
        return speeds["sd"] / speeds["off"]

    assert gain(0.5) < 0.8 * gain(0.02)


def test_a_slower_way_is_never_a_faster_plan() -> None:
    speeds = []
    for link, trip_s in ((1.2e9, 1e-4), (117e6, 3e-4), (30e6, 3e-3), (5e6, 3e-2)):
        there = MemoryRate("RPC0", 900 * GB, link)
        where = machine(processor=cpu(6))
        where = replace(where, devices=(remote(48, trip_s), *where.devices), rates=(there, *where.rates))
        found = place(where, model(24, 48), None, asking(context=4096))
        assert found.tokens_per_s is not None
        speeds.append(found.tokens_per_s)
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] > 2 * speeds[-1]
