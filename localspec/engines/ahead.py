"""Draft ahead of time, while the target verifies: speculative speculative decoding (SSD).

The caller looks an outcome up and answers itself; the drafter's thread follows later. The two share
nothing but the prepared branches, which only grow, and two queues.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeVar

from localspec.engines.costs import Pace
from localspec.engines.drafters import draft_of, repetition
from localspec.engines.ngram import SuffixIndex
from localspec.engines.prepare import Branch, Preparation
from localspec.engines.propose import Proposal, Proposer
from localspec.engines.trunk import Trunk
from localspec.types import Draft, DraftOrigin, EngineSettings, VerifyOutcome


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target decided `at` a time, and what the caller did about it."""

    outcome: VerifyOutcome
    at: float
    sent: int | None  # so many prepared tokens went to the target; None asks for a draft
    limit: int = 0  # of the draft that is asked for
    foreign: tuple[int, ...] = ()  # tokens from elsewhere that went to the target instead


@dataclass(frozen=True, slots=True)
class Reply:
    """The draft that was asked for."""

    proposals: tuple[Proposal, ...]
    prepared: bool
    busy_s: float


@dataclass(frozen=True, slots=True)
class _Ready:
    """The branches prepared for one round."""

    number: int
    branches: dict[VerifyOutcome, Branch]


Message = TypeVar("Message")


class Mailbox(Protocol[Message]):
    """What one side puts in, the other gets, in the same order."""

    def put(self, item: Message, /) -> None:
        """Add a message."""

    def get(self) -> Message:
        """Take the first message, waiting for it."""
        ...

    def empty(self) -> bool:
        """Tell whether there is no message."""
        ...


class AheadDrafter:
    """Answer with prepared drafts; draft just in time, or repeat the text, where none was prepared."""

    def __init__(
        self,
        trunk: Trunk,
        pace: Pace,
        proposer: Proposer,
        settings: EngineSettings,
        repeats: tuple[SuffixIndex, Pace] | None = None,
    ) -> None:
        """Take the draft model's trunk; `repeats` is the n-gram fallback with its own stopping rules."""
        self._trunk = trunk
        self._pace = pace
        self._proposer = proposer
        self._preparation = Preparation(trunk, pace, proposer, settings)
        self._repeats = repeats
        self._inbox: Mailbox[Verdict | None] = SimpleQueue()
        self._outbox: Mailbox[Reply | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._prompt_read = False
        self._ready = _Ready(0, {})
        self._round = 0
        self._outcome: VerifyOutcome | None = None
        self._asked_at = 0.0
        self._sent: list[Proposal] = []
        self._guessed: list[float] = []
        self._tokens: tuple[int, ...] = ()
        self.busy_s = 0.0
        self.wait_s = 0.0
        self._busy_before_s = trunk.model.busy_s

    # The caller's side.

    @property
    def ahead_s(self) -> float:
        """Return the native seconds of the draft model so far, while the target did not wait."""
        return self._trunk.model.busy_s - self._busy_before_s - self.busy_s

    def begin(self, text: Sequence[int]) -> None:
        """Let the drafter read the prompt while the target does."""
        if self._repeats is not None:
            self._repeats[0].sync(text)
        self._thread = threading.Thread(target=self._run, args=(list(text),), name="drafter", daemon=True)
        self._thread.start()

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict."""
        self._pace.calibration.observe([proposal.confidence for proposal in self._sent], outcome.accepted)
        if self._repeats is not None:
            index, pace = self._repeats
            pace.calibration.observe(self._guessed, outcome.accepted)
            index.extend([*self._tokens[: outcome.accepted], outcome.bonus])
        self._outcome = outcome
        self._sent, self._guessed, self._tokens = [], [], ()

    def draft(self, limit: int) -> Draft:
        """Return the prepared draft for the last verdict, or get one."""
        draft = self.look_up(limit)
        return self.take(self._outbox.get()) if draft is None else draft

    def look_up(self, limit: int) -> Draft | None:
        """Return the draft that can be sent at once after the last verdict, or ask the drafter for one."""
        if self._failure is not None:
            raise self._failure
        assert self._outcome is not None
        draft = self._plain(self._outcome)
        if draft is None:
            draft = self._prepared(self._outcome, limit)
        if draft is None and self._branch(self._outcome) is None:  # else what was drawn would decide its fate
            draft = self._repeated(self._outcome, limit)
        self._round += 1
        if draft is None:
            self._asked_at = self._trunk.clock()
            self._inbox.put(Verdict(self._outcome, self._asked_at, None, limit))
        else:
            self._tokens = draft.tokens
        return draft

    def take(self, reply: Reply | BaseException) -> Draft:
        """Return the draft that the drafter was asked for."""
        if isinstance(reply, BaseException):
            raise reply
        self.busy_s += reply.busy_s
        self.wait_s += self._trunk.clock() - self._asked_at - reply.busy_s
        self._sent = list(reply.proposals)
        draft = draft_of(reply.proposals, DraftOrigin.AHEAD if reply.prepared else DraftOrigin.FRESH)
        self._tokens = draft.tokens
        return draft

    def _plain(self, outcome: VerifyOutcome) -> Draft | None:
        """Let the target go on alone while the draft model still reads the prompt."""
        if self._prompt_read:
            return None
        self._inbox.put(Verdict(outcome, self._trunk.clock(), 0))
        return Draft()

    def _branch(self, outcome: VerifyOutcome) -> Branch | None:
        """Return the branch prepared for the last verdict, if it has a token to send."""
        ready = self._ready
        branch = ready.branches.get(outcome) if ready.number == self._round else None
        return branch if branch is not None and branch.proposals else None

    def _prepared(self, outcome: VerifyOutcome, limit: int) -> Draft | None:
        branch = self._branch(outcome)
        if branch is None:
            return None  # also if its first token is being drafted: that is worth the wait
        proposals = branch.proposals[:limit]
        confidences = [proposal.confidence for proposal in proposals]
        delay_s = max(0.0, self._preparation.busy_until - self._trunk.clock())
        if self._pace.worth_drafting(confidences, limit, delay_s):
            return None
        proposals = proposals[: self._pace.length_to_send(confidences, limit)]
        self._sent = proposals
        self._inbox.put(Verdict(outcome, self._trunk.clock(), len(proposals)))
        return draft_of(proposals, DraftOrigin.AHEAD)

    def _repeated(self, outcome: VerifyOutcome, limit: int) -> Draft | None:
        if self._repeats is None:
            return None
        index, pace = self._repeats
        tokens, self._guessed = repetition(index, pace, limit)
        if not tokens:
            return None
        self._inbox.put(Verdict(outcome, self._trunk.clock(), len(tokens), foreign=tokens))
        return Draft(tokens, None, DraftOrigin.NGRAM)

    def end(self) -> None:
        """Stop the drafter; its cache stays for the next answer."""
        if self._thread is None:
            return
        self._trunk.model.cancel()
        self._inbox.put(None)
        self._thread.join()
        self._thread = None
        self._trunk.model.resume()

    # The drafter's thread.

    def _run(self, text: list[int]) -> None:
        try:
            self._trunk.begin(text)
            self._open_round(0, 0, math.inf)
            self._work()
        except BaseException as error:  # noqa: BLE001  whatever it is, it must reach the caller
            self._fail(error)
        finally:
            self._preparation.gather()

    def _work(self) -> None:
        busy = True
        while True:
            if busy and self._inbox.empty():
                busy = self._preparation.step()
                self._prompt_read = True
                continue
            verdict = self._inbox.get()
            if verdict is None:
                return
            self._follow(verdict)
            busy = True

    def _follow(self, verdict: Verdict) -> None:
        trunk = self._trunk
        prepared = self._preparation.settle(verdict.outcome)
        sent, since = verdict.sent, verdict.at
        if verdict.foreign:
            trunk.proposals = []
            trunk.model.truncate(min(trunk.model.length(), len(trunk.text) - 1))
            trunk.adopt(verdict.foreign, self._proposer)
        elif sent is None:
            before = trunk.model.busy_s
            trunk.extend_while_worth(self._pace, self._proposer, verdict.limit)
            sent = self._pace.length_to_send(trunk.confidences(), verdict.limit)
            busy_s = trunk.model.busy_s - before
            self._outbox.put(Reply(tuple(trunk.proposals[:sent]), prepared, busy_s))
            since = trunk.clock()
        assert sent is not None
        self._open_round(self._ready.number + 1, sent, since)

    def _open_round(self, number: int, sent: int, since: float) -> None:
        self._preparation.open_round(sent, since)
        self._ready = _Ready(number, self._preparation.branches)

    def _fail(self, error: BaseException) -> None:
        """Hand an error to the caller, whether it waits now or asks later."""
        self._failure = error
        self._outbox.put(error)
