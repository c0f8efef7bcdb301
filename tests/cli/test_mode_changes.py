"""What the command line says and asks about modes that do not pay."""

from __future__ import annotations

import json

import pytest

from localspec.types import ModeChanged
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime, says

LOST = ModeChanged("off", "SD 31 tok/s over the last 64 tokens, plain decoding 38")


def test_changes_of_mode_are_told_once(fake: FakeRuntime, invoke: Invoke) -> None:
    fake.scripts = [says("one", changes=[LOST]), says("two", changes=[LOST]), says("three")]
    outcome = invoke("chat", "--stats", piped=b"a\nb\nc\n")
    assert outcome.out == "one\ntwo\nthree\n"
    note = "note: mode off: SD 31 tok/s over the last 64 tokens, plain decoding 38\n"
    assert outcome.err.count(note) == outcome.err.count("note:") == 1
    assert [line[:4] for line in outcome.err.splitlines() if line.startswith("[")] == ["[OFF", "[OFF", "[SD "]


@pytest.mark.parametrize(
    ("arguments", "piped", "steps"),
    [
        ((), b"a\n", [True]),
        (("--mode", "sd"), b"a\n", [False]),
        ((), b"/mode sd\na\n/mode auto\nb\n", [False, True]),
    ],
)
def test_a_chat_steps_down_only_in_an_automatic_mode(
    fake: FakeRuntime, invoke: Invoke, arguments: tuple[str, ...], piped: bytes, steps: list[bool]
) -> None:
    invoke("chat", *arguments, piped=piped)
    assert [request.steps_down for request in fake.requests] == steps


def test_changes_of_mode_are_told_with_the_figures(fake: FakeRuntime, invoke: Invoke) -> None:
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


@pytest.mark.parametrize(("arguments", "steps"), [((), True), (("--mode", "ssd"), False)])
def test_only_an_automatic_mode_steps_down(
    fake: FakeRuntime, invoke: Invoke, arguments: tuple[str, ...], steps: bool
) -> None:
    invoke("run", "Hi", *arguments)
    assert fake.requests[0].steps_down == steps
