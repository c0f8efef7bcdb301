"""Draft ahead of time, while the target verifies: speculative speculative decoding (SSD).

The caller looks an outcome up and answers itself; the draft worker follows later. The two share nothing but
the prepared branches, which only grow, and two queues.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from localspec.decoding.drafters.drafter import Drafter, DraftState, draft_of
from localspec.decoding.drafters.prompt_lookup import PromptLookup
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.drafters.speculation_cache import Branch, SpeculationCache
from localspec.decoding.policy import SpeculationPolicy
from localspec.types.drafts import Draft, DraftOrigin, VerifyOutcome
from localspec.types.request import EngineSettings


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What the target decided `at` a time, and what the caller did about it."""

    outcome: VerifyOutcome
    at: float
    sent: int | None  # so many prepared tokens went to the target; None asks for a draft
    limit: int = 0  # of the draft that is asked for
    copied: tuple[int, ...] = ()  # tokens of the text that went to the target behind them


@dataclass(frozen=True, slots=True)
class CopiedTokens:
    """Tokens of the text that go to the target behind the draft that was asked for, `at` a time."""

    tokens: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class DraftReply:
    """The draft that was asked for."""

    proposals: tuple[Proposal, ...]
    whole: bool  # nothing was cut off for being unsure
    prepared: bool
    busy_s: float


class DraftWorker:
    """The draft model's side, in a thread: follow verdicts, draft when asked, prepare outcomes in between.

    Its caller puts into `inbox`, gets from `outbox`, and reads the other public attributes.
    """

    def __init__(
        self, state: DraftState, policy: SpeculationPolicy, proposer: Proposer, settings: EngineSettings
    ) -> None:
        self.state = state
        self.policy = policy
        self._proposer = proposer
        self.cache = SpeculationCache(state, policy, proposer, settings)
        self.inbox: SimpleQueue[VerifyResult | CopiedTokens | None] = SimpleQueue()
        self.outbox: SimpleQueue[DraftReply | BaseException] = SimpleQueue()
        self.prompt_read = False
        self.prepared: tuple[int, dict[VerifyOutcome, Branch]] = (-1, {})  # for the round of this number
        self.failure: BaseException | None = None
        self._judged = 0
        self._thread: threading.Thread | None = None

    def start(self, text: Sequence[int]) -> None:
        """Begin to work on an answer to a prompt."""
        self._thread = threading.Thread(target=self._run, args=(list(text),), name="drafter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all work; what was read stays for the next answer."""
        if self._thread is None:
            return
        self.state.model.cancel()
        self.inbox.put(None)
        self._thread.join()
        self._thread = None
        self.state.model.resume()

    def _run(self, text: list[int]) -> None:
        try:
            self.work(text)
        except BaseException as error:  # noqa: BLE001  whatever it is, it must reach the caller
            self.failure = error  # whether it waits now or asks later
            self.outbox.put(error)

    def work(self, text: Sequence[int]) -> None:
        """Read a prompt, and do what the inbox says until it says None."""
        try:
            self.state.begin(text)
            self.open_round(0, math.inf)
            busy = True
            while True:
                if busy and self.inbox.empty():
                    busy = self.cache.step()
                    self.prompt_read = True
                    continue
                message = self.inbox.get()
                if message is None:
                    return
                if isinstance(message, CopiedTokens):  # the round begins again with more tokens
                    self._read(message.tokens, self._judged)
                    self.open_round(self._judged + len(message.tokens), message.at)
                else:
                    self._follow(message)
                busy = True
        finally:
            self.cache.gather()

    def _follow(self, verdict: VerifyResult) -> None:
        state = self.state
        prepared = self.cache.settle(verdict.outcome)
        sent, since = verdict.sent, verdict.at
        if sent is None:
            before = state.model.busy_s
            state.extend_while_worth(self.policy, self._proposer, verdict.limit)
            sent = self.policy.length_to_send(state.confidences(), verdict.limit)
            whole = sent == min(len(state.proposals), verdict.limit)
            busy_s = state.model.busy_s - before
            self.reply(DraftReply(tuple(state.proposals[:sent]), whole, prepared, busy_s))
            since = state.clock()
        self._read(verdict.copied, sent)
        self.open_round(sent + len(verdict.copied), since)

    def reply(self, reply: DraftReply) -> None:
        """Hand the caller the draft that it waits for."""
        self.outbox.put(reply)

    def _read(self, copied: tuple[int, ...], after: int) -> None:
        """Let copied tokens follow the first proposals; unread if the round is over already."""
        if copied and self.inbox.empty():
            self.state.adopt(copied, self._proposer, after)
        elif copied:
            self.state.take(copied, after)

    def open_round(self, sent: int, since: float) -> None:
        """Prepare for the verdict on the first proposals, which are verified `since` then."""
        self._judged = sent
        self.cache.open_round(sent, since)
        self.prepared = (self.prepared[0] + 1, self.cache.branches)


class SSDDrafter(Drafter):
    """Answer with prepared drafts; draft just in time, or copy from the text, where none was prepared."""

    def __init__(
        self,
        worker: DraftWorker,
        draft_length: int,
        lookup: PromptLookup | None = None,
        *,
        reads_late: bool = False,
    ) -> None:
        """Take the draft model's side, and what may stand in for its drafts or go on behind them.

        Where it `reads_late`, it begins with the prompt after the first token, which then comes sooner.
        """
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
        self._reads_late = reads_late
        self._unread: Sequence[int] | None = None  # the prompt, for later
        self._busy_before_s = worker.state.model.busy_s

    @property
    def ahead_s(self) -> float:
        """Return the native seconds of the draft model so far, while the target did not wait."""
        return self.worker.state.model.busy_s - self._busy_before_s - self.busy_s

    def begin(self, text: Sequence[int]) -> None:
        """Let the draft model read the prompt while the target does, or soon."""
        if self._lookup is not None:
            self._lookup.begin(text)
        if self._reads_late:
            self._unread = list(text)
        else:
            self.worker.start(text)

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict."""
        if self._unread is not None:
            self.worker.start(self._unread)
            self._unread = None
        self._policy.calibration.observe([proposal.confidence for proposal in self._sent], outcome.accepted)
        if self._lookup is not None:
            self._lookup.commit(self._tokens, len(self._sent), outcome)
        self._outcome = outcome
        self._sent, self._tokens = [], ()

    def draft(self, limit: int) -> Draft:
        """Return the prepared draft for the last verdict, or get one."""
        draft = self.look_up(limit)
        return self.take(self.worker.outbox.get()) if draft is None else draft

    def look_up(self, limit: int) -> Draft | None:
        """Return the draft that can be sent at once after the last verdict, or ask the worker for one."""
        if self.worker.failure is not None:
            raise self.worker.failure
        assert self._outcome is not None
        self._limit, outcome = limit, self._outcome
        length = min(limit, self._length)
        draft = self._copied(outcome, limit, length)
        if draft is None and not self.worker.prompt_read:  # until then the target goes on alone
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

    def take(self, reply: DraftReply | BaseException) -> Draft:
        """Return the draft that the worker was asked for."""
        if isinstance(reply, BaseException):
            raise reply
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
        """Tell the worker what is sent: so many prepared tokens, and copied ones behind them."""
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
        """Return how long it takes until the draft model can begin."""
        return max(0.0, self.worker.cache.busy_until - self._clock())

    def _copied(self, outcome: VerifyOutcome, limit: int, length: int) -> Draft | None:
        """Copy from the text if that is worth more than what the draft model has or would have."""
        if self._lookup is None:
            return None
        found = self._lookup.first(limit)
        branch = self._branch(outcome)
        if not self.worker.prompt_read:
            beaten = not found.length
        elif branch is None:
            beaten = self._lookup.beaten(found, length, delay_s=self._delay_s())
        else:
            beaten = self._lookup.beaten(found, length, branch.proposals[:length])
        if beaten:
            return None
        self._tell(outcome, 0, found.sent)
        return Draft(found.sent, None, DraftOrigin.NGRAM)

    def _continuation(self, ready: Sequence[Proposal], sent: int) -> tuple[int, ...]:
        return self._lookup.continuation(ready, sent, self._limit) if self._lookup is not None else ()

    def end(self) -> None:
        """Stop the worker; its cache stays for the next answer."""
        self.worker.stop()
