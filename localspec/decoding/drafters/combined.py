"""A draft model and the repetitions in the text as one drafter: who is worth more at a place writes there.

A repetition costs no draft step. It is a proposal without chance, its q is one-hot: whether it is sent may
depend on the text and on drafted tokens before it that are judged in any case, never on one that is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from localspec.decoding.drafters.draft_state import DraftState, common_prefix
from localspec.decoding.drafters.drafter import SHORTEST_MATCH, ModelDrafter, draft_of
from localspec.decoding.drafters.prompt_lookup import SuffixIndex
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.policy import BINS, PRIOR_WEIGHT, AcceptanceCalibration, SpeculationPolicy
from localspec.types import Distribution, Draft, DraftOrigin, EngineSettings, VerifyOutcome

LONGEST = 32  # tokens of a draft that ends in a repetition, where the draft model may write fewer


def longest_draft(settings: EngineSettings) -> int:
    """Return how many tokens the target may have to judge at once, beside its own."""
    if settings.fallback == "ngram" and settings.mode in {"sd", "ssd"}:
        return max(settings.draft_length, LONGEST)
    return settings.draft_length


@dataclass(frozen=True, slots=True)
class Guess:
    """What a repetition goes on with after `start` drafted tokens."""

    start: int = 0
    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    length: int = 0  # that pays
    value_s: float = 0.0  # seconds that so many tokens save

    @property
    def sent(self) -> tuple[int, ...]:
        """Return the tokens that pay."""
        return self.tokens[: self.length]


class Refinement:
    """Chances of acceptance in a special case, by confidence; at first they are the usual ones."""

    def __init__(self) -> None:
        self._judged: Counter[int] = Counter()
        self._accepted: Counter[int] = Counter()

    def chance(self, confidence: float, usual: float) -> float:
        """Return the chance at a confidence, where it is usually another."""
        place = int(confidence * BINS)
        return (self._accepted[place] + PRIOR_WEIGHT * usual) / (self._judged[place] + PRIOR_WEIGHT)

    def observe(self, confidences: Sequence[float], accepted: int) -> None:
        """Learn from one verified draft; positions after the first rejection were not judged."""
        for position, confidence in enumerate(confidences[: accepted + 1]):
            self._judged[int(confidence * BINS)] += 1
            self._accepted[int(confidence * BINS)] += position < accepted


class PromptLookupStats:
    """What was learned about repetitions and the model's drafts beside them; it outlives answers."""

    def __init__(self) -> None:
        self.repeated = AcceptanceCalibration()  # repetitions, by length of the match
        self.behind = Refinement()  # those behind what a model wrote
        self.chosen = Refinement()  # the model where there is a repetition, taking the best token
        self.drawn = Refinement()  # the same, drawing from q


class PromptLookup:
    """The repetitions in a text as drafts, and what they are worth beside those of a model.

    A repetition is there whether it is sent or not, so every text that follows one tells how good it was.
    """

    def __init__(self, index: SuffixIndex, pace: SpeculationPolicy, learned: PromptLookupStats) -> None:
        self._index = index
        self._pace = pace
        self._learned = learned
        self._beside = learned.chosen if pace.deterministic else learned.drawn
        self._guesses: list[Guess] = []

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt."""
        self._index.sync(text)
        self._guesses = []

    def first(self, limit: int) -> Guess:
        """Return the guess at the end of the text, of which at most `limit` tokens pay."""
        guess = self.behind((), limit)
        self._guesses = [guess]
        return guess

    def behind(self, proposals: Sequence[Proposal], limit: int) -> Guess:
        """Return the guess behind some drafted tokens; a draft has at most `limit`."""
        start, reach = len(proposals), prod(chances_of(self._pace, proposals))
        drafted = [proposal.token for proposal in proposals]
        tokens, matched = self._index.propose_after(drafted, limit - start)
        if matched < SHORTEST_MATCH:
            return Guess(start)
        confidences = [1.0 - SHORTEST_MATCH / (matched + 1 + position) for position in range(len(tokens))]
        chances = ((self._repeated(start, confidence), 0.0) for confidence in confidences)
        length, value_s = most_worth(self._pace, chances, start, reach)
        return Guess(start, tokens, tuple(confidences), length, value_s)

    def _repeated(self, start: int, confidence: float) -> float:
        chance = self._learned.repeated.chance(confidence)
        return self._learned.behind.chance(confidence, chance) if start else chance

    def beaten(self, guess: Guess, length: int, delay_s: float = 0.0) -> bool:
        """Tell whether the model, asked for a draft up to a length, should be worth as much as a guess.

        It begins after a delay. What it has to read of the text before is not counted: some draft has to
        wait for that in any case.
        """
        if not guess.length:
            return True
        return most_worth(self._pace, self._usual(guess, length))[1] - delay_s >= guess.value_s

    def beaten_by(self, ready: Sequence[Proposal], guess: Guess, length: int) -> bool:
        """Tell whether a prepared draft, which may grow to a length, should be worth as much as a guess.

        Of a drawn one nothing counts but what was known before its first token was drawn: neither the
        confidences that follow nor how much is ready, as that depends on them.
        """
        if not guess.length:
            return True
        pace = self._pace
        chances = chances_of(pace, ready)
        if not pace.deterministic:
            chances = [chances[0], *[self._chance(guess)] * (length - 1)]
        written = [(chance, 0.0) for chance in chances]
        written += self._usual(guess, length - len(written))
        reading_s = pace.step(guess.length + 1)  # for the draft model to catch up
        return most_worth(pace, written)[1] + reading_s >= guess.value_s

    def _usual(self, guess: Guess, length: int) -> list[tuple[float, float]]:
        return [(self._chance(guess), self._pace.step(1))] * length

    def _chance(self, guess: Guess) -> float:
        """Return the chance that a token of the model is accepted where there is such a repetition."""
        return self._beside.chance(guess.confidences[0], self._pace.calibration.mean)

    def tail(self, written: Sequence[Proposal], sent: int, limit: int) -> tuple[int, ...]:
        """Return what to send behind all that the model wrote, of which it would send so many tokens alone.

        What was cut off for being unsure stays so, unless a deterministic draft pays as a whole: a tail
        depends on the tokens before it, and where they are drawn it must not decide whether they are judged.
        """
        if not written or (sent < len(written) and not self._may_span):
            return ()
        guess = self.behind(written, limit)
        self._guesses.append(guess)
        if sent < len(written):
            values = values_of(self._pace, ((chance, 0.0) for chance in chances_of(self._pace, written)))
            if values[-1] + guess.value_s <= max(values):
                return ()
        return guess.sent

    @property
    def _may_span(self) -> bool:
        return self._pace.deterministic and self._pace.min_confidence is None

    def commit(self, sent: Sequence[int], written: int, outcome: VerifyOutcome) -> None:
        """Learn from the verdict on a draft, of which the model wrote so many tokens."""
        new = [*sent[: outcome.accepted], outcome.bonus]
        for guess in self._guesses:
            following = new[guess.start :]
            right = common_prefix(guess.tokens, following)
            known = self._learned.behind if guess.start else self._learned.repeated
            known.observe(guess.confidences[: len(following)], right)
        if self._guesses and self._guesses[0].confidences:
            self._beside.observe(self._guesses[0].confidences[:1] * written, outcome.accepted)
        self._guesses = []
        self._index.extend(new)


def repetitions_of(
    settings: EngineSettings, index: SuffixIndex, pace: SpeculationPolicy, learned: PromptLookupStats
) -> PromptLookup | None:
    """Return the repetitions that may serve as drafts beside the model's, if they should."""
    return PromptLookup(index, pace, learned) if settings.fallback == "ngram" else None


def most_worth(
    pace: SpeculationPolicy, further: Iterable[tuple[float, float]], start: int = 0, reach: float = 1.0
) -> tuple[int, float]:
    """Return how many further tokens of a draft are worth most, and how many seconds they save."""
    values = values_of(pace, further, start, reach)
    most = max(values)
    return values.index(most), most


def values_of(
    pace: SpeculationPolicy, further: Iterable[tuple[float, float]], start: int = 0, reach: float = 1.0
) -> list[float]:
    """Return the seconds that 0, 1, ... all further tokens of a draft save.

    Each comes with its chance after those before it and the seconds that drafting it takes; the first
    `start` tokens of the draft are accepted with chance `reach`.
    """
    values = [0.0]
    for length, (chance, drafting_s) in enumerate(further, start + 1):
        reach *= chance
        values.append(values[-1] + pace.gain(reach, length) - drafting_s)
    return values


def chances_of(pace: SpeculationPolicy, proposals: Iterable[Proposal]) -> list[float]:
    """Return the chance of each proposal after those before it."""
    return [pace.calibration.chance(proposal.confidence) for proposal in proposals]


def draft_with(proposals: Sequence[Proposal], tail: Sequence[int], origin: DraftOrigin) -> Draft:
    """Return the model's draft with a repetition behind it."""
    if not proposals or proposals[0].q is None:
        return Draft((*(proposal.token for proposal in proposals), *tail), None, origin, len(tail))
    added = [Proposal(token, 1.0, (), one_hot(token)) for token in tail]
    return replace(draft_of([*proposals, *added], origin), copied=len(tail))


def one_hot(token: int) -> Distribution:
    """Return what a token was drawn from that was not drawn at all."""
    return Distribution(np.array([token], np.int64), np.ones(1))


class CombinedDrafter(ModelDrafter):
    """Repeat the text where that pays more than asking the model, also behind what the model wrote."""

    def __init__(
        self,
        trunk: DraftState,
        pace: SpeculationPolicy,
        proposer: Proposer,
        repeats: PromptLookup,
        length: int,
    ) -> None:
        """Take the most tokens that the model may write; a draft with a repetition may be longer."""
        super().__init__(trunk, pace, proposer)
        self._repeats = repeats
        self._length = length
        self._limit = 0
        self._tokens: tuple[int, ...] = ()

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; it is read when the first draft of the model is wanted."""
        self._repeats.begin(text)
        super().begin(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict and follow it."""
        self._repeats.commit(self._tokens, len(self._sent), outcome)
        super().commit(outcome)

    def draft(self, limit: int) -> Draft:
        """Draft as long as it pays."""
        self._limit, length = limit, min(limit, self._length)
        guess = self._repeats.first(limit)
        # Proposals left from an earlier draft are not looked at: what was drawn would decide their fate.
        if not self._repeats.beaten(guess, length):
            self._trunk.take(guess.sent)
            draft = Draft(guess.sent, None, DraftOrigin.NGRAM)
        else:
            draft = self._continued(self._written(length))
        self._tokens = draft.tokens
        return draft

    def _continued(self, sent: list[Proposal]) -> Draft:
        """Return what the model wrote, with a repetition behind it if there is one that pays."""
        written = self._trunk.proposals
        tail = self._repeats.tail(written, len(sent), self._limit)
        if tail:
            sent = written
            self._sent = [proposal.confidence for proposal in written]
            self._trunk.take(tail, len(written))
        return draft_with(sent, tail, DraftOrigin.FRESH)
