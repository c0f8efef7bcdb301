"""How many CPU threads each model gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference import contexts
from localspec.inference.runtime import Runtime
from localspec.llama.context import Context
from localspec.types.models import ModelOptions
from localspec.types.request import EngineSettings, Message, Mode, Request, Sampling

Threads = tuple[int, int | None]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Threads]]:
    """Return the threads that contexts are given, for a token and for several, by their model's file."""
    found: dict[str, list[Threads]] = {}

    def set_threads(context: Context, threads: int, several: int | None = None, few: int = 1) -> None:
        assert few in {1, contexts.FEW_TOKENS}
        found.setdefault(context.model.options.path.stem, []).append((threads, several))

    monkeypatch.setattr(Context, "set_threads", set_threads)
    return found


def answer(target: Path, draft: Path, mode: Mode, draft_threads: int = 0) -> None:
    """Decode a few tokens as on a machine with eight cores."""
    options = ModelOptions(target, context=96, threads=8)
    with Runtime.open(OpenPlan(options, ModelOptions(draft, context=96, threads=draft_threads))) as runtime:
        greedy = Sampling(temperature=0.0)
        list(runtime.generate(Request((Message("user", "Hi"),), greedy, EngineSettings(mode=mode), 4)))


def test_a_small_draft_model_steps_alone_and_reads_with_all(
    given: dict[str, list[Threads]], demo_target: Path, demo_draft: Path
) -> None:
    answer(demo_target, demo_draft, "sd")
    assert set(given[demo_draft.stem]) == {(1, 8)}
    assert {threads for threads, _ in given[demo_target.stem]} == {8}


def test_a_larger_draft_model_steps_with_more(
    given: dict[str, list[Threads]], demo_target: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "THREAD_BYTES", demo_draft.stat().st_size // 3)
    answer(demo_target, demo_draft, "sd")
    [(threads, reading)] = set(given[demo_draft.stem])
    assert 2 <= threads <= 4
    assert reading == 8


def test_threads_asked_for_are_those_of_all_its_work(
    given: dict[str, list[Threads]], demo_target: Path, demo_draft: Path
) -> None:
    answer(demo_target, demo_draft, "sd", draft_threads=5)
    assert set(given[demo_draft.stem]) == {(5, 5)}


def test_models_that_work_at_once_share_the_cores(
    given: dict[str, list[Threads]], demo_target: Path, demo_draft: Path
) -> None:
    answer(demo_target, demo_draft, "ssd")
    assert given[demo_draft.stem][-1] == (2, 2)
    assert given[demo_target.stem][-1][0] == 6


def test_threads_asked_for_are_taken_from_the_cores_that_are_shared(
    given: dict[str, list[Threads]], demo_target: Path, demo_draft: Path
) -> None:
    answer(demo_target, demo_draft, "ssd", draft_threads=5)
    assert given[demo_draft.stem][-1] == (5, 5)
    assert given[demo_target.stem][-1][0] == 3


@pytest.mark.parametrize(("bytes_each", "expected"), [(2, (2, 8)), (20, (8, 8)), (0.1, (1, 8))])
def test_a_small_target_computes_few_tokens_with_few_threads(
    given: dict[str, list[Threads]],
    demo_target: Path,
    monkeypatch: pytest.MonkeyPatch,
    bytes_each: float,
    expected: Threads,
) -> None:
    monkeypatch.setattr(contexts, "physical_cores", lambda: 8)
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=96))) as runtime:
        weights = runtime._target_model.header.weight_bytes
    monkeypatch.setattr(contexts, "TARGET_THREAD_BYTES", weights / bytes_each)
    given.clear()
    with Runtime.open(OpenPlan(ModelOptions(demo_target, context=96))) as runtime:
        off = EngineSettings(mode="off")
        list(runtime.generate(Request((Message("user", "Hi"),), Sampling(temperature=0.0), off, 4)))
    assert set(given[demo_target.stem]) == {expected}


def test_a_small_target_gets_the_threads_that_were_asked_for(
    given: dict[str, list[Threads]], demo_target: Path, demo_draft: Path
) -> None:
    answer(demo_target, demo_draft, "off")
    assert set(given[demo_target.stem]) == {(8, 8)}
