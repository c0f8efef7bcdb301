"""Greedy answers of every mode are those of plain decoding, up to near-ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from localspec.exactness.subject import (
    PROMPTS,
    Effort,
    Progress,
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


def check_greedy(
    runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort, on_progress: Progress
) -> tuple[GreedyResult, ...]:
    """Compare the greedy answers of each variant with those of plain decoding, token by token."""
    prompts = PROMPTS[: effort.prompts]
    plain = [Request(question(text), GREEDY, _OFF, effort.greedy_tokens, seed=0) for _, text in prompts]
    expected = []
    for number, request in enumerate(plain):
        on_progress(f"plain greedy answers: {number + 1} of {len(plain)}")
        expected.append([token for token, *_ in runtime.generate_tokens(request)])
    results = []
    for variant in tested:
        answers = []
        for number, request in enumerate(plain):
            on_progress(f"greedy answers, {variant.name}: {number + 1} of {len(plain)}")
            speculating = replace(request, settings=variant.settings_for(number))
            answers.append(list(runtime.generate_tokens(speculating)))
        differences = tuple(
            _difference(runtime, prompt, before, [token for token, *_ in answer], effort.near_tie)
            for prompt, before, answer in zip(prompts, expected, answers, strict=True)
            if before != [token for token, *_ in answer]
        )
        tokens, drafted = sum(map(len, answers)), sum(map(num_drafted, answers))
        results.append(GreedyResult(variant.name, len(prompts), tokens, drafted, differences))
    return tuple(results)


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
