"""A round of decoding, real or simulated: what it emits, what it costs, and what is learned from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from localspec.decoding.constraint import TokenRules
from localspec.decoding.policy import SpeculationPolicy
from localspec.types.drafts import Draft, DraftOrigin, Provenance, VerifyOutcome
from localspec.types.events import RoundStats, TokenScore
from localspec.types.request import Acceptance, Sampling


@dataclass(frozen=True, slots=True)
class Round:
    """What one round emitted and cost; nothing follows the last one."""

    tokens: tuple[int, ...]
    provenance: tuple[Provenance, ...]
    stats: RoundStats
    is_last: bool = False
    scores: tuple[TokenScore, ...] = ()  # of its tokens, where they are asked for; without their bytes

    def up_to(self, count: int) -> Round:
        """Return the round cut to `tokens` tokens."""
        if count >= len(self.tokens):
            return self
        stats = judged_up_to(self.stats, count)
        return Round(self.tokens[:count], self.provenance[:count], stats, True, self.scores[:count])


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """One answer to decode: how to choose tokens, and where to stop."""

    sampling: Sampling
    acceptance: Acceptance
    draft_length: int
    max_tokens: int
    end_tokens: frozenset[int]
    rules: TokenRules | None = None
    top_logprobs: int | None = None
    answer_start: int = 0  # where the answer begins in the text, of which penalties see nothing before
    candidates: int | None = None  # of the target that decide it where no rules apply; None: all logits
    tells_reading: bool = False  # of the prompt, also its start and its end


class RoundTimes(NamedTuple):
    """What a round took, in the order of `RoundStats`; drafting ahead ran beside the rest of it."""

    verify_s: float
    draft_s: float
    wait_s: float
    python_s: float
    ahead_s: float = 0.0


def emitted_tokens(
    draft: Draft, outcome: VerifyOutcome, limit: int, end_tokens: frozenset[int] = frozenset()
) -> list[int]:
    """Return the tokens that a verdict adds to an answer: at most `limit`, up to the first end token."""
    tokens = [*draft.tokens[: outcome.accepted], outcome.bonus]
    for position, token in enumerate(tokens):
        if token in end_tokens:
            tokens = tokens[: position + 1]
            break
    return tokens[:limit]


def close_round(
    draft: Draft,
    outcome: VerifyOutcome,
    tokens: list[int],
    times: RoundTimes,
    policy: SpeculationPolicy | None,
) -> Round:
    """Return a round that emitted some tokens; its policy learns what it took.

    There is no policy for the first round, which read the prompt: that says nothing about the speed.
    """
    count = len(tokens)
    accepted = min(outcome.accepted, count)
    stats = RoundStats(len(draft.tokens), accepted, draft.origin, *times, copied=draft.copied)
    if policy is not None:
        policy.observe(stats, count)
    return Round(tuple(tokens), _provenance(draft, outcome)[:count], judged_up_to(stats, count))


def judged_up_to(stats: RoundStats, tokens: int) -> RoundStats:
    """Return the counts of a round cut to `tokens` tokens, with its draft cut as well."""
    if tokens > stats.accepted:  # with the target's own
        return stats
    written = stats.drafted - stats.copied
    return replace(stats, drafted=tokens, accepted=tokens, copied=max(0, tokens - written))


def _provenance(draft: Draft, outcome: VerifyOutcome) -> tuple[Provenance, ...]:
    """Return the provenance of each token of a round."""
    drafted = Provenance.PREPARED if draft.origin is DraftOrigin.AHEAD else Provenance.ACCEPTED
    whole = draft.tokens and outcome.accepted == len(draft.tokens)
    return (*[drafted] * outcome.accepted, Provenance.BONUS if whole else Provenance.TARGET)
