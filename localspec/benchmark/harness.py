"""Give contenders the same prompts alternately, time their answers, and save them across restarts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localspec.errors import Cancelled, DraftError, EngineError
from localspec.inference.interface import OpenModels
from localspec.storage.json_file import JsonFile
from localspec.types.events import Finished, ModeChanged, RoundDone, Summary
from localspec.types.request import EngineSettings, Message, Request, Sampling

if TYPE_CHECKING:
    from localspec.benchmark.statistics import Paces

WARM_UP_TOKENS = 24  # of each contender before the clock runs: files read, caches made, calls timed
MIN_PROMPTS = 3  # with fewer there is no result
# at least
ANCHOR_TOKENS = 32
ANCHOR_S = 0.5
ANCHOR_TEXTS = (
    "Once upon a time there was an old house at the end of a long road. In that house",
    "One, two, three, four, five, six, seven, eight, nine,",
    "def add(first, second):\n",
)
"""The texts that the anchor continues, one after another."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question for a fresh conversation, and its task."""

    task: str
    text: str
    system: str = ""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return the conversation that asks it."""
        system = (Message("system", self.system),) if self.system else ()
        return (*system, Message("user", self.text))


@dataclass(frozen=True, slots=True)
class Question:
    """A request to all contenders, each with its own settings, and its task."""

    task: str
    request: Request

    def asked(self, seed: int, max_tokens: int | None) -> Question:
        """Return it with a seed and a length."""
        return replace(self, request=replace(self.request, seed=seed, max_tokens=max_tokens))


class Contender(Protocol):
    """One way to decode, with its models open."""

    @property
    def name(self) -> str:
        """Return its name in tables."""

    def answer(self, question: Question) -> Summary:
        """Answer and return the figures; raises `LocalSpecError`.

        Unknown figures of rounds stay 0.
        """

    def cancel(self) -> None:
        """End the running answer within a moment; raises `Cancelled` where to leave it is all that helps."""

    def memory_peak(self) -> int | None:
        """Return the peak memory of its process in bytes; None if unknown."""


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one contender; `repetition` counts how often it was asked the same before."""

    contender: str
    task: str
    prompt: int
    repetition: int
    summary: Summary


def paces(runs: Iterable[Run], fewest_tokens: int = 2) -> Paces:
    """Return the seconds per token by prompt and repetition, of answers long enough to be timed."""
    return {
        (run.prompt, run.repetition): pace
        for run in runs
        if run.summary.tokens >= fewest_tokens and (pace := run.summary.seconds_per_token)
    }


@dataclass(frozen=True, slots=True)
class Turn:
    """A contender is about to answer; None: the anchor is about to be measured."""

    contender: Contender | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """Plain decoding of the same few tokens, before the first prompt and after each, to measure drift.

    After `prompt` prompts it took `seconds_per_token`.
    """

    prompt: int
    seconds_per_token: float


@dataclass(frozen=True, slots=True)
class OwnContender:
    """Open models that decode with certain settings, or those of each task; several may share the models."""

    name: str
    models: OpenModels
    settings: EngineSettings | Mapping[str, EngineSettings]
    pid: int = field(default_factory=os.getpid)  # of the process that holds the models

    def answer(self, question: Question) -> Summary:
        """Answer in this way to the end, even if it is slower, and return the figures."""
        found = self.settings
        settings = found if isinstance(found, EngineSettings) else found[question.task]
        request = replace(question.request, settings=settings, steps_down=False, measures_first=True)
        return answered(self.models, request)[0]

    def cancel(self) -> None:
        """End the running answer within a moment."""
        self.models.cancel()

    def memory_peak(self) -> int | None:
        """Return the peak memory of the models' process in bytes."""
        return memory_peak(self.pid)


class Harness:
    """Asks questions of contenders; an answer that is on record is not asked for again."""

    def __init__(self, questions: Sequence[Question], record: RunRecord | None = None) -> None:
        self.questions = questions
        self.record = record or RunRecord()
        self._warm: set[str] = set()

    def warm_up(self, contender: Contender, prompt: int, seed: int = 0) -> Summary:
        """Have a contender begin an answer that does not count: its first builds graphs and times calls."""
        question = self.questions[prompt % len(self.questions)]
        tokens = min(question.request.max_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS)
        summary = contender.answer(question.asked(seed, tokens))
        self._warm.add(contender.name)
        return summary

    def cool(self) -> None:
        """Report that models were reopened, so all contenders have to warm up."""
        self._warm.clear()

    def run(self, contender: Contender, prompt: int, repetition: int, seed: int, name: str = "") -> Run:
        """Return an answer, which is recorded under the contender's name or another."""
        name = name or contender.name
        if known := self.record.runs.get((name, prompt, repetition)):
            return known
        if contender.name not in self._warm:  # on another prompt, which its draft model then has not read
            self.warm_up(contender, prompt + 1)
        question = self.questions[prompt]
        asked = question.asked(seed, self.record.tokens or question.request.max_tokens)
        run = Run(name, question.task, prompt, repetition, contender.answer(asked))
        self.record.add(run)
        return run


def in_turn(
    contenders: Sequence[Contender], prompts: Sequence[int], lap: int
) -> Iterator[tuple[Contender, int]]:
    """Yield who answers which prompt in a lap: everybody every one, and of several none twice in a row.

    Who begins moves on by one from lap to lap and from prompt to prompt.
    """
    for step in range(len(contenders)):
        for place, prompt in enumerate(prompts):
            yield contenders[(place + step + lap) % len(contenders)], prompt


def interleave(
    contenders: Sequence[Contender],
    questions: Sequence[Question],
    repetitions: int,
    anchor: Callable[[], float] | None = None,
    first_seed: int = 0,
) -> Iterator[Turn | Run | Anchor]:
    """Yield every contender's answers to every question, one contender after another, and anchors between.

    All answer with the same seed; it differs from prompt to prompt and from repetition to repetition.
    Answers of one token have no speed: they are left out.
    """
    harness = Harness(questions)
    for contender in contenders:
        yield Turn(contender)
        harness.warm_up(contender, 0)
    if anchor is not None:
        yield Turn(None)
        yield Anchor(0, anchor())
    for number in range(len(questions)):
        for repetition in range(repetitions):
            lap = number * repetitions + repetition
            for contender, prompt in in_turn(contenders, [number], lap):
                yield Turn(contender)
                run = harness.run(contender, prompt, repetition, first_seed + lap)
                if run.summary.tokens_per_s:
                    yield run
        if anchor is not None:
            yield Turn(None)
            yield Anchor(number + 1, anchor())


def plain_anchor(models: OpenModels, least_s: float = ANCHOR_S) -> Callable[[], float]:
    """Return a function that measures plain decoding: seconds per token of the same few tokens.

    It takes at least `least_s` seconds: a moment's disturbance of a tiny model is not drift.
    """
    from statistics import median  # 10 ms

    def measure() -> float:
        seconds: list[float] = []
        for number, text in enumerate(cycle(ANCHOR_TEXTS)):
            if len(seconds) >= ANCHOR_TOKENS and sum(seconds) >= least_s:
                return median(seconds)
            if number >= len(ANCHOR_TEXTS) and not seconds:
                break
            request = Request(
                text,
                Sampling(temperature=0.0),
                EngineSettings(mode="off"),
                ANCHOR_TOKENS + 1,  # the first comes with the prompt
                seed=0,
                reuses_cache=False,
            )
            _, rounds = answered(models, request)
            seconds += [one.stats.seconds for one in rounds[1:]]
        raise EngineError(f"{models.target.name} ends every text at once: its speed cannot be measured")

    return measure


def answered(models: OpenModels, request: Request) -> tuple[Summary, Sequence[RoundDone]]:
    """Return the sums of an answer and its rounds, the first of which read the prompt."""
    rounds: list[RoundDone] = []
    for event in models.generate(request):
        if isinstance(event, RoundDone):
            rounds.append(event)
        elif isinstance(event, ModeChanged) and event.draft_failed:
            raise DraftError(event.reason)
        elif isinstance(event, Finished):
            if event.reason == "cancelled":
                raise Cancelled("the answer was cancelled")
            return event.summary, rounds
    raise EngineError("an answer was interrupted")


def memory_peak(pid: int) -> int | None:
    """Return the peak memory of a process in bytes; None if unknown."""
    if sys.platform == "win32":
        return _windows_peak(pid)
    return _linux_peak(Path(f"/proc/{pid}/status"))


def _linux_peak(status: Path) -> int | None:
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
    except OSError:  # the process has ended, or this system has no such file
        return None
    peaks = (line.split() for line in lines if line.startswith("VmHWM:"))
    return next((int(words[1]) * 1024 for words in peaks), None)


def _windows_peak(pid: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().peak_wset)
    except psutil.Error:
        return None


@dataclass(frozen=True, slots=True)
class _Kept:
    """The content of a file: the runs under one key, and the length of their answers."""

    key: str
    tokens: int | None
    runs: tuple[Run, ...]


class RunRecord:
    """The runs under one key, in a file, or only in memory without one."""

    def __init__(self, path: Path | None = None, key: str = "") -> None:
        """Read the file; runs under another key are dropped."""
        self._file = None if path is None else JsonFile(path, _Kept)
        self._key = key
        held = None if self._file is None else self._file.read()
        kept = held if held is not None and held.key == key else _Kept(key, None, ())
        self.tokens = kept.tokens  # of an answer
        self.runs = {(run.contender, run.prompt, run.repetition): run for run in kept.runs}

    def of(self, name: str) -> list[Run]:
        """Return the runs of one contender in their order."""
        return [run for run in self.runs.values() if run.contender == name]

    def add(self, run: Run) -> None:
        """Save a finished run."""
        self.runs[run.contender, run.prompt, run.repetition] = run
        self._write()

    def set_tokens(self, tokens: int) -> None:
        """Save the length of the answers."""
        self.tokens = tokens
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            self._file.write(_Kept(self._key, self.tokens, tuple(self.runs.values())))
