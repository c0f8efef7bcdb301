"""Prompt lookup: what followed the same tokens earlier in the text as a draft, alone or beside a model's.

A copied token costs no draft step. It is a proposal without chance, its q is one-hot: whether it is sent may
depend on the text and on drafted tokens before it that are judged in any case, never on one that is not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from localspec.decoding.constraint import TokenRules
from localspec.decoding.drafters.drafter import Drafter, common_prefix
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.policy import AcceptanceBins, SpeculationPolicy
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome
from localspec.types.request import EngineSettings

SHORTEST_MATCH = 3  # tokens that must repeat before what followed them is worth a draft
LONGEST = 32  # tokens of a draft that ends in copied ones, where the draft model may write fewer
_LONGEST_MATCH = 32
_OCCURRENCES_TRIED = 64


def longest_draft(settings: EngineSettings) -> int:
    """Return how many tokens the target may have to judge at once, beside its own."""
    if settings.fallback == "ngram" and settings.mode in {"sd", "ssd"}:
        return max(settings.draft_length, LONGEST)
    return settings.draft_length


class SuffixIndex:
    """The earlier occurrences of what the text ends with.

    Every run of `minimum` tokens points at the run before it that is equal, so that
    a token is added and taken back in constant time, and a match of any length is found along the chain.
    """

    def __init__(self, minimum: int = 3) -> None:
        self._minimum = minimum
        self.rules: TokenRules | None = None
        """What the text has to follow: what it refuses is not proposed."""
        self._tokens: list[int] = []
        self._before: list[int | None] = []  # for the run that ends here: the end of the equal run before
        self._latest: dict[bytes, int] = {}  # run -> its last end

    def __len__(self) -> int:
        return len(self._tokens)

    def sync(self, tokens: Sequence[int]) -> None:
        """Hold exactly `tokens`, keeping what is already there of them."""
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
        has been repeating itself goes on doing so. Without an occurrence the answer is `((), 0)`.
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
        """Return what `propose` would if the text went on with some tokens; it stays as it is."""
        held = len(self._tokens)
        self.extend(tokens)
        found = self.propose(limit)
        self.truncate(held)
        return found

    def _run(self, end: int) -> bytes:  # tuples, one for each token, would hold up a garbage collection
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
                best, longest = candidate, length
            candidate = self._before[candidate]
        return best, longest

    def _match_length(self, end: int) -> int:
        """Return how far back the text up to `end` equals the text's own end."""
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
        self._sent, self._confidences = (), []

    def draft(self, limit: int) -> Draft:
        """Propose what must follow, else the continuation of the longest repeated ending if it pays."""
        if forced := self._index.forced()[:limit]:
            self._sent = forced
            return Draft(forced, None, DraftOrigin.NGRAM)
        tokens, matched = self._index.propose(limit)
        if matched < SHORTEST_MATCH:
            return Draft()
        confidences = [1.0 - 1.0 / (matched + position) for position in range(len(tokens))]
        length = self._policy.length_to_send(confidences, limit)
        self._sent, self._confidences = tokens[:length], confidences[:length]
        return Draft(self._sent, None, DraftOrigin.NGRAM) if length else Draft()


@dataclass(frozen=True, slots=True)
class LookupDraft:
    """What the text goes on with, as it did before, behind `start` drafted tokens."""

    start: int = 0
    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    length: int = 0  # that pays
    value_s: float = 0.0  # seconds that so many tokens save

    @property
    def sent(self) -> tuple[int, ...]:
        """Return the tokens that pay."""
        return self.tokens[: self.length]


class PromptLookupStats:
    """What was learned about copied tokens and the model's drafts beside them; it outlives answers."""

    def __init__(self) -> None:
        self.repeated = AcceptanceBins()  # copied tokens, by length of the match
        self.behind = AcceptanceBins(refines=True)  # those behind what a model wrote
        self.chosen = AcceptanceBins(refines=True)  # the model beside a copy, taking the best token
        self.drawn = AcceptanceBins(refines=True)  # the same, drawing from q


class PromptLookup:
    """What can be copied from a text as drafts, and what they are worth beside those of a model.

    Such a draft is there whether it is sent or not, so every text that follows one tells how good it was.
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
        """Return the draft at the end of the text, of which at most `limit` tokens pay."""
        found = self.behind((), limit)
        self._found = [found]
        return found

    def behind(self, proposals: Sequence[Proposal], limit: int) -> LookupDraft:
        """Return the draft behind some drafted tokens; a draft has at most `limit`."""
        start, reach = len(proposals), prod(chances_of(self._policy, proposals))
        drafted = [proposal.token for proposal in proposals]
        tokens, matched = self._index.propose_after(drafted, limit - start)
        if matched < SHORTEST_MATCH:
            return LookupDraft(start)
        confidences = [1.0 - SHORTEST_MATCH / (matched + 1 + position) for position in range(len(tokens))]
        chances = [self._lookup_stats.repeated.chance(confidence) for confidence in confidences]
        if start:
            chances = list(map(self._lookup_stats.behind.chance, confidences, chances))
        values = values_of(self._policy, ((chance, 0.0) for chance in chances), start, reach)
        most = max(values)
        return LookupDraft(start, tokens, tuple(confidences), values.index(most), most)

    def beaten(
        self, found: LookupDraft, length: int, ready: Sequence[Proposal] = (), delay_s: float = 0.0
    ) -> bool:
        """Tell whether a draft of the model, up to a length, should be worth as much as a copy.

        Where none of it is `ready`, it begins after a delay. What the model has to read of the text before is
        not counted: some draft has to wait for that in any case.
        Of a drawn one nothing counts but what was known before its first token was drawn: neither the
        confidences that follow nor how much is ready, as that depends on them.
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
        """Return what to send behind all that the model wrote, of which it would send so many tokens alone.

        What was cut off for being unsure stays so, unless a deterministic draft pays as a whole: a copy
        depends on the tokens before it, and where they are drawn it must not decide whether they are judged.
        """
        may_span = self._policy.deterministic and self._policy.min_confidence is None
        if not written or (sent < len(written) and not may_span):
            return ()
        found = self.behind(written, limit)
        self._found.append(found)
        if sent < len(written):
            values, _ = self._policy.values([proposal.confidence for proposal in written])
            if values[-1] + found.value_s <= max(values):
                return ()
        return found.sent

    def commit(self, sent: Sequence[int], written: int, outcome: VerifyOutcome) -> None:
        """Learn from the verdict on a draft, of which the model wrote so many tokens."""
        new = [*sent[: outcome.accepted], outcome.bonus]
        for found in self._found:
            following = new[found.start :]
            right = common_prefix(found.tokens, following)
            known = self._lookup_stats.behind if found.start else self._lookup_stats.repeated
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
