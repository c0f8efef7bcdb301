"""The figures of an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.types.events import Summary

WRITTEN = Summary(
    prompt_tokens=90,
    cached_tokens=40,
    tokens=101,
    rounds=40,
    drafted=120,
    accepted=60,
    accepted_at=(30, 0),
    drafted_at=(40, 0),
    hits=30,
    misses=10,
    prompt_s=0.5,
    first_token_s=0.6,
    decode_s=2.0,
)


def test_the_first_token_comes_with_the_prompt() -> None:
    assert WRITTEN.decoded_tokens == 100
    assert WRITTEN.tokens_per_s == pytest.approx(50.0)
    assert WRITTEN.seconds_per_token == pytest.approx(0.02)
    assert WRITTEN.accepted_length == pytest.approx(2.5)
    assert WRITTEN.seconds == pytest.approx(2.6)
    assert WRITTEN.mean_depth == 140


def test_only_new_tokens_of_the_prompt_have_a_speed() -> None:
    assert WRITTEN.new_prompt_tokens == 50
    assert WRITTEN.prompt_tokens_per_s == pytest.approx(100.0)


def test_shares_are_of_what_was_drafted_judged_and_wanted() -> None:
    assert WRITTEN.acceptance == pytest.approx(0.5)
    assert WRITTEN.acceptance_by_position == (0.75, None)
    assert WRITTEN.hit_rate == pytest.approx(0.75)


@pytest.mark.parametrize("summary", [Summary(), Summary(tokens=1, first_token_s=0.1)])
def test_figures_are_none_where_nothing_was(summary: Summary) -> None:
    assert summary.decoded_tokens == 0
    assert (summary.tokens_per_s, summary.seconds_per_token) == (None, None)
    assert (summary.prompt_tokens_per_s, summary.accepted_length) == (None, None)
    assert (summary.acceptance, summary.hit_rate, summary.acceptance_by_position) == (None, None, ())


def test_figures_that_are_zero_are_not_none() -> None:
    nothing_right = replace(WRITTEN, accepted=0, hits=0)
    assert (nothing_right.acceptance, nothing_right.hit_rate) == (0.0, 0.0)
