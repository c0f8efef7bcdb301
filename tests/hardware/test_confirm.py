"""Plans that llama.cpp confirms: asked until it knows the placement that is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import EngineError, UserError
from localspec.hardware.device_info import DescribedMachine, Machine
from localspec.hardware.memory.budget import MemoryBudget
from localspec.hardware.memory.needs import LayerSplit, MemoryRequest, Needs, estimate
from localspec.hardware.placement import plan as plan_module
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.plan import plan_pair
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from localspec.models.shape import ModelShape
from localspec.types.models import ModelOptions
from tests.hardware.machines import SMALL, asking, card, cpu, machine, model

GIB = 1 << 30
TARGET, DRAFT = Path("large.gguf"), Path("small.gguf")


class Llama:
    """Knows how much more than the formula the intermediate results on a GPU take, or nothing."""

    def __init__(self, shapes: dict[Path, ModelShape], more: Callable[[int], int] | None) -> None:
        self.shapes, self.more = shapes, more
        self.asked: list[int | None] = []  # about how many layers

    def __call__(self, *models: ModelOptions, max_fan_out: int, via: object) -> tuple[Needs, ...]:
        assert via is None
        self.asked.append(models[0].gpu_layers)
        if self.more is None:
            raise EngineError("llama.cpp does not know")
        return tuple(self._needs(options, max_fan_out if at else 0) for at, options in enumerate(models))

    def _needs(self, options: ModelOptions, branches: int) -> Needs:
        assert self.more is not None
        shape = self.shapes[options.path]
        split = LayerSplit()
        if options.gpu_layers:
            split = LayerSplit(options.devices or (), (min(options.gpu_layers - 1, len(shape.layers)),))
        needs = estimate(shape, MemoryRequest(split, options.context, sequences=1 + branches))
        more = self.more(len(self.asked))
        return tuple(
            replace(need, compute=need.compute + more) if need.device == "CUDA0" else need for need in needs
        )


Planned = Callable[..., tuple[OpenPlan, Llama]]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Planned:
    def planned(
        gib: float,
        where: Machine,
        more: Callable[[int], int] | None,
        request: PairRequest | None = None,
        draft: ModelShape | None = None,
    ) -> tuple[OpenPlan, Llama]:
        shapes = {TARGET: model(gib, layers=32)} | ({DRAFT: draft} if draft else {})
        llama = Llama(shapes, more)
        monkeypatch.setattr(plan_module, "exact", llama)
        monkeypatch.setattr(plan_module, "read_shape", lambda path, _overrides: shapes[path])
        monkeypatch.setattr(plan_module, "read_draft_shape", lambda _target, path, _overrides: shapes[path])
        files = PairFiles(TARGET, DRAFT if draft else None)
        return plan_pair(files, request or asking(), where), llama

    return planned


def gpu(gib: float) -> Machine:
    return machine((card(0, gib), 600), processor=cpu(60))


def test_a_model_on_the_cpu_with_room_around_it_is_not_asked_about(planned: Planned) -> None:
    plan, llama = planned(4, machine(processor=cpu(60)), None)
    assert plan.target.gpu_layers == 0
    assert llama.asked == []


def test_a_model_on_the_cpu_that_is_a_tight_fit_is_asked_about(planned: Planned) -> None:
    _, llama = planned(8, machine(processor=cpu(12)), lambda _: 0)
    assert llama.asked == [0]


def test_a_plan_that_llama_cpp_confirms_is_kept(planned: Planned) -> None:
    plan, llama = planned(9, gpu(24), lambda _: 0)
    assert llama.asked == [33]
    assert plan.target.gpu_layers == 33


def test_the_plan_counts_where_llama_cpp_does_not_know(planned: Planned) -> None:
    plan, llama = planned(9, gpu(12), None)
    assert len(llama.asked) == 1
    assert plan.target.gpu_layers == 33


@pytest.mark.parametrize("gib", [0.25, -0.25])
def test_a_split_follows_what_llama_cpp_says(gib: float, planned: Planned) -> None:
    """A layer of 18 GiB in 32 takes 0.56 GiB and its cache, so a quarter more or less may decide."""
    changed = 0
    for size in (10, 10.2, 10.4, 10.6, 10.8, 11):
        first, _ = planned(18, gpu(size), None)
        plan, _ = planned(18, gpu(size), lambda _: int(gib * GIB))
        assert plan.placement is not None
        assert plan.target.gpu_layers is not None
        assert first.target.gpu_layers is not None
        difference = plan.target.gpu_layers - first.target.gpu_layers
        assert difference in (0, -1 if gib > 0 else 1)
        changed += abs(difference)
        on_gpu = plan.placement.target.needs[0]
        assert on_gpu.total <= MemoryBudget(gpu(size)).free["CUDA0"]
    assert changed


def test_a_requested_split_that_does_not_fit_is_refused_with_numbers_and_ways_out(planned: Planned) -> None:
    with pytest.raises(UserError, match=r"CUDA0 has .* GiB free") as refused:
        planned(9, gpu(12), lambda _: 4 * GIB, asking(gpu_layers=99))
    assert "GiB are needed" in refused.value.message
    assert refused.value.hint


def test_a_llama_cpp_that_always_wants_more_ends_in_an_error(planned: Planned) -> None:
    with pytest.raises(UserError, match="CUDA0 has"):
        planned(9, gpu(12), lambda times: times * GIB * 3, asking(devices=("CUDA0",), gpu_layers=33))


def test_a_described_machine_is_not_asked_about(planned: Planned) -> None:
    here = gpu(12)
    _, llama = planned(9, DescribedMachine(here.devices, here.rates), None)
    assert llama.asked == []


@pytest.mark.parametrize("draft", [None, SMALL])
def test_the_context_that_is_named_would_fit_by_llama_cpps_own_figures(
    draft: ModelShape | None, planned: Planned
) -> None:
    on = machine((card(0, 14 if draft else 12), 600), processor=cpu(60))
    request = asking(context=12288, gpu_layers=99, draft_devices=("CUDA0",), max_fan_out=48, mode="sd")
    if draft is None:
        request = replace(request, mode=None)
    above = GIB // 2
    with pytest.raises(UserError, match="CUDA0 has") as refused:
        planned(9, on, lambda _: above // (2 if draft else 1), request, draft)
    context = int(re.findall(r"\(-c (\d+)\)", refused.value.hint)[0])
    free = MemoryBudget(on).free["CUDA0"] - above
    shape = model(9, layers=32)

    def needed(context: int) -> int:
        requests = [(shape, MemoryRequest(LayerSplit(("CUDA0",), (32,)), context))]
        if draft:
            requests.append((draft, MemoryRequest(LayerSplit(("CUDA0",), (28,)), context, sequences=49)))
        needs = (need for each, request in requests for need in estimate(each, request))
        return sum(need.total for need in needs if need.device == "CUDA0")

    assert needed(context) <= free < needed(context + 256)
