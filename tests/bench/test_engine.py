"""Interleaved runs and their figures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localspec.bench.engine import Prompt, Run, Variant, figures, interleave, ratio
from localspec.testing.contract import GREEDY, NO_END, Toy, experience
from localspec.types import EngineSettings, Summary

PROMPTS = [Prompt("odd", (1, 2, 3)), Prompt("even", (4, 5)), Prompt("odd", (6, 7, 8))]


def variant(name: str, settings: EngineSettings, prepare: Callable[[], None]) -> Variant:
    return Variant(name, Toy().engine, settings, experience(), prepare)


def run(prompt: int, seconds: float, tokens: int = 101, **sums: float) -> Run:
    rounds = int(sums.pop("rounds", 50))
    return Run("any", "task", prompt, Summary(tokens=tokens, rounds=rounds, decode_s=seconds, **sums))  # type: ignore[arg-type]


def test_every_prompt_meets_every_variant_in_turn_and_from_empty_caches() -> None:
    order: list[str] = []
    plain = variant("off", EngineSettings(mode="off"), lambda: order.append("off"))
    ahead = variant("ssd", EngineSettings(mode="ssd", draft_length=4), lambda: order.append("ssd"))
    runs = list(interleave([plain, ahead], PROMPTS, GREEDY, 12, NO_END))
    assert order == ["off", "ssd", "ssd", "off", "off", "ssd"]
    assert [run.variant for run in runs] == order
    assert [run.task for run in runs] == ["odd", "odd", "even", "even", "odd", "odd"]
    assert {run.summary.tokens for run in runs} == {12}
    assert {run.summary.cached_tokens for run in runs} == {0}
    assert all(run.rate > 0 for run in runs)


def test_figures_add_up_over_answers() -> None:
    first = run(0, 1.0, rounds=50, drafted=100, accepted=50, hits=30, misses=20, verify_s=0.9, python_s=0.1)
    second = run(1, 3.0, rounds=50, drafted=100, accepted=0, hits=10, misses=40, verify_s=2.5, wait_s=0.5)
    found = figures([first, second])
    assert found.tokens_per_s == pytest.approx(200 / 4)
    assert found.tokens_per_round == pytest.approx(2.0)
    assert found.hit_rate == pytest.approx(0.4)
    assert found.acceptance == pytest.approx(0.25)
    assert found.verify_s == pytest.approx(0.034)
    assert found.of_bound == pytest.approx(3.4 / 4.0)


def test_plain_decoding_has_neither_hits_nor_acceptance() -> None:
    found = figures([run(0, 1.0)])
    assert (found.hit_rate, found.acceptance) == (None, None)


def test_a_ratio_weighs_answers_of_different_length_alike_and_has_an_interval() -> None:
    slow = [run(prompt, seconds, tokens) for prompt, (seconds, tokens) in enumerate([(4.0, 201), (2.0, 101)])]
    fast = [run(prompt, seconds, tokens) for prompt, (seconds, tokens) in enumerate([(1.0, 101), (1.0, 101)])]
    middle, low, high = ratio(fast, slow)
    assert (middle, low, high) == pytest.approx((2.0, 2.0, 2.0))
    uneven = [run(0, 1.0, 101), run(1, 0.5, 101)]
    middle, low, high = ratio(uneven, slow)
    assert low == pytest.approx(2.0)
    assert high == pytest.approx(4.0)
    assert low < middle < high
