"""Prepare drafts for the likely outcomes of a verification that is still running.

The caches of branches are never copied: a branch shares the trunk's cells up to its fork, for good up to the
committed text, and per round only the new part is shared (llama_memory_seq_cp on a unified cache).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.decoding.drafters.draft_state import DraftState
from localspec.decoding.drafters.fan_out import (
    Forecast,
    accepted_exactly,
    best_width,
    fan_out,
    forecasts_after,
    guesses_after,
)
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.policy import SpeculationPolicy
from localspec.errors import ContextFullError
from localspec.types import EngineSettings, VerifyOutcome


@dataclass(slots=True)
class Branch:
    """A continuation for one outcome: the proposals that follow its bonus token.

    Another thread reads it while it grows: proposals are only ever appended.
    """

    sequence: int
    outcome: VerifyOutcome
    chance: float
    value: float  # the chance that the next proposal will be wanted
    proposals: list[Proposal] = field(default_factory=list)

    def next_token(self) -> int:
        """Return the token to decode next: the last proposal, or at first the bonus token."""
        return self.proposals[-1].token if self.proposals else self.outcome.bonus


class SpeculationCache:
    """One round's prepared outcomes; belongs to the drafter's thread.

    `branches`, and `busy_until`, when the running call should end, may be read by others.
    The trunk holds the proposals that were sent, and one more, the tail: it stands for the outcome that all
    are accepted and the tail is the bonus token, whose branch is the trunk itself.
    """

    def __init__(
        self, trunk: DraftState, pace: SpeculationPolicy, proposer: Proposer, settings: EngineSettings
    ) -> None:
        self._trunk = trunk
        self._pace = pace
        self._known = pace.calibration.outcomes
        self._proposer = proposer
        self._settings = settings
        self._budget = min(settings.fan_out_budget, trunk.model.max_sequences - 1)
        self._settled = [0] * trunk.model.max_sequences  # per sequence: the prefix it shares for good
        self._sent = 0
        self._opened = 0
        self._exactly: list[float] = []
        self._forks: list[Forecast] = []
        self._own: Branch | None = None
        self._verdict_at = math.inf
        self.branches: dict[VerifyOutcome, Branch] = {}
        self.busy_until = 0.0

    def open_round(self, sent: int, since: float = math.inf) -> None:
        """Forget the last round; the trunk's first `sent` proposals are being verified `since` then.

        The time is that of the trunk's clock; infinity says that the end of the verification is not known.
        """
        trunk = self._trunk
        self._verdict_at = since + self._pace.verify(sent + 1)
        rest = trunk.proposals[sent:]
        trunk.proposals = trunk.proposals[: sent + 1]
        self._sent = sent
        self._own = None
        self._opened = 0
        self.branches = {}
        judged = trunk.proposals[:sent]
        self._exactly = accepted_exactly([self._acceptance(proposal) for proposal in judged])
        self._forks = []
        odds = self._known.after_rejection
        for accepted, proposal in enumerate(judged):
            self._forks += forecasts_after(accepted, proposal, self._exactly[accepted], proposal.token, odds)
        if rest:
            self._tail_known(rest[0], rest[1:])
        self._rank_forks()

    def _acceptance(self, proposal: Proposal) -> float:
        """Return the chance of a judged token; of one that the draft model has not read, the usual one."""
        return self._known.accepted(proposal.weight) if proposal.guesses else self._pace.calibration.mean

    def _tail_known(self, tail: Proposal, prepared: Sequence[Proposal]) -> None:
        exactly = self._exactly[self._sent]
        found = forecasts_after(self._sent, tail, exactly, None, self._known.after_all)
        chance = next((each.chance for each in found if each.outcome.bonus == tail.token), 0.0)
        value = chance
        for proposal in prepared:
            value *= self._pace.calibration.chance(proposal.confidence)
        self._own = Branch(0, VerifyOutcome(self._sent, tail.token), chance, value, list(prepared))
        self.branches[self._own.outcome] = self._own
        self._forks += [each for each in found if each.outcome.bonus != tail.token]

    def _rank_forks(self) -> None:
        """Sort the forks that may still be opened, the most likely last; keep what the shape allows."""
        self._forks.sort(key=lambda fork: fork.chance)
        settings = self._settings
        if settings.fan_out_shape == "best-first":
            return
        mean = sum(self._pace.calibration.chance(c) for c in self._trunk.confidences()[: self._sent])
        allotted = fan_out(settings.fan_out_shape, self._budget, self._sent, mean / max(self._sent, 1))
        for outcome in self.branches:
            allotted[outcome.accepted] -= 1
        kept = []
        for fork in reversed(self._forks):
            if allotted[fork.outcome.accepted] > 0:
                allotted[fork.outcome.accepted] -= 1
                kept.append(fork)
        self._forks = kept[::-1]

    def settle(self, outcome: VerifyOutcome) -> bool:
        """Follow the verdict; tell whether it was prepared. The trunk then holds what was ready for it."""
        self._learn(outcome)
        trunk, branch = self._trunk, self.branches.get(outcome)
        if branch is None:
            trunk.proposals = trunk.proposals[: outcome.accepted]
            trunk.settle(outcome)
            return False
        fork = len(trunk.text) + outcome.accepted
        trunk.text += [proposal.token for proposal in trunk.proposals[: outcome.accepted]]
        trunk.text.append(outcome.bonus)
        trunk.proposals = branch.proposals
        if branch.sequence:
            model = trunk.model
            model.truncate(fork)
            model.share(branch.sequence, 0, model.length(branch.sequence))
        return True

    def _learn(self, outcome: VerifyOutcome) -> None:
        """Compare a verdict with what the draft model thought of it."""
        accepted, proposals = outcome.accepted, self._trunk.proposals
        for position, proposal in enumerate(proposals[: min(accepted + 1, self._sent)]):
            if proposal.guesses:
                self._known.accepted.observe(proposal.weight, is_true=position < accepted)
        if accepted == len(proposals):
            return  # the draft model was not asked what follows
        last = proposals[accepted]
        is_rejected = accepted < self._sent
        odds = self._known.after_rejection if is_rejected else self._known.after_all
        for token, share in guesses_after(last, last.token if is_rejected else None):
            odds.observe(share, is_true=token == outcome.bonus)

    def gather(self) -> None:
        """Give the trunk everything that its cache holds, so that a new text can start from it."""
        if self._own is not None:
            self._trunk.proposals = [*self._trunk.proposals, *self._own.proposals]
            self._own = None

    def step(self) -> bool:
        """Run the draft model once where it should help most; tell whether there was anything to do."""
        model = self._trunk.model
        if self._own is None and len(self._trunk.missing()) > 1:
            self._trunk.extend(self._pace, self._proposer)
            self._learn_tail()
            return True
        work = self._chosen_work()
        if not work:
            return False
        tokens = [self._trunk.missing()[0] if branch is None else branch.next_token() for branch in work]
        sequences = [0 if branch is None else branch.sequence for branch in work]
        started = self._trunk.clock()
        self.busy_until = started + self._pace.step(len(tokens))
        try:
            rows = model.step(tokens, sequences)
        except ContextFullError:
            return False
        histories = [self._history(branch) for branch in work] if self._proposer.needs_history else None
        proposals = self._proposer.propose(rows, histories)
        self._pace.step.observe(len(tokens), self._trunk.clock() - started)
        for branch, proposal in zip(work, proposals, strict=True):
            if branch is None:
                self._trunk.proposals.append(proposal)
                self._learn_tail()
            else:
                branch.value *= self._pace.calibration.chance(proposal.confidence)
                branch.proposals.append(proposal)
        return True

    def _learn_tail(self) -> None:
        self._tail_known(self._trunk.proposals[-1], ())
        self._rank_forks()

    def _history(self, branch: Branch | None) -> list[int]:
        trunk = self._trunk
        if branch is None:
            return trunk.whole()
        prefix = trunk.whole()[: len(trunk.text) + branch.outcome.accepted]
        return [*prefix, branch.outcome.bonus, *(proposal.token for proposal in branch.proposals)]

    def _chosen_work(self) -> list[Branch | None]:
        """Return the branches to extend in the next call, the best first; None is the trunk's tail."""
        limit = self._settings.draft_length + 1
        work: list[tuple[float, Branch | Forecast | None]] = [
            (branch.value, branch) for branch in self.branches.values() if len(branch.proposals) < limit
        ]
        if self._own is None:
            work.append((self._exactly[self._sent], None))
        free = self._budget - self._opened
        work += [(fork.chance, fork) for fork in reversed(self._forks[-free:])] if free else []
        work.sort(key=lambda item: item[0], reverse=True)
        work = work[: self._budget + 1]
        if self._settings.fan_out_shape == "best-first":
            costs = self._pace.step.up_to(len(work))
            work = work[: best_width([value for value, _ in work], costs)]
        if self._hinders([value for value, _ in work]):
            return []
        return [self._open(item) if isinstance(item, Forecast) else item for _, item in work]

    def _hinders(self, values: Sequence[float]) -> bool:
        """Tell whether a call would end so late after the verdict that it costs more than it saves.

        It costs where nothing is ready for the verdict, and saves a step where its results are wanted.
        """
        late_s = self._trunk.clock() + self._pace.step(len(values)) - self._verdict_at
        if late_s <= 0:
            return False
        return (1.0 - self._ready()) * late_s > sum(values) * max(self._pace.step(1) - late_s, 0.0)

    def _ready(self) -> float:
        """Return the chance that there is something to send after the verdict."""
        return sum(branch.chance for branch in self.branches.values() if branch.proposals)

    def _open(self, fork: Forecast) -> Branch:
        """Fork a branch off the trunk."""
        self._forks.pop()  # forks are opened best first, and the best is the last
        model = self._trunk.model
        self._opened += 1
        sequence = self._opened
        model.truncate(min(self._settled[sequence], model.length(sequence)), sequence)
        model.share(0, sequence, len(self._trunk.text) + fork.outcome.accepted)
        self._settled[sequence] = len(self._trunk.text)
        branch = Branch(sequence, fork.outcome, fork.chance, fork.chance)
        self.branches[fork.outcome] = branch
        return branch
