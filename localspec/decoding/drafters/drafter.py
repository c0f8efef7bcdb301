"""Who writes the draft: nobody, or the draft model while the target waits; and the draft model's own text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.model import LanguageModel
from localspec.decoding.policy import SpeculationPolicy
from localspec.types import Draft, DraftOrigin, VerifyOutcome


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


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens two texts share."""
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


class DraftState:
    """Sequence 0 of a draft model: the committed text, and proposals that follow it; it outlives answers.

    `text` ends with the token that the target has not read yet; `proposals[i]` follows it and i proposals.
    The cache holds a prefix of it all, usually all but the last proposal.
    """

    def __init__(self, model: LanguageModel, clock: Callable[[], float] = time.perf_counter) -> None:
        self.model = model
        self.clock = clock
        self.text: list[int] = []
        self.proposals: list[Proposal] = []
        self._last_token = model.vocabulary_size - 1

    def begin(self, text: Sequence[int]) -> None:
        """Start from a new text; what the caches hold of it stays, in every sequence."""
        held = self.whole()[: self.model.length()]
        kept = min(common_prefix(held, text), max(len(text) - 1, 0))
        for sequence in range(self.model.max_sequences):
            if self.model.length(sequence) > kept:
                self.model.truncate(kept, sequence)
        self.text, self.proposals = list(text), []

    def whole(self) -> list[int]:
        """Return the text with the proposals."""
        return self.text + [proposal.token for proposal in self.proposals]

    def missing(self) -> list[int]:
        """Return the end of the whole, which the cache does not hold yet."""
        held = self.model.length() - len(self.text)
        missing = [] if held >= 0 else self.text[held:]
        missing += [proposal.token for proposal in self.proposals[max(held, 0) :]]
        last = self._last_token  # a target may have a few ids more, to fill up its matrices
        return missing if max(missing, default=0) <= last else [min(token, last) for token in missing]

    def confidences(self) -> list[float]:
        """Return the confidence of each proposal."""
        return [proposal.confidence for proposal in self.proposals]

    def unsent(self, sent: int) -> Proposal:
        """Return the proposal behind those that are sent to the target, which nobody will judge."""
        return self.proposals[sent]

    def extend(self, policy: SpeculationPolicy, proposer: Proposer) -> None:
        """Draft one more token."""
        missing = self.missing()
        started = self.clock()
        rows = self.model.evaluate(missing)
        self.proposals += proposer.propose(rows, [self.whole()] if proposer.needs_history else None)
        if len(missing) == 1:
            policy.step.observe(1, self.clock() - started)

    def extend_while_worth(self, policy: SpeculationPolicy, proposer: Proposer, limit: int) -> None:
        """Draft until the next token would cost more than it is expected to earn."""
        while policy.worth_drafting(self.confidences(), limit):
            self.extend(policy, proposer)

    def take(self, tokens: Sequence[int], after: int = 0) -> None:
        """Let somebody else's tokens follow the first proposals; the model reads them when it drafts."""
        taken = [Proposal(token, 0.0, (), None) for token in tokens]
        self.proposals = [*self.proposals[:after], *taken]
        self.model.truncate(min(self.model.length(), len(self.text) + after - 1))

    def adopt(self, tokens: Sequence[int], proposer: Proposer, after: int = 0) -> None:
        """Let somebody else's tokens follow the first proposals, and look beyond their end."""
        self.take(tokens, after)
        whole, start = self.whole(), len(self.text) + after
        rows = self.model.evaluate(self.missing(), logits=len(tokens) + 1)
        histories = [whole[: start + index] for index in range(len(tokens) + 1)]
        own = proposer.propose(rows, histories if proposer.needs_history else None)
        judged = [
            Proposal(token, proposal.confidence, proposal.guesses, None)
            for token, proposal in zip(tokens, own, strict=False)
        ]
        self.proposals = [*self.proposals[:after], *judged, own[-1]]

    def settle(self, outcome: VerifyOutcome) -> None:
        """Commit the verdict; proposals behind it stay if the bonus token was proposed too."""
        accepted, bonus = outcome.accepted, outcome.bonus
        proposals = self.proposals
        self.text += [proposal.token for proposal in proposals[:accepted]]
        self.text.append(bonus)
        if accepted < len(proposals) and proposals[accepted].token == bonus:
            self.proposals = proposals[accepted + 1 :]
        else:
            self.proposals = []
            self.model.truncate(min(self.model.length(), len(self.text) - 1))


class NoDrafter:
    """Never propose anything: plain decoding; also what drafters have in common that need no thread."""

    def __init__(self) -> None:
        self.busy_s = self.wait_s = self.ahead_s = 0.0

    def begin(self, text: Sequence[int]) -> None:
        """Do nothing."""

    def commit(self, outcome: VerifyOutcome) -> None:
        """Do nothing."""

    def draft(self, limit: int) -> Draft:
        """Return the empty draft."""
        return Draft()

    def end(self) -> None:
        """Do nothing: what was read is kept for the next answer."""


class ModelDrafter(NoDrafter):
    """Draft with a small model while the target waits: speculative decoding."""

    def __init__(self, draft_state: DraftState, policy: SpeculationPolicy, proposer: Proposer) -> None:
        super().__init__()
        self._draft_state = draft_state
        self._policy = policy
        self._proposer = proposer
        self._sent: list[float] = []

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; it is read when the first draft is wanted."""
        self._draft_state.begin(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict and follow it."""
        self._policy.calibration.observe(self._sent, outcome.accepted)
        self._sent = []
        self._draft_state.settle(outcome)

    def draft(self, limit: int) -> Draft:
        """Draft as long as it pays."""
        return draft_of(self._written(limit), DraftOrigin.FRESH)

    def _written(self, limit: int) -> list[Proposal]:
        """Let the model write, and return what the target should judge of it."""
        state = self._draft_state
        before = state.model.busy_s
        state.extend_while_worth(self._policy, self._proposer, limit)
        self.busy_s += state.model.busy_s - before
        sent = state.proposals[: self._policy.length_to_send(state.confidences(), limit)]
        self._sent = [proposal.confidence for proposal in sent]
        return sent
