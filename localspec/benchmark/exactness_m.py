"""Check on real models that speculation changes nothing: equal greedy answers, equal distributions.

Everything is judged by the target's own logits when it reads the finished answer once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.benchmark.exactness import FALSE_ALARM, DistributionResult, SampledTest
from localspec.benchmark.greedy import Difference, GreedyResult, GreedyTest
from localspec.benchmark.subject import NEAR_TIE, QUICK, Course, Effort, Progress, TokenRuntime, Variant
from localspec.errors import Cancelled
from localspec.types import Acceptance, EngineSettings, Mode

__all__ = [
    "FALSE_ALARM",
    "NEAR_TIE",
    "QUICK",
    "Difference",
    "DistributionResult",
    "Effort",
    "GreedyResult",
    "Progress",
    "Report",
    "TokenRuntime",
    "Variant",
    "check",
    "variants",
]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of the self-test; an incomplete one was stopped."""

    greedy: tuple[GreedyResult, ...]
    sampled: tuple[DistributionResult, ...]
    complete: bool = True

    @property
    def exact(self) -> bool:
        """Tell whether every part passed."""
        return all(part.passed for part in self.greedy) and all(part.passed for part in self.sampled)


def variants(settings: EngineSettings, mode: Mode | None, possible: Sequence[Mode]) -> tuple[Variant, ...]:
    """Return the speculating variants to test: those of one mode, or of all that the models allow."""
    return tuple(
        Variant(each, replace(settings, mode=each))
        for each in possible
        if each != "off" and mode in (None, each)
    )


def check(runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort, on_progress: Progress) -> Report:
    """Run both tests and return what they found until the end, or until they were cancelled."""
    greedy = GreedyTest(runtime, tested, effort)
    sampled = SampledTest(runtime, _sampled_variants(tested), effort)
    course = Course(on_progress, total=greedy.tokens + sampled.tokens)
    try:
        greedy.run(course)
        sampled.run(course)
    except Cancelled:
        return Report(greedy.results, sampled.results, complete=False)
    return Report(greedy.results, sampled.results)


def _sampled_variants(tested: Sequence[Variant]) -> list[Variant]:
    """Add plain decoding, which tests the test, and both ways to judge a draft model's tokens."""
    found = [Variant("off", EngineSettings(mode="off"))]
    rules: tuple[Acceptance, ...] = ("rejection", "match")
    for variant in tested:
        if variant.settings.mode == "ngram":
            found.append(variant)
        else:
            found += [Variant(f"{variant.name} {r}", replace(variant.settings, acceptance=r)) for r in rules]
    return found
