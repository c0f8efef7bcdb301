"""Prepare drafts for the likely outcomes of a verification that is still running.

An outcome is "k draft tokens accepted, then bonus token t" (Saguaro, arXiv 2603.03251, section 3). The pure
functions at the end decide which are worth preparing. The KV caches of branches are never copied: a branch
shares the cells of sequence 0 up to its fork, for good up to the committed text, and per round only the new
part is shared (llama_memory_seq_cp, unified cache).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import itemgetter

from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.proposer import Proposal, Proposer
from localspec.decoding.policy import SpeculationPolicy
from localspec.errors import ContextFullError
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import EngineSettings, FanOutShape


@dataclass(frozen=True, slots=True)
class Forecast:
    """An outcome with its estimated chance."""

    outcome: VerifyOutcome
    chance: float


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
    """The prepared outcomes of one round; used by the drafter's thread.

    `branches`, and `busy_until`, when the running call should end, may be read by others. The draft state
    contains the sent proposals and one more, the tail. The tail represents the outcome that all are
    accepted and the tail is the bonus token; its branch is sequence 0 itself.
    """

    def __init__(
        self, state: DraftState, policy: SpeculationPolicy, proposer: Proposer, settings: EngineSettings
    ) -> None:
        self.state = state
        self.policy = policy
        self.proposer = proposer
        self._settings = settings
        self._budget = min(settings.fan_out_budget, state.model.max_sequences - 1)
        self._settled = [0] * state.model.max_sequences  # per sequence: the prefix it shares for good
        self._sent = 0
        self._opened = 0
        self._exactly: list[float] = []
        self._forks: list[Forecast] = []
        self._own: Branch | None = None
        self._verdict_at = math.inf
        self.branches: dict[VerifyOutcome, Branch] = {}
        self.busy_until = 0.0

    def open_round(self, sent: int, since: float = math.inf) -> None:
        """Forget the last round; the first `sent` proposals are being verified `since` then.

        The time is that of the draft state's clock; infinity says that the end of that is not known.
        """
        state = self.state
        self._verdict_at = since + self.policy.verify(sent + 1)
        self._sent = sent
        self._opened = 0
        self._own = None
        self.branches = {}
        judged = state.proposals[:sent]
        self._exactly = accepted_exactly([self._acceptance(proposal) for proposal in judged])
        self._forks = []
        calibrator = self.policy.calibration.after_rejection
        for accepted, proposal in enumerate(judged):
            exactly = self._exactly[accepted]
            self._forks += forecasts_after(accepted, proposal, exactly, proposal.token, calibrator)
        if len(state.proposals) > sent:
            self._tail_known()
        else:
            self._rank_forks()

    def _acceptance(self, proposal: Proposal) -> float:
        """Return the chance of a verified token; the average one if the draft model has not processed it."""
        if not proposal.guesses:
            return self.policy.calibration.mean
        return self.policy.calibration.judged(proposal.weight)

    def _tail_known(self) -> None:
        """Open the branch of the tail; later proposals are its first tokens."""
        state = self.state
        sent = self._sent
        exactly = self._exactly[self._sent]
        unsent = state.proposals[sent:]
        tail = self.proposer.unjudged(unsent, len(state.text) + sent)
        prepared = unsent[1:]
        state.proposals = [*state.proposals[:sent], tail]
        found = forecasts_after(sent, tail, exactly, None, self.policy.calibration.after_all)
        chance = next((each.chance for each in found if each.outcome.bonus == tail.token), 0.0)
        value = chance
        for proposal in prepared:
            value *= self.policy.calibration.chance(proposal.confidence)
        self._own = Branch(0, VerifyOutcome(sent, tail.token), chance, value, prepared)
        self.branches[self._own.outcome] = self._own
        self._forks += [each for each in found if each.outcome.bonus != tail.token]
        self._rank_forks()

    def _rank_forks(self) -> None:
        """Sort the forks that may still be opened, the most likely last; drop those beyond the shape."""
        self._forks.sort(key=lambda fork: fork.chance)
        settings = self._settings
        if settings.fan_out_shape == "best-first":
            return
        mean = sum(self.policy.calibration.chance(c) for c in self.state.confidences()[: self._sent])
        allotted = fan_out(settings.fan_out_shape, self._budget, self._sent, mean / max(self._sent, 1))
        for outcome in self.branches:
            allotted[outcome.accepted] -= 1
        kept = []
        for fork in reversed(self._forks):
            if allotted[fork.outcome.accepted] > 0:
                allotted[fork.outcome.accepted] -= 1
                kept.append(fork)
        self._forks = kept[::-1]

    def apply_result(self, outcome: VerifyOutcome) -> bool:
        """Commit the result with its prepared draft as proposals; return whether there was a branch."""
        self._learn(outcome)
        state = self.state
        branch = self.branches.get(outcome)
        if branch is None:
            state.proposals = state.proposals[: outcome.accepted]
            state.apply_result(outcome)
            return False
        fork = len(state.text) + outcome.accepted
        state.text += [proposal.token for proposal in state.proposals[: outcome.accepted]]
        state.text.append(outcome.bonus)
        state.proposals = branch.proposals
        model = state.model
        if model.rereads:  # it can branch only where it has read one token at a time
            state.read_singly()
        elif branch.sequence:
            model.truncate(fork)
            model.share(branch.sequence, 0, model.length(branch.sequence))
        return True

    def _learn(self, outcome: VerifyOutcome) -> None:
        """Compare a verdict with what the draft model thought of it."""
        accepted = outcome.accepted
        proposals = self.state.proposals
        calibration = self.policy.calibration
        for position, proposal in enumerate(proposals[: min(accepted + 1, self._sent)]):
            if proposal.guesses:
                calibration.judged.observe(proposal.weight, is_true=position < accepted)
        if accepted == len(proposals):
            return  # the draft model was not asked what follows
        last = proposals[accepted]
        is_rejected = accepted < self._sent
        calibrator = calibration.after_rejection if is_rejected else calibration.after_all
        for token, share in guesses_after(last, last.token if is_rejected else None):
            calibrator.observe(share, is_true=token == outcome.bonus)

    def gather(self) -> None:
        """Record everything in the cache in the draft state, so a new text can start from it."""
        if self._own is not None:
            self.state.proposals = [*self.state.proposals, *self._own.proposals]
            self._own = None

    def step(self) -> bool:
        """Run the draft model once where it should help most; return whether there was anything to do."""
        state = self.state
        policy = self.policy
        if self._own is None and len(state.missing()) > 1:
            state.extend(policy, self.proposer)
            self._tail_known()
            return True
        work = self._chosen_work()
        if not work:
            return False
        tokens = [state.missing()[0] if branch is None else branch.next_token() for branch in work]
        sequences = [0 if branch is None else branch.sequence for branch in work]
        started = state.clock()
        self.busy_until = started + policy.step(len(tokens))
        histories = [self._history(branch) for branch in work] if self.proposer.needs_history else None
        try:
            proposals = self.proposer.step(state.model, tokens, sequences, histories)
        except ContextFullError:
            return False
        policy.step.observe(len(tokens), state.clock() - started)
        for branch, proposal in zip(work, proposals, strict=True):
            if branch is None:
                state.model.mark()
                state.proposals.append(proposal)
                self._tail_known()
            else:
                branch.value *= self.policy.calibration.chance(proposal.confidence)
                branch.proposals.append(proposal)
        return True

    def _history(self, branch: Branch | None) -> list[int]:
        state = self.state
        if branch is None:
            return state.whole()
        prefix = state.whole()[: len(state.text) + branch.outcome.accepted]
        return [*prefix, branch.outcome.bonus, *(proposal.token for proposal in branch.proposals)]

    def _chosen_work(self) -> list[Branch | None]:
        """Return the branches that are most worth the next call; None is the tail.

        They are in the order of their sequences: llama.cpp then uses its graph of the call before again
        (llm_graph_params::allow_reuse).
        """
        limit = self._settings.draft_length + 1
        model = self.state.model
        known = len(self.state.text)
        if model.rereads:  # it cannot branch inside a call, or without a mark
            self._forks = [fork for fork in self._forks if model.branchable(known + fork.outcome.accepted)]
        work: list[tuple[float, Branch | Forecast | None]] = [
            (branch.value, branch) for branch in self.branches.values() if len(branch.proposals) < limit
        ]
        if self._own is None:
            work.append((self._exactly[self._sent], None))
        free = self._budget - self._opened
        work += [(fork.chance, fork) for fork in self._forks[: -free - 1 : -1]]
        work.sort(key=itemgetter(0), reverse=True)
        work = work[: self._budget + 1]
        values = [value for value, _ in work]
        if self._settings.fan_out_shape == "best-first":
            values = values[: best_width(values, self.policy.step.up_to(len(values)))]
        if self._hinders(values):
            return []
        chosen = work[: len(values)]
        opened = [self._open(item) if isinstance(item, Forecast) else item for _, item in chosen]
        return sorted(opened, key=lambda branch: 0 if branch is None else branch.sequence)

    def _hinders(self, values: Sequence[float]) -> bool:
        """Return whether a call would end so late after the verdict that it costs more than it saves.

        It costs where nothing is ready for the verdict, and saves a step where its results are wanted.
        """
        late_s = self.state.clock() + self.policy.step(len(values)) - self._verdict_at
        if late_s <= 0:
            return False
        ready = sum(branch.chance for branch in self.branches.values() if branch.proposals)
        return (1.0 - ready) * late_s > sum(values) * max(self.policy.step(1) - late_s, 0.0)

    def _open(self, fork: Forecast) -> Branch:
        self._forks.pop()  # forks are opened best first, and the best is the last
        model = self.state.model
        self._opened += 1
        sequence = self._opened
        model.truncate(min(self._settled[sequence], model.length(sequence)), sequence)
        model.share(0, sequence, len(self.state.text) + fork.outcome.accepted)
        self._settled[sequence] = len(self.state.text)
        branch = Branch(sequence, fork.outcome, fork.chance, fork.chance)
        self.branches[fork.outcome] = branch
        return branch


def accepted_exactly(chances: Sequence[float]) -> list[float]:
    """Return the chance that exactly 0, 1, ... all of a draft's tokens are accepted."""
    exactly = []
    reach = 1.0
    for chance in chances:
        exactly.append(reach * (1.0 - chance))
        reach *= chance
    return [*exactly, reach]


def guesses_after(proposal: Proposal, excluded: int | None) -> list[tuple[int, float]]:
    """Return the draft model's likely bonus tokens at a position, with their shares of all.

    `proposal` has its distribution there; `excluded` is the rejected draft token, which cannot be the bonus
    token.
    """
    guesses = [(token, weight) for token, weight in proposal.guesses if token != excluded]
    total = sum(weight for _, weight in guesses)
    return [(token, weight / total) for token, weight in guesses] if total > 0 else []


def forecasts_after(
    accepted: int,
    proposal: Proposal,
    chance: float,
    excluded: int | None,
    calibrator: Callable[[float], float] = lambda share: share,
) -> list[Forecast]:
    """Return the possible outcomes after `accepted` draft tokens, with `chance` for exactly that many.

    `calibrator` gives the chance of a token with a share of all; see `guesses_after` for the rest.
    """
    return [
        Forecast(VerifyOutcome(accepted, token), chance * calibrator(share))
        for token, share in guesses_after(proposal, excluded)
    ]


def fan_out(
    shape: FanOutShape, budget: int, length: int, acceptance: float, exponent: float = 1.0
) -> list[int]:
    """Allot a budget of prepared outcomes to "k accepted", k = 0..length, by a fixed shape.

    `uniform` gives all the same; `geometric` is Saguaro's Theorem 12 for a mean acceptance rate and a
    miss rate that falls as fan-out ** -exponent, with the capped last term.
    """
    if shape == "uniform":
        weights = [1.0] * (length + 1)
    else:
        rate = min(max(acceptance, 0.01), 0.99)
        power = 1.0 / (1.0 + exponent)
        weights = [rate ** (k * power) for k in range(length)]
        weights.append((rate**length / (1.0 - rate)) ** power)
    return _rounded(weights, budget)


def _rounded(weights: Sequence[float], budget: int) -> list[int]:
    """Share a budget in whole numbers, the largest remainders first."""
    scale = budget / sum(weights)
    counts = [int(weight * scale) for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda k: counts[k] - weights[k] * scale)
    for k in by_remainder[: budget - sum(counts)]:
        counts[k] += 1
    return counts


def best_width(values: Sequence[float], costs: Sequence[float]) -> int:
    """Return the number of values (best first) to work on in one call, given the cost of each width.

    It is the width with the highest value per second.
    """
    rates = [total / cost for total, cost in zip(accumulate(values), costs, strict=True)]
    return len(rates) - rates[::-1].index(max(rates)) if rates else 0  # of equal ones, the widest
