"""Check on real models that speculation changes nothing: equal greedy answers, equal distributions.

Everything is judged by the target's own logits when it reads the finished answer once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.exactness.greedy import Difference, GreedyResult, check_greedy
from localspec.exactness.sampled import FALSE_ALARM, DistributionResult, check_distribution
from localspec.exactness.subject import NEAR_TIE, QUICK, Effort, Progress, TokenRuntime, Variant
from localspec.types import Acceptance, EngineSettings, Mode

__all__ = [
    "FALSE_ALARM",
    "NEAR_TIE",
    "QUICK",
    "Difference",
    "DistributionResult",
    "Effort",
    "GreedyResult",
    "Report",
    "TokenRuntime",
    "Variant",
    "check",
    "check_distribution",
    "check_greedy",
    "variants",
]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of the self-test."""

    greedy: tuple[GreedyResult, ...]
    sampled: tuple[DistributionResult, ...]

    @property
    def exact(self) -> bool:
        """Tell whether every part passed."""
        return all(part.passed for part in self.greedy) and all(part.passed for part in self.sampled)


def variants(settings: EngineSettings, mode: Mode | None, *, has_draft: bool) -> tuple[Variant, ...]:
    """Return the speculating variants to test: those of one mode, or of all that the models allow."""
    possible: tuple[Mode, ...] = ("ngram", "sd", "ssd") if has_draft else ("ngram",)
    return tuple(Variant(m, replace(settings, mode=m)) for m in possible if mode in (None, m))


def check(runtime: TokenRuntime, tested: Sequence[Variant], effort: Effort, on_progress: Progress) -> Report:
    """Run both tests and return what they found; `on_progress` hears what is being done."""
    greedy = check_greedy(runtime, tested, effort, on_progress)
    sampled = check_distribution(runtime, _sampled_variants(tested), effort, on_progress)
    return Report(greedy, sampled)


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
