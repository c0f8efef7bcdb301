"""Runs of the tuner after other runs: what is gone on with, what is done again, what a report still knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.decoding.measurements import TraceSegment
from localspec.errors import UserError
from localspec.storage import tuned_settings
from localspec.storage.profiles import TuningPrompts
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning.events import LoadOptionsChosen, StageBegan, StageProgress, TaskResult, TuneEvent
from localspec.tuning.load_options import MachineLimits
from localspec.tuning.plan import TunePlan, usual_s
from localspec.tuning.run import TuningRun
from localspec.tuning.run_folder import RunFolder
from localspec.types.events import GenerationEvent
from localspec.types.request import Request
from tests.tuning.fake_models import FakeModels
from tests.tuning.test_tune import identity, planned, results, run_of, stopped_at

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))


def closed_after_the_first_task(plan: TunePlan) -> TaskResult:
    """Stop a run when its first task is done."""
    run = run_of(plan).events()
    first = next(event for event in run if isinstance(event, TaskResult))
    run.close()  # type: ignore[attr-defined]  # a generator, as nobody else need know
    return first


def test_what_was_done_under_another_placement_is_not_taken_for_done(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding", "writing")
    closed_after_the_first_task(plan)
    elsewhere = replace(
        plan, pair=replace(plan.pair, target=replace(plan.pair.target, threads=2)), resume=True
    )
    assert tuned_settings.recall(identity(elsewhere), "coding").settings is None
    found = results(run_of(elsewhere).events())
    assert [result.task for result in found] == ["coding", "writing"]
    assert tuned_settings.recall(identity(elsewhere), "coding").settings == found[0].settings


def test_going_on_with_some_tasks_leaves_the_others_to_be_gone_on_with(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding", "writing", "math")
    closed_after_the_first_task(plan)
    results(run_of(planned(tmp_path, "writing", resume=True)).events())
    last = RunFolder(identity(plan).pair).state.read()
    assert last is not None
    assert not last.complete
    events = list(run_of(replace(plan, resume=True)).events())
    began = {event.task for event in events if isinstance(event, StageBegan) and event.task}
    assert began == {"math"}
    last = RunFolder(identity(plan).pair).state.read()
    assert last is not None
    assert ([task.task for task in last.tasks], last.complete) == (["coding", "writing", "math"], True)


def test_a_quick_run_continues_quickly(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding")
    stopped_at("study", run_of(plan).events())
    events = run_of(replace(plan, quick=False, resume=True)).events()
    began = [event for event in events if isinstance(event, StageBegan)]
    assert began[0].stage == "costs"


def test_a_task_done_under_another_profile_is_tuned_again(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding", "writing")
    closed_after_the_first_task(plan)
    own = replace(plan.profiles[0], name="mine", sampling=replace(plan.profiles[0].sampling, top_k=7))
    events = run_of(replace(plan, profiles=(own, plan.profiles[1]), resume=True)).events()
    assert ("traces", "coding") in [(e.stage, e.task) for e in events if isinstance(e, StageBegan)]


def test_a_quick_run_opens_the_models_as_was_best_but_for_what_is_settled(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    tuned_settings.save_load_options(identity(plan), tuned_settings.LoadOptions(threads=3, micro_batch=1024))
    opened: list[LoadOptions] = []

    def open_models(workplace: LoadOptions) -> FakeModels:
        opened.append(workplace)
        return FakeModels()

    plan = replace(plan, fixed=("micro_batch",))
    next(TuningRun(plan, open_models, identity(plan), MachineLimits(cores=4)).events())
    assert opened == [LoadOptions(threads=3)]


def test_a_quick_run_tells_of_a_cache_that_an_earlier_run_chose(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    tuned_settings.save_load_options(identity(plan), LoadOptions(target_kv_type="q8_0"))
    first = next(run_of(plan).events())
    assert isinstance(first, LoadOptionsChosen)
    assert (first.workplace.target_kv_type, first.attempts, first.shift) == ("q8_0", (), None)


def test_a_context_too_short_for_every_prompt_is_reported_before_anything_is_tried(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding", quick=False)
    long = TuningPrompts(("word " * 3000,) * 4, ("word " * 3000,) * 4)
    plan = replace(plan, profiles=(replace(plan.profiles[0], own_tuning=long),))
    with pytest.raises(UserError, match="no tuning prompt of the profile coding fits the context"):
        results(run_of(plan).events())


def test_two_runs_at_once_would_disturb_each_other(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    first = run_of(plan).events()
    next(first)
    with pytest.raises(UserError, match="another tuning run is in progress"):
        next(run_of(replace(plan, resume=True)).events())
    assert len(results(first)) == 1
    assert len(results(run_of(plan).events())) == 1


class Curt(FakeModels):
    """Ends every answer at once."""

    def trace(self, request: Request) -> TraceSegment:
        whole = super().trace(request)
        arrays = {field.name: getattr(whole, field.name) for field in fields(TraceSegment)}
        first: dict[str, Any] = {
            name: array[:1] for name, array in arrays.items() if isinstance(array, np.ndarray)
        }
        return replace(whole, **first, ended=True)

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        return super().generate(replace(request, max_tokens=1))


def test_models_that_say_nothing_are_a_mistake_that_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too short to be timed"):
        results(run_of(planned(tmp_path), Curt()).events())


def test_the_time_of_a_task_is_the_sum_over_restarts(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    stopped_at("study", run_of(plan).events())
    folder = RunFolder(identity(plan).pair)
    state = folder.state.read()
    assert state is not None
    (task,) = state.tasks
    assert task.seconds > 0
    folder.state.write(state.having(replace(task, seconds=1000.0)))
    (result,) = results(run_of(replace(plan, resume=True)).events())
    assert 1000.0 < result.seconds < 2000.0


def left_at_first_s(events: Iterator[TuneEvent]) -> float:
    """Return the time that is said to be left when the first answer is traced."""
    told = (each.left_s for each in events if isinstance(each, StageProgress) and each.stage == "traces")
    left_s = next(told)
    events.close()  # type: ignore[attr-defined]
    assert left_s is not None
    return left_s


def test_what_is_done_takes_no_time_any_more(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding", "writing", "math", quick=False)
    first = left_at_first_s(run_of(plan).events())
    closed_after_the_first_task(plan)
    again = left_at_first_s(run_of(replace(plan, resume=True)).events())
    one_task_s = (usual_s(3, quick=False) - usual_s(1, quick=False)) / 2
    assert 0.5 * one_task_s < first - again < 2 * one_task_s


def test_a_depth_that_is_skipped_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.tuning.fake_models.VERIFY_S", 0.5)
    events = run_of(planned(tmp_path)).events()
    told = [each for each in events if isinstance(each, StageProgress) and each.stage == "costs"]
    assert [(each.done, each.steps) for each in told] == [(1, 5), (2, 5), (3, 3)]


def test_without_a_draft_model_there_is_less_to_measure(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    plan = replace(plan, pair=replace(plan.pair, draft=None))
    events = run_of(plan, FakeModels(draft=None)).events()
    told = [each for each in events if isinstance(each, StageProgress) and each.stage == "costs"]
    assert [(each.done, each.steps) for each in told] == [(1, 3), (2, 3), (3, 3)]
