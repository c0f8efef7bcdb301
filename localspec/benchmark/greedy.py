"""Greedy answers of every mode are those of plain decoding, up to near-ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from localspec.benchmark.subject import (
    PROMPTS,
    Answer,
    Course,
    Effort,
    TokenRuntime,
    Variant,
    num_drafted,
    question,
    rows,
)
from localspec.types import EngineSettings, Request, Sampling

GREEDY = Sampling(temperature=0)
_OFF = EngineSettings(mode="off")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a greedy answer first leaves that of plain decoding."""

    kind: str
    prompt: str
    position: int  # in the answer, from 0
    expected: str  # text of plain decoding's token; empty where an answer has ended
    found: str
    gap: float  # logits between the two tokens when the target reads the answer again
    worst_gap: float  # from there on, how far any token of the answer lies below the target's best
    near_tie: bool


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """How the greedy answers of one variant compare with plain decoding."""

    variant: str
    answers: int
    tokens: int
    drafted: int  # of the tokens, accepted from drafts
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Tell whether nothing but near-ties differs."""
        return all(difference.near_tie for difference in self.differences)


class GreedyTest:
    """The greedy answers of each variant and of plain decoding, one question after another."""

    def __init__(self, runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort) -> None:
        self._runtime = runtime
        self._effort = effort
        self._results = [GreedyResult(variant.name, 0, 0, 0, ()) for variant in tested]
        self._tested = tested

    @property
    def tokens(self) -> int:
        """Return how many tokens there will be, at most."""
        return self._effort.prompts * self._effort.greedy_tokens * (len(self._tested) + 1)

    @property
    def results(self) -> tuple[GreedyResult, ...]:
        """Return what was found so far."""
        return tuple(result for result in self._results if result.answers)

    def run(self, course: Course) -> None:
        """Answer all questions."""
        for number, prompt in enumerate(PROMPTS[: self._effort.prompts]):
            expected = [token for token, *_ in self._answer(course, number, Variant("plain decoding", _OFF))]
            for place, variant in enumerate(self._tested):
                answer = self._answer(course, number, variant)
                self._results[place] = self._judged(self._results[place], prompt, expected, answer)

    def _answer(self, course: Course, number: int, variant: Variant) -> Answer:
        course.begin(f"greedy answers: {number + 1} of {self._effort.prompts}, {variant.name}")
        settings, limit = variant.settings_for(number), self._effort.greedy_tokens
        request = Request(question(PROMPTS[number][1]), GREEDY, settings, limit, seed=0)
        answer = list(self._runtime.generate_tokens(request))
        course.done += limit
        return answer

    def _judged(
        self, before: GreedyResult, prompt: tuple[str, str], expected: list[int], answer: Answer
    ) -> GreedyResult:
        found, differences = [token for token, *_ in answer], before.differences
        if found != expected:
            differences += (_difference(self._runtime, prompt, expected, found, self._effort.near_tie),)
        return replace(
            before,
            answers=before.answers + 1,
            tokens=before.tokens + len(answer),
            drafted=before.drafted + num_drafted(answer),
            differences=differences,
        )


def _difference(
    runtime: TokenRuntime, prompt: tuple[str, str], expected: list[int], found: list[int], near_tie: float
) -> Difference:
    """Judge the first difference of two unequal answers, and what follows it, by the target's own logits."""
    pairs = zip(expected, found, strict=False)
    shorter = min(len(expected), len(found))
    position = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    gap = worst = inf
    if position < shorter:
        worst = 0.0
        for place, row in rows(runtime, prompt[1], found):
            if place == position:
                gap = float(row[expected[place]] - row[found[place]])
            if place >= position:
                worst = max(worst, float(row.max() - row[found[place]]))
    return Difference(
        *prompt,
        position=position,
        expected=runtime.decode(expected[position : position + 1]),
        found=runtime.decode(found[position : position + 1]),
        gap=gap,
        worst_gap=worst,
        near_tie=abs(gap) <= near_tie and worst <= near_tie,
    )
