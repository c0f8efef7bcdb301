from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from localspec.app import opening
from localspec.benchmark import exactness
from localspec.benchmark.exactness import (
    Difference,
    DistributionResult,
    GreedyResult,
    Progress,
    Report,
    Variant,
    VerifyEffort,
)
from localspec.child_process import ValuesOf
from localspec.cli import verify
from localspec.cli.shared.console import ProgressLine
from localspec.errors import Cancelled
from localspec.hardware.placement.open_plan import OpenPlan, as_asked
from localspec.models.pair_files import PairFiles
from localspec.models.pair_request import PairRequest
from tests.cli.conftest import Invoke
from tests.cli.fake_runtime import FakeRuntime

EQUAL = GreedyResult("ngram", 12, 500, 300, ())
TIE = Difference("code", "Write.", 3, " a", " the", 0.01, 0.02, near_tie=True)
WRONG = Difference("story", "Tell.", 7, " fox", "", inf, inf, near_tie=False)
FOLLOWS = DistributionResult("ssd", "hit", 900, 450, 0.4)
STRAYS = DistributionResult("ssd", "other", 700, 70, 0.0)
FEW = DistributionResult("sd", "all", 10, 5, None)

Asked = list[tuple[tuple[str, ...], VerifyEffort]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Report], Asked]:
    """Let the check give the report, and keep what it was asked to test."""

    def install(report: Report) -> Asked:
        calls: Asked = []

        def check(
            _runtime: object, tested: tuple[Variant, ...], effort: VerifyEffort, _progress: object
        ) -> Report:
            calls.append((tuple(variant.name for variant in tested), effort))
            return report

        monkeypatch.setattr(exactness, "check", check)
        return calls

    return install


@pytest.mark.usefixtures("fake")
def test_an_exact_pair(invoke: Invoke, asked: Callable[[Report], Asked]) -> None:
    calls = asked(Report((EQUAL, GreedyResult("sd", 12, 500, 300, (TIE,))), (FOLLOWS, FEW)))
    outcome = invoke("verify", "-m", "a.gguf", "-md", "b.gguf")
    assert (outcome.code, outcome.err) == (0, "")
    assert calls == [(("ngram", "sd", "ssd"), VerifyEffort())]
    assert "12 of 12 equal (500 tokens, 300 drafted)" in outcome.out
    assert "11 of 12 equal, 1 left at a near-tie" in outcome.out
    assert "near-tie: code, token 3: ' a' became ' the', gap 0.0100 logits" in outcome.out
    assert "too few tokens" in outcome.out
    assert outcome.out.endswith("verdict: exact\n")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("report", "line"),
    [
        (Report((GreedyResult("ssd", 12, 500, 300, (WRONG,)),), (FOLLOWS,)), "1 DIFFERENT"),
        (Report((EQUAL,), (FOLLOWS, STRAYS)), "FAIL ssd            other rounds"),
    ],
)
def test_a_pair_that_is_not_exact(
    invoke: Invoke, asked: Callable[[Report], Asked], report: Report, line: str
) -> None:
    asked(report)
    outcome = invoke("verify")
    assert outcome.code == 1
    assert line in outcome.out
    assert outcome.out.endswith("verdict: NOT exact\n")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    ("parts", "code", "verdict"),
    [
        ((FOLLOWS,), 130, "none, as the test was stopped"),
        ((FOLLOWS, STRAYS), 1, "NOT exact"),
        ((), 130, "none"),
    ],
)
def test_a_test_that_was_stopped_gives_no_verdict_unless_it_failed(
    invoke: Invoke,
    asked: Callable[[Report], Asked],
    parts: tuple[DistributionResult, ...],
    code: int,
    verdict: str,
) -> None:
    asked(Report((), parts, complete=False))
    outcome = invoke("verify")
    assert outcome.code == code
    assert f"verdict: {verdict}" in outcome.out
    assert outcome.out.count("ok ") == (FOLLOWS in parts)


def test_ctrl_c_stops_the_models_and_the_test(
    fake: FakeRuntime, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(_runtime: object, _tested: object, _effort: VerifyEffort, on_progress: Progress) -> Report:
        on_progress("something", 0.2)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Cancelled):
            on_progress("something else", 0.4)
        return Report((), (), complete=False)

    monkeypatch.setattr(exactness, "check", check)
    assert invoke("verify").code == 130
    assert fake.cancelled.is_set()


@pytest.mark.usefixtures("fake")
def test_a_second_ctrl_c_does_not_cost_what_was_found(
    invoke: Invoke, asked: Callable[[Report], Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_again(_report: Report) -> str:
        signal.raise_signal(signal.SIGINT)
        return "pressed"

    monkeypatch.setattr(verify, "_verdict", press_again)
    asked(Report((), (FOLLOWS,), complete=False))
    before = signal.getsignal(signal.SIGINT)
    outcome = invoke("verify")
    assert (outcome.code, outcome.out.splitlines()[-1]) == (130, "verdict: pressed")
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("done", "words"), [(0.0, ""), (0.25, ", about 3:00 left")])
def test_the_time_left_follows_the_pace_so_far(done: float, words: str) -> None:
    seconds = iter((100.0, 160.0))
    assert ProgressLine(lambda: None, lambda: next(seconds)).time_left(done) == words


@pytest.mark.usefixtures("fake")
def test_json(invoke: Invoke, asked: Callable[[Report], Asked]) -> None:
    asked(Report((GreedyResult("sd", 12, 500, 300, (WRONG,)),), (FOLLOWS,)))
    outcome = invoke("verify", "--json")
    value = json.loads(outcome.out)
    assert (outcome.code, value["schema"], value["exact"]) == (1, 1, False)
    assert value["greedy"][0]["differences"][0]["gap"] is None
    assert value["greedy"][0]["passed"] is False
    assert (value["sampled"][0]["p_value"], value["sampled"][0]["passed"]) == (0.4, True)
    assert value["model"]["name"] == "big"


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("parts", "exact"), [((FOLLOWS,), None), ((), None), ((STRAYS,), False)])
def test_json_of_a_test_that_was_stopped(
    invoke: Invoke,
    asked: Callable[[Report], Asked],
    parts: tuple[DistributionResult, ...],
    exact: bool | None,
) -> None:
    asked(Report((), parts, complete=False))
    value = json.loads(invoke("verify", "--json").out)
    assert (value["exact"], value["complete"]) == (exact, False)


@pytest.mark.parametrize(
    ("modes", "flags", "tested"),
    [
        (("off",), (), None),
        (("off", "ngram", "sd"), (), ("ngram", "sd")),
        (("off", "ngram", "sd"), ("--mode", "ssd"), None),
    ],
)
def test_what_the_models_do_not_allow_is_not_called_exact(
    fake: FakeRuntime,
    invoke: Invoke,
    asked: Callable[[Report], Asked],
    modes: tuple[str, ...],
    flags: tuple[str, ...],
    tested: tuple[str, ...] | None,
) -> None:
    calls = asked(Report((EQUAL,), (FOLLOWS,)))
    fake.modes, fake.notes = modes, ("it has a recurrent state",)
    outcome = invoke("verify", *flags)
    assert [names for names, _ in calls] == ([] if tested is None else [tested])
    assert outcome.code == (2 if tested is None else 0)
    assert ("nothing to verify: it has a recurrent state" in outcome.err) == (tested is None)


def test_flags_choose_what_is_tested(
    fake: FakeRuntime, invoke: Invoke, asked: Callable[[Report], Asked]
) -> None:
    calls = asked(Report((), ()))
    invoke("verify", "--quick")
    invoke("verify", "--mode", "ssd", "--tokens", "99", "--near-tie", "0.2")
    fake.draft, fake.modes = None, ("off", "ngram")
    invoke("verify", "-m", "a.gguf")
    assert calls == [
        (("ngram", "sd", "ssd"), exactness.QUICK),
        (("ssd",), VerifyEffort(sampled_tokens=99, near_tie=0.2)),
        (("ngram",), VerifyEffort()),
    ]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [(["--mode", "off"], "nothing to verify"), (["--tokens", "5"], "--tokens"), (["Hi"], "unrecognized")],
)
def test_mistakes(fake: FakeRuntime, invoke: Invoke, flags: list[str], complaint: str) -> None:
    outcome = invoke("verify", *flags)
    assert (outcome.code, outcome.out) == (2, "")
    assert complaint in outcome.err
    assert fake.opened == []


@pytest.mark.parametrize(("flags", "mode"), [((), "ssd"), (("--mode", "sd"), "sd")])
def test_the_models_are_placed_for_the_mode_that_needs_most(
    fake: FakeRuntime,
    invoke: Invoke,
    asked: Callable[[Report], Asked],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    mode: str,
) -> None:
    def placed(files: PairFiles, request: PairRequest, *, via: ValuesOf, **_how: object) -> OpenPlan:
        modes.append((request.mode, via == fake.values_of))
        return as_asked(files, replace(request, context=99))

    modes: list[tuple[str | None, bool]] = []
    monkeypatch.setattr(opening, "placed", placed)
    asked(Report((EQUAL,), ()))
    invoke("verify", "-m", "a.gguf", "-md", "b.gguf", *flags)
    assert modes == [(mode, True)]
    assert fake.opened[0].target.context == 99
