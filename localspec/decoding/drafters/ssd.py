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

from localspec.decoding.drafters.combined import PromptLookup, draft_with
from localspec.decoding.drafters.draft_state import DraftState
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.drafters.speculation_cache import Branch, SpeculationCache
from localspec.decoding.policy import SpeculationPolicy
from localspec.types import Draft, DraftOrigin, EngineSettings, VerifyOutcome


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What the target decided `at` a time, and what the caller did about it."""

    outcome: VerifyOutcome
    at: float
    sent: int | None  # so many prepared tokens went to the target; None asks for a draft
    limit: int = 0  # of the draft that is asked for
    foreign: tuple[int, ...] = ()  # tokens from elsewhere that went to the target behind them


@dataclass(frozen=True, slots=True)
class Tail:
    """Tokens from elsewhere that go to the target behind the draft that was asked for, `at` a time."""

    tokens: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class DraftReply:
    """The draft that was asked for."""

    proposals: tuple[Proposal, ...]
    whole: bool  # nothing was cut off for being unsure
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


class SSDDrafter:
    """Answer with prepared drafts; draft just in time, or repeat the text, where none was prepared."""

    def __init__(
        self,
        trunk: DraftState,
        pace: SpeculationPolicy,
        proposer: Proposer,
        settings: EngineSettings,
        repeats: PromptLookup | None = None,
    ) -> None:
        """Take the draft model's trunk, and the repetitions that may stand in for it or go on behind it."""
        self._trunk = trunk
        self._pace = pace
        self._proposer = proposer
        self._preparation = SpeculationCache(trunk, pace, proposer, settings)
        self._repeats = repeats
        self._length = settings.draft_length
        self._inbox: Mailbox[VerifyResult | Tail | None] = SimpleQueue()
        self._outbox: Mailbox[DraftReply | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._prompt_read = False
        self._ready = _Ready(0, {})
        self._judged = 0
        self._round = 0
        self._outcome: VerifyOutcome | None = None
        self._asked_at = 0.0
        self._limit = 0
        self._sent: list[Proposal] = []
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
            self._repeats.begin(text)
        self._thread = threading.Thread(target=self._run, args=(list(text),), name="drafter", daemon=True)
        self._thread.start()

    def commit(self, outcome: VerifyOutcome) -> None:
        """Learn from the verdict."""
        self._pace.calibration.observe([proposal.confidence for proposal in self._sent], outcome.accepted)
        if self._repeats is not None:
            self._repeats.commit(self._tokens, len(self._sent), outcome)
        self._outcome = outcome
        self._sent, self._tokens = [], ()

    def draft(self, limit: int) -> Draft:
        """Return the prepared draft for the last verdict, or get one."""
        draft = self.look_up(limit)
        return self.take(self._outbox.get()) if draft is None else draft

    def look_up(self, limit: int) -> Draft | None:
        """Return the draft that can be sent at once after the last verdict, or ask the drafter for one."""
        if self._failure is not None:
            raise self._failure
        assert self._outcome is not None
        self._limit, outcome = limit, self._outcome
        length = min(limit, self._length)
        draft = self._repeated(outcome, limit, length)
        if draft is None:
            draft = self._plain(outcome)
        if draft is None:
            draft = self._prepared(outcome, length)
        self._round += 1
        if draft is None:
            self._asked_at = self._trunk.clock()
            self._inbox.put(VerifyResult(outcome, self._asked_at, None, length))
        else:
            self._tokens = draft.tokens
        return draft

    def take(self, reply: DraftReply | BaseException) -> Draft:
        """Return the draft that the drafter was asked for."""
        if isinstance(reply, BaseException):
            raise reply
        self.busy_s += reply.busy_s
        self.wait_s += self._trunk.clock() - self._asked_at - reply.busy_s
        self._sent = list(reply.proposals)
        tail = self._tail(self._sent, len(self._sent)) if reply.whole else ()
        if tail:
            self._round += 1
            self._inbox.put(Tail(tail, self._trunk.clock()))
        draft = draft_with(self._sent, tail, DraftOrigin.AHEAD if reply.prepared else DraftOrigin.FRESH)
        self._tokens = draft.tokens
        return draft

    def _plain(self, outcome: VerifyOutcome) -> Draft | None:
        """Let the target go on alone while the draft model still reads the prompt."""
        if self._prompt_read:
            return None
        self._inbox.put(VerifyResult(outcome, self._trunk.clock(), 0))
        return Draft()

    def _branch(self, outcome: VerifyOutcome) -> Branch | None:
        """Return the branch prepared for the last verdict, if it has a token to send."""
        ready = self._ready
        branch = ready.branches.get(outcome) if ready.number == self._round else None
        return branch if branch is not None and branch.proposals else None

    def _prepared(self, outcome: VerifyOutcome, length: int) -> Draft | None:
        branch = self._branch(outcome)
        if branch is None:
            return None  # also if its first token is being drafted: that is worth the wait
        ready = branch.proposals[:length]
        confidences = [proposal.confidence for proposal in ready]
        if self._pace.worth_drafting(confidences, length, self._delay_s()):
            return None
        sent = self._pace.length_to_send(confidences, length)
        tail = self._tail(ready, sent)
        self._sent = ready if tail else ready[:sent]
        self._inbox.put(VerifyResult(outcome, self._trunk.clock(), len(self._sent), foreign=tail))
        return draft_with(self._sent, tail, DraftOrigin.AHEAD)

    def _delay_s(self) -> float:
        """Return how long it takes until the draft model can begin."""
        return max(0.0, self._preparation.busy_until - self._trunk.clock())

    def _repeated(self, outcome: VerifyOutcome, limit: int, length: int) -> Draft | None:
        """Repeat the text if that is worth more than what the draft model has or would have."""
        if self._repeats is None:
            return None
        guess = self._repeats.first(limit)
        branch = self._branch(outcome)
        if not self._prompt_read:
            beaten = not guess.length
        elif branch is None:
            beaten = self._repeats.beaten(guess, length, self._delay_s())
        else:
            beaten = self._repeats.beaten_by(branch.proposals[:length], guess, length)
        if not beaten:
            self._inbox.put(VerifyResult(outcome, self._trunk.clock(), 0, foreign=guess.sent))
        return None if beaten else Draft(guess.sent, None, DraftOrigin.NGRAM)

    def _tail(self, ready: Sequence[Proposal], sent: int) -> tuple[int, ...]:
        return self._repeats.tail(ready, sent, self._limit) if self._repeats is not None else ()

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
            if isinstance(verdict, Tail):
                self._lengthen(verdict)
            else:
                self._follow(verdict)
            busy = True

    def _follow(self, verdict: VerifyResult) -> None:
        trunk = self._trunk
        prepared = self._preparation.settle(verdict.outcome)
        sent, since = verdict.sent, verdict.at
        if sent is None:
            before = trunk.model.busy_s
            trunk.extend_while_worth(self._pace, self._proposer, verdict.limit)
            sent = self._pace.length_to_send(trunk.confidences(), verdict.limit)
            whole = sent == min(len(trunk.proposals), verdict.limit)
            busy_s = trunk.model.busy_s - before
            self._outbox.put(DraftReply(tuple(trunk.proposals[:sent]), whole, prepared, busy_s))
            since = trunk.clock()
        self._read(verdict.foreign, sent)
        self._open_round(self._ready.number + 1, sent + len(verdict.foreign), since)

    def _lengthen(self, tail: Tail) -> None:
        """Begin the round again, with more tokens than were known."""
        self._read(tail.tokens, self._judged)
        self._open_round(self._ready.number + 1, self._judged + len(tail.tokens), tail.at)

    def _read(self, foreign: tuple[int, ...], after: int) -> None:
        """Let tokens from elsewhere follow the first proposals; unread if the round is over already."""
        if foreign and self._inbox.empty():
            self._trunk.adopt(foreign, self._proposer, after)
        elif foreign:
            self._trunk.take(foreign, after)

    def _open_round(self, number: int, sent: int, since: float) -> None:
        self._judged = sent
        self._preparation.open_round(sent, since)
        self._ready = _Ready(number, self._preparation.branches)

    def _fail(self, error: BaseException) -> None:
        """Hand an error to the caller, whether it waits now or asks later."""
        self._failure = error
        self._outbox.put(error)
