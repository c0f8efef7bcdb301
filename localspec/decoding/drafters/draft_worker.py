"""The draft model's side of drafting ahead: follow verdicts, draft when asked, prepare outcomes in between.

The target's side looks an outcome up and answers itself; this side follows later. The two share nothing but
the prepared branches, which only grow, and the messages that go to and fro.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, TypeVar

from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.drafters.speculation_cache import Branch, SpeculationCache
from localspec.types.drafts import VerifyOutcome

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What the target decided `at` a time, and what the caller did about it."""

    outcome: VerifyOutcome
    at: float
    sent: int | None  # number of prepared tokens sent to the target; None requests a draft
    limit: int = 0  # of the draft that is asked for
    copied: tuple[int, ...] = ()  # copied tokens sent to the target after them


@dataclass(frozen=True, slots=True)
class CopiedTokens:
    """Copied tokens sent to the target after the requested draft, `at` a time."""

    tokens: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class DraftReply:
    """The draft that was asked for."""

    proposals: tuple[Proposal, ...]
    whole: bool  # nothing was cut off for being unsure
    prepared: bool
    busy_s: float


Message = VerifyResult | CopiedTokens | None
"""A message to the worker; None ends its work."""
Reply = DraftReply | BaseException
"""What the target's side gets: the draft that it asked for, or what ended the worker."""


class Mailbox(Protocol[_Item]):
    """A queue with one reader, such as `queue.SimpleQueue`."""

    def put(self, item: _Item, /) -> None:
        """Add a message; any thread may do so."""

    def get(self) -> _Item:
        """Take the next message, and wait for it if there is none."""

    def empty(self) -> bool:
        """Return whether there is no message."""


class DraftWorker:
    """The draft model's side of an answer, in the thread that calls `work`.

    The target's side puts into `inbox`, gets the replies, and reads the other public attributes.
    """

    def __init__(
        self,
        cache: SpeculationCache,
        inbox: Mailbox[Message],
        reply: Callable[[DraftReply], None],
        before_round: Callable[[], None] | None = None,
    ) -> None:
        """Take the ports to the target's side; `before_round` is called before each round opens.

        A simulation lets the time pass there that Python takes to follow a verdict.
        """
        self.cache = cache
        self.state = cache.state
        self.policy = cache.policy
        self.inbox = inbox
        self.prompt_read = False
        self.prepared: tuple[int, dict[VerifyOutcome, Branch]] = (-1, {})  # for the round of this number
        self._reply = reply
        self._before_round = before_round
        self._judged = 0

    def work(self, text: Sequence[int]) -> None:
        """Read a prompt, and do what the inbox says until it says None."""
        try:
            self.state.begin(text)
            self._open_round(0, math.inf)
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
                    self._open_round(self._judged + len(message.tokens), message.at)
                else:
                    self._follow(message)
                busy = True
        finally:
            self.cache.gather()

    def _follow(self, verdict: VerifyResult) -> None:
        state = self.state
        prepared = self.cache.apply_result(verdict.outcome)
        sent = verdict.sent
        since = verdict.at
        if sent is None:
            before = state.model.busy_s
            state.extend_while_worth(self.policy, self.cache.proposer, verdict.limit)
            sent = self.policy.length_to_send(state.confidences(), verdict.limit)
            whole = sent == min(len(state.proposals), verdict.limit)
            busy_s = state.model.busy_s - before
            self._reply(DraftReply(tuple(state.proposals[:sent]), whole, prepared, busy_s))
            since = state.clock()
        self._read(verdict.copied, sent)
        self._open_round(sent + len(verdict.copied), since)

    def _read(self, copied: tuple[int, ...], after: int) -> None:
        """Replace later proposals by copied tokens; ignored if the round is already over."""
        if copied and self.inbox.empty():
            self.state.adopt(copied, self.cache.proposer, after)
        elif copied:
            self.state.take(copied, after)

    def _open_round(self, sent: int, since: float) -> None:
        """Prepare for the verdict on the first proposals, which are verified `since` then."""
        if self._before_round is not None:
            self._before_round()
        self._judged = sent
        self.cache.open_round(sent, since)
        self.prepared = (self.prepared[0] + 1, self.cache.branches)


class ThreadedWorker:
    """A draft worker in a thread of its own."""

    def __init__(self, worker: DraftWorker, replies: Mailbox[Reply]) -> None:
        """Take a worker that puts its replies into a mailbox, which also gets what ends it."""
        self.worker = worker
        self.failure: BaseException | None = None
        self._replies = replies
        self._thread: threading.Thread | None = None

    def start(self, text: Sequence[int]) -> None:
        """Begin to work on an answer to a prompt."""
        self._thread = threading.Thread(target=self._run, args=(list(text),), name="drafter", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all work; what was read stays for the next answer."""
        if self._thread is None:
            return
        model = self.worker.state.model
        model.cancel()
        self.worker.inbox.put(None)
        self._thread.join()
        self._thread = None
        model.resume()

    def receive(self) -> DraftReply:
        """Wait for the draft that was asked for; raises what ended the worker."""
        reply = self._replies.get()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def _run(self, text: list[int]) -> None:
        try:
            self.worker.work(text)
        except BaseException as error:  # noqa: BLE001  whatever it is, it must reach the caller
            self.failure = error  # whether it waits now or asks later
            self._replies.put(error)


def in_thread(cache: SpeculationCache) -> ThreadedWorker:
    """Return a worker that prepares the outcomes of a cache in a thread of its own."""
    replies: SimpleQueue[Reply] = SimpleQueue()
    return ThreadedWorker(DraftWorker(cache, SimpleQueue(), replies.put), replies)
