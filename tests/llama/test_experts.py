"""Experts in RAM beside a server of this machine, which stands in for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.child_process import values_of
from localspec.cli import main as command_line
from localspec.errors import UserError
from localspec.hardware.device_info import DeviceInfo, Machine, MemoryRate
from localspec.hardware.memory.needs import LayerSplit, MemoryRequest, estimate, exact, uses_processor
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.place import place
from localspec.hardware.placement.plan import placed_as
from localspec.inference.worker.client import Worker
from localspec.llama import rpc
from localspec.llama.model import Model
from localspec.llama.overrides import experts_override
from localspec.models.pair_request import ModelRequest, PairRequest
from localspec.models.shape import read_draft_shape, read_shape
from localspec.types.models import ModelOptions, TensorOverride
from tests import made_models
from tests.hardware.shapes import SHAPES, make
from tests.llama import tiny
from tests.llama.conftest import ChatMl
from tests.llama.servers import sharing, use_servers
from tests.llama.test_rpc import GIB, PROMPTS, SETTINGS, text, texts

MIXTURE = SHAPES["mixture of experts"]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with sharing() as where:
        yield where


@pytest.fixture
def server(address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    use_servers(address, monkeypatch)
    return address


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.mixture(tmp_path_factory.mktemp("experts") / "mixture.gguf", template=ChatMl)


@pytest.fixture(scope="module")
def wide_mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("experts") / "wide.gguf", MIXTURE)


THERE = ModelOptions(Path(), 512, devices=("RPC0",), threads=1)
HERE = replace(THERE, devices=())
PLACES = {
    "all on the device": THERE,
    "all experts in RAM": replace(THERE, experts_at_home=tiny.LAYERS),
    "the first layer's experts in RAM": replace(THERE, experts_at_home=1),
    "the second layer's experts in RAM": replace(THERE, overrides=(experts_override([1]),)),
    "a part of the first layer's": replace(THERE, overrides=(experts_override([0], ["ffn_down_exps"]),)),
    "two of three parts": replace(THERE, overrides=(TensorOverride("ffn_(up|gate)_exps", "CPU"),)),
    "a whole layer": replace(THERE, gpu_layers=tiny.LAYERS),
    "a layer and the other's experts": replace(THERE, gpu_layers=tiny.LAYERS, experts_at_home=tiny.LAYERS),
    "without mmap": replace(THERE, experts_at_home=tiny.LAYERS, mmap=False),
    "experts and output": replace(THERE, experts_at_home=1, output_at_home=True),
    "attention in RAM": replace(THERE, overrides=(TensorOverride("attn_", "CPU"),)),
}


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_greedy_answers_are_the_same_wherever_experts_are(
    mixture: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = (ModelOptions(path, context=512, devices=(), threads=1) for path in (mixture, tiny_llama))
    found = {}
    for name, there in PLACES.items():
        with Worker.open(OpenPlan(replace(there, path=mixture), draft)) as models:
            found[name] = texts(models)
    monkeypatch.delenv(rpc.VARIABLE)
    with Worker.open(OpenPlan(target, draft)) as models:
        here = texts(models)
    assert len(here) == 4
    assert found == dict.fromkeys(PLACES, here)


@pytest.mark.slow
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("layers", [0, 3, made_models.LAYERS + 1])
@pytest.mark.parametrize("of_head", [False, True])
def test_a_head_of_experts_drafts_wherever_they_are(
    layers: int, of_head: bool, made_windowed_mtp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows, an MTP head in the file, and experts of both in RAM."""
    target = ModelOptions(made_windowed_mtp, 512, devices=("RPC0",), threads=1, experts_at_home=layers)
    if of_head:
        head = experts_override([made_models.LAYERS])
        target = replace(target, overrides=(head,))
    with Worker.open(OpenPlan(target, target)) as models:
        there = texts(models)
    monkeypatch.delenv(rpc.VARIABLE)
    at_home = replace(target, devices=(), experts_at_home=0, overrides=())
    with Worker.open(OpenPlan(at_home)) as models:
        plain = text(models, PROMPTS[0], SETTINGS[0])
    assert {key.partition(":")[0] for key in there} == {"off", "ngram", "sd"}  # a head cannot draft ahead
    assert {*there.values()} == {plain}


@pytest.mark.slow
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("split", "options"),
    [
        (LayerSplit(("RPC0",), (4,)), THERE),
        (LayerSplit(("RPC0",), (4,), experts_at_home=3), replace(THERE, experts_at_home=3)),
        (LayerSplit(("RPC0",), (2,), experts_at_home=3), replace(THERE, experts_at_home=3, gpu_layers=3)),
        (
            LayerSplit(("RPC0",), (4,), experts_at_home=1, parts_at_home=2),
            replace(
                THERE,
                experts_at_home=1,
                overrides=(experts_override([1], ["ffn_gate_exps", "ffn_up_exps"]),),
            ),
        ),
    ],
)
def test_memory_is_counted_where_experts_are(
    split: LayerSplit, options: ModelOptions, wide_mixture: Path
) -> None:
    opened = replace(options, path=wide_mixture, context=2048)
    planned = {need.device: need for need in estimate(read_shape(wide_mixture), MemoryRequest(split, 2048))}
    (taken,) = exact(opened)
    for need in taken:
        assert planned[need.device].weights == pytest.approx(need.weights, rel=0.001)
        assert planned[need.device].cache == need.cache


@pytest.mark.slow
@pytest.mark.usefixtures("server")
def test_weights_of_patterns_are_counted_on_their_devices(wide_mixture: Path) -> None:
    overrides = (TensorOverride(r"ffn_up_exps|attn_q\.", "CPU"), TensorOverride("token_embd", "RPC0"))
    (taken,) = exact(ModelOptions(wide_mixture, 2048, devices=("RPC0",), overrides=overrides))
    split = LayerSplit(("RPC0",), (4,))
    planned = estimate(read_shape(wide_mixture, overrides), MemoryRequest(split, 2048))
    assert {need.device: need.weights for need in planned} == pytest.approx(
        {need.device: need.weights for need in taken}, rel=0.001
    )


@pytest.mark.slow
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.8])
def test_a_plan_with_experts_in_ram_is_opened_as_planned(share: float, wide_mixture: Path) -> None:
    shape = read_shape(wide_mixture)
    [whole, _] = estimate(shape, MemoryRequest(LayerSplit(("RPC0",), (4,)), 2048))
    dense = whole.total - shape.expert_bytes
    free = int(dense + share * shape.expert_bytes) + 2 * 2**20
    card = DeviceInfo("RPC0", "gpu", "RPC", "", free, free, drives_display=False)
    cpu = DeviceInfo("CPU", "cpu", "CPU", "", 8 * GIB, 8 * GIB, cores=2)
    machine = Machine((card, cpu), (MemoryRate("RPC0", 900e9), MemoryRate("CPU", 2e9)))
    found = place(machine, shape, None, PairRequest(context=2048, reserve=(("RPC0", 0),)))
    assert found.target.split.experts_at_home + found.target.split.parts_at_home
    plan = placed_as(found, OpenPlan(ModelOptions(wide_mixture)))
    assert not plan.target.mmap
    (taken,) = exact(plan.target)
    planned = {need.device: need.weights for need in found.target.needs}
    assert {need.device: need.weights for need in taken} == pytest.approx(planned, rel=0.001)


def devices_of(options: ModelOptions) -> Iterator[tuple[bool, bool, tuple[str, ...]]]:
    """Yield whether the CPU works at layers of a model, and on the model at all, and its devices."""
    with closing(Model.open(options)) as model:
        yield model.layers_at_home, uses_processor(model), model.info().devices


@pytest.mark.slow
def test_the_experts_of_a_head_in_its_targets_file_are_loaded_as_planned(made_windowed_mtp: Path) -> None:
    target, head = read_shape(made_windowed_mtp), read_draft_shape(made_windowed_mtp, made_windowed_mtp)
    card = DeviceInfo("RPC0", "gpu", "RPC", "", 8 * GIB, 8 * GIB, drives_display=False)
    cpu = DeviceInfo("CPU", "cpu", "CPU", "", 8 * GIB, 8 * GIB, cores=2)
    machine = Machine((card, cpu), (MemoryRate("RPC0", 900e9), MemoryRate("CPU", 2e9)))
    request = PairRequest(context=512, mode="sd", draft=ModelRequest(experts_at_home="all"))
    found = place(machine, target, head, request)
    assert found.draft is not None
    assert found.draft.experts_at_home == 1
    options = ModelOptions(made_windowed_mtp)
    plan = placed_as(found, OpenPlan(options, options))
    override = experts_override([made_models.LAYERS])
    assert plan.draft is not None
    assert (plan.target.overrides, plan.draft.overrides) == ((override,), (override,))
    assert (plan.target.experts_at_home, plan.draft.experts_at_home) == (0, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("options", "works"),
    [
        (THERE, False),
        (replace(THERE, experts_at_home=1), True),
        (replace(THERE, overrides=(TensorOverride("blk.1.attn_q", "CPU"),)), True),
        (replace(THERE, overrides=(TensorOverride("token_embd", "CPU"),)), False),  # where it is in any case
    ],
)
def test_the_cpu_works_where_it_has_weights_of_layers(
    options: ModelOptions, works: bool, mixture: Path
) -> None:
    [(layers, anything, devices)] = values_of(devices_of, 60.0, replace(options, path=mixture))
    assert layers is works
    assert anything is works
    assert ("CPU" in devices) is works


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (replace(HERE, overrides=(TensorOverride("ffn_expz", "CPU"),)), ["-ot", "no tensor", "`ffn_expz`"]),
        (replace(HERE, overrides=(TensorOverride("ffn_(", "CPU"),)), ["-ot", "`ffn_(`", "regular"]),
        (replace(HERE, overrides=(TensorOverride("ffn_", "CUDA7"),)), ["-ot", "'CUDA7'"]),
        (replace(HERE, experts_at_home=3), ["-ncmoe 3", "2 layers"]),
    ],
)
def test_what_cannot_be_moved_is_refused_in_a_line(
    options: ModelOptions, words: list[str], mixture: Path
) -> None:
    with pytest.raises(UserError) as caught:
        Model.open(replace(options, path=mixture))
    assert [word for word in words if word not in caught.value.message] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["-ot", "ffn_exps"], ["-ot/--override-tensor", "`ffn_exps`"]),
        (["-ot", "=CPU"], ["-ot/--override-tensor", "`=CPU`"]),
        (["-ot", "nothing_=CPU"], ["-ot", "`nothing_`"]),
        (["-ot", "(?i)FFN_=CPU"], ["-ot", "`(?i)FFN_`", "does not know `(?i`"]),
        (["-ot", "exps=CPU,ffn_up_exps=CPU"], ["-ot", "`ffn_up_exps` has no effect"]),
        (["-ncmoe", "9"], ["-ncmoe 9", "2 layers"]),
        (["-ncmoe", "-1"], ["-ncmoe/--n-cpu-moe", "`-1`"]),
        (["-md", "{draft}", "-ncmoed", "1"], ["-ncmoed", "not a mixture"]),
        (["-md", "{draft}", "-otd", "nothing_=CPU"], ["-otd", "`nothing_`"]),
        (["-ncmoed", "1"], ["-ncmoed needs a draft model"]),
        (["-cmoed"], ["-ncmoed needs a draft model"]),
        (["-md", "{draft}", "-cmoed"], ["-cmoed: ", "not a mixture of experts"]),
    ],
)
def test_mistakes_in_flags_get_a_line(
    flags: list[str],
    words: list[str],
    mixture: Path,
    tiny_llama: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [flag.format(draft=tiny_llama) for flag in flags]
    assert command_line.main(["plan", "-m", str(mixture), *given]) == 2
    line, *hints = capsys.readouterr().err.splitlines()
    assert [word for word in words if word not in line] == []
    assert len(hints) <= 1
