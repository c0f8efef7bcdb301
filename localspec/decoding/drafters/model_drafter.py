"""Draft with the draft model, or with a head, while the target waits: speculative decoding (SD)."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.drafters.drafter import Drafter, DraftState, draft_of
from localspec.decoding.drafters.prompt_lookup import PromptLookup
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.policy import SpeculationPolicy
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome


class ModelDrafter(Drafter):
    """Drafts as long as that saves time; copies earlier text where that saves more."""

    def __init__(
        self,
        draft_state: DraftState,
        policy: SpeculationPolicy,
        proposer: Proposer,
        draft_length: int,
        lookup: PromptLookup | None = None,
    ) -> None:
        """Take the most tokens that the model may write; a draft that ends in copied ones may be longer."""
        super().__init__()
        self.model_name = draft_state.model.name
        self._draft_state = draft_state
        self._policy = policy
        self._proposer = proposer
        self._length = draft_length
        self._lookup = lookup
        self._sent: list[Proposal] = []
        self._tokens: tuple[int, ...] = ()

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; it is read when the first draft of the model is wanted."""
        if self._lookup is not None:
            self._lookup.begin(text)
        self._draft_state.begin(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict and follow it."""
        self._policy.calibration.observe([proposal.confidence for proposal in self._sent], outcome.accepted)
        if self._lookup is not None:
            self._lookup.commit(self._tokens, len(self._sent), outcome)
        self._draft_state.apply_result(outcome)

    def draft(self, limit: int) -> Draft:
        """Draft as long as that saves time."""
        self._sent = []
        draft = self._copied(limit)
        if draft is None:
            self._sent = self._written(min(limit, self._length))
            draft = self._continued(limit)
        self._tokens = draft.tokens
        return draft

    def _copied(self, limit: int) -> Draft | None:
        """Copy from the text if that is worth more than the model's draft.

        Proposals left from an earlier draft are ignored: their sampled tokens would decide whether they are
        used.
        """
        if self._lookup is None:
            return None
        found = self._lookup.first(limit)
        if self._lookup.model_draft_wins(found, min(limit, self._length)):
            return None
        self._draft_state.take(found.sent)
        return Draft(found.sent, None, DraftOrigin.NGRAM)

    def _written(self, limit: int) -> list[Proposal]:
        """Draft with the model, and return the part for the target to verify."""
        state = self._draft_state
        before = state.model.busy_s
        state.extend_while_worth(self._policy, self._proposer, limit)
        self.busy_s += state.model.busy_s - before
        return state.proposals[: self._policy.length_to_send(state.confidences(), limit)]

    def _continued(self, limit: int) -> Draft:
        """Return the model's draft, followed by copied tokens if they are worth it."""
        written = self._draft_state.proposals
        copied = () if self._lookup is None else self._lookup.continuation(written, len(self._sent), limit)
        if copied:
            self._sent = written
            self._draft_state.take(copied, len(written))
        return draft_of(self._sent, DraftOrigin.FRESH, copied)


class HeadDrafter(ModelDrafter):
    """Draft as a draft model does; the first token of a draft is read with all that was accepted before."""

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; the head reads it along with the target."""
        super().begin(text)
        self._draft_state.model.follow(on=True)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Commit the result; later drafts are dropped because their cells are gone."""
        super().commit(outcome)
        self._draft_state.proposals = []

    def end(self) -> None:
        """Detach the head from the target."""
        self._draft_state.model.follow(on=False)
