"""Preparation after many verdicts that were all alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from localspec.decoding.drafters.proposer import Proposal
from localspec.decoding.policy import AcceptanceCalibration, CostCurve, LatencyModel
from localspec.types.drafts import VerifyOutcome
from tests.decoding.test_speculation_cache import SETTINGS, Bench
from tests.decoding.toys import policy_of, teach


def taught(kinds: Sequence[str]) -> Bench:
    """Return a round that follows others with two tokens each, of which all or none were accepted."""
    bench = Bench(replace(SETTINGS, fan_out_budget=4), sent=2)
    for kind in kinds:
        bench.prepare()
        accepted = 2 if kind == "accepted" else 0
        proposal = bench.draft_state.proposals[accepted]
        bonus = next(t for t, _ in proposal.guesses if accepted == 2 or t != proposal.token)
        bench.cache.apply_result(
            VerifyOutcome(accepted, unguessed(proposal) if kind == "surprise" else bonus)
        )
        while len(bench.draft_state.proposals) < 2:
            bench.draft_state.extend(policy_of(), bench.proposer)
        bench.cache.open_round(2)
    bench.prepare()
    return bench


def unguessed(proposal: Proposal) -> int:
    return next(token for token in range(16) if token not in dict(proposal.guesses))


def opened_after(kinds: Sequence[str]) -> Counter[int]:
    """Return for how many accepted tokens branches are opened then."""
    branches = taught(kinds).branches.values()
    return Counter(branch.outcome.accepted for branch in branches if branch.sequence)


def test_branches_follow_the_verdicts_that_were_seen() -> None:
    assert opened_after([]) == {0: 4}
    assert opened_after(["accepted"] * 60)[2] > 1
    assert opened_after(["accepted"] * 20 + ["rejected"] * 100)[0] > 2


def test_where_drafts_are_wrong_there_are_fewer_branches() -> None:
    usual = opened_after(["rejected", "accepted"] * 30)
    assert opened_after(["surprise", "accepted"] * 30)[0] < usual[0]


def test_what_always_comes_true_is_soon_expected() -> None:
    """The own branch represents all tokens and the best draft."""
    bench = taught(["accepted"] * 60)
    first, second, tail = bench.draft_state.proposals[:3]
    assert bench.own.chance > 0.6 > first.weight * second.weight * tail.weight


def test_where_drafts_are_hardly_accepted_more_outcomes_come_before_longer_drafts() -> None:
    one_at_a_time = LatencyModel(CostCurve({1: 1.0}), CostCurve({1: 0.01, 2: 0.5, 16: 8.0}))
    longest = {}
    for chance in (0.1, 0.9):
        bench, known = Bench(), AcceptanceCalibration()
        teach(known, chance)
        bench.cache.policy = policy_of(one_at_a_time, calibration=known)
        while len(bench.branches) < 4:
            bench.cache.step()
        longest[chance] = max(len(branch.proposals) for branch in bench.branches.values())
    assert longest == {0.1: 1, 0.9: 4}


def test_what_a_call_costs_is_learned_by_its_width() -> None:
    bench = Bench()
    costs = bench.cache.policy.step.points
    before = costs()
    bench.prepare(most_steps=1)
    width = bench.model.calls[-1]
    assert width not in before
    assert width in costs()
