"""Tokens sampled at temperature 1 follow the target's own distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from localspec.exactness.subject import (
    DRAFTED,
    PROMPTS,
    Effort,
    Logits,
    Progress,
    TokenRuntime,
    Variant,
    question,
    rows,
)
from localspec.sampling import distribution
from localspec.statistics import ks_uniform_p_value, randomised_pit
from localspec.types import Distribution, Request, Sampling

Rounds = Literal["all", "hit", "other"]

SUSPICION = 0.02  # a p-value below it asks for four times as many tokens
FALSE_ALARM = 0.001  # a p-value of those below it is a failure
FEWEST_TOKENS = 50  # below it a test says nothing

FULL = Sampling(temperature=1, top_k=0, top_p=1, min_p=0)


@dataclass(frozen=True, slots=True)
class DistributionResult:
    """Whether sampled tokens follow the target's distribution; `p_value` None: too few to tell."""

    variant: str
    rounds: Rounds
    tokens: int
    drafted: int  # of the tokens, accepted from drafts
    p_value: float | None

    @property
    def passed(self) -> bool:
        """Tell whether nothing speaks against exactness."""
        return self.p_value is None or self.p_value >= FALSE_ALARM


def check_distribution(
    runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort, on_progress: Progress
) -> tuple[DistributionResult, ...]:
    """Sample at temperature 1 and test that the tokens follow the target's distribution.

    Rounds whose draft was prepared are tested apart from the others.
    """
    results: list[DistributionResult] = []
    for number, variant in enumerate(tested):
        found = _sampled_results(runtime, variant, effort, number, on_progress)
        if any(result.p_value is not None and result.p_value < SUSPICION for result in found):
            # fresh answers, so that the doubt that led here does not count twice
            more = replace(effort, sampled_tokens=4 * effort.sampled_tokens)
            found = _sampled_results(runtime, variant, more, number + len(tested), on_progress)
        results += found
    return tuple(results)


def _sampled_results(
    runtime: TokenRuntime, variant: Variant, effort: Effort, stream: int, on_progress: Progress
) -> list[DistributionResult]:
    """Sample once and test hit rounds and other rounds apart."""
    hits, others = _Group(), _Group()
    random = np.random.default_rng(stream)
    answers = 0
    while hits.tokens + others.tokens < effort.sampled_tokens and answers < effort.sampled_tokens:
        done = hits.tokens + others.tokens
        on_progress(f"{variant.name} at temperature 1: {done} of {effort.sampled_tokens} tokens")
        prompt, seed = PROMPTS[answers % len(PROMPTS)][1], stream * 1_000_003 + answers
        settings = variant.settings_for(answers)
        request = Request(question(prompt), FULL, settings, effort.greedy_tokens, seed=seed)
        answer = list(runtime.generate_tokens(request))
        for place, row in rows(runtime, prompt, [token for token, *_ in answer]):
            token, provenance, is_hit = answer[place]
            group = hits if is_hit else others
            group.pairs.append(transforms(row, token, float(random.random())))
            group.drafted += provenance in DRAFTED
        answers += 1
    if not hits.tokens:
        return [others.result(variant.name, "all")]
    return [hits.result(variant.name, "hit"), others.result(variant.name, "other")]


@dataclass(slots=True)
class _Group:
    """The transforms of the tokens of some rounds, and how many of the tokens were drafted."""

    pairs: list[tuple[float, float]] = field(default_factory=list)
    drafted: int = 0

    @property
    def tokens(self) -> int:
        """Return how many tokens there are."""
        return len(self.pairs)

    def result(self, variant: str, rounds: Rounds) -> DistributionResult:
        """Test the transforms."""
        return DistributionResult(variant, rounds, self.tokens, self.drafted, _p_value(self.pairs))


def transforms(row: Logits, token: int, uniform: float) -> tuple[float, float]:
    """Return the randomised PIT of a token, likelier tokens first, and in the order of the vocabulary.

    The first shows a wrong temperature or truncation best, the second a draft that is believed too much.
    """
    p = distribution(row, FULL, ())
    own = p.probs[token]
    likelier, equal = float(p.probs[p.probs > own].sum()), float(p.probs[p.probs == own].sum())
    ranks = Distribution(np.arange(3), np.array([likelier, equal, max(0.0, 1 - likelier - equal)]))
    return randomised_pit(ranks, 1, uniform), randomised_pit(p, token, uniform)


def _p_value(pairs: list[tuple[float, float]]) -> float | None:
    if len(pairs) < FEWEST_TOKENS:
        return None
    return min(1.0, 2 * min(ks_uniform_p_value(values) for values in zip(*pairs, strict=True)))
