"""What a profile says holds where no flag says otherwise."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from localspec.cli.shared.answer_request import (
    profiles_named,
    sampling_given,
    session_request,
    system_prompt,
)
from localspec.cli.shared.arguments import Parser, add_answer_flags, verb_parser
from localspec.errors import UserError
from localspec.storage.paths import config_dir
from localspec.storage.profiles import profiles
from localspec.types.request import Message, Sampling
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime

CODING = profiles(Path("nowhere")).named("coding")


@pytest.fixture
def parser() -> Parser:
    result = verb_parser("test", "A verb.")
    add_answer_flags(result)
    return result


def test_no_flag_given_leaves_everything(parser: Parser) -> None:
    args = parser.parse_args([])
    assert system_prompt(args) is None
    sampling = Sampling(0.1, 2, 0.3, 0.4, 1.5, 0.6, 0.7, 8)
    assert replace(sampling, **sampling_given(args)) == sampling


def test_what_is_given_counts_even_if_it_is_the_default(parser: Parser) -> None:
    args = parser.parse_args(["--temp", "0.8", "--min-p", "0", "-sys", ""])
    assert sampling_given(args) == {"temperature": 0.8, "min_p": 0.0}
    assert system_prompt(args) == ""


def test_every_way_of_sampling_has_its_flag(parser: Parser) -> None:
    assert {field.name for field in fields(Sampling)} <= vars(parser.parse_args([])).keys()


def test_a_system_prompt_file_counts_as_given(parser: Parser, tmp_path: Path) -> None:
    file = tmp_path / "system.txt"
    file.write_text("Be kind.\n", encoding="utf-8")
    assert system_prompt(parser.parse_args(["-sysf", str(file)])) == "Be kind."


def test_a_profile_fills_what_flags_leave_open(parser: Parser) -> None:
    request = session_request(parser.parse_args(["--profile", "coding", "--top-k", "7"]))
    assert request.system is None
    assert profiles_named("coding") == (CODING,)
    assert request.sampling_under(CODING, None) == replace(CODING.sampling, top_k=7)


@pytest.mark.parametrize("text", ["Be brief.", ""])
def test_a_system_prompt_of_ones_own_goes_before_that_of_the_profile(parser: Parser, text: str) -> None:
    request = session_request(parser.parse_args(["--profile", "coding", "-sys", text]))
    assert request.system == text
    assert request.sampling_under(CODING, None) == CODING.sampling


def test_without_a_profile_nothing_is_added() -> None:
    [usual] = profiles_named(None)
    assert (usual.system_prompt, usual.sampling) == ("", Sampling())


def test_run_follows_a_profile(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "Hi", "--profile", "coding").code == 0
    [request] = fake.requests
    assert request.prompt == (Message("system", CODING.system_prompt), Message("user", "Hi"))
    assert request.sampling == CODING.sampling


def test_a_bare_text_takes_the_sampling_alone(fake: FakeRuntime, invoke: Invoke) -> None:
    assert invoke("run", "Hi", "--profile", "coding", "--no-chat").code == 0
    [request] = fake.requests
    assert (request.prompt, request.sampling) == ("Hi", CODING.sampling)


def test_chat_follows_a_profile_of_ones_own(fake: FakeRuntime, invoke: Invoke) -> None:
    folder = config_dir() / "profiles"
    folder.mkdir()
    text = 'title = "Poems"\ntask = "writing"\nsystem_prompt = "Rhyme."\nsampling.temperature = 1.5'
    (folder / "poems.toml").write_text(text, encoding="utf-8")
    assert invoke("chat", "--profile", "poems", typed="Hi\n").code == 0
    [request] = fake.requests
    assert request.prompt == (Message("system", "Rhyme."), Message("user", "Hi"))
    assert request.sampling == Sampling(temperature=1.5)


def test_a_profile_that_is_not_there_or_broken(fake: FakeRuntime, invoke: Invoke) -> None:
    outcome = invoke("run", "Hi", "--profile", "codng")
    assert outcome.code == 2
    assert "did you mean `coding`?" in outcome.err
    folder = config_dir() / "profiles"
    folder.mkdir()
    (folder / "coding.toml").write_text("title = 'x'\ntask = 'x'", encoding="utf-8")
    outcome = invoke("run", "Hi", "--profile", "coding")
    assert outcome.code == 2
    assert "coding.toml, line 2: `task` cannot be `x`" in outcome.err
    assert fake.opened == []


def test_a_profile_that_does_not_exist_is_rejected() -> None:
    with pytest.raises(UserError, match="no profile `nothing`"):
        profiles_named("nothing")


def test_auto_follows_the_question(fake: FakeRuntime, invoke: Invoke) -> None:
    general = profiles(Path("nowhere")).named("general")
    for question in ("Write a Python function that adds.", "What should I cook tonight?"):
        assert invoke("run", question, "--profile", "auto").code == 0
    assert [request.sampling for request in fake.requests] == [CODING.sampling, general.sampling]
    assert {request.prompt[0] for request in fake.requests} == {Message("system", general.system_prompt)}


def test_chat_under_auto_follows_each_line_and_says_so(fake: FakeRuntime, invoke: Invoke) -> None:
    lines = "What should I cook?\nWrite a Python function that adds.\n/temp 0.3\nMake it shorter.\n"
    outcome = invoke("chat", "--profile", "auto", typed=lines)
    temperatures = [request.sampling.temperature for request in fake.requests]
    assert temperatures == [Sampling().temperature, CODING.sampling.temperature, 0.3]
    assert outcome.err.count("auto: coding") == 1


def test_file_of_ones_own_named_auto_follows_nobody(fake: FakeRuntime, invoke: Invoke) -> None:
    folder = config_dir() / "profiles"
    folder.mkdir()
    text = 'title = "Mine"\ntask = "writing"\nsampling.temperature = 1.5'
    (folder / "auto.toml").write_text(text, encoding="utf-8")
    assert invoke("run", "Write a Python function.", "--profile", "auto").code == 0
    assert fake.requests[0].sampling.temperature == 1.5
