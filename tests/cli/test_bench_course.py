"""How far a benchmark is, and how it ends early."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from localspec.benchmark.harness import Prompt, Question, Run, Turn
from localspec.cli.bench import BenchProgress, Measured, measure
from localspec.errors import Cancelled, EngineError
from localspec.types.events import Summary
from tests.cli.bench_tables import REQUEST

ANSWER = Summary(tokens=11, decode_s=2.0)
ASKED = replace(REQUEST, prompts=tuple(Prompt("coding", f"Question {n}") for n in range(3)))


@dataclass
class Scripted:
    """A contender that does something at one of its answers; the first warms up."""

    name: str
    at: int = 0
    does: Callable[[], object] = lambda: None
    cancel: Callable[[], None] = lambda: None
    asked: list[Question] = field(default_factory=list)

    def answer(self, question: Question) -> Summary:
        self.asked.append(question)
        if len(self.asked) == self.at:
            self.does()
        return ANSWER

    def memory_peak(self) -> int | None:
        return None


def run(*contenders: Scripted) -> Measured:
    progress = BenchProgress(fail, len(contenders), len(contenders) * len(ASKED.prompts))
    measured = measure(contenders, ASKED, lambda: 0.01, progress)
    assert list(measured.peaks) == [each.name for each in contenders]
    return measured


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def leave() -> None:
    raise Cancelled


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
    progress = BenchProgress(fail, 2, 5, lambda: next(times))
    names = ("off", "sd", "off", "sd")
    assert [progress.words(name) for name in names] == [
        "warming up: off", "warming up: sd", "0 of 5 answers: off", "1 of 5 answers, about 0:40 left: sd"
    ]  # fmt: skip


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C cannot be pressed from here")
def test_ctrl_c_cancels_ours_and_leaves_out_the_answer_that_was_cut_short() -> None:
    before, cancelled = signal.getsignal(signal.SIGINT), list[bool]()
    plain = Scripted("off", at=3, does=press, cancel=lambda: cancelled.append(True))
    measured = run(plain, Scripted("sd"))
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

    measured = run(Scripted("off"), Scripted("llama-server", 2, answers_slowly, leave))
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
    measured = run(Scripted("off"), Scripted("llama-server", at=3, does=fail))
    assert str(measured.failure) == "the server is gone"
    assert [(one.prompt, one.contender) for one in measured.runs] == [(0, "off"), (0, "llama-server")]


def test_nothing_begins_or_counts_after_the_wish_to_stop() -> None:
    cancelled: list[bool] = []
    progress = BenchProgress(lambda: cancelled.append(True), 1, 1)
    progress.stop()
    for event in (Turn(None), Turn(Scripted("off")), Run("off", "coding", 0, 0, ANSWER)):
        with pytest.raises(Cancelled):
            progress.take(event)
    assert cancelled == [True]


def test_what_runs_now_is_what_is_cancelled() -> None:
    cancelled: list[str] = []
    progress = BenchProgress(lambda: cancelled.append("models"), 1, 1)
    progress.take(Turn(Scripted("llama-server", cancel=lambda: cancelled.append("server"))))
    progress.stop()
    anchor = BenchProgress(lambda: cancelled.append("models"), 1, 1)
    anchor.take(Turn(Scripted("llama-server")))
    anchor.take(Turn(None))
    anchor.stop()
    assert cancelled == ["server", "models"]
