"""The flags of `bench`: what they mean, and what is refused before anything is opened."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from localspec.app.comparison import BenchRequest
from localspec.benchmark.harness import Prompt
from localspec.cli.bench.flags import (
    parser,
    prompts_of,
    read_against,
    read_lengths,
    read_modes,
    read_plot,
    request_of,
)
from localspec.errors import UserError
from localspec.models.pair_files import PairFiles
from localspec.types.request import Sampling
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime

BIG, SMALL = Path("big.gguf"), Path("small.gguf")
PROMPTS = (Prompt("coding", "Sort."),)


def requested(*flags: str, draft: Path | None = SMALL) -> BenchRequest:
    return request_of(parser().parse_args(flags), PROMPTS, PairFiles(BIG, draft))


def prompts(*flags: str) -> tuple[Prompt, ...]:
    return prompts_of(parser().parse_args(flags))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps({"question": f"Number {n}?"}) + "\n" for n in range(5)))
    return file


def test_plain_decoding_is_always_the_first() -> None:
    assert read_modes("ssd,sd") == ("off", "ssd", "sd")
    assert read_modes("tuned, off") == ("off", "tuned")
    assert read_modes("ngram,ngram") == ("off", "ngram")


@pytest.mark.parametrize("text", ["", "off,", "auto", "fast", "SD"])
def test_what_is_not_a_mode(text: str) -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"not one of off, ngram, sd, ssd, sd\+ngram, ssd\+ngram, tuned"
    ):
        read_modes(text)


def test_lengths() -> None:
    assert read_lengths("2,4, 8,2") == (2, 4, 8)
    for text in ("", "0", "257", "2,x", "2;4"):
        with pytest.raises(ArgumentTypeError, match="whole number from 1 to 256"):
            read_lengths(text)


def test_a_rival_is_found_by_its_path_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert read_against(f"llama-server={program}") == program
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_against("llama-server=llama-server") == program
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert read_against("llama-server=llama-server") == program


def test_what_is_not_a_rival(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("words")
    text.chmod(0o644)
    for given, complaint in (
        (f"vllm={text}", "nothing else can be run against"),
        ("llama-server", "is not `llama-server=PATH`"),
        ("llama-server=", "is not `llama-server=PATH`"),
        (f"llama-server={tmp_path}/none", "there is no program"),
        (f"llama-server={tmp_path}", "not a program that can be run"),
        (f"llama-server={text}", "not a program that can be run"),
    ):
        with pytest.raises(ArgumentTypeError, match=complaint):
            read_against(given)


def test_a_drawing_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "folder.svg").mkdir()
    for given, complaint in (
        ("speed.png", "not the name of an SVG file"),
        ("speed", "not the name of an SVG file"),
        (f"{tmp_path}/folder.svg", "is a folder"),
        (f"{tmp_path}/none/speed.svg", "cannot be written: No such file or directory"),
    ):
        with pytest.raises(ArgumentTypeError, match=complaint):
            read_plot(given)
    assert read_plot(f"{tmp_path}/speed.svg") == tmp_path / "speed.svg"
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]  # trying leaves nothing behind


def test_without_flags_all_that_is_possible_greedily() -> None:
    assert requested().modes == ("off", "ngram", "sd", "ssd")
    assert requested(draft=None).modes == ("off", "ngram")
    assert requested().sampling == Sampling(temperature=0.0)
    assert (requested().max_tokens, requested().repetitions, requested().lengths, requested().server) == (
        128,
        1,
        (),
        None,
    )
    assert not requested().asked_modes


def test_flags_make_the_request() -> None:
    asked = requested(
        "--modes", "sd", "--draft-length", "4,2", "-n", "9", "--runs", "3", "--temp", "0.8", "--top-k", "7"
    )
    assert (asked.modes, asked.lengths, asked.max_tokens, asked.repetitions) == (("off", "sd"), (4, 2), 9, 3)
    assert asked.sampling == Sampling(temperature=0.8, top_k=7)
    assert asked.asked_modes


@pytest.mark.parametrize(
    ("modes", "drafts"), [("off", False), ("ngram", False), ("sd", True), ("tuned", True)]
)
def test_who_asks_the_draft_model(modes: str, drafts: bool) -> None:
    assert requested("--modes", modes).drafts == drafts


def test_speculation_without_a_draft_model() -> None:
    with pytest.raises(UserError, match="mode ssd needs a draft model"):
        requested("--modes", "ngram,ssd", draft=None)
    for flags, draft in ((["--modes", "ngram"], SMALL), ([], None)):
        with pytest.raises(
            UserError, match="--draft-length is for modes with a draft model, not for off, ngram"
        ):
            requested(*flags, "--draft-length", "4", draft=draft)


def test_the_default_prompts_are_those_of_three_profiles_alternately() -> None:
    found = prompts("--per-task", "2")
    assert [prompt.task for prompt in found] == ["coding", "writing", "dialogue"] * 2
    assert all(prompt.system for prompt in found[:1])


def test_sets_and_files_together(questions: Path) -> None:
    found = prompts("--prompts", "demo", str(questions), "--tasks", "questions", "story", "--per-task", "3")
    assert [prompt.task for prompt in found] == ["story", "questions"] * 3
    assert len(prompts("--prompts", str(questions), str(questions), "--per-task", "99")) == 5


def test_a_file_without_a_telling_name(questions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(questions.parent)
    questions.rename("mine")
    assert len(prompts("--prompts", "mine")) == 5
    Path("mine").rename("coding")
    assert {prompt.task for prompt in prompts("--prompts", "./coding", "coding")} == {"coding"}
    assert len(prompts("--prompts", "./coding", "--per-task", "99")) == 5  # the set overrides, but not here


def test_ones_own_profile_is_a_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_CONFIG_DIR", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "poems.toml").write_text(
        'title = "Poems"\ntask = "writing"\nsystem_prompt = "You rhyme."\n'
    )
    found = prompts("--prompts", "poems")
    assert {(prompt.task, prompt.system) for prompt in found} == {("writing", "You rhyme.")}


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--modes", "quick"], "--modes: `quick` is not one of"),
        (["--modes", "sd", "-m", "a.gguf"], "mode sd needs a draft model"),
        (["--against", "server=x"], "--against: `server=x` is not"),
        (["--prompts", "nothing"], "there is no set or file of prompts `nothing`"),
        (["--prompts", "none.jsonl"], "cannot read prompts from none.jsonl"),
        (["--prompts", "./none"], "cannot read prompts from none"),
        (["--prompts", "~nobody-of-that-name/x"], "cannot read prompts from ~nobody"),
        (["--plot", "~nobody-of-that-name/x.svg"], "cannot be written"),
        (["--against", "llama-server=~nobody-of-that-name/x"], "there is no program"),
        (["--prompts"], "--prompts: expected at least one argument"),
        (["--prompts", "demo", "--tasks", "poems"], "no prompt is of the task `poems`"),
        (["--tasks"], "--tasks: expected at least one argument"),
        (["--plot", "none/speed.svg"], "--plot: `none/speed.svg` cannot be written"),
        (["--per-task", "0"], "--per-task"),
        (["--runs", "0"], "--runs"),
        (["-n", "1"], "-n/--predict"),
        (["-o", "yaml"], "-o/--output"),
        (["--draft-length", "200", "-c", "128"], "does not fit a context of 128 tokens"),
        (["Hi"], "unrecognized"),
    ],
)
def test_mistakes_are_one_line_and_open_nothing(
    fake: FakeRuntime, invoke: Invoke, flags: list[str], complaint: str
) -> None:
    outcome = invoke("bench", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert complaint in outcome.err
    assert len([line for line in outcome.err.splitlines() if not line.startswith("  hint: ")]) == 1
    assert fake.opened == []
