import numpy as np
import pytest

from localspec.decoding.sampling import (
    FEW,
    best_and_column_maxima,
    best_candidates,
    column_maxima,
    columns,
    distribution,
    draw,
    top_candidates,
)
from localspec.errors import LogitsError
from localspec.types.request import Sampling
from tests.decoding.test_sampling import random_row

SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(),
    Sampling(top_k=100),
    Sampling(top_k=0, top_p=0.5),
    Sampling(top_k=0, top_p=1.0, min_p=0.0),
)


@pytest.mark.parametrize("size", [10, 3001, 8192, 40005])
@pytest.mark.parametrize("count", [1, 16, 200])
def test_top_candidates_are_the_largest_in_order(size: int, count: int) -> None:
    rows = np.stack([random_row(size, seed) for seed in range(3)])
    rows[1, -1] = 99.0  # the last entry lies outside the equal blocks
    ids, logits = top_candidates(rows, count)
    expected = -np.sort(-rows, axis=1)[:, :count]
    assert np.array_equal(logits, expected)
    assert np.array_equal(np.take_along_axis(rows, ids, axis=1), expected)
    assert all(len(set(row)) == min(count, size) for row in ids.tolist())


@pytest.mark.parametrize("size", [10, 300, 3001, 8192, 40005, 152_064])
def test_best_candidates_are_the_largest_in_order(size: int) -> None:
    row = random_row(size).copy()
    row[-1] = 99.0  # the last entry lies outside the equal blocks
    for count in (1, 16, FEW):
        ids, logits = best_candidates(row, count)
        assert logits == (-np.sort(-row))[:count].tolist()
        assert row[ids].tolist() == logits
        assert len(set(ids)) == len(ids)


def test_best_candidates_of_equal_logits_are_distinct() -> None:
    assert len(set(best_candidates(np.zeros(9000, dtype=np.float32), 40)[0])) == 40


@pytest.mark.parametrize("size", [10, 300, 8192, 32_000, 152_064])
def test_a_folded_row_has_the_maximum_of_every_column(size: int) -> None:
    row = np.arange(size, dtype=np.float32)
    maxima, width = column_maxima(row), columns(size)
    assert len(maxima) == width
    assert width == min(size, width) < 256
    assert maxima.max() == size - 1
    if size % width == 0:
        assert set(maxima.tolist()) == set(range(size - width, size))


@pytest.mark.parametrize("size", [10, 300, 8192, 32_000, 151_936, 152_001])
def test_the_best_token_comes_with_the_maxima(size: int) -> None:
    for best in (0, size // 3, size - 1):
        row = random_row(size, best).copy()
        row[best] = 99.0
        token, maxima = best_and_column_maxima(row)
        assert token == best
        assert np.array_equal(maxima, column_maxima(row))
        for broken in (np.nan, np.inf):
            row[size // 2] = broken
            with pytest.raises(LogitsError):
                best_and_column_maxima(row)


def test_top_candidates_of_equal_logits_are_distinct() -> None:
    ids, logits = top_candidates(np.zeros((2, 9000), dtype=np.float32), 40)
    assert len(set(ids[1].tolist())) == 40
    assert not logits.any()


@pytest.mark.parametrize("size", [10, 300, 8192, 40_005, 152_064])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_one_entry_that_is_not_a_number_is_noticed_wherever_it_stands(size: int, broken: float) -> None:
    for place in (0, size // 3, size - 1):
        row = random_row(size).copy()
        row[place] = broken
        with pytest.raises(LogitsError):
            top_candidates(np.stack((random_row(size), row)), 16)
        with pytest.raises(LogitsError):
            best_candidates(row, 16)
        for sampling in SAMPLINGS:
            with pytest.raises(LogitsError):
                distribution(row, sampling, ())


def test_tokens_without_a_chance_are_numbers() -> None:
    row = np.full(9000, -np.inf, np.float32)
    row[77] = 1.0
    assert best_candidates(row, 16)[0][0] == top_candidates(row[None], 16)[0][0][0] == 77
    assert best_and_column_maxima(row)[0] == 77
    for sampling in SAMPLINGS:
        assert draw(distribution(row, sampling, ()), 0.999) == 77
