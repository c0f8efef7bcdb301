import ctypes
from collections.abc import Sequence
from dataclasses import replace

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.decoding.sampling import (
    FEW,
    distribution,
    draft_distribution,
    draw,
    one_point,
    probability,
    residual,
    saguaro_top,
)
from localspec.errors import EngineError
from localspec.types.candidates import FullRow, top_candidates
from localspec.types.drafts import Distribution
from localspec.types.request import EngineSettings, Sampling

OPEN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
GREEDY = Sampling(temperature=0.0)
ALL_PENALTIES = Sampling(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)


def random_row(size: int, seed: int = 0, spread: float = 3.0) -> NDArray[np.float32]:
    row = np.random.default_rng(seed).normal(scale=spread, size=size).astype(np.float32)
    row.flags.writeable = False  # the model's own memory must never be changed
    return row


def as_dict(p: Distribution) -> dict[int, float]:
    ids = range(len(p.probs)) if p.ids is None else p.ids.tolist()
    return {token: prob for token, prob in zip(ids, p.probs.tolist(), strict=True) if prob > 0}


def llama_chain(logits: NDArray[np.float32], sampling: Sampling, history: Sequence[int]) -> dict[int, float]:
    """Run llama.cpp's own samplers."""
    data = (llama_cpp.llama_token_data * len(logits))()
    for token, logit in enumerate(logits.tolist()):
        data[token].id, data[token].logit = token, logit
    candidates = llama_cpp.llama_token_data_array(
        data=ctypes.cast(data, ctypes.POINTER(llama_cpp.llama_token_data)), size=len(logits), selected=-1
    )
    penalties = llama_cpp.llama_sampler_init_penalties(
        len(logits),
        sampling.penalty_window,
        sampling.repetition_penalty,
        sampling.frequency_penalty,
        sampling.presence_penalty,
    )
    for token in history:
        llama_cpp.llama_sampler_accept(penalties, token)
    chain = [
        penalties,
        llama_cpp.llama_sampler_init_top_k(sampling.top_k),
        llama_cpp.llama_sampler_init_top_p(sampling.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(sampling.min_p, 1),
        llama_cpp.llama_sampler_init_temp(sampling.temperature),
        llama_cpp.llama_sampler_init_dist(1),
    ]
    for sampler in chain:
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(candidates))
        llama_cpp.llama_sampler_free(sampler)
    entries = (candidates.data[place] for place in range(candidates.size))
    return {entry.id: entry.p for entry in entries if entry.p > 0}


@pytest.mark.parametrize("size", [50, 3001, 33001])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        OPEN,
        ALL_PENALTIES,
        replace(OPEN, top_k=7, temperature=1.7),
        replace(OPEN, top_p=0.6),
        replace(OPEN, top_p=0.9999),
        replace(OPEN, top_p=0.01),
        replace(OPEN, min_p=0.02, temperature=0.3),
        replace(OPEN, min_p=0.001, top_p=0.8),
        replace(ALL_PENALTIES, top_k=0),
        replace(ALL_PENALTIES, top_k=0, top_p=1.0, min_p=0.0, penalty_window=5),
        replace(ALL_PENALTIES, penalty_window=0),
        replace(ALL_PENALTIES, repetition_penalty=0.5, presence_penalty=-2.0),  # rewards repetition
        replace(ALL_PENALTIES, top_k=3, temperature=0.0),
    ],
    ids=str,
)
def test_distribution_is_that_of_llama_cpp(size: int, sampling: Sampling) -> None:
    logits = random_row(size, seed=size)
    best = top_candidates(logits[None], 20)[0][0].tolist()
    history = [*range(30), *best, best[0], best[0], size - 1]
    expected = llama_chain(logits, sampling, history)
    ours = as_dict(distribution(FullRow(logits), sampling, history))
    # llama.cpp adds in 32 bits, which moves the end of a very long top-p tail by a few tokens.
    for token in ours.keys() | expected.keys():
        assert ours.get(token, 0) == pytest.approx(expected.get(token, 0), rel=2e-4, abs=1e-6)


def test_sparse_distributions_are_sorted_and_sum_to_one() -> None:
    for sampling in (Sampling(), ALL_PENALTIES, replace(OPEN, top_p=0.9), replace(OPEN, min_p=0.01)):
        p = distribution(FullRow(random_row(5000)), sampling, [1, 2, 3])
        assert p.ids is not None
        assert p.ids.dtype == np.int64
        assert p.probs.dtype == np.float64
        assert p.probs.sum() == pytest.approx(1, abs=1e-12)
        assert (np.diff(p.probs) <= 0).all()


def test_distribution_without_truncation_spans_the_vocabulary() -> None:
    p = distribution(FullRow(random_row(5000)), OPEN, [])
    assert p.ids is None
    assert p.probs.shape == (5000,)
    assert p.probs.sum() == pytest.approx(1, abs=1e-12)


def test_banned_tokens_have_no_probability() -> None:
    logits = np.full(3000, -np.inf, dtype=np.float32)
    logits[[5, 2999]] = 1.0
    for sampling in (replace(Sampling(), min_p=0.0), OPEN, replace(OPEN, top_p=0.999)):
        assert as_dict(distribution(FullRow(logits), sampling, [])) == pytest.approx({5: 0.5, 2999: 0.5})


@pytest.mark.parametrize("size", [6000, 40005])
@pytest.mark.parametrize("sampling", [Sampling(), OPEN, GREEDY, replace(OPEN, top_p=0.5)], ids=str)
def test_logits_that_are_not_numbers_are_an_engine_error(sampling: Sampling, size: int) -> None:
    with pytest.raises(EngineError, match="not numbers"):
        distribution(FullRow(np.full(size, np.nan, dtype=np.float32)), sampling, [])


def test_greedy_is_the_best_token_after_penalties() -> None:
    logits = random_row(9000)
    order = top_candidates(logits[None], 3)[0][0].tolist()
    penalised = replace(GREEDY, presence_penalty=50.0)
    assert as_dict(distribution(FullRow(logits), GREEDY, [order[0]])) == {order[0]: 1.0}
    assert as_dict(distribution(FullRow(logits), penalised, [])) == {order[0]: 1.0}
    assert as_dict(distribution(FullRow(logits), penalised, [order[0], order[1]])) == {order[2]: 1.0}
    short = replace(penalised, penalty_window=1)
    assert as_dict(distribution(FullRow(logits), short, [order[0], order[1]])) == {order[0]: 1.0}
    assert as_dict(distribution(FullRow(logits), penalised, [order[0]])) == {order[1]: 1.0}


def test_probability_outside_the_support_is_zero() -> None:
    sparse = Distribution(np.array([7, 3]), np.array([0.75, 0.25]))
    assert [probability(sparse, token) for token in (7, 3, 0)] == [0.75, 0.25, 0.0]
    assert probability(Distribution(None, np.array([0.1, 0.9])), 1) == 0.9


def test_draw_inverts_the_cumulative_distribution() -> None:
    p = Distribution(np.array([7, 3, 5]), np.array([0.5, 0.25, 0.25]))
    assert [draw(p, uniform) for uniform in (0.0, 0.49, 0.5, 0.74, 0.75, np.nextafter(1.0, 0.0))] == [
        7, 7, 3, 3, 5, 5,
    ]  # fmt: skip
    assert draw(Distribution(None, np.array([0.25, 0.75])), 0.25) == 1


def test_the_size_of_a_distribution_changes_nothing() -> None:
    ids = np.arange(1000, 1000 + 2 * FEW)[::-1].copy()
    half = np.random.default_rng(0).dirichlet(np.ones(FEW))
    wide = Distribution(ids, np.concatenate((half, np.zeros(FEW))))
    few = Distribution(ids[:FEW], half)
    for uniform in np.linspace(0.0, np.nextafter(1.0, 0.0), 50).tolist():
        assert draw(wide, uniform) == draw(few, uniform)
    assert [probability(wide, token) for token in ids.tolist()] == [probability(few, t) for t in ids.tolist()]
    assert probability(wide, 7) == probability(few, 7) == 0.0


def test_draw_never_gives_a_token_without_probability() -> None:
    p = Distribution(np.array([1, 2, 3, 4]), np.array([0.0, 0.3, 0.6999999999999999, 0.0]))
    assert {draw(p, uniform) for uniform in (0.0, 0.3, np.nextafter(1.0, 0.0), 1.0)} == {2, 3}


def dense(p: Distribution, size: int) -> NDArray[np.float64]:
    return np.array([probability(p, token) for token in range(size)])


@pytest.mark.parametrize("p_spans", [True, False])
@pytest.mark.parametrize("q_spans", [True, False])
@pytest.mark.parametrize(("p_width", "q_width"), [(5, 5), (FEW + 1, 5), (5, FEW + 1), (FEW + 1, FEW + 1)])
def test_residual_is_the_normalised_positive_part(
    p_spans: bool, q_spans: bool, p_width: int, q_width: int
) -> None:
    size = 12 + max(p_width, q_width)
    rng = np.random.default_rng(3)
    for _ in range(50):
        p, q = (
            Distribution(None, rng.dirichlet(np.ones(size)))
            if spans
            else Distribution(rng.permutation(size)[:width].astype(np.int64), rng.dirichlet(np.ones(width)))
            for spans, width in ((p_spans, p_width), (q_spans, q_width))
        )
        expected = np.maximum(dense(p, size) - dense(q, size), 0)
        np.testing.assert_allclose(dense(residual(p, q), size), expected / expected.sum(), atol=1e-12)


def test_residual_of_a_one_hot_q_leaves_out_its_token() -> None:
    p = Distribution(np.array([4, 2, 9]), np.array([0.5, 0.3, 0.2]))
    assert as_dict(residual(p, 2)) == pytest.approx({4: 5 / 7, 9: 2 / 7})
    assert as_dict(residual(p, 8)) == pytest.approx(as_dict(p))
    assert as_dict(residual(Distribution(None, np.array([0.5, 0.25, 0.25])), 0)) == {1: 0.5, 2: 0.5}


def test_residual_of_equal_distributions_is_p() -> None:
    p = Distribution(np.array([4, 2]), np.array([0.6, 0.4]))
    assert as_dict(residual(p, p)) == as_dict(p)
    assert as_dict(residual(one_point(3), 3)) == {3: 1.0}


def candidates(logits: list[float]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    return np.arange(10, 10 + len(logits), dtype=np.int64), np.array(logits, dtype=np.float32)


def draft(
    ids: NDArray[np.int64],
    logits: NDArray[np.float32],
    sampling: Sampling,
    tempered: float = 1.0,
    saguaro: tuple[float, int] = (1.0, 2),  # by which factor, and how many tokens
    history: Sequence[int] = (),
) -> Distribution:
    c, top = saguaro
    settings = EngineSettings(draft_length=0, fan_out_budget=top - 1, draft_temperature=tempered, saguaro_c=c)
    assert saguaro_top(settings) == top
    return draft_distribution(ids, logits, sampling, settings, history)


def test_draft_distribution_multiplies_the_temperatures() -> None:
    ids, logits = candidates([2.0, 1.0, 0.0])
    q = draft(ids, logits, replace(OPEN, temperature=0.5), 4.0)
    weights = np.exp(np.array([1.0, 0.5, 0.0]))
    assert as_dict(q) == pytest.approx(dict(zip((10, 11, 12), weights / weights.sum(), strict=True)))


@pytest.mark.parametrize(("sampling", "tempered"), [(GREEDY, 1.0), (OPEN, 0.0)])
def test_draft_distribution_at_temperature_zero_is_one_point(sampling: Sampling, tempered: float) -> None:
    ids, logits = candidates([2.0, 1.0, 0.0])
    assert as_dict(draft(ids, logits, sampling, tempered, (0.5, 2))) == {10: 1.0}
    penalised = replace(sampling, presence_penalty=1.5)
    assert as_dict(draft(ids, logits, penalised, tempered, (0.5, 2), [10, 99])) == {11: 1.0}


def test_draft_distribution_truncates_like_the_target() -> None:
    logits = random_row(16, seed=5, spread=2.0)
    order = logits.argsort()[::-1]
    for sampling in (Sampling(), ALL_PENALTIES, replace(OPEN, top_k=4), replace(OPEN, top_p=0.7)):
        q = draft(order.astype(np.int64), logits[order], sampling, history=[1, 2, 2, 3])
        assert as_dict(q) == pytest.approx(
            as_dict(distribution(FullRow(logits), sampling, [1, 2, 2, 3])), rel=1e-5
        )


def test_saguaro_lowers_the_best_draft_tokens() -> None:
    ids, logits = candidates([2.0, 1.0, 0.0, -1.0])
    plain = draft(ids, logits, OPEN)
    weights = plain.probs * [0.5, 0.5, 1, 1]
    lowered = draft(ids, logits, OPEN, saguaro=(0.5, 2))
    np.testing.assert_allclose(lowered.probs, weights / weights.sum())
    assert lowered.ids is not None
    assert lowered.ids.tolist() == ids.tolist()


def test_saguaro_that_would_leave_nothing_changes_nothing() -> None:
    ids, logits = candidates([2.0, 1.0, -9000.0])
    plain = draft(ids, logits, OPEN)
    for top in (2, 3, 16):
        assert as_dict(draft(ids, logits, OPEN, saguaro=(0.0, top))) == as_dict(plain)


def test_draft_distribution_leaves_its_input_alone() -> None:
    ids, logits = candidates([2.0, 1.0, 0.0])
    draft(ids, logits, ALL_PENALTIES, saguaro=(0.5, 2), history=[10, 11])
    assert ids.tolist() == [10, 11, 12]
    assert logits.tolist() == [2.0, 1.0, 0.0]
