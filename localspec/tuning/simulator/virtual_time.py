"""The clock of a simulation: two sides that work at once, in one thread.

Whenever the draft model's time passes a moment at which the target's side acts, that side acts first, and
sees of the running call as little as it would.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator

from localspec.decoding.drafters.draft_worker import DraftReply, Message
from localspec.errors import Cancelled

Acting = Generator[float, DraftReply | None, None]
"""The target's side: yields when it acts next, infinity if that depends on a reply, which it is then sent."""


class VirtualClock:
    """The clock, and the target's side, which acts at its own times while the draft model works."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due = math.inf
        self._target_side: Acting | None = None
        self._reply: DraftReply | None = None

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    def follow(self, target_side: Acting) -> None:
        """From now on the target's side acts."""
        self._target_side = target_side
        self._due = self.now
        self.wait()

    def spend(self, seconds: float) -> None:
        """Advance the time; raises `Cancelled` if the target's side has finished meanwhile."""
        end = self.now + seconds
        while self._due <= end:
            self.wait()
        self.now = end

    def wait(self) -> None:
        """Advance the time until the target's side acts."""
        assert self._target_side is not None
        assert self._due < math.inf, "both sides wait for each other"
        self.now = max(self.now, self._due)
        reply = self._reply
        self._reply = None
        try:
            self._due = self._target_side.send(reply)
        except StopIteration:
            self._due = math.inf
            self._target_side = None
            raise Cancelled from None

    def reply(self, reply: DraftReply, delay_s: float) -> None:
        """Answer the target's side, which notices after a delay."""
        self._reply = reply
        self._due = self.now + delay_s


class VirtualInbox:
    """The target side's messages to the draft worker, in the same thread."""

    def __init__(self, clock: VirtualClock, handoff_s: float) -> None:
        self._clock = clock
        self._handoff_s = handoff_s
        self._messages: deque[Message] = deque()

    def put(self, message: Message, /) -> None:
        """Add a message."""
        self._messages.append(message)

    def get(self) -> Message:
        """Take the next message; without one, let time pass until there is, and the worker has woken up."""
        if self.empty():
            while self.empty():
                self._clock.wait()
            self._clock.spend(self._handoff_s)
        return self._messages.popleft()

    def empty(self) -> bool:
        """Return whether there is no message."""
        return not self._messages
