from __future__ import annotations

import time
from dataclasses import replace

import pytest

from localspec.decoding.tally import Stopwatch, Tally
from localspec.types.drafts import DraftOrigin
from localspec.types.events import Summary
from localspec.types.request import Mode
from tests.decoding.toys import stats


def test_an_answer_without_rounds_is_all_zero() -> None:
    assert Tally(12, "ssd").summary(5) == Summary(prompt_tokens=12, cached_tokens=5)


def test_the_first_round_is_the_prompt_and_the_rest_is_decoding() -> None:
    tally = Tally(12, "sd")
    tally.add(stats(), 1, 2.0)
    tally.add(stats(3, 2, DraftOrigin.FRESH), 3, 3.5)
    tally.add(stats(2, 2, DraftOrigin.FRESH), 3, 5.0)
    summary = tally.summary()
    assert tally.tokens == summary.tokens == 7
    assert (summary.rounds, summary.drafted, summary.accepted) == (2, 5, 4)
    assert (summary.prompt_s, summary.first_token_s, summary.decode_s) == (0.25, 2.0, 3.0)
    parts = (summary.verify_s, summary.draft_s, summary.wait_s)
    assert parts == (0.5, 0.5, 0.5)
    assert sum(parts) + summary.python_s == pytest.approx(summary.decode_s)


def test_acceptance_is_counted_by_position_up_to_the_first_rejection() -> None:
    tally = Tally(1, "sd")
    tally.add(stats(), 1, 1.0)
    for drafted, accepted in ((4, 0), (4, 2), (2, 2), (0, 0)):
        tally.add(stats(drafted, accepted), accepted + 1, 2.0)
    summary = tally.summary()
    assert summary.drafted_at == (3, 2, 1)
    assert summary.accepted_at == (2, 2, 0)
    assert sum(summary.accepted_at) == summary.accepted


def test_what_repeats_the_text_is_not_counted_as_the_draft_model_s() -> None:
    tally = Tally(1, "sd")
    tally.add(stats(), 1, 1.0)
    tally.add(stats(5, 5, DraftOrigin.NGRAM), 6, 2.0)
    for accepted in (1, 2, 4):
        tally.add(replace(stats(4, accepted, DraftOrigin.FRESH), copied=2), accepted + 1, 3.0)
    summary = tally.summary()
    assert (summary.model_drafted_at, summary.model_accepted_at) == ((3, 3), (3, 2))
    assert (summary.drafted_at, summary.accepted_at) == ((4, 4, 3, 2, 1), (4, 3, 2, 2, 1))
    assert (summary.drafted, summary.accepted) == (17, 12)


@pytest.mark.parametrize(("mode", "misses"), [("ssd", 2), ("sd", 0), ("ngram", 0), ("off", 0)])
def test_only_mode_ssd_can_miss(mode: str, misses: int) -> None:
    tally = Tally(1, mode)  # type: ignore[arg-type]  # the parameter's type is wider
    tally.add(stats(), 1, 1.0)
    for origin in (DraftOrigin.AHEAD, DraftOrigin.FRESH, DraftOrigin.NONE):
        tally.add(stats(1, 1, origin), 2, 2.0)
    assert (tally.summary().hits, tally.summary().misses) == (1, misses)


def test_a_round_that_repeats_the_text_is_neither_hit_nor_miss() -> None:
    tally = Tally(1, "ssd")
    tally.add(stats(), 1, 1.0)
    for origin in (DraftOrigin.NGRAM, DraftOrigin.AHEAD, DraftOrigin.NGRAM):
        tally.add(stats(1, 1, origin), 2, 2.0)
    assert (tally.summary().hits, tally.summary().misses) == (1, 0)


def test_a_later_part_in_mode_ssd_can_miss_after_its_first_round() -> None:
    tally = Tally(1, "sd")
    parts: tuple[tuple[Mode, tuple[DraftOrigin, ...]], ...] = (
        ("sd", (DraftOrigin.NONE, DraftOrigin.FRESH)),
        ("ssd", (DraftOrigin.NONE, DraftOrigin.FRESH, DraftOrigin.AHEAD)),
        ("off", (DraftOrigin.NONE,)),
    )
    for mode, origins in parts:
        tally.change(mode)
        for origin in origins:
            tally.add(stats(1, 1, origin), 2, 2.0)
    summary = tally.summary()
    assert (summary.hits, summary.misses, summary.rounds) == (1, 1, 5)


def test_a_stopwatch_leaves_out_what_it_is_stopped_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    watch.go_on()  # which no one has stopped
    now[0] = 2.0
    watch.stop()
    now[0] = 7.0
    watch.go_on()
    with watch.paused():
        now[0] = 8.0
    now[0] = 9.0
    assert watch.seconds() == 3.0
