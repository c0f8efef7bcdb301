"""Splits by tensor over two RPC servers of this machine, which stand in for GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.child_process import values_of
from localspec.cli import main as command_line
from localspec.errors import PairingError, UserError
from localspec.hardware.bandwidth import SumJob, measure
from localspec.hardware.device_info import SumCost, SumFailure
from localspec.hardware.memory.needs import DeviceNeed, LayerSplit, MemoryRequest, estimate, exact
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import worker
from localspec.inference.worker.client import Worker
from localspec.llama import rpc
from localspec.llama.backends import breakdown
from localspec.llama.model import Model
from localspec.llama.recurrent import open_context
from localspec.models.heads import head_for
from localspec.models.shape import read_shape
from localspec.types.models import ModelOptions
from tests.hardware.shapes import SHAPES, make
from tests.llama.servers import sharing, use_servers
from tests.llama.test_rpc import TIMEOUT_S, texts
from tests.llama.test_saved import read

DEVICES = ("RPC0", "RPC1")
CONTEXT = 2048
UNCHECKED_CHILD = (  # a model that llama.cpp aborts at, of which nothing is known before
    "from localspec.models import heads; heads._check_borrowed = lambda *_: None; "
    "from localspec.inference.worker import child; child.main(tells_log={})"
)


@pytest.fixture(scope="module")
def addresses() -> Iterator[str]:
    with sharing() as first, sharing() as second:
        yield f"{first},{second}"


@pytest.fixture
def servers(addresses: str, monkeypatch: pytest.MonkeyPatch) -> str:
    use_servers(addresses, monkeypatch)
    return addresses


def divided(path: Path, *shares: float, context: int = 512) -> ModelOptions:
    return ModelOptions(path, context, devices=DEVICES, split_mode="tensor", tensor_split=shares, threads=1)


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_greedy_answers_are_those_of_one_device_in_every_mode(
    demo_target_f32: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = ModelOptions(demo_draft, context=512, devices=(), threads=1)
    there = replace(draft, devices=("RPC1",))
    found: list[dict[str, str]] = []
    for target, beside in (
        (divided(demo_target_f32), draft),
        (divided(demo_target_f32, 2, 1), draft),
        (replace(divided(demo_target_f32), gpu_layers=4), draft),  # of its six, and what follows them
        (divided(demo_target_f32), there),
    ):
        with Worker.open(OpenPlan(target, beside)) as models:
            found.append(texts(models))
    monkeypatch.delenv(rpc.VARIABLE)
    with Worker.open(
        OpenPlan(ModelOptions(demo_target_f32, context=512, devices=(), threads=1), draft)
    ) as models:
        here = texts(models)
    assert [len(each) for each in found] == [4, 4, 4, 3]  # no one drafts ahead on the target's connection
    assert all(each == {key: here[key] for key in each} for each in found)


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("name", "shares", "experts_at_home"),
    [
        ("grouped heads", (1.0, 1.0), 0),
        ("mixture of experts", (1.0, 1.0), 0),
        ("mixture of experts", (1.0, 1.0), 3),
        ("sliding window", (1.0, 2.0), 0),
        ("dense", (3.0, 1.0), 0),
    ],
)
def test_the_plan_has_the_largest_part_of_an_open_model(
    name: str, shares: tuple[float, float], experts_at_home: int, tmp_path: Path
) -> None:
    options = divided(make(tmp_path / "a.gguf", SHAPES[name]), *shares, context=CONTEXT)
    options = replace(options, experts_at_home=experts_at_home)
    shape = read_shape(options.path)
    split = LayerSplit(DEVICES, (len(shape.layers),) * 2, experts_at_home=experts_at_home, shares=shares)
    planned = estimate(shape, MemoryRequest(split, CONTEXT))[:-1]
    [largest] = values_of(account, TIMEOUT_S, options)
    assert max(need.weights for need in planned) == pytest.approx(largest.weights, rel=0.002)
    assert max(need.cache for need in planned) == largest.cache
    assert [need.device for need in planned] == [*DEVICES]
    [foretold] = exact(options)
    for need, exactly in zip(planned, foretold, strict=False):
        assert exactly == replace(need, compute=largest.compute)


def account(options: ModelOptions) -> Iterator[DeviceNeed]:
    """Yield what llama.cpp says of an open model, for all devices but the CPU; for a child process."""
    with closing(Model.open(options)) as model:
        context = open_context(model, options)
        told = breakdown(context.pointer)
    [(device, sizes)] = ((device, sizes) for device, sizes in told.items() if device != "CPU")
    yield DeviceNeed(device, *sizes)


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_a_text_is_kept_and_restored(demo_target_f32: Path, tmp_path: Path) -> None:
    windows = make(tmp_path / "windows.gguf", SHAPES["sliding window"])
    for options in (
        divided(demo_target_f32),
        divided(windows, 3, 1),
        replace(divided(windows), kv_type_k="q8_0", kv_type_v="q8_0"),
    ):
        [difference] = values_of(restored, TIMEOUT_S, options)
        assert difference < 1e-4


def restored(options: ModelOptions) -> Iterator[float]:
    """Yield by how much logits after a restored text differ; for a child process."""
    text, other = ([(factor * number) % 190 + 10 for number in range(150)] for factor in (7, 11))
    with closing(Model.open(options)) as model:
        context, fresh = open_context(model, options), open_context(model, options)
        for each in (context, fresh):
            read(each, text)
        saved = context.save(lambda _size: True)
        assert saved is not None
        context.truncate(0)
        read(context, other)
        context.restore(saved, text)
        yield float(abs(context.evaluate([9, 11], 2).logits - fresh.evaluate([9, 11], 2).logits).max())


@pytest.mark.slow
def test_a_plan_divides_the_target_and_an_answer_follows_it(
    servers: str, demo_target: Path, demo_draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-m", str(demo_target), "-md", str(demo_draft), "-sm", "tensor", "--rpc", servers]
    assert command_line.main(["plan", *flags, "-ts", "2,1"]) == 0
    assert "Every matrix of the target" in (told := capsys.readouterr().out)
    assert all(f"on {device}" in told for device in DEVICES)
    assert command_line.main(["plan", *flags, "-ot", "ffn_up=CPU"]) == 2
    assert "-sm tensor divides weights that -ot puts elsewhere" in capsys.readouterr().err
    assert command_line.main(["run", *flags, "-n", "8", "--temp", "0", "Write a function."]) == 0
    assert capsys.readouterr().out
    assert command_line.main(["run", *flags, "-dev", "RPC0", "Write a function."]) == 2
    assert "and there is one: RPC0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_the_cost_of_sums_is_measured() -> None:
    work = (SumJob(DEVICES), SumJob(("RPC0", "RPC7")))
    cost, failure = values_of(measure, TIMEOUT_S, work, 1.0)
    assert isinstance(cost, SumCost)
    assert cost.devices == DEVICES
    assert 0 <= cost.delay_s < 1
    assert cost.rate > 0
    assert isinstance(failure, SumFailure)
    assert "no device is called 'RPC7'" in failure.reason


@pytest.mark.slow
@pytest.mark.usefixtures("servers")
def test_an_abort_of_llama_cpp_is_reported_with_the_way_out(
    demo_target: Path, made_eagle3: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_CODE", UNCHECKED_CHILD)
    head = ModelOptions(made_eagle3, context=512, devices=("RPC1",), threads=1)
    with pytest.raises(UserError, match="cannot be opened with -sm tensor: the model process") as refused:
        Worker.open(OpenPlan(divided(demo_target), head))
    assert refused.value.hint == "use -sm layer"
    assert "\n" not in refused.value.message


def test_a_head_cannot_borrow_tensors_that_are_divided(demo_target: Path, made_eagle3: Path) -> None:
    with pytest.raises(PairingError, match="borrows tensors of its target, which -sm tensor divides"):
        head_for(divided(demo_target), ModelOptions(made_eagle3, devices=DEVICES))
