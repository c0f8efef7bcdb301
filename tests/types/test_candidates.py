"""Candidates of a row are the same whether they come from all logits or were chosen on a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.sampling import deciding, distribution, draw
from localspec.errors import EngineError, LogitsError
from localspec.types.candidates import (
    MOST,
    RIVALS,
    Candidates,
    ChosenRow,
    ChosenRows,
    FullRow,
    FullRows,
    Logits,
    top_candidates,
)
from localspec.types.request import Sampling

SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(),
    Sampling(top_k=100),
    Sampling(top_k=200),
    Sampling(top_k=0, top_p=0.5),
    Sampling(top_k=0, top_p=1.0, min_p=0.0),
)
PENALISED = (
    Sampling(top_k=40, repetition_penalty=1.3),
    Sampling(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    Sampling(top_k=20, presence_penalty=2.0, penalty_window=100),
)
SIZES = (10, 300, 3001, 8192, 32_000, 40_005, 152_064)


def random_row(size: int, seed: int = 0) -> Logits:
    return (np.random.default_rng(seed).normal(size=size) * 3).astype(np.float32)


def chosen(row: Logits, count: int = MOST, seed: int = 1) -> ChosenRow:
    """Choose as a device does: the largest, in no order."""
    ids = np.argsort(-row, kind="stable")[:count].astype(np.int32)
    np.random.default_rng(seed).shuffle(ids)
    return ChosenRow(ids, row[ids])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 16, 64, 200, 5000])
def test_the_top_is_the_largest_in_order(size: int, count: int) -> None:
    for seed in range(3):
        row = random_row(size, seed)
        row[[0, size // 2, -1][seed]] = 99.0
        ids, logits = FullRow(row).top(count)
        expected = np.argsort(-row, kind="stable")[:count]
        assert ids == expected.tolist()
        assert logits == row[expected].tolist()
        assert FullRow(row).best() == ids[0]


@pytest.mark.parametrize("size", SIZES)
def test_of_equal_logits_the_lower_id_comes_first(size: int) -> None:
    row: Logits = np.round(random_row(size) / 4).astype(np.float32)
    expected = np.argsort(-row, kind="stable")
    for candidates in (FullRow(row), chosen(row)):
        assert candidates.top(16)[0] == expected[:16].tolist()
        assert candidates.best() == expected[0]
    flat = np.zeros(size, np.float32)
    assert FullRow(flat).top(16)[0] == list(range(min(16, size)))
    assert FullRow(flat).best() == 0


@pytest.mark.parametrize("size", SIZES)
def test_chosen_candidates_are_those_of_the_whole_row(size: int) -> None:
    for seed in range(5):
        row = random_row(size, seed)
        whole, few = FullRow(row), chosen(row)
        assert few.best() == whole.best()
        for count in (1, 16, 40, MOST):
            assert few.top(count) == whole.top(count)


@pytest.mark.parametrize("sampling", [*SAMPLINGS[:3], *PENALISED])
def test_a_distribution_is_the_same_from_either(sampling: Sampling) -> None:
    draws = np.random.default_rng(3)
    for seed in range(20):
        row = random_row(2000, seed)
        best = np.argsort(-row)[:150]
        history = draws.choice(best, size=200).tolist() if seed % 2 else best[:90].tolist()
        assert deciding(sampling) is not None
        whole = distribution(FullRow(row), sampling, history)
        few = distribution(chosen(row), sampling, history)
        assert whole.ids is not None
        assert few.ids is not None
        assert few.ids.tolist() == whole.ids.tolist()
        assert few.probs.tolist() == whole.probs.tolist()


@pytest.mark.parametrize("sampling", PENALISED)
def test_candidates_decide_what_penalties_of_the_whole_row_leave(sampling: Sampling) -> None:
    """As many more are asked for as penalties can push out: those that move up are among them."""
    row = random_row(2000)
    history = np.argsort(-row)[: sampling.penalty_window].tolist()
    few = distribution(chosen(row), sampling, history)
    above = replace(sampling, top_k=0 if sampling.is_greedy else sampling.top_k, penalty_window=1000)
    assert deciding(above) is None  # so that it is counted from all logits
    whole = distribution(FullRow(row), above, history)
    assert few.ids is not None
    assert whole.ids is not None
    assert few.ids.tolist() == whole.ids.tolist()
    assert few.probs == pytest.approx(whole.probs, rel=1e-5)


def test_what_few_candidates_cannot_decide_needs_all() -> None:
    for sampling in (
        Sampling(top_k=0),
        Sampling(top_k=MOST + 1),
        Sampling(top_k=100, presence_penalty=1.0),
        Sampling(top_k=20, presence_penalty=-0.5),
        Sampling(top_k=20, repetition_penalty=0.9),
    ):
        assert deciding(sampling) is None
        with pytest.raises(EngineError):
            distribution(chosen(random_row(2000)), sampling, [1, 2])
    assert deciding(Sampling(top_k=0, temperature=0.0)) == 1
    assert deciding(Sampling(top_k=40)) == 40
    assert deciding(Sampling(top_k=40, presence_penalty=1.0)) == 104


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_one_entry_that_is_not_a_number_is_noticed_wherever_it_stands(size: int, broken: float) -> None:
    for place in (0, size // 3, size - 1):
        row = random_row(size)
        row[place] = broken
        ids = np.arange(size, dtype=np.int32)
        both: tuple[Candidates, ...] = (FullRow(row), ChosenRow(ids, row))
        for candidates in both:
            with pytest.raises(LogitsError):
                candidates.best()
            with pytest.raises(LogitsError):
                candidates.top(16)
        for sampling in SAMPLINGS:
            with pytest.raises(LogitsError):
                distribution(FullRow(row), sampling, ())


def test_tokens_without_a_chance_are_numbers() -> None:
    for size in (9000, 40_005):
        row = np.full(size, -np.inf, np.float32)
        row[77] = 1.0
        assert FullRow(row).top(16)[0][0] == FullRow(row).best() == chosen(row).best() == 77
        for sampling in SAMPLINGS:
            assert draw(distribution(FullRow(row), sampling, ()), 0.999) == 77


def test_rows_are_given_one_by_one_and_without_the_first() -> None:
    logits = np.stack([random_row(500, seed) for seed in range(4)])
    ids, best = top_candidates(logits, 20)
    for rows in (FullRows(logits), ChosenRows(ids.astype(np.int32), best)):
        assert len(rows) == 4
        assert [row.best() for row in rows] == ids[:, 0].tolist()
        assert [row.best() for row in rows.last(2)] == ids[2:, 0].tolist()


@pytest.mark.parametrize("size", SIZES)
def test_the_lead_is_the_best_with_its_share_of_the_likeliest(size: int) -> None:
    for seed in range(5):
        row = random_row(size, seed)
        row[[0, size // 3, -1, 1, 2][seed]] = 12.0
        best = np.sort(row.astype(np.float64))[::-1][:RIVALS]
        for sharpness in (0.5, 1.0, 2.0):
            expected = 1.0 / np.exp((best - best[0]) * sharpness).sum()
            token, share = chosen(row).lead(sharpness)
            assert share == pytest.approx(expected)
            found, estimated = FullRow(row).lead(sharpness)
            assert found == token == row.argmax()
            assert expected <= estimated + 1e-9 < 1.15 * expected + 0.01


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_lead_over_what_is_no_number_is_an_error(broken: float) -> None:
    for size in SIZES:
        row = random_row(size)
        row[size // 3] = broken
        ids = np.arange(size, dtype=np.int32)
        for candidates in (FullRow(row), ChosenRow(ids, row)):
            with pytest.raises(LogitsError):
                candidates.lead(1.0)
