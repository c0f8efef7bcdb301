"""Who writes the draft: nobody, the draft model, or a repetition in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.decoding.drafters.draft_state import DraftState
from localspec.decoding.drafters.prompt_lookup import SuffixIndex
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.policy import SpeculationPolicy
from localspec.types import Draft, DraftOrigin, VerifyOutcome

SHORTEST_MATCH = 3  # tokens that must repeat before their continuation is worth a guess


class Drafter(Protocol):
    """Propose tokens; the loop calls `begin` once, then `commit` and `draft` in turn, then `end`."""

    busy_s: float
    """Native seconds of the draft model so far, while the target waited."""
    wait_s: float
    """Other seconds that the target waited for a draft."""

    @property
    def ahead_s(self) -> float:
        """Return the native seconds of the draft model so far, while the target did not wait."""
        ...

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; the verdict on an empty draft follows."""
        ...

    def commit(self, outcome: VerifyOutcome) -> None:
        """Take the verdict on the last draft."""
        ...

    def draft(self, limit: int) -> Draft:
        """Propose at most `limit` tokens after the committed text."""
        ...

    def end(self) -> None:
        """Stop all work; safe after an error."""
        ...


def draft_of(proposals: Sequence[Proposal], origin: DraftOrigin) -> Draft:
    """Return the draft that consists of some proposals, possibly none."""
    q = tuple(proposal.q for proposal in proposals if proposal.q is not None)
    return Draft(tuple(proposal.token for proposal in proposals), q or None, origin)


class NoDrafter:
    """Never propose anything: plain decoding."""

    busy_s = 0.0
    wait_s = 0.0
    ahead_s = 0.0

    def begin(self, text: Sequence[int]) -> None:
        """Do nothing."""

    def commit(self, outcome: VerifyOutcome) -> None:
        """Do nothing."""

    def draft(self, limit: int) -> Draft:
        """Return the empty draft."""
        return Draft()

    def end(self) -> None:
        """Do nothing."""


class ModelDrafter:
    """Draft with a small model while the target waits: speculative decoding."""

    def __init__(self, trunk: DraftState, pace: SpeculationPolicy, proposer: Proposer) -> None:
        self._trunk = trunk
        self._pace = pace
        self._proposer = proposer
        self._sent: list[float] = []
        self.busy_s = 0.0
        self.wait_s = 0.0
        self.ahead_s = 0.0

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; it is read when the first draft is wanted."""
        self._trunk.begin(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict and follow it."""
        self._pace.calibration.observe(self._sent, outcome.accepted)
        self._sent = []
        self._trunk.settle(outcome)

    def draft(self, limit: int) -> Draft:
        """Draft as long as it pays."""
        return draft_of(self._written(limit), DraftOrigin.FRESH)

    def _written(self, limit: int) -> list[Proposal]:
        """Let the model write, and return what the target should judge of it."""
        trunk = self._trunk
        before = trunk.model.busy_s
        self._extend(limit)
        self.busy_s += trunk.model.busy_s - before
        sent = trunk.proposals[: self._pace.length_to_send(trunk.confidences(), limit)]
        self._sent = [proposal.confidence for proposal in sent]
        return sent

    def _extend(self, limit: int) -> None:
        self._trunk.extend_while_worth(self._pace, self._proposer, limit)

    def end(self) -> None:
        """Do nothing: the cache is kept for the next answer."""


class PromptLookupDrafter:
    """Propose what followed the same words earlier in the text."""

    def __init__(self, pace: SpeculationPolicy, index: SuffixIndex) -> None:
        self._pace = pace
        self._index = index
        self._sent: tuple[int, ...] = ()
        self._confidences: list[float] = []
        self.busy_s = 0.0
        self.wait_s = 0.0
        self.ahead_s = 0.0

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt."""
        self._index.sync(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict and follow it."""
        self._pace.calibration.observe(self._confidences, outcome.accepted)
        self._index.extend([*self._sent[: outcome.accepted], outcome.bonus])
        self._sent, self._confidences = (), []

    def draft(self, limit: int) -> Draft:
        """Propose the continuation of the longest repeated ending, as far as it pays."""
        self._sent, self._confidences = repetition(self._index, self._pace, limit)
        return Draft(self._sent, None, DraftOrigin.NGRAM) if self._sent else Draft()

    def end(self) -> None:
        """Do nothing: the index is kept for the next answer."""


def repetition(
    index: SuffixIndex, pace: SpeculationPolicy, limit: int
) -> tuple[tuple[int, ...], list[float]]:
    """Return an n-gram draft with a confidence for each token: the longer the match, the higher."""
    tokens, matched = index.propose(limit)
    if matched < SHORTEST_MATCH:
        return (), []
    confidences = [1.0 - 1.0 / (matched + position) for position in range(len(tokens))]
    length = pace.length_to_send(confidences, limit)
    return tokens[:length], confidences[:length]
