"""A file that recommends its sampling is sampled so by every command, and told of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.app import opening as app_opening
from localspec.cli import bench
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.attached import from_json, to_json
from localspec.inference.runtime import Runtime
from localspec.types.models import ModelInfo, ModelOptions
from localspec.types.request import Recommendation, Sampling, SamplingChoice
from tests.cli.bench_fakes import Models
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime
from tests.cli.requests import left_as_asked
from tests.recommending import recommending
from tests.server.running import serving

GREEDY = {"temp": 0.0, "top_k": 1, "top_p": 0.1}
WARM = Recommendation(SamplingChoice(temperature=1.0, top_k=20, min_p=0.0))
SMALL = ("-c", "512", "-t", "1")


@pytest.fixture
def greedy(demo_target: Path, tmp_path: Path) -> Path:
    return recommending(demo_target, tmp_path / "greedy.gguf", GREEDY)


@pytest.mark.slow
def test_run_answers_as_the_file_recommends(invoke: Invoke, greedy: Path) -> None:
    flags = ("-m", str(greedy), *SMALL, "--mode", "off", "-n", "12", "Tell me a story.")
    answers = {invoke("run", *flags).out for _ in range(3)}
    assert len(answers) == 1
    warm = {invoke("run", *flags, "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0").out}
    assert warm != answers


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_flags_profile_file_and_defaults_in_this_order(fake: FakeRuntime, invoke: Invoke, verb: str) -> None:
    fake.target = replace(fake.target, recommended=WARM)
    flags = ("--profile", "coding", "--top-k", "3", "--explain")
    outcome = invoke(verb, *flags, piped=b"Hi\n")
    assert outcome.code == 0
    assert fake.requests[0].sampling == Sampling(temperature=0.2, top_k=3, top_p=0.95, min_p=0.0)
    assert (
        "sampling: min_p 0 from the model's file; temperature 0.2, repetition_penalty 1 from profile Coding; "
        "top_k 3 from the command line; everything else at its default\n"
    ) in outcome.err


def test_all_contenders_of_a_benchmark_are_sampled_as_the_file_recommends(
    demo_target: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = Models()
    models.install(monkeypatch.setattr)
    monkeypatch.setattr(app_opening, "computes_on_cpu", lambda _via: True)
    monkeypatch.setattr(app_opening, "placed", left_as_asked)
    monkeypatch.setattr(bench, "machine_words", lambda _pair: "A processor, 2 cores")
    file = recommending(demo_target, tmp_path / "warm.gguf", {"temp": 0.75, "top_k": 20, "mirostat": 2})
    flags = ("-m", str(file), "--prompts", "demo", "--per-task", "1", "--modes", "ngram", "--top-k", "5")
    outcome = invoke("bench", *flags, "-o", "json")
    assert outcome.code == 0
    asked = {each.sampling for each in models.requests if not isinstance(each.prompt, str)}
    assert asked == {Sampling(temperature=0.75, top_k=5)}
    assert json.loads(outcome.out)["sampling"]["temperature"] == 0.75


@pytest.mark.slow
def test_the_server_samples_as_the_file_recommends_and_a_screen_there_hears_of_it(greedy: Path) -> None:
    options = ModelOptions(greedy, context=512, threads=1)
    with serving(lambda: Runtime.open(OpenPlan(options))) as served:
        params = served.client.get("/props").json()["default_generation_settings"]["params"]
        assert (params["temperature"], params["top_k"], params["top_p"]) == (0.0, 1, 0.1)
        body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 12}
        said = {served.chat(**body).json()["choices"][0]["message"]["content"] for _ in range(3)}
        assert len(said) == 1
        target = served.service.queue.models.target
    assert target.recommended.sampling == SamplingChoice(temperature=0.0, top_k=1, top_p=0.1)
    assert from_json(to_json(target), ModelInfo) == target


@pytest.mark.slow
def test_show_lists_what_counts_and_what_does_not(invoke: Invoke, demo_target: Path, tmp_path: Path) -> None:
    values: dict[str, float | int | str] = {
        "temp": 0.95,
        "top_k": -3,
        "xtc_probability": 0.5,
        "sequence": "top_k;temperature",
    }
    file = recommending(demo_target, tmp_path / "a.gguf", values)
    lines = invoke("show", str(file)).out.splitlines()
    assert "  recommended sampling, from the model's file: temperature 0.95" in lines
    assert "  not used of what the file recommends: xtc_probability 0.5, sequence top_k;temperature" in lines
    wrong = (
        "the model's file recommends general.sampling.top_k -3, which is not used: "
        "it is not a whole number from 0 to 1,000,000"
    )
    assert f"  {wrong}" in lines
    value = json.loads(invoke("show", str(file), "--json").out)
    assert value["recommended_sampling"] == {"temperature": 0.95}
    assert value["recommended_unused"][-1] == wrong
    assert "recommend" not in invoke("show", str(demo_target)).out


@pytest.mark.slow
def test_a_value_without_sense_is_reported_once_when_the_model_opens(
    invoke: Invoke, demo_target: Path, tmp_path: Path
) -> None:
    file = recommending(demo_target, tmp_path / "a.gguf", {"temp": float("nan"), "min_p": 3.0, "top_p": "x"})
    outcome = invoke("run", "-m", str(file), *SMALL, "-n", "2", "Hi")
    assert outcome.code == 0
    told = [line for line in outcome.err.splitlines() if "recommends" in line]
    for line, name in zip(told, ("temp nan", "min_p 3", "top_p x"), strict=True):
        assert line.startswith(
            f"note: the model's file recommends general.sampling.{name}, which is not used"
        )
