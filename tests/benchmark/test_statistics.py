import math

import numpy as np
import pytest
from scipy import stats

from localspec.benchmark.statistics import (
    ks_uniform_p_value,
    randomised_pit,
    ratio_of_sums,
)
from localspec.types.drafts import Distribution
from tests.chi_square import chi_square_p_value

SPARSE = Distribution(np.array([7, 3, 5]), np.array([0.5, 0.25, 0.25]))


def test_pit_places_a_token_in_the_order_of_the_support() -> None:
    assert randomised_pit(SPARSE, 7, 0.0) == 0.0
    assert randomised_pit(SPARSE, 7, 0.5) == 0.25
    assert randomised_pit(SPARSE, 3, 0.5) == 0.625
    assert randomised_pit(SPARSE, 5, 1.0) == 1.0
    assert randomised_pit(Distribution(None, np.array([0.2, 0.8])), 1, 0.5) == pytest.approx(0.6)


def test_pit_of_an_impossible_token_is_the_far_end() -> None:
    assert randomised_pit(SPARSE, 4, 0.3) == 1.0


def test_pit_is_uniform_for_right_samples_and_not_for_wrong_ones() -> None:
    rng = np.random.default_rng(11)
    drawn = rng.choice([7, 3, 5], size=3000, p=[0.5, 0.25, 0.25]).tolist()
    skewed = rng.choice([7, 3, 5], size=3000, p=[0.6, 0.2, 0.2]).tolist()
    assert ks_uniform_p_value([randomised_pit(SPARSE, token, rng.random()) for token in drawn]) > 1e-3
    assert ks_uniform_p_value([randomised_pit(SPARSE, token, rng.random()) for token in skewed]) < 1e-6


@pytest.mark.parametrize("count", [20, 200, 5000])
@pytest.mark.parametrize("power", [1.0, 1.05, 1.2, 1.6])
def test_ks_agrees_with_scipy(count: int, power: float) -> None:
    values = np.random.default_rng(count).random(count) ** power
    expected = stats.kstest(values, "uniform").pvalue
    assert ks_uniform_p_value(values.tolist()) == pytest.approx(expected, abs=0.01, rel=0.02)


@pytest.mark.parametrize("shift", [0.02, 0.05, 0.095])
def test_ks_agrees_with_scipy_where_the_fit_is_good(shift: float) -> None:
    values = [(place + 0.5) / 100 + shift * (1 - place / 100) for place in range(100)]
    assert ks_uniform_p_value(values) == pytest.approx(stats.kstest(values, "uniform").pvalue, abs=0.012)


def test_ks_of_an_even_grid_and_of_nothing_is_certain() -> None:
    assert ks_uniform_p_value([(place + 0.5) / 100 for place in range(100)]) == pytest.approx(1.0)
    assert ks_uniform_p_value([]) == 1.0


@pytest.mark.parametrize("cells", [2, 3, 10, 125, 600])
@pytest.mark.parametrize("distortion", [0.0, 0.05, 0.3])
def test_chi_square_agrees_with_scipy(cells: int, distortion: float) -> None:
    rng = np.random.default_rng(cells)
    shares = rng.dirichlet(np.full(cells, 50.0))
    observed = rng.multinomial(20000, (1 - distortion) * shares + distortion * np.eye(cells)[0])
    expected = stats.chisquare(observed, shares * 20000).pvalue
    assert chi_square_p_value(observed, shares) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_chi_square_pools_rare_cells() -> None:
    observed, expected = [480, 505, 9, 2, 4], [500.0, 490.0, 4.0, 3.0, 3.0]
    pooled = stats.chisquare([480, 505, 15], [500.0, 490.0, 10.0]).pvalue
    assert chi_square_p_value(observed, expected) == pytest.approx(pooled)


def test_chi_square_pools_until_enough_is_expected() -> None:
    observed, expected = [0, 3, 13, 84], [0.5, 0.5, 9.0, 90.0]
    pooled = stats.chisquare([16, 84], [10.0, 90.0]).pvalue
    assert chi_square_p_value(observed, expected) == pytest.approx(pooled)


def test_chi_square_never_forgives_the_impossible() -> None:
    assert chi_square_p_value([500, 500, 1], [0.5, 0.5, 0.0]) == 0.0


def test_chi_square_without_a_choice_is_certain() -> None:
    assert chi_square_p_value([10], [1.0]) == 1.0
    assert chi_square_p_value([0, 0], [0.5, 0.5]) == 1.0
    assert chi_square_p_value([10, 0], [1.0, 0.0]) == 1.0


def test_a_ratio_of_equal_pairs_is_certain() -> None:
    assert ratio_of_sums([4.0, 2.0, 1.0], [2.0, 1.0, 0.5]) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio_of_sums([1.0, 1.0], [0.02, 0.03])[0] == pytest.approx(40.0)


def test_pairs_tell_more_than_what_they_are_made_of() -> None:
    chance = np.random.default_rng(3)
    hard = chance.lognormal(0.0, 1.0, size=12)
    above, below = 1.5 * hard * chance.lognormal(0.0, 0.02, 12), hard * chance.lognormal(0.0, 0.02, 12)
    value, low, high = ratio_of_sums(above, below)
    assert 1.45 < low < value < high < 1.60
    _, low, high = ratio_of_sums(above, below[::-1])
    assert high / low > 2.0


@pytest.mark.parametrize("pairs", [3, 6, 20])
def test_the_interval_of_a_ratio_holds_the_truth_as_often_as_it_says(pairs: int) -> None:
    chance = np.random.default_rng(pairs)
    held = 0
    for _ in range(200):
        above = 1.3 * chance.lognormal(0.0, 0.1, size=pairs)
        _, low, high = ratio_of_sums(above, chance.lognormal(0.0, 0.1, size=pairs))
        held += low <= 1.3 <= high
    assert 0.90 <= held / 200 <= 0.99


def test_a_surer_interval_is_wider() -> None:
    above, below = [1.0, 1.1, 0.9, 1.2], [1.0, 1.0, 1.0, 1.0]
    _, low, high = ratio_of_sums(above, below)
    _, lower, higher = ratio_of_sums(above, below, 0.005)
    assert lower < low < high < higher


@pytest.mark.parametrize("count", [2, 3, 5])
def test_where_pairs_differ_little_the_interval_is_students(count: int) -> None:
    above = 100 + np.random.default_rng(3).normal(0, 1, count)
    value, low, high = ratio_of_sums(above, np.ones(count))
    half = stats.t.ppf(0.975, count - 1) * above.std(ddof=1) / math.sqrt(count)
    assert value == pytest.approx(above.mean())
    assert (high - low) / 2 == pytest.approx(half, rel=0.06)
