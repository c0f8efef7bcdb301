"""The engine's process and its caller: calls, cancels, ends and deaths in any order, each answered soon."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import psutil
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from localspec.errors import EngineDied, EngineError, LocalSpecError, UserError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.worker.client import Worker
from localspec.types.events import Finished, GenerationEvent, TextDelta
from localspec.types.models import ModelOptions
from localspec.types.request import Message, Request
from tests.campaign.clock import now_s
from tests.campaign.fake_engine import CODE
from tests.campaign.log import PROMPT_S, Log, allowed_s, require, thorough

_BATCH = 10


@contextmanager
def soon(what: str, within_s: float = PROMPT_S) -> Iterator[None]:
    """Fail where a call has taken too long."""
    begun = now_s()
    yield
    seconds = now_s() - begun
    require(seconds < allowed_s(within_s), f"{what} took {seconds:.1f} s")


def opened(name: str = "fake") -> Worker:
    """Open a fake engine in a process of its own."""
    with patch("localspec.inference.worker._CODE", CODE):
        return Worker.open(OpenPlan(ModelOptions(Path(name))))


class Calls(RuleBasedStateMachine):
    """One engine after the other, and an answer that may be in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = opened()
        self.alive, self.closed = True, False
        self.answer: Generator[GenerationEvent] | None = None
        self.came = 0

    def teardown(self) -> None:
        with soon("closing", 4.0):
            self.worker.close()
        require(not psutil.pid_exists(self.worker.pid), "the process is still there")

    def idle(self) -> bool:
        return self.answer is None

    def tries(self, what: str, call: Callable[[], object]) -> object:
        """Call; a dead or closed engine says so."""
        with soon(what):
            if self.alive and not self.closed:
                return call()
            try:
                call()
            except EngineDied:
                require(not self.alive, f"{what}: it is alive")
            except EngineError as error:
                require(self.closed, f"{what}: {error}")
            else:
                raise AssertionError(f"{what} of an engine that is gone came to an end")
        return None

    @precondition(idle)
    @rule(count=st.integers(0, 200))
    def answers(self, count: int) -> None:
        events = self.tries("an answer", lambda: list(self.worker.generate(Request(f"writes {count}"))))
        if isinstance(events, list):
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            require(text == "".join(f"{n} " for n in range(count)), f"another text: {text!r}")
            require(isinstance(events[-1], Finished) and events[-1].reason == "stop", f"{events[-1]}")

    @precondition(idle)
    @rule(count=st.integers(1, 3000))
    def begins(self, count: int) -> None:
        self.answer, self.came = self.worker.generate(Request(f"hangs {count}")), 0
        self.takes(1)

    @rule(count=st.integers(1, 5))
    def takes(self, count: int) -> None:
        if self.answer is None:
            return
        for _ in range(count):
            if self.came and self.alive and not self.closed and self.came > 1:
                break  # it may have to be waited for
            if self.tries("the next piece", lambda answer=self.answer: next(answer)) is None:  # type: ignore[misc]
                self.answer = None
                return
            self.came += 1

    @rule()
    def leaves_the_answer(self) -> None:
        if self.answer is not None:
            with soon("leaving an answer"), suppress(LocalSpecError):
                self.answer.close()
            self.answer = None

    @rule()
    def cancels(self) -> None:
        with soon("a cancel"):
            self.worker.cancel()
        if self.answer is not None and self.alive and not self.closed:
            with soon("the end after a cancel"):
                *_, last = self.answer
            require(isinstance(last, Finished) and last.reason == "cancelled", f"{last}")
        elif self.answer is not None:
            self.leaves_the_answer()
        self.answer = None

    @rule(count=st.integers(0, 5))
    def asks_beside(self, count: int) -> None:
        counted = self.tries("counting", lambda: self.worker.count_tokens([Message("user", "x")] * count))
        require(counted in (None, count), f"{counted} messages, not {count}")
        self.tries("memory", self.worker.memory)

    @precondition(idle)
    @rule()
    def measures(self) -> None:
        self.tries("measuring", self.worker.measure_plain)

    @precondition(idle)
    @rule(what=st.sampled_from(("refuses", "fails", "floods")), count=st.integers(0, 5))
    def is_told_of_mistakes(self, what: str, count: int) -> None:
        if not self.alive or self.closed:
            return
        with soon(what):
            try:
                list(self.worker.generate(Request(f"{what} {count}")))
            except UserError:
                require(what == "refuses", what)
            except EngineError as error:
                require(what == "fails" and "ZeroDivisionError" in str(error), f"{error}")
            else:
                require(what == "floods", f"{what} was not told")

    @precondition(idle)
    @rule(how=st.sampled_from(("crashes", "aborts", "exits")), count=st.integers(0, 50))
    def dies(self, how: str, count: int) -> None:
        if not self.alive or self.closed:
            return
        came: list[GenerationEvent] = []
        with soon("a death"):
            try:
                came += self.worker.generate(Request(f"{how} {count}"))
            except EngineDied as death:
                require("\n" not in str(death), f"{death}")
                require("GGML_ASSERT" in str(death) or how != "aborts", f"it does not say why: {death}")
            else:
                raise AssertionError(f"it {how}, and nobody said so")
        self.alive = False

    @rule(number=st.sampled_from((signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)))
    def is_killed(self, number: signal.Signals) -> None:
        if self.alive and not self.closed:
            with suppress(ProcessLookupError):
                os.kill(self.worker.pid, number)
            self.alive = False
            with soon("the end of a killed engine"), suppress(EngineDied):
                for _ in self.answer or ():
                    pass
            self.answer = None
            with soon("what follows a death"), suppress(EngineDied):
                self.worker.memory()

    @rule()
    def is_closed(self) -> None:
        with soon("closing", 4.0):
            self.worker.close()
        self.closed = True
        if self.answer is not None:
            self.leaves_the_answer()

    @precondition(lambda self: self.alive and not self.closed)
    @rule(chance=st.integers(0, 7))
    def does_not_react(self, chance: int) -> None:
        """Live on without an answer, as an engine in an endless loop."""
        if chance:
            return
        os.kill(self.worker.pid, signal.SIGSTOP)
        self.leaves_the_answer()
        with soon("closing an engine that does not react", 4.0):
            self.worker.close()
        self.closed = True

    @rule()
    def is_closed_by_another_thread(self) -> None:
        if self.answer is None:
            return
        closer = threading.Thread(target=self.worker.close)
        closer.start()
        with soon("the end of an answer whose engine is closed", 4.0), suppress(LocalSpecError):
            for _ in self.answer:
                pass
        closer.join(10)
        require(not closer.is_alive(), "closing goes on")
        self.closed, self.answer = True, None

    @rule(name=st.sampled_from(("fake", "fake", "refused", "dies")))
    def opens_another(self, name: str) -> None:
        before = self.worker
        with soon("opening", 5.0):
            try:
                self.worker = opened(name)
            except UserError:
                require(name == "refused", f"{name} was refused")
                return
            except EngineDied:
                require(name == "dies", f"{name} died")
                return
        require(name == "fake", f"{name} was opened")
        if self.answer is not None:
            with closing(self.answer), suppress(LocalSpecError):
                pass
        before.close()
        self.alive, self.closed, self.answer = True, False, None

    @invariant()
    def knows_the_target(self) -> None:
        require(self.worker.target.name == "fake", "what the target is")


def engine_calls(log: Log, _folder: Path) -> None:
    """Run the machine N times, and see that nothing is left behind."""
    us = psutil.Process()
    opened().close()
    before = us.num_fds(), threading.active_count(), {child.pid for child in us.children()}
    for number, count in log.batches(_BATCH):
        log.cases += count - 1
        with log.case(number):
            run_state_machine_as_test(seed(f"{log.seed} {number}")(Calls), settings=thorough(count, steps=30))
            after = us.num_fds(), threading.active_count(), {child.pid for child in us.children()}
            require(after == before, f"descriptors, threads, children: {after}, before {before}")
