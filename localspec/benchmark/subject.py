"""What is put to the test, how much of it, and with which prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.types import EngineSettings, Message, ModelInfo, Provenance, Request

Logits = NDArray[np.float32]
Answer = Sequence[tuple[int, Provenance, bool]]
Progress = Callable[[str, float], None]
"""Hears what is being done and the share that is done before; ends the test by raising `Cancelled`."""

DRAFTED = (Provenance.ACCEPTED, Provenance.PREPARED)
NEAR_TIE = 0.05  # logits; a float target's logits move by up to this much with the width of a batch

PROMPTS: tuple[tuple[str, str], ...] = (
    ("code", "Write a Python function that reverses a string."),
    ("dialogue", "I had a long day at work. What should I cook tonight?"),
    ("story", "Tell me a short story about a fox and a lighthouse."),
    ("sums", "Anna has 12 apples and gives 5 to Ben. How many are left? Show the steps."),
    ("code", "Write a Python class for a stack with push, pop and peek."),
    ("dialogue", "Can you recommend a good book for a train ride?"),
    ("story", "Once upon a time there was a clock that ran backwards. What happened next?"),
    ("sums", "A train drives 60 km in one hour. How far does it drive in 3 hours and a half?"),
    ("code", "Write a loop that prints the even numbers from 0 to 20."),
    ("dialogue", "Which is better for a small flat, a cat or a dog?"),
    ("story", "Write the beginning of a tale about a girl who could talk to rivers."),
    ("sums", "What is 17 times 6? Explain how you get there."),
)


class TokenRuntime(Protocol):
    """What the self-test asks of open models."""

    @property
    def draft(self) -> ModelInfo | None:
        """Return the draft model, if there is one."""

    def encode(self, prompt: tuple[Message, ...] | str) -> list[int]:
        """Return the tokens that the target reads for a prompt."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as text."""

    def generate_tokens(self, request: Request) -> Iterator[tuple[int, Provenance, bool]]:
        """Yield every token of an answer, the one that ends it included, and whether its round was a hit."""

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        """Yield the target's logits after each token, float32 (vocabulary,), valid until the next."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to decode that is put to the test."""

    name: str
    settings: EngineSettings

    def settings_for(self, answer: int) -> EngineSettings:
        """Return the settings for one answer: about every other one drafts even where drafting does not pay.

        Otherwise there would be next to nothing to test on a machine whose draft model is too slow.
        """
        is_forced = (answer + answer // 4) % 2 == 1  # each prompt in turn, since their kinds repeat by four
        if not is_forced or self.settings.min_confidence is not None:
            return self.settings
        return replace(self.settings, min_confidence=0.0)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to test."""

    prompts: int = 8
    greedy_tokens: int = 48  # in each answer
    sampled_tokens: int = 600  # of each variant
    near_tie: float = NEAR_TIE


QUICK = Effort(prompts=4, sampled_tokens=200)


@dataclass(slots=True)
class Course:
    """How far the self-test is, in tokens."""

    on_progress: Progress
    total: int
    done: int = 0

    def begin(self, words: str) -> None:
        """Tell what comes next; raises `Cancelled` if nothing is to come."""
        self.on_progress(words, self.done / self.total)


def question(prompt: str) -> tuple[Message, ...]:
    """Return the conversation that asks one question."""
    return (Message("user", prompt),)


def rows(runtime: TokenRuntime, prompt: str, answer: Sequence[int]) -> Iterator[tuple[int, Logits]]:
    """Yield each place in an answer with the logits that its token was chosen by."""
    before = runtime.encode(question(prompt))
    for index, row in enumerate(runtime.score([*before, *answer][:-1])):
        place = index - len(before) + 1
        if place >= 0:
            yield place, row


def num_drafted(answer: Answer) -> int:
    """Return how many tokens of an answer were accepted from drafts."""
    return sum(provenance in DRAFTED for _, provenance, _ in answer)
