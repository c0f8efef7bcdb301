"""`--host` and `--rpc`, which any command takes: never out of a question, nor of another flag's value."""

from __future__ import annotations

from importlib import import_module

import pytest

from localspec.cli import main as command_line
from localspec.cli.main import VERBS
from localspec.types.request import Message
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime

FLAGS = ("--host", "--rpc")


@pytest.fixture
def asked_there(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What was sent to other machines: none of it goes out."""
    sent: list[tuple[str, list[str]]] = []

    def run_there(host: str, words: list[str]) -> int:
        sent.append((host, list(words)))
        return 0

    monkeypatch.setattr(command_line, "_run_there", run_there)
    return sent


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize(
    "words",
    [
        ["--", "explain", "the", "{} option"],
        ["--", "{}", "tower"],
        ["--", "what", "does", "{}", "mean"],
        ["--", "{}=tower"],
        ["-n", "3", "--", "what", "is", "{}"],
        ["{}=x is which option?"],
        ["what does {} do?"],
        ["-p", "{}=x is which option?"],
    ],
)
def test_what_belongs_to_the_question_stays_in_it(
    fake: FakeRuntime,
    invoke: Invoke,
    asked_there: list[tuple[str, list[str]]],
    words: list[str],
    flag: str,
) -> None:
    given = [word.format(flag) for word in words]
    for verb in ([], ["run"]):
        assert invoke(*verb, *given).code == 0
        message = fake.requests[-1].prompt[-1]
        assert isinstance(message, Message)
        assert flag in message.content
    assert asked_there == []


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("before", ["-p", "--stop", "-sys", "--temp", "-m"])
@pytest.mark.parametrize("verb", [[], ["run"], ["verify"]])
def test_a_flag_that_lacks_its_value_says_so(
    fake: FakeRuntime,
    invoke: Invoke,
    asked_there: list[tuple[str, list[str]]],
    verb: list[str],
    before: str,
    flag: str,
) -> None:
    if verb == ["verify"] and before in ("-p", "--stop", "-sys", "--temp"):
        pytest.skip("verify has no such flag")
    outcome = invoke(*verb, before, flag, "tower", "hi")
    assert outcome.code == 2
    assert f"{before}" in outcome.err
    assert "expected one argument" in outcome.err
    assert fake.opened == []
    assert asked_there == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--host", "tower", "hi"],
        ["run", "hi", "--host=tower"],
        ["run", "--json", "--host", "tower", "hi"],
        ["--host", "tower", "run", "hi"],
        ["run", "-n", "3", "--host", "tower", "--", "hi"],
    ],
)
def test_before_the_fence_it_names_the_machine(
    invoke: Invoke, asked_there: list[tuple[str, list[str]]], arguments: list[str]
) -> None:
    assert invoke(*arguments).code == 0
    ((host, words),) = asked_there
    assert host == "tower"
    assert not any(word.startswith("--host") for word in words)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("value", [["{}"], ["{}", ""], ["{}="], ["{}", "--json"], ["{}", "--", "hi"]])
def test_it_is_never_empty(
    fake: FakeRuntime, invoke: Invoke, asked_there: list[tuple[str, list[str]]], flag: str, value: list[str]
) -> None:
    outcome = invoke("run", "hi", *(word.format(flag) for word in value))
    assert outcome.code == 2
    assert f"{flag} names another machine" in outcome.err
    assert fake.opened == []
    assert asked_there == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_can_be_asked_which_flags_take_a_value(verb: str) -> None:
    assert import_module(f"localspec.cli.{verb}").parser().prog == f"localspec {verb}"
