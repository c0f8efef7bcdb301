"""What `localspec tune` lists, forgets and exports of earlier runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localspec import units
from localspec.app.opening import identity_of
from localspec.cli.tune import parser
from localspec.cli.tune.kept import lines
from localspec.hardware import machine as machine_module
from localspec.storage import tuned_settings
from localspec.storage.pair_identity import Identity, MachineFacts, ModelFacts
from localspec.storage.tuned_settings import LoadOptions, TunedEntry, TunedTask
from localspec.tuning.run_folder import RunFolder, RunState, TaskState
from localspec.types.request import EngineSettings, TaskType
from tests.cli.conftest import Invoke
from tests.cli.requests import unplaced
from tests.cli.tuning_script import PLAIN, SSD, result
from tests.hardware.machines import machine

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def found(task: TaskType = "coding", settings: EngineSettings = SSD, days: int = 3) -> TunedTask:
    moment = (NOW - timedelta(days=days)).isoformat()
    return TunedTask(task, settings, 1.42, 1.37, 1.47, 85.2, 60.0, moment, "measured")


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> Identity:
    """What holds for the bundled pair on a made-up machine."""
    monkeypatch.setattr(machine_module, "known_machine", lambda **_: machine())
    return identity_of(unplaced(parser().parse_args(["--no-fit"])))


LONG_AGO = Identity(
    MachineFacts("An old processor", 4),
    ModelFacts("/nowhere/large.gguf", "a", "the processor, all cores"),
    None,
    0,
)


def test_nothing_tuned_says_what_tunes(invoke: Invoke) -> None:
    outcome = invoke("tune", "--show")
    assert (outcome.code, outcome.out) == (0, "")
    assert "`localspec tune` does it" in outcome.err
    assert json.loads(invoke("tune", "--show", "--json").out) == {"schema": 1, "kept": []}


def test_what_is_kept_is_listed_by_pair(invoke: Invoke, identity: Identity) -> None:
    tuned_settings.keep(identity, found())
    tuned_settings.keep(identity, found("writing", PLAIN))
    tuned_settings.keep(LONG_AGO, found("math"))
    outcome = invoke("tune", "--show", "--no-fit")
    assert outcome.code == 0
    rows = outcome.out.splitlines()
    assert rows[0] == "demo-target + demo-draft"
    assert rows[1].split()[:2] == ["task", "settings"]
    assert rows[2].split()[:3] == ["coding", "SSD,", "draft"]
    assert "×1.42 (1.37-1.47)" in rows[2]
    assert rows[3].split()[:3] == ["writing", "plain", "decoding"]
    assert "×" not in rows[3]
    assert rows[4] == "large"
    assert rows[-1].strip() == "out of date: /nowhere/large.gguf is gone"
    assert not any("out of date" in row for row in rows[:4])


def test_what_has_changed_is_reported(
    invoke: Invoke, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned_settings.keep(identity, found())
    assert identity.draft is not None
    elsewhere = replace(identity, draft=replace(identity.draft, seat="CUDA0 (all layers)"))
    tuned_settings.keep(elsewhere, found("math"))
    value = json.loads(invoke("tune", "--show", "--no-fit", "--json").out)
    stale = {kept["tuned"]["task"]: kept["stale"] for kept in value["kept"]}
    assert stale["coding"] == []
    assert stale["math"][0].startswith("another placement: the draft model was on CUDA0")
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "9.9.9")
    assert "tuned with llama-cpp-python" in invoke("tune", "--show", "--no-fit").out


def test_the_list_is_of_the_tasks_that_were_named(invoke: Invoke, identity: Identity) -> None:
    tuned_settings.keep(identity, found())
    tuned_settings.keep(identity, found("writing"))
    value = json.loads(invoke("tune", "--show", "--no-fit", "--json", "--task", "writing").out)
    assert [kept["tuned"]["task"] for kept in value["kept"]] == ["writing"]
    outcome = invoke("tune", "--show", "--no-fit", "--profile", "coding")
    assert [row.split()[0] for row in outcome.out.splitlines()[2:]] == ["coding"]
    outcome = invoke("tune", "--show", "--no-fit", "--task", "math")
    assert outcome.out == ""
    assert "nothing is tuned yet for math" in outcome.err


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_fits_the_terminal(width: int) -> None:
    listed = [(TunedEntry(LONG_AGO, found(days=40)), ("tuned with driver 1, now 2",))]
    rows = list(lines(listed, width, NOW))
    assert max(map(len, rows)) <= width
    text = "\n".join(rows)
    assert "SSD, draft 6, fan-out 12, temp 0.8, C 0.9" in text
    assert "40 days ago" in text
    assert "1.37-1.47" in text
    assert rows[-1].strip() == "out of date: tuned with driver 1, now 2"


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=5), "just now"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(hours=5), "5 hours ago"),
        (timedelta(days=1, hours=3), "1 day ago"),
        (timedelta(days=400), "400 days ago"),
    ],
)
def test_ages(ago: timedelta, words: str) -> None:
    assert units.ago((NOW - ago).isoformat(), NOW) == words
    assert units.ago((NOW - ago).replace(tzinfo=None).isoformat(), NOW) == words
    assert units.ago("yesterday", NOW) == "some time ago"


def kept_tasks() -> set[str]:
    return {kept.tuned.task for kept in tuned_settings.everything()[0]}


@pytest.fixture
def two(identity: Identity) -> Identity:
    tasks: tuple[TaskType, ...] = ("coding", "writing")
    for task in tasks:
        tuned_settings.keep(identity, found(task))
    RunFolder(identity.pair).state.write(RunState(1))
    tuned_settings.keep(LONG_AGO, found("math"))
    return identity


def test_reset_asks_and_forgets_these_models_alone(invoke: Invoke, two: Identity) -> None:
    refused = invoke("tune", "--reset", "--no-fit", typed="no\n")
    assert refused.code == 1
    assert "Forget the settings of demo-target + demo-draft?" in refused.err
    assert kept_tasks() == {"coding", "writing", "math"}
    agreed = invoke("tune", "--reset", "--no-fit", typed="y\n")
    assert agreed.code == 0
    assert "forgot 2 tasks" in agreed.err
    assert kept_tasks() == {"math"}
    assert RunFolder(two.pair).state.read() is None
    assert "were not saved anyway" in invoke("tune", "--reset", "--yes", "--no-fit").err


@pytest.mark.usefixtures("two")
def test_one_task_is_forgotten_without_a_question_if_that_is_answered(invoke: Invoke) -> None:
    outcome = invoke("tune", "--reset", "--task", "writing", "-y", "--no-fit", "--json")
    assert json.loads(outcome.out) == {"schema": 1, "forgotten": 1}
    assert kept_tasks() == {"coding", "math"}


@pytest.mark.usefixtures("two")
def test_no_one_to_ask_is_a_mistake(invoke: Invoke) -> None:
    outcome = invoke("tune", "--reset", "--no-fit", piped=b"y\n")
    assert outcome.code == 2
    assert "add --yes to skip the question" in outcome.err
    assert kept_tasks() == {"coding", "writing", "math"}


def test_settings_are_exported_with_the_place_they_were_found_at(invoke: Invoke, two: Identity) -> None:
    tuned_settings.save_load_options(two, LoadOptions(threads=3, micro_batch=1024))
    outcome = invoke("tune", "--export", "llama-server", "--no-fit")
    assert outcome.code == 0
    assert outcome.out.count("llama-server \\") == 2
    assert "# coding\n" in outcome.out
    assert "--threads 3" in outcome.out
    assert "--ubatch-size 1024" in outcome.out
    flags = invoke("tune", "--export", "llama-server", "--no-fit", "-ub", "256").out
    assert "--ubatch-size 256" in flags
    assert "--threads 3" in flags
    tuned_settings.save_load_options(two, LoadOptions(target_kv_type="q8_0"))
    smaller = invoke("tune", "--export", "llama-server", "--no-fit")
    assert "--cache-type-k q8_0" in smaller.out
    assert smaller.err.count("note: the target's cache is q8_0") == 1
    one = invoke("tune", "--export", "toml", "--task", "coding", "--no-fit").out
    assert one.startswith("[speculation]")
    assert "draft_length = 6" in one


@pytest.mark.usefixtures("two")
def test_several_tasks_make_one_file(invoke: Invoke) -> None:
    swap = invoke("tune", "--export", "llama-swap", "--no-fit").out
    assert swap.splitlines().count("models:") == 1
    assert '"demo-target+demo-draft-coding":' in swap
    preset = invoke("tune", "--export", "preset.ini", "--no-fit").out
    assert [row for row in preset.splitlines() if row.startswith("[")] == [
        "[demo-target+demo-draft-coding]",
        "[demo-target+demo-draft-writing]",
    ]
    assert [row for row in preset.splitlines() if row in ("; coding", "; writing")] == [
        "; coding",
        "; writing",
    ]
    value = json.loads(invoke("tune", "--export", "toml", "--no-fit", "--json").out)
    assert [each["task"] for each in value["tasks"]] == ["coding", "writing"]


@pytest.mark.usefixtures("two")
def test_what_was_not_tuned_cannot_be_exported(invoke: Invoke) -> None:
    for tasks in (["math"], ["coding", "math"]):
        outcome = invoke("tune", "--export", "toml", "--task", *tasks, "--no-fit")
        assert (outcome.code, outcome.out) == (2, "")
        assert "demo-target + demo-draft is not tuned for math" in outcome.err


@pytest.mark.usefixtures("two")
def test_what_is_out_of_date_is_exported_with_a_note(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "9.9.9")
    outcome = invoke("tune", "--export", "toml", "--task", "coding", "--no-fit")
    assert outcome.code == 0
    assert "note: coding: out of date: tuned with llama-cpp-python" in outcome.err


@pytest.fixture
def ran(identity: Identity) -> RunFolder:
    """A finished run of two tasks, whose traces are gone, and a third that was stopped."""
    folder = RunFolder(identity.pair)
    done = (TaskState("coding", result=result()), TaskState("writing", result=result("writing", pays=False)))
    folder.state.write(RunState(1, tasks=(*done, TaskState("math"))))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("ran")
def test_the_last_run_is_drawn_where_it_was_asked_for(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "localspec-tune.html"
    assert invoke("tune", "--report", "--no-fit").out.strip() == str(page)
    text = page.read_text("utf-8")
    assert "<h1>Tuning demo-target + demo-draft</h1>" in text
    assert ("<h2>Coding" in text, "<h2>Writing" in text, "<h2>Math" in text) == (True, True, False)
    again = invoke("tune", "--report", str(page), "--no-fit", "--json", "--task", "writing")
    assert json.loads(again.out) == {"schema": 1, "file": str(page)}
    assert "<h2>Coding" not in page.read_text("utf-8")


@pytest.mark.usefixtures("ran")
def test_what_was_not_tuned_is_not_drawn(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("tune", "--report", str(tmp_path / "new.html"), "--no-fit", "--task", "math")
    assert outcome.code == 2
    assert "no saved run of demo-target + demo-draft has tuned math" in outcome.err
    assert not (tmp_path / "new.html").exists()
    (tmp_path / "file").touch()
    nowhere = invoke("tune", "--report", str(tmp_path / "file" / "new.html"), "--no-fit")
    assert (nowhere.code, nowhere.out) != (0, "")
    assert "cannot" in nowhere.err


def test_without_plotly_it_is_reported_what_brings_it(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"] + ["plotly"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "localspec.tuning.report", raising=False)
    outcome = invoke("tune", "--report", "--no-fit")
    assert (outcome.code, outcome.out) == (2, "")
    assert "plotly, which draws the page, is not installed" in outcome.err
    assert "pip install 'localspec[report]'" in outcome.err
    assert "Traceback" not in outcome.err
