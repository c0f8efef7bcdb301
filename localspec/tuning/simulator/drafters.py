"""The preparation of outcomes on a traced answer: the engine's decisions at a fraction of the work."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from localspec.decoding.drafters.combined import CombinedDrafter, PromptLookup
from localspec.decoding.drafters.draft_state import DraftState
from localspec.decoding.drafters.drafter import ModelDrafter
from localspec.decoding.drafters.fan_out import Forecast, best_width
from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.drafters.speculation_cache import Branch, SpeculationCache
from localspec.decoding.drafters.ssd import DraftReply, SSDDrafter, Tail, VerifyResult
from localspec.decoding.policy import SpeculationPolicy
from localspec.errors import Cancelled
from localspec.tuning.simulator.models import Acting, ReplayedModel, ReplayedProposer, VirtualClock
from localspec.types import Draft, EngineSettings, VerifyOutcome

_by_value = itemgetter(0)


@dataclass(slots=True)
class Sprout(Branch):
    """A branch whose proposals are known before they are drafted; so many of them have been.

    `proposals` lags behind: of most branches nobody ever asks for it.
    """

    path: Sequence[Proposal] = ()
    depth: int = 0

    def grow(self) -> None:
        """Bring the proposals up to date."""
        self.proposals += self.path[len(self.proposals) : self.depth]


_Work = list[tuple[float, Sprout | Forecast | None]]


class ReplayedPreparation(SpeculationCache):
    """Decide as the engine does, but keep neither caches nor proposals of branches, only their depths."""

    def __init__(
        self,
        trunk: DraftState,
        pace: SpeculationPolicy,
        proposer: ReplayedProposer,
        settings: EngineSettings,
    ) -> None:
        super().__init__(trunk, pace, proposer, settings)
        assert isinstance(trunk.model, ReplayedModel)
        self._model = trunk.model
        self._script = proposer
        self._sprouts: list[Sprout] = []

    def open_round(self, sent: int, since: float = math.inf) -> None:
        """Forget the last round; the trunk's first `sent` proposals are being verified `since` then."""
        self._model.open_round()
        self._sprouts = []
        super().open_round(sent, since)

    def _tail_known(self, tail: Proposal, prepared: Sequence[Proposal]) -> None:
        """Let the tail be drawn independently of what the target says there: nobody judges it."""
        if not self._script.deterministic:
            trunk = self._trunk
            tail = self._script.guess(self._model.place(len(trunk.text) + self._sent))
            trunk.proposals[self._sent] = tail
            held = [tail.token, *(proposal.token for proposal in prepared)]
            self._model.rewrite(held, len(trunk.text) + self._sent)
        super()._tail_known(tail, prepared)
        own = self._own
        assert own is not None
        sprout = Sprout(0, own.outcome, own.chance, own.value, own.proposals, depth=len(own.proposals))
        self._own = self.branches[own.outcome] = sprout
        self._sprouts.append(sprout)

    def settle(self, outcome: VerifyOutcome) -> bool:
        """Follow the verdict; tell whether it was prepared."""
        branch = self.branches.get(outcome)
        if isinstance(branch, Sprout) and branch.sequence:
            branch.grow()
            held = [outcome.bonus, *(proposal.token for proposal in branch.proposals[:-1])]
            self._model.hold(held, branch.sequence, len(self._trunk.text) + outcome.accepted)
        return super().settle(outcome)

    def step(self) -> bool:
        """Run the draft model once where it should help most; tell whether there was anything to do."""
        trunk, pace = self._trunk, self._pace
        if self._own is None and len(trunk.missing()) > 1:
            return super().step()
        work = self._best_work()
        if not work:
            return False
        opened = [self._sprout(item) if isinstance(item, Forecast) else item for _, item in work]
        started = trunk.clock()
        self.busy_until = started + pace.step(len(work))
        self._model.spend(len(work))
        pace.step.observe(len(work), trunk.clock() - started)
        chance = pace.calibration.chance
        for branch in opened:
            if branch is None:
                row = self._model.follow(trunk.missing()[0])
                trunk.proposals.append(self._script.at(row))
                self._learn_tail()
                continue
            if branch.sequence:
                proposal = branch.path[branch.depth]
            else:
                proposal = self._script.at(self._model.follow(branch.next_token()))
                branch.proposals.append(proposal)
            branch.value *= chance(proposal.confidence)
            branch.depth += 1
        return True

    def _best_work(self) -> _Work:
        """Return what to extend in the next call, as `_chosen_work` does."""
        limit = self._settings.draft_length + 1
        work: _Work = [(sprout.value, sprout) for sprout in self._sprouts if sprout.depth < limit]
        if self._own is None:
            work.append((self._exactly[self._sent], None))
        free = self._budget - self._opened
        if free:
            work += [(fork.chance, fork) for fork in self._forks[: -free - 1 : -1]]
        work.sort(key=_by_value, reverse=True)
        del work[self._budget + 1 :]
        values = [value for value, _ in work]
        if self._settings.fan_out_shape == "best-first":
            width = best_width(values, self._pace.step.up_to(len(work)))
            del work[width:], values[width:]
        return [] if self._hinders(values) else work

    def _ready(self) -> float:
        return sum(sprout.chance for sprout in self._sprouts if sprout.depth)

    def _sprout(self, fork: Forecast) -> Sprout:
        self._forks.pop()
        self._opened += 1
        outcome, chance = fork.outcome, fork.chance
        row, is_right = self._model.after(outcome.bonus, len(self._trunk.text) + outcome.accepted)
        path = self._script.path(row, self._settings.draft_length + 1, is_right=is_right)
        sprout = Sprout(self._opened, outcome, chance, chance, path=path)
        self.branches[outcome] = sprout
        self._sprouts.append(sprout)
        return sprout


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


class ReplayedAhead(SSDDrafter):
    """The drafter's side is the thread that runs; its caller acts in between."""

    def __init__(
        self,
        trunk: DraftState,
        pace: SpeculationPolicy,
        proposer: ReplayedProposer,
        settings: EngineSettings,
        repeats: PromptLookup | None = None,
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

    def play(self, text: Sequence[int], caller: Acting, timeline: VirtualClock, handoff_s: float) -> None:
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

    def __init__(self, timeline: VirtualClock, handoff_s: float) -> None:
        self._timeline, self._handoff_s = timeline, handoff_s
        self._verdicts: deque[VerifyResult | Tail | None] = deque()

    def put(self, item: VerifyResult | Tail | None, /) -> None:
        """Add a verdict."""
        self._verdicts.append(item)

    def get(self) -> VerifyResult | Tail | None:
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

    def __init__(self, timeline: VirtualClock, handoff_s: float) -> None:
        self._timeline, self._handoff_s = timeline, handoff_s

    def put(self, item: DraftReply | BaseException, /) -> None:
        """Wake the caller."""
        if isinstance(item, BaseException):
            raise item
        self._timeline.reply(item, self._handoff_s)

    def get(self) -> DraftReply | BaseException:
        """Fail: a caller yields instead of waiting here."""
        raise NotImplementedError

    def empty(self) -> bool:
        """Tell that no reply waits."""
        return True
