from __future__ import annotations

import pytest

from localspec.decoding.policy import CostCurve, LatencyModel
from localspec.decoding.speed_model import PYTHON_S, explain, predict, rank, shared_cores


def costs(verify: dict[int, float], step: dict[int, float]) -> LatencyModel:
    return LatencyModel(CostCurve(verify), CostCurve(step))


FLAT = costs({1: 0.030, 9: 0.032}, {1: 0.006, 16: 0.008})


def test_on_two_devices_with_flat_costs_drafting_ahead_is_fastest() -> None:
    ssd, sd, off = predict(FLAT, FLAT)
    assert (ssd.mode, sd.mode, off.mode) == ("ssd", "sd", "off")
    assert ssd.tokens_per_s > sd.tokens_per_s > 1.5 * off.tokens_per_s
    assert min(ssd.draft_length, sd.draft_length) > 1


def test_where_verification_is_dear_nothing_beats_plain_decoding() -> None:
    alone = costs({1: 0.010, 9: 0.090}, {1: 0.003, 16: 0.020})
    together = costs({1: 0.014, 9: 0.120}, {1: 0.006, 16: 0.040})
    assert predict(alone, together)[0].mode == "off"


def test_a_draft_known_to_draft_badly_is_left_out() -> None:
    alone = costs({1: 0.010, 9: 0.018}, {1: 0.001, 16: 0.004})
    together = costs({1: 0.012, 9: 0.022}, {1: 0.002, 16: 0.008})
    assert predict(alone, together)[0].mode == "sd"
    assert predict(alone, together, 0.1)[0].mode == "off"
    fast, slow = (predict(alone, together, acceptance)[0].tokens_per_s for acceptance in (0.9, 0.7))
    assert fast > slow == predict(alone, together)[0].tokens_per_s


@pytest.mark.parametrize(("nine_s", "asked"), [(0.024, 1), (0.200, 0)])
def test_both_at_once_are_measured_only_where_that_can_matter(nine_s: float, asked: int) -> None:
    alone = costs({1: 0.020, 9: nine_s}, {1: 0.004, 16: 0.008})
    together = costs({1: 0.021, 9: 1.1 * nine_s}, {1: 0.005, 16: 0.010})
    measured: list[LatencyModel] = []

    def measure() -> LatencyModel:
        measured.append(together)
        return together

    ranked = rank(alone, measure)
    assert len(measured) == asked
    assert ranked == (predict(alone, together) if asked else predict(alone, None))
    assert rank(alone, None) == predict(alone, None)


def test_a_cheap_draft_on_all_cores_beats_sharing_them() -> None:
    alone = costs({1: 0.020, 9: 0.024}, {1: 0.0005, 16: 0.004})
    together = costs({1: 0.030, 9: 0.036}, {1: 0.001, 16: 0.009})
    assert [found.mode for found in predict(alone, together)] == ["sd", "ssd", "off"]


def test_python_counts_where_the_models_are_tiny() -> None:
    tiny = costs({1: 0.0005, 9: 0.0006}, {1: 0.0001, 16: 0.0002})
    scaled = costs({1: 0.05, 9: 0.06}, {1: 0.01, 16: 0.02})
    tiny_gain, gain = (predict(cost, None)[0].tokens_per_s * cost.verify(1) for cost in (tiny, scaled))
    assert tiny_gain < 0.8 * gain


def test_taking_turns_counts_where_the_models_are_tiny() -> None:
    tiny = costs({1: 0.0003, 9: 0.0003}, {1: 0.00001, 16: 0.00001})
    ahead = next(found for found in predict(tiny, tiny) if found.mode == "ssd")
    waiting = next(found for found in predict(tiny, None) if found.mode == "sd")
    assert ahead.tokens_per_s < 1.2 * waiting.tokens_per_s  # 1.46 times if handing over cost nothing


def test_without_branches_drafting_ahead_is_not_considered() -> None:
    assert {found.mode for found in predict(FLAT, None)} == {"off", "sd"}


def test_a_gain_too_small_to_notice_is_not_a_reason_to_speculate() -> None:
    verify = {1: 1.0, 2: 1.66}  # one draft token brings 1.7 tokens in 1.66 + 0.02
    found = predict(costs(verify, {1: 0.02}), None)
    assert found[0].mode == "off"
    assert found[1].tokens_per_s > found[0].tokens_per_s


def test_a_gain_that_rests_on_an_unknown_draft_model_is_not_a_reason_to_speculate() -> None:
    dear = costs({1: 0.020, 9: 0.036}, {1: 0.008, 16: 0.016})  # it pays from 0.6 of accepted tokens on
    found = predict(dear, None)
    assert found[0].mode == "off"
    assert "not sure" in explain(found)
    assert predict(dear, None, 0.7)[0].mode == "sd"
    assert "not sure" not in explain(predict(dear, None, 0.7))
    assert "not sure" not in explain(predict(FLAT, None))


def test_plain_decoding_is_predicted_from_its_own_cost() -> None:
    off = next(found for found in predict(FLAT, None) if found.mode == "off")
    assert off.tokens_per_s == pytest.approx(1 / (0.030 + PYTHON_S))
    assert off.draft_length == 0


def test_a_target_that_is_mostly_elsewhere_leaves_the_draft_half_of_the_cores() -> None:
    assert [shared_cores(8, None, evenly=evenly) for evenly in (False, True)] == [(6, 2), (4, 4)]
    assert shared_cores(8, 3, evenly=True) == (5, 3)
