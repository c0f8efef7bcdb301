"""What opens where no flag names models, and how it is sampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec import smollm2
from localspec.app.tuning import TuneChoice, plan_of
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.smollm2 import SAMPLING
from localspec.storage.paths import config_dir
from localspec.storage.profiles import profiles
from localspec.types.models import ModelOptions
from localspec.types.request import Sampling
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime

CODING, WRITING = (profiles(Path("nowhere")).named(name) for name in ("coding", "writing"))
FOR_CODE = replace(SAMPLING, repetition_penalty=1.0)


@pytest.fixture
def small(fake: FakeRuntime, seeming_smollm2: Path) -> FakeRuntime:
    """Models of which the target is SmolLM2."""
    fake.target = replace(fake.target, path=seeming_smollm2, recommended=smollm2.RECOMMENDED)
    return fake


def opened(fake: FakeRuntime) -> tuple[Path, Path | None]:
    [options] = fake.opened
    return options.target.path, options.draft.path if options.draft is not None else None


def write(name: str, text: str) -> None:
    path = config_dir() / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_smollm2_opens_with_its_draft(small: FakeRuntime, invoke: Invoke, seeming_smollm2: Path) -> None:
    assert invoke("run", "Hi").code == 0
    assert opened(small) == (seeming_smollm2, smollm2.draft())


def test_flags_name_other_models(small: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "Hi", "-m", "big.gguf", "-md", "small.gguf").code == 0
    assert opened(small) == (Path("big.gguf"), Path("small.gguf"))


def test_configuration_names_other_models(small: FakeRuntime, invoke: Invoke) -> None:
    big = config_dir() / "big.gguf"
    write("config.toml", '[models]\ntarget = "big.gguf"\n')
    refused = invoke("run", "Hi")
    assert refused.code == 2
    assert f"config.toml, line 2: `target` names no file: {big}\n" in refused.err
    big.touch()
    assert invoke("run", "Hi").code == 0
    assert opened(small) == (big, None)


def test_context_of_the_configuration_counts_for_whatever_opens(small: FakeRuntime, invoke: Invoke) -> None:
    write("config.toml", "[models]\ncontext = 2048\n")
    assert invoke("run", "Hi").code == 0
    assert invoke("run", "Hi", "-c", "512").code == 0
    assert invoke("run", "Hi", "-m", "big.gguf").code == 0
    assert [options.target.context for options in small.opened] == [2048, 512, 0]


@pytest.mark.parametrize(
    ("flags", "sampling"),
    [
        ([], SAMPLING),
        (["--profile", "writing"], SAMPLING),
        (["--profile", "auto"], FOR_CODE),
        (["--profile", "coding"], FOR_CODE),
        (["--temp", "0.8"], replace(SAMPLING, temperature=0.8)),
        (["--profile", "writing", "--repeat-penalty", "1"], FOR_CODE),
        (["--profile", "coding", "--repeat-penalty", "1.05"], SAMPLING),
    ],
)
def test_smollm2_is_sampled_as_its_gpu_says_where_no_flag_does(
    small: FakeRuntime, invoke: Invoke, flags: list[str], sampling: Sampling
) -> None:
    assert invoke("run", "Write a Python function.", *flags).code == 0
    assert invoke("chat", *flags, typed="Write a Python function.\n").code == 0
    assert [request.sampling for request in small.requests] == [sampling, sampling]


def test_sampling_of_ones_own_profile_counts(small: FakeRuntime, invoke: Invoke) -> None:
    write("profiles/writing.toml", 'title = "Mine"\ntask = "writing"\nsampling.temperature = 0.9')
    assert invoke("run", "Hi", "--profile", "writing").code == 0
    assert small.requests[0].sampling == replace(SAMPLING, temperature=0.9)


@pytest.mark.usefixtures("seeming_smollm2")
def test_other_models_keep_what_the_profile_says(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "Hi", "--profile", "writing").code == 0
    assert fake.requests[0].sampling == WRITING.sampling


def test_chat_reports_what_is_in_force(small: FakeRuntime, invoke: Invoke) -> None:
    small.draft = replace(small.target, path=smollm2.draft())
    outcome = invoke("chat", "--profile", "writing", typed="/temp\n/temp 0.6\nHi\n")
    assert outcome.err.startswith("SmolLM2 135M Instruct with draft smollm2-draft; mode ")
    told = [line for line in outcome.err.splitlines() if "temperature" in line]
    assert [line.split()[-1] for line in told] == ["0.2", "0.6"]
    assert small.requests[0].sampling == replace(SAMPLING, temperature=0.6)


@pytest.mark.usefixtures("seeming_smollm2")
def test_profiles_show_reports_it_too(invoke: Invoke) -> None:
    lines = invoke("profiles", "show", "writing").out.splitlines()
    [shown] = [line for line in lines if line.startswith("  with SmolLM2")]
    assert "temperature 0.2, top_k 0, top_p 0.9" in shown
    write("profiles/writing.toml", 'title = "Mine"\ntask = "writing"\nsampling.temperature = 0.9')
    lines = invoke("profiles", "show", "writing").out.splitlines()
    [left] = [line for line in lines if line.startswith("  left open")]
    assert left.endswith(
        ": top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, penalty_window"
    )
    [shown] = [line for line in lines if line.startswith("  with SmolLM2")]
    assert "temperature 0.9, top_k 0, top_p 0.9" in shown


def test_profiles_show_does_not_speak_of_what_is_not_there(invoke: Invoke) -> None:
    assert "SmolLM2" not in invoke("profiles", "show", "writing").out


def test_tuning_records_answers_sampled_like_those_of_every_day(seeming_smollm2: Path) -> None:
    for target, sampling in ((seeming_smollm2, FOR_CODE), (Path("big.gguf"), CODING.sampling)):
        pair = OpenPlan(ModelOptions(target))
        assert [profile.sampling for profile in plan_of(pair, (CODING,), TuneChoice(())).profiles] == [
            sampling
        ]
