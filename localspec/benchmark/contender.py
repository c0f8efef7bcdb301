"""What is asked, who answers, and what an answer took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from localspec.types import Summary


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, asked in a fresh conversation, and the kind of task that it stands for."""

    task: str
    text: str
    system: str = ""


class Contender(Protocol):
    """One way to decode, with its models open."""

    @property
    def name(self) -> str:
        """Return what the tables call it."""

    def answer(self, prompt: Prompt, max_tokens: int, seed: int) -> Summary:
        """Answer from empty caches and return what it took; raises `LocalSpecError` if that fails.

        What a contender cannot know of its rounds stays 0.
        """

    def memory_peak(self) -> int | None:
        """Return the most bytes that its process has held in memory so far; None where nobody can tell.

        Contenders that share a process return the same.
        """


@dataclass(frozen=True, slots=True)
class Run:
    """One answer of one contender; `repetition` counts how often it was asked the same before."""

    contender: str
    task: str
    prompt: int
    repetition: int
    summary: Summary

    @property
    def tokens_per_s(self) -> float:
        """Return the speed of decoding: tokens after the first, and the time after it."""
        return (self.summary.tokens - 1) / self.summary.decode_s


@dataclass(frozen=True, slots=True)
class Anchor:
    """Plain decoding of the same few tokens, before the first prompt and after each: what drift is told by.

    After `prompt` prompts it took `seconds_per_token`.
    """

    prompt: int
    seconds_per_token: float
