"""What every part of the campaign has in common: how long it may continue, and what it found."""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings

from tests.campaign.clock import now_s

PROMPT_S = 2.0  # nothing that a user waits for takes longer
_OURS = "/tests/campaign/"
Kind = Callable[[random.Random, Path], None]
"""Tries something in an empty folder."""


class WrongError(AssertionError):
    """Something did not go as it is promised."""


def allowed_s(seconds: float) -> float:
    """Return how long something may take here, where others may be at work besides."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0
    return seconds * max(1.0, load)


def require(condition: object, what: str) -> None:
    """Say what is wrong unless a condition holds."""
    if not condition:
        raise WrongError(what)


def thorough(examples: int, steps: int = 50) -> settings:
    """Return how Hypothesis is to look: without a memory, and to the shortest example of what it finds."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )


@dataclass(slots=True)
class Log:
    """One part's cases and what they found; the random numbers of a case depend on nothing but its number."""

    what: str
    seed: int = 0
    most: int = 10  # cases
    seconds: float = 3600.0  # begin no case after so long
    only: int | None = None  # this case alone
    cases: int = 0
    found: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    taken_s: float = 0.0

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the cases while there is time."""
        begun = time.monotonic()
        try:
            for number in range(self.most) if self.only is None else (self.only,):
                if time.monotonic() - begun > self.seconds:
                    self.notes.append(f"time was up after {self.cases:,} cases")
                    return
                yield number
        finally:
            self.taken_s += time.monotonic() - begun

    def batches(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield numbers and sizes of batches of cases, for cases that cannot be interrupted one by one."""
        left, self.most = self.most, -(-self.most // size)
        for number in self.numbers():
            yield number, min(size, left)
            left = max(left - size, 1)

    def random(self, number: int) -> random.Random:
        """Return the random numbers of a case."""
        return random.Random(f"{self.what} {self.seed} {number}")

    def in_turn(
        self,
        kinds: Sequence[Kind],
        folder: Path,
        check: Callable[[Path], object] = Path,
    ) -> None:
        """Try one kind of case after the other, each in a folder of its own, which is checked in the end."""
        for number in self.numbers():
            kind = kinds[number % len(kinds)]
            own = folder / f"{number}"
            own.mkdir()
            with self.case(number, what=kind.__name__):
                kind(self.random(number), own)
                check(own)

    @contextmanager
    def case(
        self, number: int, within_s: float | None = None, what: str = "", *, computes: bool = False
    ) -> Iterator[None]:
        """Count a case; whatever it raises is found, and so is one that takes (or computes) too long."""
        clock = time.process_time if computes else now_s
        begun = clock()
        self.cases += 1
        try:
            yield
        except Exception as error:  # noqa: BLE001 - to find them is what this is for
            self.found.append(f"case {number}: {_told(error)} {what}".rstrip())
        seconds = clock() - begun
        self.slowest_s = max(self.slowest_s, seconds)
        if within_s is not None and seconds > (within_s if computes else allowed_s(within_s)):
            self.found.append(f"case {number}: took {seconds:.1f} s {what}".rstrip())


def _told(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, WrongError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    at = next((frame for frame in reversed(frames) if _OURS not in frame.filename), frames[-1])
    return f"{type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error}"


Part = Callable[[Log, Path], None]
"""Works through cases in an empty folder."""
