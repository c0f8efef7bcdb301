"""The drafters on a traced answer; the one that works while the target verifies has no thread of its own."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from localspec.decoding.drafters.combined import CombinedDrafter, Repetitions
from localspec.decoding.drafters.draft_state import Trunk
from localspec.decoding.drafters.drafter import ModelDrafter
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.drafters.ssd import AheadDrafter, Reply, Tail, Verdict
from localspec.decoding.policy import Pace
from localspec.errors import Cancelled
from localspec.tuning.simulator.drafters import ReplayedPreparation, Sprout
from localspec.tuning.simulator.models import Acting, ReplayedModel, ReplayedProposer, Timeline
from localspec.types import Draft, EngineSettings


class ReplayedDrafter(ModelDrafter):
    """Let a proposal that is not sent be drawn independently of what the target says there."""

    _proposer: ReplayedProposer

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt."""
        self._prompt = len(text)
        super().begin(text)

    def _written(self, limit: int) -> list[Proposal]:
        sent = super()._written(limit)
        trunk = self._trunk
        if len(sent) < len(trunk.proposals) and not self._proposer.deterministic:
            assert isinstance(trunk.model, ReplayedModel)
            place = len(trunk.text) + len(sent)
            trunk.proposals[len(sent)] = self._proposer.guess(place - self._prompt)
            trunk.model.rewrite([proposal.token for proposal in trunk.proposals[len(sent) :]], place)
        return sent


class ReplayedCombined(ReplayedDrafter, CombinedDrafter):
    """The same with repetitions, which are as they are in the text."""


class ReplayedAhead(AheadDrafter):
    """The drafter's side is the thread that runs; its caller acts in between."""

    def __init__(
        self,
        trunk: Trunk,
        pace: Pace,
        proposer: ReplayedProposer,
        settings: EngineSettings,
        repeats: Repetitions | None = None,
    ) -> None:
        super().__init__(trunk, pace, proposer, settings, repeats)
        self._preparation = ReplayedPreparation(trunk, pace, proposer, settings)

    def begin(self, text: Sequence[int]) -> None:
        """Take the prompt; `play` reads it."""
        if self._repeats is not None:
            self._repeats.begin(text)

    def look_up(self, limit: int) -> Draft | None:
        """Return the draft that can be sent at once after the last verdict, or ask the drafter for one."""
        assert self._outcome is not None
        branch = self._ready.branches.get(self._outcome)
        if isinstance(branch, Sprout):
            branch.grow()
        return super().look_up(limit)

    def end(self) -> None:
        """Do nothing: `play` ends with its caller."""

    def play(self, text: Sequence[int], caller: Acting, timeline: Timeline, handoff_s: float) -> None:
        """Work until the caller has finished the answer; messages to one who sleeps take `handoff_s`."""
        self._inbox = _Inbox(timeline, handoff_s)
        self._outbox = _Outbox(timeline, handoff_s)
        timeline.follow(caller)
        try:
            self._trunk.begin(text)
            self._open_round(0, 0, math.inf)
            self._work()
        except Cancelled:
            self._preparation.gather()


class _Inbox:
    """What the caller puts in, in the same thread."""

    def __init__(self, timeline: Timeline, handoff_s: float) -> None:
        self._timeline, self._handoff_s = timeline, handoff_s
        self._verdicts: deque[Verdict | Tail | None] = deque()

    def put(self, item: Verdict | Tail | None, /) -> None:
        """Add a verdict."""
        self._verdicts.append(item)

    def get(self) -> Verdict | Tail | None:
        """Let time pass until there is a verdict, and the drafter has woken up."""
        if not self._verdicts:
            while not self._verdicts:
                self._timeline.wait()
            self._timeline.spend(self._handoff_s)
        return self._verdicts.popleft()

    def empty(self) -> bool:
        """Tell whether there is no verdict yet."""
        return not self._verdicts


class _Outbox:
    """Where the caller's own replies go to."""

    def __init__(self, timeline: Timeline, handoff_s: float) -> None:
        self._timeline, self._handoff_s = timeline, handoff_s

    def put(self, item: Reply | BaseException, /) -> None:
        """Wake the caller."""
        if isinstance(item, BaseException):
            raise item
        self._timeline.reply(item, self._handoff_s)

    def get(self) -> Reply | BaseException:
        """Fail: a caller yields instead of waiting here."""
        raise NotImplementedError

    def empty(self) -> bool:
        """Tell that no reply waits."""
        return True
