"""The largest context that memory leaves room for, where a plan has put the models."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localspec.hardware.device_info import Machine
from localspec.hardware.placement import plan as plan_module
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.hardware.placement.plan import plan_pair, with_longest_context
from localspec.models.pair_files import PairFiles
from localspec.types.models import ModelOptions
from tests.hardware.machines import SMALL, asking, card, cpu, machine, model
from tests.hardware.test_confirm import DRAFT, GIB, TARGET, Llama

Widened = Callable[..., tuple[OpenPlan, OpenPlan, Llama]]


@pytest.fixture
def widened(monkeypatch: pytest.MonkeyPatch) -> Widened:
    def widened(
        where: Machine, more: Callable[[int], int] | None = lambda _: 0
    ) -> tuple[OpenPlan, OpenPlan, Llama]:
        shapes = {TARGET: model(4, layers=32), DRAFT: SMALL}
        llama = Llama(shapes, more)
        monkeypatch.setattr(plan_module, "exact", llama)
        monkeypatch.setattr(plan_module, "read_shape", lambda path, _overrides: shapes[path])
        monkeypatch.setattr(plan_module, "read_draft_shape", lambda _target, path, _overrides: shapes[path])
        files, request = PairFiles(TARGET, DRAFT), asking()
        usual = plan_pair(files, request, where)
        llama.asked.clear()
        return usual, with_longest_context(usual, files, request, where), llama

    return widened


def on_cpu(gib: float) -> Machine:
    return machine(processor=cpu(gib))


def on_gpu(gib: float) -> Machine:
    return machine((card(0, gib), 600), processor=cpu(60))


def test_it_is_the_trained_one_where_there_is_plenty(widened: Widened) -> None:
    usual, wide, llama = widened(on_cpu(200))
    assert usual.target.context == 8192
    assert (wide.target.context, wide.draft and wide.draft.context) == (131072, usual.draft and 131072)
    assert wide.placement is not None
    assert wide.placement.target.context == 131072
    assert llama.asked == []  # far from what the formula may err


def test_it_leaves_half_of_the_cpus_memory_free(widened: Widened) -> None:
    sizes = {gib: widened(on_cpu(gib))[1].target.context for gib in (8, 16, 32, 64)}
    assert sizes == {8: 8192, 16: 16384, 32: 32768, 64: 65536}  # 32 and 64 would hold twice as much


def test_models_stay_where_the_plan_puts_them(widened: Widened) -> None:
    for gib in (8, 12, 24):
        usual, wide, _ = widened(on_gpu(gib))
        assert wide.target.gpu_layers == usual.target.gpu_layers
        assert wide.target.devices == usual.target.devices
        assert wide.target.context >= usual.target.context


def test_gpus_are_asked_until_llama_cpp_confirms_a_size(widened: Widened) -> None:
    _, first, llama = widened(on_gpu(24))
    assert first.target.context > 8192
    assert len(llama.asked) == 1
    _, second, llama = widened(on_gpu(24), lambda question: 20 * GIB if question == 1 else 0)
    assert second.target.context < first.target.context
    usual, unknown, _ = widened(on_gpu(24), None)
    assert unknown == usual


def test_a_plan_that_leaves_the_placement_to_llama_cpp_stays() -> None:
    plan = OpenPlan(ModelOptions(TARGET, context=8192))
    assert with_longest_context(plan, PairFiles(TARGET), asking(), on_cpu(60)) is plan
