"""Preparation, driven by hand; the fake model refuses to share between sequences that differ."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.proposer import RowProposer
from localspec.decoding.drafters.speculation_cache import (
    Branch,
    Forecast,
    SpeculationCache,
    accepted_exactly,
    fan_out,
    forecasts_after,
)
from localspec.decoding.policy import AcceptanceCalibration, CostCurve, LatencyModel
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import EngineSettings, FanOutShape, Sampling
from tests.decoding.toys import GREEDY, PLAIN, assert_cache_follows, greedy_text, policy_of, proposer_of
from tests.fake_model import FakeModel

TEXT = [1, 2, 3]
SETTINGS = EngineSettings(draft_length=3, fan_out_budget=6)


class WatchedModel(FakeModel):
    """A fake model that counts what is done to its sequences."""

    def __init__(self, context: int = 4096) -> None:
        super().__init__(sequences=9, sharpness=1.0, context=context)
        self.moves = self.shared = 0

    def share(self, source: int, target: int, end: int) -> None:
        self.moves += 1
        self.shared += end - self.length(target)
        super().share(source, target, end)

    def truncate(self, length: int, sequence: int = 0) -> None:
        self.moves += length != self.length(sequence)
        super().truncate(length, sequence)


@dataclass
class Bench:
    """A draft model with a round of `sent` tokens under verification."""

    settings: EngineSettings = SETTINGS
    sent: int = 3
    sampling: Sampling = GREEDY
    context: int = 4096
    model: WatchedModel = field(init=False)
    draft_state: DraftState = field(init=False)
    proposer: RowProposer = field(init=False)
    cache: SpeculationCache = field(init=False)

    def __post_init__(self) -> None:
        self.model = WatchedModel(self.context)
        self.draft_state = DraftState(self.model)
        self.draft_state.begin(TEXT)
        policy = policy_of(None, self.settings, deterministic=self.sampling == GREEDY)
        self.proposer = proposer_of(self.sampling, self.settings)
        self.cache = SpeculationCache(self.draft_state, policy, self.proposer, self.settings)
        for _ in range(self.sent):
            self.draft_state.extend(policy, self.proposer)
        self.cache.open_round(self.sent)

    def prepare(self, most_steps: int = 1000) -> None:
        """Work until there is nothing to do."""
        for _ in range(most_steps):
            if not self.cache.step():
                return

    @property
    def branches(self) -> dict[VerifyOutcome, Branch]:
        return self.cache.branches

    @property
    def own(self) -> Branch:
        return next(branch for branch in self.branches.values() if branch.sequence == 0)

    def expected(self) -> list[Forecast]:
        """Rank all outcomes that are not the trunk's own, the likeliest first."""
        proposals = self.draft_state.proposals
        exactly = accepted_exactly([proposal.weight for proposal in proposals[: self.sent]])
        found = []
        for accepted, proposal in enumerate(proposals):
            excluded = proposal.token if accepted < self.sent else None
            found += forecasts_after(accepted, proposal, exactly[accepted], excluded)
        found = [forecast for forecast in found if forecast.outcome != self.own.outcome]
        return sorted(found, key=lambda forecast: forecast.chance, reverse=True)

    def text_of(self, branch: Branch) -> list[int]:
        sent = [proposal.token for proposal in self.draft_state.proposals[: branch.outcome.accepted]]
        return [*self.draft_state.text, *sent, branch.outcome.bonus]


def assert_sound(bench: Bench) -> None:
    """Check what every branch proposes and what its cache holds."""
    assert_cache_follows(bench.draft_state, bench.model) if not bench.own.proposals else None
    for branch in bench.branches.values():
        before = bench.text_of(branch)
        proposed = [proposal.token for proposal in branch.proposals]
        held = bench.model.tokens(branch.sequence)
        assert held == [*before, *proposed][: len(held)]
        if bench.sampling == GREEDY:
            assert proposed == greedy_text(bench.model, before, len(proposed))


def test_best_first_opens_the_likeliest_outcomes() -> None:
    bench = Bench()
    bench.prepare()
    opened = {outcome for outcome, branch in bench.branches.items() if branch.sequence}
    assert opened == {forecast.outcome for forecast in bench.expected()[:6]}
    assert_sound(bench)


def test_every_branch_is_drafted_to_its_full_length() -> None:
    bench = Bench()
    bench.prepare()
    assert {len(branch.proposals) for branch in bench.branches.values()} == {4}
    assert not bench.cache.step()


def test_the_likely_is_prepared_before_the_unlikely() -> None:
    dear = LatencyModel(CostCurve({1: 1.0}), CostCurve({1: 0.01, 2: 0.5, 16: 8.0}))  # one sequence at a time
    bench = Bench()
    bench.cache.policy = policy_of(dear)
    opened: list[VerifyOutcome] = []
    for _ in range(60):
        bench.cache.step()
        opened += [outcome for outcome in bench.branches if outcome not in opened]
    ranked = [forecast.outcome for forecast in bench.expected()]
    forks = [outcome for outcome in opened if outcome in ranked]
    assert len(forks) > 3
    assert forks == ranked[: len(forks)]
    assert bench.model.calls[-1] == 1


@pytest.mark.parametrize("shape", ["uniform", "geometric"])
@pytest.mark.parametrize(("sent", "budget"), [(3, 8), (3, 5), (1, 7), (0, 4), (2, 1)])
def test_a_fixed_shape_opens_its_counts(shape: FanOutShape, sent: int, budget: int) -> None:
    bench = Bench(replace(SETTINGS, fan_out_shape=shape, fan_out_budget=budget), sent)
    bench.prepare()
    calibration = AcceptanceCalibration()
    chances = [calibration.chance(proposal.confidence) for proposal in bench.draft_state.proposals[:sent]]
    wanted = fan_out(shape, budget, sent, sum(chances) / max(sent, 1))
    wanted[sent] = max(1, wanted[sent])  # the trunk's own branch is free, even without a share
    found = Counter(outcome.accepted for outcome in bench.branches)
    assert [found[accepted] for accepted in range(sent + 1)] == wanted
    for accepted in range(sent):
        bonuses = {outcome.bonus for outcome in bench.branches if outcome.accepted == accepted}
        ranked = [f.outcome.bonus for f in bench.expected() if f.outcome.accepted == accepted]
        assert bonuses == set(ranked[: wanted[accepted]])
    assert_sound(bench)


def test_the_likeliest_outcome_of_all_needs_no_sequence() -> None:
    bench = Bench(replace(SETTINGS, fan_out_budget=0))
    bench.prepare()
    assert [branch.sequence for branch in bench.branches.values()] == [0]
    before = bench.model.moves
    assert bench.cache.apply_result(bench.own.outcome)
    bench.cache.open_round(3)
    assert bench.model.moves == before == 0
    assert_cache_follows(bench.draft_state, bench.model)


def test_there_are_never_more_branches_than_sequences() -> None:
    bench = Bench(replace(SETTINGS, fan_out_budget=64))
    bench.prepare()
    assert sorted(branch.sequence for branch in bench.branches.values()) == list(range(9))


def outcomes_of_every_kind() -> list[VerifyOutcome]:
    bench = Bench()
    bench.prepare()
    prepared = list(bench.branches)
    missed = [
        next(o for bonus in range(16) if (o := VerifyOutcome(accepted, bonus)) not in prepared)
        for accepted in range(4)
    ]
    return [*prepared, *missed]


@pytest.mark.parametrize("outcome", outcomes_of_every_kind(), ids=lambda o: f"{o.accepted}-{o.bonus}")
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 1000])
def test_the_trunk_follows_every_outcome(outcome: VerifyOutcome, steps: int) -> None:
    bench = Bench()
    bench.prepare(steps)
    expected = [*TEXT, *[p.token for p in bench.draft_state.proposals[: outcome.accepted]], outcome.bonus]
    branch = bench.branches.get(outcome)
    assert bench.cache.apply_result(outcome) == (branch is not None)
    assert bench.draft_state.text == expected
    assert bench.draft_state.proposals == (branch.proposals if branch else [])
    assert_cache_follows(bench.draft_state, bench.model)
    if branch and branch.proposals:
        assert bench.model.length() >= len(expected)  # what the branch has read need not be read again
    bench.cache.open_round(min(2, len(bench.draft_state.proposals)))
    bench.prepare()
    assert len(bench.branches) == 7
    assert_sound(bench)


@pytest.mark.parametrize("shape", ["best-first", "geometric"])
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
def test_branches_serve_hundreds_of_rounds(shape: FanOutShape, sampling: Sampling) -> None:
    bench = Bench(replace(SETTINGS, fan_out_shape=shape), 0, sampling)
    rng = random.Random(3)
    hits = 0
    for _ in range(300):
        bench.prepare(rng.choice([0, 1, 2, 3, 5, 1000]))
        if any(branch.sequence == 0 for branch in bench.branches.values()):
            assert_sound(bench)
        accepted = rng.randrange(bench.sent + 1)
        outcome = VerifyOutcome(accepted, rng.randrange(16))
        if bench.branches and rng.random() < 0.7:
            outcome = rng.choice(list(bench.branches))
        text = [
            *bench.draft_state.text,
            *[p.token for p in bench.draft_state.proposals[: outcome.accepted]],
            outcome.bonus,
        ]
        hits += bench.cache.apply_result(outcome)
        assert bench.draft_state.text == text
        assert_cache_follows(bench.draft_state, bench.model)
        if rng.random() < 0.1:
            copied = [rng.randrange(16) for _ in range(rng.randrange(1, 4))]
            bench.draft_state.proposals = []
            bench.model.truncate(min(bench.model.length(), len(text) - 1))
            bench.draft_state.adopt(copied, bench.proposer)
            bench.sent = len(copied)
        else:
            bench.sent = rng.randrange(min(3, len(bench.draft_state.proposals)) + 1)
        bench.cache.open_round(bench.sent)
        assert bench.model.length() <= len(bench.draft_state.text) + 8
    assert 100 < hits < 300


def test_branches_share_only_what_is_new() -> None:
    bench = Bench()
    for _ in range(30):
        bench.prepare()
        bench.cache.apply_result(bench.own.outcome)
        bench.cache.open_round(3)
    before = bench.model.shared
    bench.prepare()
    assert bench.model.shared - before <= 6 * (4 + 3)  # for each the last round, and what is judged


def test_preparing_stops_quietly_where_the_context_ends() -> None:
    bench = Bench(context=len(TEXT) + 4)
    bench.prepare(most_steps=50)
    assert max(bench.model.length(sequence) for sequence in range(9)) <= len(TEXT) + 4
    outcome = VerifyOutcome(0, 0)
    bench.cache.apply_result(outcome)
    assert bench.draft_state.text == [*TEXT, 0]
    assert_cache_follows(bench.draft_state, bench.model)


def test_gathering_lets_a_new_text_start_from_everything_that_was_read() -> None:
    bench = Bench()
    bench.prepare()
    written = greedy_text(bench.model, TEXT, 7)
    held = bench.model.length()
    bench.cache.gather()
    bench.draft_state.begin([*TEXT, *written, 9, 9])
    assert held > len(TEXT) + 4
    assert bench.model.length() == held
    assert_cache_follows(bench.draft_state, bench.model)


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_what_was_drafted_beyond_the_tail_goes_to_its_branch_when_a_round_opens(sent: int) -> None:
    bench = Bench(sent=5)
    bench.cache.open_round(sent)
    written = greedy_text(bench.model, TEXT, 5)
    assert [each.token for each in bench.draft_state.proposals] == written[: sent + 1]
    assert bench.own.outcome == VerifyOutcome(sent, written[sent])
    assert [each.token for each in bench.own.proposals] == written[sent + 1 :]
    bench.cache.gather()
    assert [each.token for each in bench.draft_state.proposals] == written
    assert_cache_follows(bench.draft_state, bench.model)


def test_penalties_see_the_text_of_each_branch() -> None:
    sampling = replace(PLAIN, presence_penalty=30.0, penalty_window=64)
    bench = Bench(replace(SETTINGS, acceptance="match"), 3, sampling)
    bench.prepare()
    for branch in bench.branches.values():
        whole = [*bench.text_of(branch), *(proposal.token for proposal in branch.proposals)]
        assert len(set(whole)) == len(whole)


def test_a_call_that_would_only_delay_the_verdict_is_not_begun() -> None:
    bench = Bench()
    cache, model = bench.cache, bench.model
    cache.open_round(bench.sent, since=-1e6)  # the verdict is overdue, and nothing is ready for it
    calls = len(model.calls)
    assert not cache.step()
    assert len(model.calls) == calls
    assert cache.branches == {}


def test_a_call_that_ends_before_the_verdict_is_begun_and_announces_its_end() -> None:
    bench = Bench()
    started = time.perf_counter()
    bench.cache.open_round(bench.sent, since=started + 1e6)
    assert bench.cache.step()
    assert bench.cache.branches
    assert bench.cache.busy_until > started
