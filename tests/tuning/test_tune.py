from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.decoding.measurements import TraceSegment
from localspec.errors import EngineDied, UserError
from localspec.gguf import STATE_DRAFT
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.storage import tuned_settings
from localspec.storage.pair_identity import Identity, MachineFacts, identify
from localspec.storage.profiles import Profile, TuningPrompts, profiles
from localspec.storage.tuned_settings import LoadOptions
from localspec.tuning import run as tuning_run
from localspec.tuning.events import (
    STAGES,
    BestSoFar,
    LoadOptionsChosen,
    Stage,
    StageBegan,
    StageProgress,
    TaskResult,
    TuneEvent,
)
from localspec.tuning.load_options import MachineLimits
from localspec.tuning.plan import LONGEST_DRAFT, PlainPace, RunSoFar, TunePlan, left_s, seconds_of, usual_s
from localspec.tuning.run import TuningRun
from localspec.tuning.run_folder import RunFolder
from localspec.tuning.space import Space
from localspec.tuning.study import Simulate, Trial, search
from localspec.types.models import ModelOptions
from localspec.types.request import Request
from tests.tuning.fake_models import PYTHON_S, VERIFY_S, FakeModels

MACHINE = MachineFacts("a processor", 4, llama_cpp="1.0")
WORDS = ("river", "lamp", "window", "garden", "engine", "letter", "harbour", "pencil", "cloud", "bridge")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def short(profile: Profile) -> Profile:
    """Return a profile with few prompts."""
    prompts = tuple(f"Write about a {word}." for word in WORDS)
    return replace(
        profile, own_tuning=TuningPrompts(prompts, tuple(f"Tell of a {word}." for word in WORDS[:4]))
    )


def planned(folder: Path, *tasks: str, resume: bool = False, quick: bool = True) -> TunePlan:
    files = [folder / "target.gguf", folder / "draft.gguf"]
    for file in files:
        if not file.exists():
            file.write_bytes(file.name.encode())
    known = profiles(folder / "profiles")
    return TunePlan(
        OpenPlan(ModelOptions(files[0]), ModelOptions(files[1]), max_fan_out=24),
        tuple(short(known.named(task)) for task in tasks or ("coding",)),
        trials=8,
        quick=quick,
        resume=resume,
    )


def run_of(plan: TunePlan, models: FakeModels | None = None) -> TuningRun:
    found = models or FakeModels()

    def open_models(_workplace: LoadOptions) -> FakeModels:
        return found

    return TuningRun(plan, open_models, identity(plan), MachineLimits(cores=4))


def identity(plan: TunePlan) -> Identity:
    return identify(plan.pair.target, plan.pair.draft, MACHINE)


def results(events: Iterator[TuneEvent]) -> list[TaskResult]:
    return [event for event in events if isinstance(event, TaskResult)]


@pytest.mark.slow
def test_every_stage_of_every_task_is_reported_in_its_order(tmp_path: Path) -> None:
    events = list(run_of(planned(tmp_path, "coding", "writing", quick=False)).events())
    began = [(event.stage, event.task) for event in events if isinstance(event, StageBegan)]
    of_tasks = [(stage, task) for task in ("coding", "writing") for stage in STAGES[2:]]
    assert began == [("machine", None), ("costs", None), *of_tasks]
    assert sum(isinstance(event, LoadOptionsChosen) for event in events) == 1
    assert [result.task for result in results(iter(events))] == ["coding", "writing"]
    for event in events:
        if isinstance(event, StageProgress):
            assert 0 <= event.done <= event.steps
            assert event.left_s is None or event.left_s >= 0


@pytest.mark.slow
def test_winning_settings_are_saved_with_their_evidence(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (result,) = results(run_of(plan).events())
    assert result.settings.mode in {"sd", "ssd"}
    assert result.winner.gain.low > 1
    assert result.contenders[0].name == "plain"
    kept = tuned_settings.recall(identity(plan), "coding")
    assert kept.settings == result.settings
    last = RunFolder(identity(plan).pair).state.read()
    assert last is not None
    assert last.of("coding").result == result


def test_a_draft_as_slow_as_the_target_is_switched_off_with_the_reason(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    (result,) = results(run_of(plan, FakeModels(step_s=0.01, acceptance=0.3)).events())
    assert result.settings.mode == "off"
    assert result.reason.startswith(("no reliable gain (", "drafting would run at "))
    kept = tuned_settings.recall(identity(plan), "coding")
    assert kept.settings is not None
    assert kept.settings.mode == "off"


def stopped_at(stage: Stage, events: Iterator[TuneEvent], steps: int = 2) -> None:
    """Close a run after some steps of a stage."""
    seen = 0
    for event in events:
        if isinstance(event, StageProgress) and event.stage == stage:
            seen += 1
            if seen == steps:
                break
    else:
        raise AssertionError(f"{stage} had no {steps} steps")
    events.close()  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_run_that_was_stopped_continues_where_it_was(tmp_path: Path, stage: Stage) -> None:
    plan, models = planned(tmp_path), FakeModels()
    stopped_at(stage, run_of(plan, models).events())
    again = FakeModels()
    (result,) = results(run_of(replace(plan, resume=True), again).events())
    (whole,) = results(run_of(plan, FakeModels()).events())
    assert result.settings == whole.settings
    assert models.traced + again.traced == len(WORDS)
    if stage in {"study", "confirm"}:
        assert again.traced == 0


@pytest.mark.slow
def test_a_run_without_resume_begins_again_but_keeps_traces(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    results(run_of(plan).events())
    models = FakeModels()
    events = list(run_of(plan, models).events())
    assert models.traced == 0
    assert models.measured > 0
    assert any(isinstance(event, BestSoFar) for event in events)
    last = RunFolder(identity(plan).pair).state.read()
    assert last is not None
    assert (last.number, last.complete) == (2, True)


@pytest.mark.slow
def test_a_run_continues_by_the_costs_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, models = planned(tmp_path), FakeModels()
    stopped_at("study", run_of(plan).events())
    monkeypatch.setattr("tests.tuning.fake_models.VERIFY_S", 0.02)  # the machine has become slower
    results(run_of(replace(plan, resume=True), models).events())
    assert models.measured == 0


@pytest.mark.slow
def test_a_finished_task_is_not_tuned_again_when_the_run_continues(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding", "writing")
    run = run_of(plan).events()
    first = next(event for event in run if isinstance(event, TaskResult))
    run.close()  # type: ignore[attr-defined]
    events = list(run_of(replace(plan, resume=True)).events())
    began = [event.task for event in events if isinstance(event, StageBegan) and event.task]
    assert set(began) == {"writing"}
    assert results(iter(events))[0] == first


@pytest.mark.slow
def test_models_that_die_again_and_again_end_the_run_and_lose_nothing(tmp_path: Path) -> None:
    class Dying(FakeModels):
        def trace(self, request: Request) -> TraceSegment:
            if self.traced == 4:
                raise EngineDied("the process ended by SIGABRT")
            return super().trace(request)

    plan = planned(tmp_path)
    with pytest.raises(EngineDied):
        results(run_of(plan, Dying()).events())
    models = FakeModels()
    assert len(results(run_of(replace(plan, resume=True), models).events())) == 1
    assert models.traced == len(WORDS) - 5  # four are there, and the one that failed first is left out


DRIVER = """
import sys
from pathlib import Path
from tests.tuning.test_tune import planned, run_of
from localspec.tuning.events import StageProgress
for event in run_of(planned(Path(sys.argv[1]), resume="resume" in sys.argv)).events():
    if isinstance(event, StageProgress):
        print(event.stage, flush=True)
"""


def killed_in(stage: Stage, folder: Path) -> None:
    """Run the tuner in a process of its own and kill it after the second step of a stage."""
    command = [sys.executable, "-c", DRIVER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            seen += line.strip() == stage
            if seen == 2:
                process.send_signal(signal.SIGKILL)
                break
        process.stdout.read()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_kill_in_any_stage_changes_nothing_about_the_result(
    tmp_path: Path, data: Path, stage: Stage
) -> None:
    plan = planned(tmp_path)
    (whole,) = results(run_of(plan).events())
    shutil.rmtree(data)
    killed_in(stage, tmp_path)
    (result,) = results(run_of(replace(plan, resume=True)).events())
    assert replace(result, seconds=0.0) == replace(whole, seconds=0.0)
    state = json.loads((data / "tuning" / identity(plan).pair / "run.json").read_text())
    assert (state["number"], state["complete"]) == (1, True)


@pytest.mark.slow
def test_no_draft_is_tried_that_a_recurrent_state_cannot_take_back(
    made_hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = list[Space]()

    def searching(rate: Simulate, space: Space, *limits: float) -> Iterator[Trial]:
        searched.append(space)
        return search(rate, space, int(limits[0]), limits[1])

    monkeypatch.setattr(tuning_run, "search", searching)
    plan = planned(tmp_path)
    for target in (plan.pair.target, ModelOptions(made_hybrid)):
        list(run_of(replace(plan, pair=replace(plan.pair, target=target))).events())
    assert [space.max_draft_length for space in searched] == [LONGEST_DRAFT, STATE_DRAFT]


@pytest.mark.slow
def test_a_budget_below_the_least_is_rejected_with_the_time_that_is_needed(tmp_path: Path) -> None:
    models = FakeModels()
    with pytest.raises(UserError) as caught:
        list(run_of(replace(planned(tmp_path), budget_s=10.0), models).events())
    needed = PlainPace(VERIFY_S + PYTHON_S, 0.0).least_run_s(1)
    said = re.search(r"--budget 10 s is too short: .* takes (\d+) s at least", str(caught.value))
    assert said is not None
    assert 0.8 * needed < int(said[1]) < 1.5 * needed
    assert models.measured == models.traced == 0  # it says so at once
    events = list(run_of(replace(planned(tmp_path), budget_s=3 * needed), models).events())
    assert isinstance(events[-1], TaskResult)


def test_more_tasks_need_more_time() -> None:
    one, two = PlainPace(0.01, 0.1).least_run_s(1), PlainPace(0.01, 0.1).least_run_s(2)
    assert one < two < 2 * one
    assert PlainPace(0.02, 0.1).least_run_s(1) > 1.5 * one


def test_the_time_that_is_left_follows_the_speed_of_the_models(tmp_path: Path) -> None:
    plan, pace = planned(tmp_path, "coding", "writing", "math"), PlainPace(0.1, 1.0)
    usual = left_s(plan, "costs", 0.0, tasks=3)
    assert usual == pytest.approx(usual_s(3, quick=True))
    assert (
        left_s(plan, "costs", 0.0, 3, RunSoFar(PlainPace(1e-4, 1e-3))) < usual
    )  # traces of fast models are short
    slow = left_s(plan, "costs", 0.0, 3, RunSoFar(pace))
    assert pace.least_run_s(3) < slow < pace.least_run_s(3) + usual
    took: dict[Stage, float] = {"traces": 100.0, "study": 50.0, "confirm": 170.0}
    assert left_s(plan, "confirm", 0.5, 1, RunSoFar(pace, took_s=took)) == 170.0 / 2 + 320.0


def test_a_stage_is_expected_to_go_on_as_it_went(tmp_path: Path) -> None:
    plan = planned(tmp_path, "coding", "writing")
    confirm_s, before_s = seconds_of("confirm", plan), left_s(plan, "traces", 0.0, 0)
    assert left_s(plan, "confirm", 0.5, 0) == 0.5 * confirm_s
    assert left_s(plan, "confirm", 0.5, 0, RunSoFar(elapsed_s=0.5 * confirm_s)) == 0.5 * confirm_s
    slow_s = left_s(plan, "confirm", 0.5, 0, RunSoFar(elapsed_s=confirm_s))
    assert slow_s == 0.75 * confirm_s
    of_the_next_s = left_s(plan, "confirm", 0.5, 1, RunSoFar(elapsed_s=confirm_s)) - slow_s
    assert of_the_next_s == pytest.approx(before_s + 0.75 * confirm_s)
    assert (
        left_s(plan, "study", 0.1, 0, RunSoFar(elapsed_s=seconds_of("study", plan))) == confirm_s
    )  # its time is up


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
def test_the_estimate_is_right_within_a_third_on_slower_and_faster_machines(
    tmp_path: Path, speed: float
) -> None:
    """Stages that take their whole time, or end at half of it: traces and trials on a fast machine do."""
    plan = planned(tmp_path, "coding", "writing", "math")
    stages: list[tuple[Stage, float]] = [("costs", seconds_of("costs", plan) / speed)]
    for _ in plan.profiles:
        stages += [(each, seconds_of(each, plan) / max(1.0, speed)) for each in ("traces", "study")]
        stages.append(("confirm", seconds_of("confirm", plan) * (1.3 if speed < 1 else 1.0)))
    took: dict[Stage, float] = {}
    for number, (stage, seconds) in enumerate(stages):
        later = sum(each for _, each in stages[number + 1 :])
        to_do = len(plan.profiles) - (0 if stage == "costs" else 1 + (number - 1) // 3)
        for share in (0.25, 0.5, 0.75):
            left = left_s(plan, stage, share, to_do, RunSoFar(None, share * seconds, took))
            assert left == pytest.approx(later + (1 - share) * seconds, rel=1 / 3)
        took[stage] = seconds


def test_a_run_on_slow_models_says_so_from_its_first_measurement_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning_run.TuningRun, "_measured_pace", lambda run, models: PlainPace(1.0, 2.0))
    plan = planned(tmp_path, "coding", "writing")
    events = run_of(plan, FakeModels()).events()
    told = next(each for each in events if isinstance(each, StageProgress))
    events.close()  # type: ignore[attr-defined]
    assert told.left_s is not None
    assert told.left_s > 4000.0


def test_what_earlier_stages_took_is_not_there_for_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = run_of(replace(planned(tmp_path), budget_s=100.0))
    whole = run.confirm_s()
    now[0] = 90.0
    assert 0.0 < run.confirm_s() == 10.0 < whole
    now[0] = 200.0
    assert run.confirm_s() == 0.0
