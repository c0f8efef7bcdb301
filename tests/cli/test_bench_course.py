"""How far a benchmark is, and how it ends early."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from localspec.benchmark.contender import Prompt, Run
from localspec.cli.bench import BenchProgress, Measured, Plan, Stop, measure
from localspec.errors import Cancelled, EngineError
from localspec.types import Summary

ANSWER = Summary(tokens=11, decode_s=2.0)
PROMPTS = tuple(Prompt("coding", f"Question {n}") for n in range(3))


@dataclass
class Scripted:
    """A contender that does something at one of its answers; the first warms up."""

    name: str
    at: int = 0
    does: Callable[[], object] = lambda: None
    asked: list[str] = field(default_factory=list)

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Summary:
        self.asked.append(prompt.text)
        if len(self.asked) == self.at:
            self.does()
        return ANSWER

    def memory_peak(self) -> int | None:
        return None


def run(*contenders: Scripted, own: int = 99, cancel: Callable[[], None] = lambda: None) -> Measured:
    lines: list[Run] = []
    plan = Plan(contenders, PROMPTS, 64, 1, lambda: 0.01)
    measured = measure(plan, own, cancel, lines.append)
    assert lines == measured.runs
    return measured


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail() -> None:
    raise EngineError("the server is gone")


def test_everybody_answers_everything() -> None:
    measured = run(Scripted("off"), Scripted("sd"))
    assert measured.failure is None
    assert [(one.prompt, one.contender) for one in measured.runs] == [
        (0, "off"), (0, "sd"), (1, "sd"), (1, "off"), (2, "off"), (2, "sd"),
    ]  # fmt: skip
    assert [anchor.prompt for anchor in measured.anchors] == [0, 1, 2, 3]


def test_progress_counts_answers_after_the_warm_up() -> None:
    times = iter([0.0, 100.0, 110.0])
    progress = BenchProgress(2, 5, lambda: next(times))
    assert progress.words("off") == "warming up: off"
    progress.end()
    assert progress.words("sd") == "warming up: sd"
    progress.end()
    assert progress.words("off") == "0 of 5 answers: off"
    progress.end()
    assert progress.words("sd") == "1 of 5 answers, about 0:40 left: sd"


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_ctrl_c_cancels_ours_and_leaves_out_the_answer_that_was_cut_short() -> None:
    before, cancelled = signal.getsignal(signal.SIGINT), list[bool]()
    plain = Scripted("off", at=3, does=press)
    measured = run(plain, Scripted("sd"), cancel=lambda: cancelled.append(True))
    assert isinstance(measured.failure, Cancelled)
    assert cancelled == [True]
    assert [(one.prompt, one.contender) for one in measured.runs] == [(0, "off"), (0, "sd"), (1, "sd")]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_ctrl_c_leaves_an_answer_from_elsewhere_at_once() -> None:
    after: list[str] = []

    def answers_slowly() -> None:
        press()
        after.append("the rest of the answer")

    measured = run(Scripted("off"), Scripted("llama-server", at=2, does=answers_slowly), own=1)
    assert isinstance(measured.failure, Cancelled)
    assert after == []
    assert [one.contender for one in measured.runs] == ["off"]


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_whoever_presses_three_times_need_not_wait() -> None:
    after: list[str] = []

    def hangs() -> None:
        press()
        press()
        press()
        after.append("still at it")

    measured = run(Scripted("off", at=2, does=hangs))
    assert isinstance(measured.failure, Cancelled)
    assert after == []


def test_a_failure_keeps_what_was_measured() -> None:
    measured = run(Scripted("off"), Scripted("llama-server", at=3, does=fail), own=1)
    assert str(measured.failure) == "the server is gone"
    assert [(one.prompt, one.contender) for one in measured.runs] == [(0, "off"), (0, "llama-server")]


def test_nothing_begins_after_the_wish_to_stop() -> None:
    stop = Stop(lambda: None)
    stop.ask()
    with pytest.raises(Cancelled), stop.heeded():
        pytest.fail("it began")
