"""The command `tune`, on scripted runs of the tuner."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from localspec.app.opening import identity_of
from localspec.app.tuning import StopSignal, profiles_of, read_tasks
from localspec.cli import tune as verb
from localspec.cli.tune import budget
from localspec.errors import EngineError, UserError
from localspec.storage.profiles import profiles
from localspec.tuning.events import TuneEvent
from localspec.tuning.plan import QUICK_TRIALS, TRIALS, TunePlan
from localspec.tuning.run_folder import RunFolder, RunState, TaskState
from tests.cli.conftest import Invoke
from tests.cli.requests import unplaced
from tests.cli.tuning_script import cache_chosen, compared, machine, result, task, whole

Run = Callable[[TunePlan, StopSignal], Iterator[TuneEvent]]


class Tuner:
    """Stands in for the tuner: keeps what it was asked, says what its script does."""

    def __init__(self) -> None:
        self.plans: list[TunePlan] = []
        self.script: Callable[[StopSignal], Iterator[TuneEvent]] = lambda _stop: whole()

    def __call__(self, plan: TunePlan, stop: StopSignal) -> Iterator[TuneEvent]:
        self.plans.append(plan)
        yield from self.script(stop)

    @property
    def plan(self) -> TunePlan:
        return self.plans[-1]


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    result = Tuner()
    monkeypatch.setattr(verb, "run", result)
    return result


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("3m", 180), ("1h", 3600), ("1h30m", 5400), ("45", 45), ("2 min", 120),
     ("1h30", 5400), ("1 h 30", 5400), ("1m30", 90), ("1h30s", 3630), ("1h2m3", 3723)],
)  # fmt: skip
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "3x", "m", "-3m", "1.5h", "0s", "9s", "25h", "m3"])
def test_what_is_not_a_length_of_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"`{text}` is not"):
        budget(text)


def test_results_go_to_the_output_and_progress_next_to_it(tuner: Tuner, invoke: Invoke) -> None:
    outcome = invoke("tune", "--no-fit")
    assert outcome.code == 0
    assert [line.split()[:2] for line in outcome.out.splitlines()[1:3]] == [
        ["coding", "SSD"],
        ["writing", "plain"],
    ]
    assert "1.42" in outcome.out
    assert "tuning demo-target + demo-draft for coding, writing, general" in outcome.err
    assert "coding, study: simulating settings, up to 20 trials" in outcome.err
    assert [profile.task for profile in tuner.plan.profiles] == ["coding", "writing", "dialogue"]
    assert (tuner.plan.trials, tuner.plan.budget_s, tuner.plan.quick, tuner.plan.resume) == (
        TRIALS, None, False, False,
    )  # fmt: skip
    assert tuner.plan.pair.draft is not None


def test_flags_make_the_plan(tuner: Tuner, invoke: Invoke) -> None:
    outcome = invoke(
        "tune", "--no-fit", "--task", "math", "coding", "--task", "math", "--budget", "3m", "--trials", "77",
        "--quick", "--resume", "-t", "2", "-c", "512",
    )  # fmt: skip
    assert outcome.code == 0
    assert [profile.task for profile in tuner.plan.profiles] == ["math", "coding"]
    assert (tuner.plan.trials, tuner.plan.budget_s) == (77, 180.0)
    assert tuner.plan.quick
    assert tuner.plan.resume
    assert (tuner.plan.pair.target.threads, tuner.plan.pair.target.context) == (2, 512)
    assert tuner.plan.fixed == ("threads",)
    invoke("tune", "--no-fit", "--quick", "--profile", "writing")
    assert tuner.plan.trials == QUICK_TRIALS
    assert [profile.name for profile in tuner.plan.profiles] == ["writing"]


def test_another_cache_is_allowed_by_a_flag_alone(tuner: Tuner, invoke: Invoke) -> None:
    invoke("tune", "--no-fit")
    assert not tuner.plan.allows_cache_types
    assert invoke("tune", "--no-fit", "--allow-cache-types").code == 0
    assert tuner.plan.allows_cache_types


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--quick",), "--quick tries no other ways to open the models"),
        (("-ctk", "q8_0"), "-ctk or -ctv decides it"),
        (("-fa", "off"), "-fa off decides it"),
        (("--show",), "--show does not tune, and --allow-cache-types says how"),
    ],
)
def test_a_cache_that_cannot_be_tried_is_a_mistake(
    tuner: Tuner, invoke: Invoke, flags: tuple[str, ...], problem: str
) -> None:
    outcome = invoke("tune", "--no-fit", "--allow-cache-types", *flags)
    assert outcome.code == 2
    assert problem in outcome.err
    assert not tuner.plans


def test_json_says_how_far_another_cache_moves_the_distribution(tuner: Tuner, invoke: Invoke) -> None:
    tuner.script = lambda _stop: iter([cache_chosen(), result()])
    value = json.loads(invoke("tune", "--no-fit", "--allow-cache-types", "--json").out)
    assert value["workplace"]["target_kv_type"] == "q8_0"
    expected = {"tokens": 384, "mean": 0.00123, "high": 0.0156, "changed": 0.0078}
    assert value["distribution_shift"] == expected


def test_json_has_what_neighbouring_tokens_share(tuner: Tuner, invoke: Invoke) -> None:
    tuner.script = lambda _stop: iter([compared(), result()])
    found = json.loads(invoke("tune", "--no-fit", "--json").out)["compared_passes"]
    assert [each["tokens"] for each in found] == [1, 2, 3, 5]
    assert found[-1] == {"tokens": 5, "neighbours_s": 0.04, "unrelated_s": 0.05, "ratio": pytest.approx(0.8)}


@pytest.mark.usefixtures("tuner")
def test_json_is_one_object_on_the_output(invoke: Invoke) -> None:
    outcome = invoke("tune", "--no-fit", "--json")
    value = json.loads(outcome.out)
    assert (value["schema"], value["complete"]) == (1, True)
    coding, writing = value["tasks"]
    assert coding["settings"]["mode"] == "ssd"
    assert coding["winner"]["gain"]["low"] == pytest.approx(1.37)
    assert writing["settings"]["mode"] == "off"
    assert value["workplace"]["threads"] == 1
    assert "simulating settings" in outcome.err


def test_ctrl_c_keeps_what_was_found_and_says_how_to_continue(tuner: Tuner, invoke: Invoke) -> None:
    def script(stop: StopSignal) -> Iterator[TuneEvent]:
        yield from task("coding")
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            stop.check()

    tuner.script = script
    outcome = invoke("tune", "--no-fit")
    assert outcome.code == 130
    assert "1.42" in outcome.out
    assert "`localspec tune --no-fit --resume` resumes it" in outcome.err
    value = json.loads(invoke("tune", "--no-fit", "--json").out)
    assert value["complete"] is False
    assert [one["task"] for one in value["tasks"]] == ["coding"]


@pytest.mark.slow
def test_what_continues_is_what_was_stopped(tuner: Tuner, invoke: Invoke) -> None:
    folder = RunFolder(identity_of(unplaced(verb.parser().parse_args(["--no-fit"]))).pair)
    tasks = (
        TaskState("math", profile="math", result=result("math")),
        TaskState("translate", profile="deleted since"),
    )
    folder.state.write(RunState(1, tasks=tasks))
    invoke("tune", "--no-fit", "--resume")
    assert [profile.name for profile in tuner.plan.profiles] == ["math", "translate"]
    invoke("tune", "--no-fit", "--resume", "--task", "coding")
    assert [profile.name for profile in tuner.plan.profiles] == ["coding"]
    folder.state.write(RunState(1, tasks=tasks, complete=True))
    invoke("tune", "--no-fit", "--resume")
    assert [profile.task for profile in tuner.plan.profiles] == ["coding", "writing", "dialogue"]


def test_impatience_does_not_wait_for_the_models(tuner: Tuner, invoke: Invoke) -> None:
    def script(_stop: StopSignal) -> Iterator[TuneEvent]:
        yield from machine()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        yield from task("coding")

    tuner.script = script
    assert invoke("tune", "--no-fit").code == 130


def test_an_error_is_a_line_below_what_was_said(tuner: Tuner, invoke: Invoke) -> None:
    def script(_stop: StopSignal) -> Iterator[TuneEvent]:
        yield from machine()
        raise EngineError("the models' process was killed")

    tuner.script = script
    outcome = invoke("tune", "--no-fit")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == "error: the models' process was killed"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "cooking"], "cooking"),
        (["--budget", "soon"], "`soon` is not a time such as 90s, 3m or 1h30m"),
        (["--trials", "0"], "--trials"),
        (["--profile", "codin"], "did you mean `coding`?"),
        (["--show", "--reset"], "--show and --reset cannot be done at once"),
        (["--show", "--quick"], "--show does not tune, and --quick says how"),
        (["--yes"], "only --reset asks"),
        (["--report", "--show"], "--show and --report cannot be done at once"),
        (["--no-fit", "--report", "letter.txt"], "`letter.txt` does not end in .html"),
        (["--export", "yaml"], "--export"),
        (["-md", "small.gguf"], "there is no target"),
        (["--no-fit", "--explain"], "--explain"),
    ],
)
def test_mistakes_are_one_line(tuner: Tuner, invoke: Invoke, arguments: list[str], words: str) -> None:
    outcome = invoke("tune", *arguments)
    assert outcome.code == 2
    assert words in outcome.err.splitlines()[0]
    assert len(outcome.err.splitlines()) <= 2
    assert tuner.plans == []


def test_help_names_tasks_and_the_default_ones(invoke: Invoke) -> None:
    text = " ".join(invoke("tune", "--help").out.split())
    assert "translate" in text
    assert "(coding, writing, dialogue)" in text
    assert "--resume" in text


def test_two_profiles_of_a_task_are_rejected(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("profiles")
    (folder / "mine.toml").write_text('title = "Mine"\ntask = "coding"\n', encoding="utf-8")
    found = profiles(folder)
    with pytest.raises(UserError, match="both of the task coding"):
        profiles_of(found, [], ["coding", "mine"])
    assert [profile.name for profile in profiles_of(found, ["writing"], ["mine", "mine"])] == [
        "writing",
        "mine",
    ]


def test_words_for_tasks() -> None:
    assert read_tasks(["Coding", "math", "coding"]) == ("coding", "math")
    assert read_tasks([]) == ()
    with pytest.raises(UserError, match="there is no task `cooking`"):
        read_tasks(["cooking"])


@pytest.mark.slow
@pytest.mark.usefixtures("tuner")
def test_resuming_where_nothing_was_stopped_says_so(invoke: Invoke) -> None:
    said = "note: no run for these models was stopped, so there is nothing to resume: this is a new one"
    assert said in invoke("tune", "--no-fit", "--resume").err
    assert said in invoke("tune", "--no-fit", "--resume", "--task", "coding").err
    assert said not in invoke("tune", "--no-fit").err
