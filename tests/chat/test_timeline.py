from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from localspec.chat.timeline import (
    SCALES_S,
    Activity,
    History,
    describe_round,
    describe_totals,
    duration,
    origin_of,
)
from localspec.types.drafts import DraftOrigin
from localspec.types.events import RoundDone, RoundStats
from tests.tui.answers import PROMPT, plain, sd, ssd, summary_of

ROUND = RoundStats(4, 2, DraftOrigin.FRESH, 0.020, 0.010, 0.0, 0.0)


def history(*rounds: RoundStats, tokens: int = 1) -> History:
    return History([PROMPT, *(RoundDone(stats, tokens) for stats in rounds)])


def picture(lane: tuple[Activity, ...]) -> str:
    return "".join({Activity.IDLE: ".", Activity.WAIT: "-"}.get(work, work.value[0].upper()) for work in lane)


def test_the_target_waits_while_a_draft_is_written() -> None:
    lanes = history(ROUND, ROUND).lanes(0.0, 0.010, 6)
    assert picture(lanes.draft) == "DD....DD...."
    assert picture(lanes.verify) == "--VVV.--VVV."


def test_drafting_ahead_lies_under_the_verification() -> None:
    stats = replace(ROUND, origin=DraftOrigin.AHEAD, draft_s=0.0, ahead_s=0.015)
    lanes = history(stats, stats).lanes(0.0, 0.010, 4)
    assert picture(lanes.draft) == "AAA.AAA."
    assert picture(lanes.verify) == "VVV.VVV."


def test_work_ahead_never_outlasts_its_verification() -> None:
    stats = replace(ROUND, draft_s=0.0, ahead_s=9.0)
    lanes = history(stats, stats).lanes(0.0, 0.010, 4)
    assert picture(lanes.draft) == "AAA.AAA."


def test_a_window_in_the_middle_starts_with_what_is_under_way() -> None:
    lanes = history(ROUND, ROUND, ROUND).lanes(0.040, 0.010, 3)
    assert picture(lanes.draft) == "....DD"
    assert picture(lanes.verify) == "VVV.--"
    assert [(mark.column, mark.round) for mark in lanes.marks] == [(0, 1)]


@pytest.mark.parametrize("rounds", [5, 5000])
@pytest.mark.parametrize("width", [1, 71, 240])
def test_lanes_are_as_wide_as_asked_and_marks_keep_apart(rounds: int, width: int) -> None:
    shown = History(ssd(rounds))
    scale_s = shown.fitting_scale()
    for start_s in (0.0, shown.seconds / 2, shown.seconds):
        lanes = shown.lanes(start_s, scale_s, width)
        assert len(lanes.draft) == len(lanes.verify) == 2 * width
        columns = [mark.column for mark in lanes.marks]
        assert all(0 <= column < width for column in columns)
        assert all(one < other for one, other in pairwise(columns))


def test_every_round_of_the_window_has_its_mark() -> None:
    shown = History(ssd(40))
    lanes = shown.lanes(0.0, shown.fitting_scale(), 400)
    assert [mark.round for mark in lanes.marks] == list(range(40))


def test_a_default_round_is_wide_enough_to_read() -> None:
    shown = History(ssd(100))
    columns = shown.seconds / len(shown) / shown.fitting_scale()
    assert 2.4 <= columns <= 6


def test_marks_tell_how_a_draft_came_about() -> None:
    assert origin_of(replace(ROUND, drafted=0, origin=DraftOrigin.AHEAD)) is DraftOrigin.AHEAD
    assert origin_of(ROUND) is DraftOrigin.FRESH
    assert origin_of(replace(ROUND, origin=DraftOrigin.NGRAM)) is DraftOrigin.NGRAM
    assert origin_of(replace(ROUND, drafted=0, accepted=0)) is DraftOrigin.NONE


def test_figures_agree_with_the_summary_of_the_engine() -> None:
    rounds = ssd(300)
    summary, shown = summary_of(rounds, "ssd"), History(rounds)
    assert (len(shown), shown.drafted) == (summary.rounds, summary.drafted)
    assert (shown.accepted, shown.hits) == (summary.accepted, summary.hits)
    assert shown.chances == summary.hits + summary.misses
    assert shown.speed() == pytest.approx((summary.tokens - 1) / summary.decode_s)
    assert shown.waited_s == pytest.approx(summary.draft_s + summary.wait_s)
    assert tuple(position.judged for position in shown.by_position()) == summary.drafted_at
    assert tuple(position.accepted for position in shown.by_position()) == summary.accepted_at


def test_rounds_that_arrive_one_by_one_make_the_same_history() -> None:
    rounds = ssd(60)
    live = History()
    for mark in rounds:
        live.add([mark])
    whole = History(rounds)
    assert (live.seconds, describe_totals(live)) == (whole.seconds, describe_totals(whole))
    assert live.course(50, live.speed) == whole.course(50, whole.speed)
    assert live.lanes(0.2, 0.005, 80) == whole.lanes(0.2, 0.005, 80)


def test_rounds_after_stepping_down_missed_nothing() -> None:
    ahead = replace(ROUND, ahead_s=0.010)
    stepped_down = [replace(ROUND, drafted=0, accepted=0)] * 5
    shown = history(ROUND, ahead, replace(ahead, origin=DraftOrigin.AHEAD), *stepped_down)
    assert (shown.hits, shown.chances) == (1, 4)
    assert History(sd(20)).chances == 0


def test_rounds_that_repeat_the_text_missed_nothing() -> None:
    ahead = replace(ROUND, ahead_s=0.010)
    shown = history(
        ahead, replace(ahead, origin=DraftOrigin.AHEAD), replace(ahead, origin=DraftOrigin.NGRAM), ahead
    )
    assert (shown.hits, shown.chances) == (1, 3)


@pytest.mark.parametrize(("rounds", "width"), [(1, 30), (5, 30), (30, 30), (5000, 30)])
def test_curves_cover_the_answer_in_the_width_given(rounds: int, width: int) -> None:
    shown = History(plain(rounds))
    assert len(shown.course(width, shown.speed)) == width
    assert shown.course(width, shown.speed) == pytest.approx([shown.speed()] * width, rel=0.1)
    assert shown.course(width, shown.length) == pytest.approx([1.0] * width)


def test_curves_show_a_change_of_pace() -> None:
    slow, fast = replace(ROUND, verify_s=0.040), replace(ROUND, verify_s=0.010)
    shown = history(*[slow] * 40, *[fast] * 40)
    speeds = shown.course(20, shown.speed)
    assert speeds[0] == pytest.approx(20.0)
    assert speeds[-1] == pytest.approx(50.0)
    assert all(one <= other + 1e-9 for one, other in pairwise(speeds))


def test_zoom_keeps_at_least_a_column_for_a_round() -> None:
    shown = History(plain(50))
    coarsest = shown.zoomed(shown.fitting_scale(), 99)
    assert coarsest <= shown.seconds / len(shown)
    assert shown.zoomed(shown.fitting_scale(), -99) == SCALES_S[0]


def test_totals_in_words() -> None:
    stats = replace(ROUND, origin=DraftOrigin.AHEAD, draft_s=0.0, wait_s=0.006, ahead_s=0.010)
    text = describe_totals(history(stats, stats))
    assert text == (
        "2 rounds, 50% accepted (4 of 8), 100% prepared, waited 12.0 ms, 20.0 ms of drafting overlapped"
    )
    assert describe_totals(history(replace(ROUND, drafted=0, accepted=0, draft_s=0.0))) == "1 round"
    assert describe_totals(History()) == "No rounds yet"


def test_a_round_in_words() -> None:
    hidden = RoundStats(6, 4, DraftOrigin.AHEAD, 0.0182, 0.0, 0.0, 0.0, 0.0079)
    assert describe_round(history(hidden), 0) == (
        "round 1: drafted 6, accepted 4, verify 18.2 ms, draft 7.9 ms overlapped"
    )
    assert "waited 10.0 ms for the draft" in describe_round(history(hidden, ROUND), 1)


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0.0021, 0.42, 1.5)] == ["2.1 ms", "420 ms", "1.50 s"]
