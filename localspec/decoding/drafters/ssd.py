"""Draft ahead of time, while the target verifies: speculative speculative decoding (SSD)."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.drafters.draft_worker import (
    CopiedTokens,
    DraftReply,
    DraftWorker,
    ThreadedWorker,
    VerifyResult,
)
from localspec.decoding.drafters.drafter import Drafter, draft_of
from localspec.decoding.drafters.prompt_lookup import PromptLookup
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.drafters.speculation_cache import Branch
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome


class AheadDrafter(Drafter):
    """Answer with prepared drafts; ask for one, or copy from the text, where none was prepared.

    Waiting for a draft is left to others: `look_up` asks the worker for it, and `take` is given the reply.
    """

    def __init__(self, worker: DraftWorker, draft_length: int, lookup: PromptLookup | None = None) -> None:
        """Take the draft worker, and the copies that may replace or extend its drafts."""
        super().__init__()
        self.model_name = worker.state.model.name
        self.worker = worker
        self._policy = worker.policy
        self._clock = worker.state.clock
        self._lookup = lookup
        self._length = draft_length
        self._round = 0
        self._outcome: VerifyOutcome | None = None
        self._asked_at = 0.0
        self._limit = 0
        self._sent: list[Proposal] = []
        self._tokens: tuple[int, ...] = ()
        self._busy_before_s = worker.state.model.busy_s

    @property
    def ahead_s(self) -> float:
        """Return the native seconds of the draft model so far, while the target did not wait."""
        return self.worker.state.model.busy_s - self._busy_before_s - self.busy_s

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; the worker reads it by itself."""
        if self._lookup is not None:
            self._lookup.begin(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict."""
        self._policy.calibration.observe([proposal.confidence for proposal in self._sent], outcome.accepted)
        if self._lookup is not None:
            self._lookup.commit(self._tokens, len(self._sent), outcome)
        self._outcome = outcome
        self._sent = []
        self._tokens = ()

    def draft(self, limit: int) -> Draft:
        """Return the draft for the last verdict, waiting for it if need be."""
        raise NotImplementedError

    def look_up(self, limit: int) -> Draft | None:
        """Return the draft that can be sent at once after the last verdict, or ask the worker for one."""
        assert self._outcome is not None
        self._limit = limit
        outcome = self._outcome
        length = min(limit, self._length)
        draft = self._copied(outcome, limit, length)
        if draft is None and not self.worker.prompt_read:  # until then the target continues alone
            self._tell(outcome, 0)
            draft = Draft()
        if draft is None:
            draft = self._prepared(outcome, length)
        self._round += 1
        if draft is None:
            self._asked_at = self._clock()
            self.worker.inbox.put(VerifyResult(outcome, self._asked_at, None, length))
        else:
            self._tokens = draft.tokens
        return draft

    def take(self, reply: DraftReply) -> Draft:
        """Return the draft that the worker was asked for."""
        self.busy_s += reply.busy_s
        self.wait_s += self._clock() - self._asked_at - reply.busy_s
        self._sent = list(reply.proposals)
        copied = self._continuation(self._sent, len(self._sent)) if reply.whole else ()
        if copied:
            self._round += 1
            self.worker.inbox.put(CopiedTokens(copied, self._clock()))
        draft = draft_of(self._sent, DraftOrigin.AHEAD if reply.prepared else DraftOrigin.FRESH, copied)
        self._tokens = draft.tokens
        return draft

    def _tell(self, outcome: VerifyOutcome, sent: int, copied: tuple[int, ...] = ()) -> None:
        """Report to the worker what is sent: `sent` prepared tokens, followed by copied ones."""
        self.worker.inbox.put(VerifyResult(outcome, self._clock(), sent, copied=copied))

    def _branch(self, outcome: VerifyOutcome) -> Branch | None:
        """Return the branch prepared for the last verdict, if it has a token to send."""
        number, branches = self.worker.prepared
        branch = branches.get(outcome) if number == self._round else None
        return branch if branch is not None and branch.proposals else None

    def _prepared(self, outcome: VerifyOutcome, length: int) -> Draft | None:
        branch = self._branch(outcome)
        if branch is None:
            return None  # also if its first token is being drafted: that is worth the wait
        ready = branch.proposals[:length]
        confidences = [proposal.confidence for proposal in ready]
        if self._policy.worth_drafting(confidences, length, self._delay_s()):
            return None
        sent = self._policy.length_to_send(confidences, length)
        copied = self._continuation(ready, sent)
        self._sent = ready if copied else ready[:sent]
        self._tell(outcome, len(self._sent), copied)
        return draft_of(self._sent, DraftOrigin.AHEAD, copied)

    def _delay_s(self) -> float:
        """Return the time until the draft model can begin."""
        return max(0.0, self.worker.cache.busy_until - self._clock())

    def _copied(self, outcome: VerifyOutcome, limit: int, length: int) -> Draft | None:
        """Copy from the text if that is worth more than the draft model's present or expected draft."""
        if self._lookup is None:
            return None
        found = self._lookup.first(limit)
        branch = self._branch(outcome)
        if not self.worker.prompt_read:
            beaten = not found.length
        elif branch is None:
            beaten = self._lookup.model_draft_wins(found, length, delay_s=self._delay_s())
        else:
            beaten = self._lookup.model_draft_wins(found, length, branch.proposals[:length])
        if beaten:
            return None
        self._tell(outcome, 0, found.sent)
        return Draft(found.sent, None, DraftOrigin.NGRAM)

    def _continuation(self, ready: Sequence[Proposal], sent: int) -> tuple[int, ...]:
        return self._lookup.continuation(ready, sent, self._limit) if self._lookup is not None else ()


class SSDDrafter(AheadDrafter):
    """Draft ahead with a worker in a thread of its own."""

    def __init__(
        self,
        threaded: ThreadedWorker,
        draft_length: int,
        lookup: PromptLookup | None = None,
        *,
        reads_late: bool = False,
    ) -> None:
        """Take what `AheadDrafter` does.

        With `reads_late`, it starts its prefill after the first token, which then comes sooner.
        """
        super().__init__(threaded.worker, draft_length, lookup)
        self._threaded = threaded
        self._reads_late = reads_late
        self._unread: Sequence[int] | None = None  # the prompt, for later

    def begin(self, text: Sequence[int]) -> None:
        """Start the draft model's prefill while the target processes the prompt, or soon after."""
        super().begin(text)
        if self._reads_late:
            self._unread = list(text)
        else:
            self._threaded.start(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict."""
        if self._unread is not None:
            self._threaded.start(self._unread)
            self._unread = None
        super().commit(outcome)

    def draft(self, limit: int) -> Draft:
        """Return the prepared draft for the last verdict, or wait for one."""
        if self._threaded.failure is not None:
            raise self._threaded.failure
        draft = self.look_up(limit)
        return self.take(self._threaded.receive()) if draft is None else draft

    def end(self) -> None:
        """Stop the worker; its cache stays for the next answer."""
        self._threaded.stop()
