"""Our own ways of decoding as contenders, and the plain decoding that tells drift."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median

import psutil

from localspec.benchmark.contender import Prompt
from localspec.errors import Cancelled, EngineError
from localspec.inference.interface import OpenModels
from localspec.types import (
    EngineSettings,
    Finished,
    Message,
    Request,
    RoundDone,
    RoundStats,
    Sampling,
    Summary,
)

ANCHOR_TOKENS, ANCHOR_S = 32, 0.5  # at least
ANCHOR_TEXTS = (
    "Once upon a time there was an old house at the end of a long road. In that house",
    "One, two, three, four, five, six, seven, eight, nine,",
    "def add(first, second):\n",
)
"""What the anchor has continued, one after another."""


def unknown_peak() -> None:
    """Say that nobody can tell how much memory was held."""


class Own:
    """Open models that decode with certain settings; several contenders may share the models."""

    def __init__(
        self,
        name: str,
        models: OpenModels,
        settings: EngineSettings,
        sampling: Sampling,
        peak: Callable[[], int | None] = unknown_peak,
    ) -> None:
        self._name = name
        self._models = models
        self._settings = settings
        self._sampling = sampling
        self._peak = peak

    @property
    def name(self) -> str:
        """Return what the tables call it."""
        return self._name

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Summary:
        """Answer from empty caches and return what it took; raises `LocalSpecError` if that fails."""
        system = (Message("system", prompt.system),) if prompt.system else ()
        request = Request(
            (*system, Message("user", prompt.text)),
            self._sampling,
            self._settings,
            max_tokens,
            seed=seed,
            steps_down=False,  # a way that loses has to show it
            reuses_cache=False,
        )
        return _finished(self._models, request)[0]

    def memory_peak(self) -> int | None:
        """Return the most bytes that the models' process has held in memory so far."""
        return self._peak()


def plain_anchor(models: OpenModels, least_s: float = ANCHOR_S) -> Callable[[], float]:
    """Return a measurement of plain decoding: seconds per token of the same few tokens, again and again.

    It takes `least_s` seconds or more: what disturbs a tiny model for a moment is no drift.
    """

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
            rounds = _finished(models, request)[1][1:]
            seconds += [one.verify_s + one.draft_s + one.wait_s + one.python_s for one in rounds]
        raise EngineError(f"{models.target.name} ends every text at once: its speed cannot be told")

    return measure


def peak_of(pid: int) -> Callable[[], int | None]:
    """Return a reader of the most bytes that a process has held in memory so far."""
    if sys.platform == "win32":
        return lambda: _windows_peak(pid)
    return lambda: _linux_peak(Path(f"/proc/{pid}/status"))


def _linux_peak(status: Path) -> int | None:
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
    except OSError:  # the process has ended, or this system keeps no such file
        return None
    peaks = (line.split() for line in lines if line.startswith("VmHWM:"))
    return next((int(words[1]) * 1024 for words in peaks), None)


def _windows_peak(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().peak_wset)
    except psutil.Error:
        return None


def _finished(models: OpenModels, request: Request) -> tuple[Summary, Sequence[RoundStats]]:
    """Return the sums of an answer and its rounds, the first of which read the prompt."""
    rounds: list[RoundStats] = []
    for event in models.generate(request):
        if isinstance(event, RoundDone):
            rounds.append(event.stats)
        elif isinstance(event, Finished):
            if event.reason == "cancelled":
                raise Cancelled("the answer was cancelled")
            return event.summary, rounds
    raise EngineError("an answer broke off")
