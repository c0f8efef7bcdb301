"""Run a benchmark: how far it is, when it should be over, and how it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from localspec.benchmark.contender import Anchor, Contender, Prompt, Run
from localspec.cli.shared.console import StatusLine, on_interrupt
from localspec.errors import Cancelled, LocalSpecError
from localspec.types import Summary


@dataclass(frozen=True, slots=True)
class Plan:
    """Who answers what, and what drift is told by."""

    contenders: Sequence[Contender]
    prompts: Sequence[Prompt]
    max_tokens: int
    repetitions: int
    anchor: Callable[[], float]

    @property
    def answers(self) -> int:
        """Return how many answers are timed."""
        return len(self.contenders) * len(self.prompts) * self.repetitions


@dataclass(slots=True)
class Measured:
    """What was measured; `failure` is what ended it early."""

    runs: list[Run] = field(default_factory=list)
    anchors: list[Anchor] = field(default_factory=list)
    failure: LocalSpecError | None = None


class Stop:
    """Somebody's wish to stop. Our own models are cancelled; an answer from elsewhere is left at once."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._wanted = self._elsewhere = False

    def ask(self) -> None:
        """Stop what runs; raises `Cancelled` where that is all that stops it."""
        self._wanted = True
        if self._elsewhere:
            raise Cancelled("the benchmark was stopped")
        self._cancel()

    @contextmanager
    def heeded(self, *, elsewhere: bool = False) -> Iterator[None]:
        """Let nothing begin or count after the wish; `elsewhere` if other programs work meanwhile."""
        self._check()
        self._elsewhere = elsewhere
        try:
            yield
        finally:
            self._elsewhere = False
        self._check()

    def _check(self) -> None:
        if self._wanted:
            raise Cancelled("the benchmark was stopped")


class Progress:
    """Counts answers on the status line; the first of every contender only warm it up."""

    def __init__(self, warm_ups: int, answers: int, now: Callable[[], float] = time.monotonic) -> None:
        self._warm_ups = warm_ups
        self._answers = answers
        self._now = now
        self._status = StatusLine()
        self._done = 0
        self._began_s = now()  # the first answer that is timed

    def begin(self, name: str) -> None:
        """Show who answers now."""
        self._status.update(self.words(name))

    def end(self) -> None:
        """Count an answer."""
        self._done += 1
        if self._done == self._warm_ups:
            self._began_s = self._now()

    def clear(self) -> None:
        """Take the line away."""
        self._status.clear()

    def words(self, name: str) -> str:
        """Return how far it is and who answers, in a line."""
        done = self._done - self._warm_ups
        if done < 0:
            return f"warming up: {name}"
        text = f"{done} of {self._answers} answers"
        if done:
            from localspec.tuning.words import time_left  # 20 ms

            text += f", {time_left(self._now() - self._began_s, done / self._answers)}"
        return f"{text}: {name}"


@dataclass(frozen=True, slots=True)
class Watched:
    """A contender whose answers are counted and can be stopped."""

    contender: Contender
    progress: Progress
    stop: Stop
    elsewhere: bool

    @property
    def name(self) -> str:
        """Return what the tables call it."""
        return self.contender.name

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Summary:
        """Answer from empty caches and return what it took."""
        self.progress.begin(self.name)
        with self.stop.heeded(elsewhere=self.elsewhere):
            summary = self.contender.answer(prompt, max_tokens, seed)
        self.progress.end()
        return summary

    def memory_peak(self) -> int | None:
        """Return the most bytes that its process has held in memory so far."""
        return self.contender.memory_peak()


def measure(plan: Plan, own: int, cancel: Callable[[], None], on_run: Callable[[Run], None]) -> Measured:
    """Run a plan to its end, or to Ctrl+C or a failure; the first `own` contenders `cancel` stops."""
    from localspec.benchmark.interleave import interleave

    measured, stop = Measured(), Stop(cancel)
    progress = Progress(len(plan.contenders), plan.answers)
    watched = [
        Watched(contender, progress, stop, elsewhere=number >= own)
        for number, contender in enumerate(plan.contenders)
    ]

    def anchor() -> float:
        with stop.heeded():
            return plan.anchor()

    try:
        with on_interrupt(stop.ask):
            for found in interleave(watched, plan.prompts, plan.max_tokens, plan.repetitions, anchor):
                if isinstance(found, Anchor):
                    measured.anchors.append(found)
                else:
                    measured.runs.append(found)
                    progress.clear()
                    on_run(found)
    except LocalSpecError as error:
        measured.failure = error
    except KeyboardInterrupt:
        measured.failure = Cancelled("the benchmark was stopped")
    finally:
        progress.clear()
    return measured
