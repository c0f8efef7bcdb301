"""Prompt lookup: drafts copied from earlier text after the same tokens, alone or next to a model's.

A copied token costs no draft step. It is deterministic, its q is one-hot: whether it is sent may depend on
the text and on earlier draft tokens that are verified in any case, never on one that is not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from localspec.decoding.constraint import TokenRules
from localspec.decoding.drafters.drafter import Drafter
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.policy import AcceptanceBins, SpeculationPolicy
from localspec.decoding.prefixes import common_prefix
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome
from localspec.types.request import EngineSettings

SHORTEST_MATCH = 3  # tokens that must repeat before their continuation is worth a draft
LONGEST = 32  # tokens of a draft that ends in copied ones, where the draft model may write fewer
_LONGEST_MATCH = 32
_OCCURRENCES_TRIED = 64


def longest_draft(settings: EngineSettings) -> int:
    """Return the largest number of draft tokens in one verification."""
    if settings.fallback == "ngram" and settings.mode in {"sd", "ssd"}:
        return max(settings.draft_length, LONGEST)
    return settings.draft_length


class SuffixIndex:
    """The earlier occurrences of the end of the text.

    Every run of `minimum` tokens points at the run before it that is equal, so that
    a token is added and taken back in constant time, and a match of any length is found along the chain.
    """

    def __init__(self, minimum: int = 3) -> None:
        self._minimum = minimum
        self.rules: TokenRules | None = None
        """The constraint of the text: banned tokens are not proposed."""
        self._tokens: list[int] = []
        self._before: list[int | None] = []  # for the run that ends here: the end of the equal run before
        self._latest: dict[bytes, int] = {}  # run -> its last end

    def __len__(self) -> int:
        return len(self._tokens)

    def sync(self, tokens: Sequence[int]) -> None:
        """Change the text to `tokens`, reusing the common prefix."""
        held = len(self._tokens)
        tokens = list(tokens)
        if tokens[:held] != self._tokens:
            self.truncate(common_prefix(self._tokens, tokens))
        self.extend(tokens[len(self._tokens) :])

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._tokens.append(token)
            end = len(self._tokens) - 1
            run = self._run(end)
            self._before.append(self._latest.get(run) if run else None)
            if run:
                self._latest[run] = end

    def truncate(self, length: int) -> None:
        """Forget the tokens from position `length` on."""
        for end in range(len(self._tokens) - 1, length - 1, -1):
            run = self._run(end)
            before = self._before.pop()
            if before is not None:
                self._latest[run] = before
            elif run:
                del self._latest[run]
            self._tokens.pop()

    def propose(self, limit: int) -> tuple[tuple[int, ...], int]:
        """Return up to `limit` tokens that may follow, and the length of the match that says so.

        They follow the most recent of the longest earlier occurrences of the text's end; a text that
        has been repeating itself continues doing so. Without an occurrence the answer is `((), 0)`.
        """
        source, length = self._longest_match()
        if source is None or limit < 1:
            return (), 0
        period = len(self._tokens) - 1 - source
        following = self._tokens[source + 1 : source + 1 + limit]
        proposed = tuple(following[place % period] for place in range(limit))
        if self.rules is not None:
            proposed = proposed[: self.rules.accepts(self._tokens, proposed)]
        return proposed, length

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow."""
        return () if self.rules is None else tuple(self.rules.forced(self._tokens))

    def propose_after(self, tokens: Sequence[int], limit: int) -> tuple[tuple[int, ...], int]:
        """Return the result of `propose` for the text continued with `tokens`; the text does not change."""
        held = len(self._tokens)
        self.extend(tokens)
        found = self.propose(limit)
        self.truncate(held)
        return found

    def _run(self, end: int) -> bytes:  # tuples, one per token, would slow down garbage collection
        start = end + 1 - self._minimum
        return array("i", self._tokens[start : end + 1]).tobytes() if start >= 0 else b""

    def _longest_match(self) -> tuple[int | None, int]:
        best: int | None = None
        longest = 0
        candidate = self._before[-1] if self._before else None
        for _ in range(_OCCURRENCES_TRIED):
            if candidate is None or longest >= _LONGEST_MATCH:
                break
            length = self._match_length(candidate)
            if length > longest:
                best = candidate
                longest = length
            candidate = self._before[candidate]
        return best, longest

    def _match_length(self, end: int) -> int:
        """Return the length of the match between the text up to `end` and the end of the text."""
        tokens = self._tokens
        length = self._minimum
        while length < _LONGEST_MATCH and length <= end and tokens[end - length] == tokens[-1 - length]:
            length += 1
        return length


class PromptLookupDrafter(Drafter):
    """Propose what followed the same tokens earlier in the text."""

    def __init__(self, policy: SpeculationPolicy, index: SuffixIndex) -> None:
        super().__init__()
        self._policy = policy
        self._index = index
        self._sent: tuple[int, ...] = ()
        self._confidences: list[float] = []

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt."""
        self._index.sync(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict and follow it."""
        self._policy.calibration.observe(self._confidences, outcome.accepted)
        self._index.extend([*self._sent[: outcome.accepted], outcome.bonus])
        self._sent = ()
        self._confidences = []

    def draft(self, limit: int) -> Draft:
        """Propose forced tokens, else the continuation of the longest repeated ending if that is worth it."""
        if forced := self._index.forced()[:limit]:
            self._sent = forced
            return Draft(forced, None, DraftOrigin.NGRAM)
        tokens, matched = self._index.propose(limit)
        if matched < SHORTEST_MATCH:
            return Draft()
        confidences = [1.0 - 1.0 / (matched + position) for position in range(len(tokens))]
        length = self._policy.length_to_send(confidences, limit)
        self._sent = tokens[:length]
        self._confidences = confidences[:length]
        return Draft(self._sent, None, DraftOrigin.NGRAM) if length else Draft()


@dataclass(frozen=True, slots=True)
class LookupDraft:
    """A copied continuation of the text, after `start` draft tokens."""

    start: int = 0
    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    length: int = 0  # worth sending
    value_s: float = 0.0  # seconds that these tokens save

    @property
    def sent(self) -> tuple[int, ...]:
        """Return the tokens that are worth sending."""
        return self.tokens[: self.length]


class PromptLookupStats:
    """Acceptance statistics of copied tokens and of the model's drafts next to them; they outlive answers."""

    def __init__(self) -> None:
        self.repeated = AcceptanceBins()  # copied tokens, by length of the match
        self.after_draft = AcceptanceBins(refines=True)  # copies after a model's draft
        self.chosen = AcceptanceBins(refines=True)  # the model beside a copy, taking the best token
        self.drawn = AcceptanceBins(refines=True)  # the same, drawing from q


class PromptLookup:
    """Drafts copied from a text, and their value next to a model's drafts.

    Such a draft exists whether it is sent or not, so every following text shows how good it was.
    """

    def __init__(
        self, index: SuffixIndex, policy: SpeculationPolicy, lookup_stats: PromptLookupStats
    ) -> None:
        self._index = index
        self._policy = policy
        self._lookup_stats = lookup_stats
        self._beside = lookup_stats.chosen if policy.deterministic else lookup_stats.drawn
        self._found: list[LookupDraft] = []

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt."""
        self._index.sync(text)
        self._found = []

    def first(self, limit: int) -> LookupDraft:
        """Return the draft at the end of the text, with at most `limit` tokens."""
        found = self.copy_after((), limit)
        self._found = [found]
        return found

    def copy_after(self, proposals: Sequence[Proposal], limit: int) -> LookupDraft:
        """Return the copied draft after some draft tokens; `limit` is for both together."""
        start = len(proposals)
        reach = prod(chances_of(self._policy, proposals))
        drafted = [proposal.token for proposal in proposals]
        tokens, matched = self._index.propose_after(drafted, limit - start)
        if matched < SHORTEST_MATCH:
            return LookupDraft(start)
        confidences = [1.0 - SHORTEST_MATCH / (matched + 1 + position) for position in range(len(tokens))]
        chances = [self._lookup_stats.repeated.chance(confidence) for confidence in confidences]
        if start:
            chances = list(map(self._lookup_stats.after_draft.chance, confidences, chances))
        values = values_of(self._policy, ((chance, 0.0) for chance in chances), start, reach)
        most = max(values)
        return LookupDraft(start, tokens, tuple(confidences), values.index(most), most)

    def model_draft_wins(
        self, found: LookupDraft, length: int, ready: Sequence[Proposal] = (), delay_s: float = 0.0
    ) -> bool:
        """Return whether a draft of the model, up to a length, is expected to be worth as much as a copy.

        If none of it is `ready`, it begins after a delay. The model's prefill before it is not counted: any
        draft has to wait for that. For a sampled draft, only facts before its first sampled token count:
        neither later confidences nor the amount that is ready, because that depends on them.
        """
        if not found.length:
            return True
        policy = self._policy
        usual = self._beside.chance(found.confidences[0], policy.calibration.mean)
        chances = chances_of(policy, ready)
        if ready and not policy.deterministic:
            chances = [chances[0], *[usual] * (length - 1)]
        further = [(chance, 0.0) for chance in chances]
        further += [(usual, policy.step(1))] * (length - len(further))
        reading_s = policy.step(found.length + 1) if ready else 0.0  # for the draft model to catch up
        return max(values_of(policy, further)) + reading_s - delay_s >= found.value_s

    def continuation(self, written: Sequence[Proposal], sent: int, limit: int) -> tuple[int, ...]:
        """Return the copy to append to the model's whole draft, of which `length` tokens would be sent alone.

        Uncertain tokens stay cut off, unless a deterministic draft is worth it as a whole: a copy depends on
        the tokens before it, and if those are sampled, it must not decide whether they are verified.
        """
        may_span = self._policy.deterministic and self._policy.min_confidence is None
        if not written or (sent < len(written) and not may_span):
            return ()
        found = self.copy_after(written, limit)
        self._found.append(found)
        if sent < len(written):
            values, _ = self._policy.values([proposal.confidence for proposal in written])
            if values[-1] + found.value_s <= max(values):
                return ()
        return found.sent

    def commit(self, sent: Sequence[int], written: int, outcome: VerifyOutcome) -> None:
        """Learn from the result of a draft with `own` tokens of the model."""
        new = [*sent[: outcome.accepted], outcome.bonus]
        for found in self._found:
            following = new[found.start :]
            right = common_prefix(found.tokens, following)
            known = self._lookup_stats.after_draft if found.start else self._lookup_stats.repeated
            known.observe(found.confidences[: len(following)], right)
        if self._found and self._found[0].confidences:
            self._beside.observe(self._found[0].confidences[:1] * written, outcome.accepted)
        self._found = []
        self._index.extend(new)


def values_of(
    policy: SpeculationPolicy, further: Iterable[tuple[float, float]], start: int = 0, reach: float = 1.0
) -> list[float]:
    """Return the seconds that 0, 1, ... all further tokens of a draft save.

    Each comes with its chance after those before it and the seconds that drafting it takes; the first
    `start` tokens of the draft are accepted with chance `reach`.
    """
    values = [0.0]
    for length, (chance, drafting_s) in enumerate(further, start + 1):
        reach *= chance
        values.append(values[-1] + policy.gain(reach, length) - drafting_s)
    return values


def chances_of(policy: SpeculationPolicy, proposals: Iterable[Proposal]) -> list[float]:
    """Return the chance of each proposal after those before it."""
    return [policy.calibration.chance(proposal.confidence) for proposal in proposals]
