from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest

from localspec.decoding.drafters.drafter import DraftState
from localspec.decoding.drafters.model_drafter import ModelDrafter
from localspec.decoding.policy import (
    OUTLIER,
    AcceptanceCalibration,
    Calibrator,
    CostCurve,
    LatencyModel,
    is_plausible,
)
from localspec.types.drafts import VerifyOutcome
from localspec.types.request import EngineSettings
from tests.decoding.toys import PLAIN, latency_model, policy_of, proposer_of, stats
from tests.fake_model import FakeModel


def test_a_curve_is_linear_between_and_beyond_its_points() -> None:
    curve = CostCurve({1: 1.0, 5: 3.0, 9: 4.0})
    assert [curve(size) for size in (1, 3, 5, 7, 9, 13)] == [1.0, 2.0, 3.0, 3.5, 4.0, 5.0]


def test_a_curve_that_falls_does_not_fall_below_its_cheapest_point() -> None:
    assert CostCurve({2: 1.0, 4: 0.5})(100) == 0.5


def test_a_curve_of_one_point_is_flat() -> None:
    assert {CostCurve({4: 0.3})(size) for size in (1, 4, 50)} == {0.3}


def test_a_curve_learns_new_sizes_and_follows_known_ones() -> None:
    curve = CostCurve({1: 1.0, 9: 2.0})
    curve.observe(3, 1.1)
    assert curve.points() == {1: 1.0, 3: 1.1, 9: 2.0}
    for _ in range(200):
        curve.observe(9, 3.0)
    assert curve(9) == pytest.approx(3.0, rel=0.01)
    assert curve(1) == 1.0


def test_a_curve_remembers_no_answer_longer_than_it_is_right() -> None:
    chance = random.Random(0)
    for _ in range(20):
        curve = CostCurve({size: chance.random() for size in chance.sample(range(1, 20), 3)})
        for _ in range(30):
            curve.observe(chance.randint(1, 24), chance.random())
            fresh = CostCurve(curve.points())
            assert curve.up_to(30) == [fresh(size) for size in range(1, 31)]


def test_one_disturbed_call_hardly_counts_and_a_fast_one_is_soon_believed() -> None:
    disturbed, slower, faster = (CostCurve({1: 1.0}) for _ in range(3))
    disturbed.observe(1, 1000.0)
    slower.observe(1, 1.5)
    faster.observe(1, 0.5)
    assert disturbed(1) < 1.5
    assert 1.0 - faster(1) > slower(1) - 1.0 > 0


def test_the_first_call_of_a_size_may_have_compiled_something() -> None:
    curve = CostCurve({1: 0.01, 3: 0.02})
    curve.observe(2, 50.0)
    curve.observe(9, 50.0)
    assert curve(2) == pytest.approx(OUTLIER * 0.015)
    assert curve(9) <= OUTLIER * 0.2


@pytest.mark.parametrize(
    ("costs", "plausible"),
    [
        ({}, True),
        ({1: 0.01}, True),
        ({1: 0.014, 2: 0.022, 5: 0.038}, True),
        ({1: 0.01, 8: 0.03, 9: 0.011}, True),  # llama.cpp computes more than eight otherwise
        ({1: 0.01, 2: 0.02, 4: 0.04, 8: 0.08}, True),
        ({1: 0.013, 2: 0.111, 5: 0.172}, False),
        ({1: 0.008, 2: 0.010, 4: 0.014, 8: 187.2}, False),
        ({1: 0.05, 2: 0.01, 3: 0.011}, False),
    ],
)
def test_a_call_takes_neither_much_less_than_a_smaller_nor_more_than_its_tokens_alone(
    costs: dict[int, float], plausible: bool
) -> None:
    assert is_plausible(costs) == plausible


def test_an_unlearned_calibration_takes_confidence_at_its_word() -> None:
    calibration = AcceptanceCalibration()
    for percent in range(101):
        assert calibration.chance(percent / 100) == pytest.approx(percent / 100, abs=0.05)


def test_a_calibration_learns_where_confidence_misleads() -> None:
    calibration = AcceptanceCalibration()
    for _ in range(200):
        calibration.observe([0.95], 0)
        calibration.observe([0.3], 1)
    assert calibration.chance(0.95) < 0.1
    assert calibration.chance(0.3) > 0.9
    assert calibration.chance(0.6) == AcceptanceCalibration().chance(0.6)


def test_a_calibration_learns_what_absolute_confidence_means() -> None:
    calibration = AcceptanceCalibration()
    for _ in range(200):
        calibration.observe([1.0], 0)
    assert calibration.chance(1.0) < 0.1


def test_a_calibration_ignores_what_was_not_judged() -> None:
    calibration, fresh = AcceptanceCalibration(), AcceptanceCalibration()
    calibration.observe([0.9, 0.5, 0.2], 1)
    assert calibration.chance(0.9) > fresh.chance(0.9)
    assert calibration.chance(0.5) < fresh.chance(0.5)
    assert calibration.chance(0.2) == fresh.chance(0.2)


def test_the_mean_follows_a_text_that_changes_its_kind() -> None:
    calibration = AcceptanceCalibration()
    for _ in range(200):
        calibration.observe([0.5], 1)
    for _ in range(40):
        calibration.observe([0.5], 0)
    assert calibration.mean < 0.2
    assert 0.6 < calibration.chance(0.5) < 0.9  # what a confidence means lasts longer than how a text goes


def test_unlearned_odds_take_a_chance_at_its_word() -> None:
    calibrator = Calibrator()
    assert [calibrator(percent / 100) for percent in range(101)] == [percent / 100 for percent in range(101)]


def test_odds_learn_how_often_it_is_true() -> None:
    calibrator, chances = Calibrator(), random.Random(0)
    truth = {0.04: 0.01, 0.3: 0.45, 0.62: 0.62, 0.97: 0.8}
    for _ in range(4000):
        for own, chance in truth.items():
            calibrator.observe(own, is_true=chances.random() < chance)
    assert [calibrator(own) for own in truth] == pytest.approx(list(truth.values()), abs=0.04)


def test_odds_continue_without_a_step_between_what_was_learned() -> None:
    calibrator = Calibrator()
    for _ in range(300):
        calibrator.observe(0.2, is_true=True)
        calibrator.observe(0.9, is_true=False)
    found = [calibrator(step / 1000) for step in range(1001)]
    assert found[0] == 0.0
    assert max(found) <= 1.0
    assert max(abs(right - left) for left, right in pairwise(found)) < 0.02
    assert calibrator(0.5) == 0.5  # nothing was learned there


def test_one_surprise_hardly_counts() -> None:
    calibrator = Calibrator()
    calibrator.observe(0.01, is_true=True)
    assert 0.01 < calibrator(0.01) < 0.02


@pytest.mark.parametrize("deterministic", [True, False])
def test_cheap_verification_sends_everything_up_to_the_limit(deterministic: bool) -> None:
    policy = policy_of(latency_model(verify_slope=1e-6, step=1e-6), deterministic=deterministic)
    assert policy.worth_drafting([0.5] * 4, 8)
    assert policy.length_to_send([0.5] * 8, 8) == 8
    assert policy.length_to_send([0.5] * 8, 3) == 3


@pytest.mark.parametrize("deterministic", [True, False])
def test_dear_verification_sends_nothing(deterministic: bool) -> None:
    policy = policy_of(latency_model(verify_slope=1.0), deterministic=deterministic)
    assert not policy.worth_drafting([], 8)
    assert policy.length_to_send([0.99] * 8, 8) == 0


def test_drafting_stops_where_the_chance_to_be_reached_no_longer_pays() -> None:
    policy = policy_of(latency_model(verify_slope=0.1, step=0.1))
    assert policy.worth_drafting([], 8)
    assert policy.worth_drafting([0.5, 0.9], 8)
    assert not policy.worth_drafting([0.5, 0.5, 0.5], 8)


def test_a_dear_draft_model_is_not_asked_but_what_it_has_written_is_sent() -> None:
    policy = policy_of(latency_model(step=5.0))
    assert not policy.worth_drafting([0.9], 8)
    assert policy.length_to_send([0.9, 0.9], 8) == 2


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_draft_may_pass_a_loss_that_further_tokens_make_good(deterministic: bool) -> None:
    costs = LatencyModel(CostCurve({1: 1.0, 2: 1.95, 9: 1.96}), CostCurve({1: 0.001}))
    policy = policy_of(costs, deterministic=deterministic)
    assert policy.worth_drafting([], 8)
    assert not policy.worth_drafting([], 1)
    assert policy.length_to_send([0.85] * 6, 8) == 6
    assert policy.length_to_send([0.85], 1) == 0


def test_a_chosen_draft_takes_its_best_length_of_all() -> None:
    costs = LatencyModel(CostCurve({1: 1.0, 2: 1.1, 3: 1.2, 4: 2.9, 5: 3.0}), CostCurve({1: 0.001}))
    assert policy_of(costs).length_to_send([0.95, 0.95, 0.95, 0.3], 4) == 2


@pytest.mark.parametrize(
    "costs",
    [
        latency_model(verify_slope=0.08, step=0.02),
        LatencyModel(CostCurve({1: 1.0, 2: 1.6, 3: 1.6, 9: 2.4}), CostCurve({1: 0.02})),  # only two pay
    ],
)
def test_whether_a_drawn_token_is_sent_never_depends_on_the_token(costs: LatencyModel) -> None:
    """Over many draws: after the same draft tokens, the next one is always sent, or never."""
    decisions: defaultdict[tuple[int, ...], set[bool]] = defaultdict(set)
    drawn: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    lengths = set()
    for seed in range(300):
        draft_state = DraftState(FakeModel(8, seed=4, sharpness=1.5))
        policy = policy_of(costs, deterministic=False)
        drafter = ModelDrafter(draft_state, policy, proposer_of(PLAIN, EngineSettings(), seed), 8)
        drafter.begin([1, 2])
        drafter.commit(VerifyOutcome(0, 3))
        sent = len(drafter.draft(6).tokens)
        lengths.add(sent)
        tokens = tuple(proposal.token for proposal in draft_state.proposals)
        for place, token in enumerate(tokens[: sent + 1]):
            decisions[tokens[:place]].add(place < sent)
            drawn[tokens[:place]].add(token)
    assert max(len(found) for found in drawn.values()) >= 4
    assert len(lengths) > 1
    assert [prefix for prefix, found in decisions.items() if len(found) > 1] == []


def test_a_fixed_confidence_replaces_the_costs() -> None:
    policy = policy_of(latency_model(verify_slope=1.0, step=9.0), EngineSettings(min_confidence=0.6))
    assert policy.worth_drafting([], 8)
    assert policy.worth_drafting([0.9, 0.7], 8)
    assert not policy.worth_drafting([0.9, 0.5], 8)
    assert policy.length_to_send([0.9, 0.7, 0.5, 0.9], 8) == 2
    assert policy.length_to_send([0.9, 0.7, 0.8], 2) == 2
    assert policy_of(None, EngineSettings(min_confidence=0.0)).length_to_send([0.0, 0.1], 8) == 2


def test_after_many_plain_rounds_a_short_draft_looks_again() -> None:
    policy = policy_of(latency_model(verify_slope=1.0))
    rounds = 0
    while not policy.worth_drafting([], 8):
        assert policy.length_to_send([0.9] * 8, 8) == 0
        policy.observe(stats(), 1)
        rounds += 1
        assert rounds < 500
    assert rounds > 10
    explored = policy.length_to_send([0.9] * 8, 8)
    assert 0 < explored < 8
    assert not policy.worth_drafting([0.9] * explored, 8)
    policy.observe(stats(drafted=explored, each_s=3.0), 1)
    assert not policy.worth_drafting([], 8)


def test_the_time_of_a_token_follows_the_rounds_without_overshooting() -> None:
    policy = policy_of()
    assert policy.seconds_per_token == 1.0
    for _ in range(300):
        policy.observe(stats(each_s=0.5), 4)
    assert policy.seconds_per_token == pytest.approx(0.5, rel=0.01)
    for tokens in (1, 20, 65):
        before = policy.seconds_per_token
        policy.observe(stats(each_s=1e-6), tokens)
        assert 0 < policy.seconds_per_token < before


def test_a_draft_model_that_is_still_busy_is_asked_less() -> None:
    policy = policy_of(latency_model(verify_slope=0.01, step=0.01))
    assert policy.worth_drafting([0.9, 0.9], 8)
    assert not policy.worth_drafting([0.9, 0.9], 8, delay_s=100.0)
