"""What the command line says and asks about modes that do not pay."""

from __future__ import annotations

import json

import pytest

from localspec.types.events import ModeChanged
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime, says

LOST = ModeChanged("off", "SD 31 tokens/s over the last 64 tokens, plain decoding 38")


def test_changes_of_mode_are_reported_once(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("one", changes=[LOST]), says("two", changes=[LOST]), says("three")]
    outcome = invoke("chat", "--stats", piped=b"a\nb\nc\n")
    assert outcome.out == "one\ntwo\nthree\n"
    note = "note: mode off: SD 31 tokens/s over the last 64 tokens, plain decoding 38\n"
    assert outcome.err.count(note) == outcome.err.count("note:") == 1
    assert [line[:4] for line in outcome.err.splitlines() if line.startswith("[")] == ["[OFF", "[OFF", "[SD "]


@pytest.mark.parametrize(
    ("arguments", "piped"),
    [((), b"a\n"), (("--mode", "sd"), b"a\n"), ((), b"/mode sd\na\n/mode auto\nb\n")],
)
def test_every_mode_of_a_chat_rests_where_it_loses(
    fake: FakeRuntime, invoke: Invoke, arguments: tuple[str, ...], piped: bytes
) -> None:
    invoke("chat", *arguments, piped=piped)
    assert all(request.steps_down for request in fake.requests)


def test_changes_of_mode_are_reported_with_the_figures(fake: FakeRuntime, invoke: Invoke) -> None:
    changes = [ModeChanged("sd", "SSD lost"), ModeChanged("off", "SD lost")]
    fake.scripts = [says("Hi", changes=changes)]
    assert invoke("run", "Hi").err == ""
    told = invoke("run", "Hi", "--stats").err
    assert told.startswith("note: mode sd: SSD lost\nnote: mode off: SD lost\n")
    value = json.loads(invoke("run", "Hi", "--json").out)
    assert value["speculation"]["changes"] == [
        {"mode": "sd", "reason": "SSD lost"},
        {"mode": "off", "reason": "SD lost"},
    ]


@pytest.mark.parametrize("arguments", [(), ("--mode", "ssd")])
def test_a_single_answer_rests_where_its_mode_loses(
    fake: FakeRuntime, invoke: Invoke, arguments: tuple[str, ...]
) -> None:
    invoke("run", "Hi", *arguments)
    assert fake.requests[0].steps_down


def test_a_draft_model_that_failed_is_reported_of_without_figures(fake: FakeRuntime, invoke: Invoke) -> None:
    reason = "the draft model small returned logits that are not numbers"
    fake.scripts = [says("Hello", changes=[ModeChanged("off", reason, draft_failed=True)])]
    outcome = invoke("run", "Hi")
    assert (outcome.code, outcome.out) == (0, "Hello\n")
    assert outcome.err == f"note: mode off: {reason}\n"
