from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.chat.live_stats import Figures, LiveStats, PlainRates, in_words, label, of_record
from localspec.types.drafts import DraftOrigin
from localspec.types.events import ModeChanged, RoundDone, RoundStats, Summary
from localspec.types.models import PlainRate
from localspec.types.request import Mode
from tests.chat.talk import record

SUMMARY = Summary(
    prompt_tokens=1000, tokens=101, rounds=40, drafted=120, accepted=60, hits=30, misses=10, decode_s=2.0
)
READ = RoundDone(RoundStats(0, 0, DraftOrigin.NONE, 5.0, 0.0, 0.0, 0.0), 1)


def mark(
    accepted: int = 3, drafted: int = 4, origin: DraftOrigin = DraftOrigin.AHEAD, work_s: float = 0.1
) -> RoundDone:
    half = work_s / 2
    return RoundDone(RoundStats(drafted, accepted, origin, half, half, 0.0, 0.0, ahead_s=9.0), accepted + 1)


def rates(*points: tuple[int, float]) -> PlainRates:
    known = PlainRates()
    for depth, rate in points:
        known.add(PlainRate(depth, rate))
    return known


def started(
    mode: Mode = "ssd", plain: PlainRates | None = None, prompt_tokens: int | None = None
) -> LiveStats:
    live = LiveStats(plain or PlainRates())
    live.start(mode, prompt_tokens)
    live.add([READ])
    return live


@pytest.mark.parametrize(
    ("points", "depth", "expected"),
    [
        ([], 100, None),
        ([(100, 30.0)], 100, 30.0),
        ([(100, 30.0)], 356, 30.0),
        ([(100, 30.0)], 357, None),
        ([(4000, 30.0)], 3000, 30.0),
        ([(4000, 30.0)], 5000, 30.0),
        ([(4000, 30.0)], 2999, None),
        ([(4000, 30.0)], 5001, None),
        ([(0, 40.0), (4000, 20.0)], 2000, 1 / ((1 / 40 + 1 / 20) / 2)),
        ([(4000, 20.0), (0, 40.0)], 1000, 1 / (0.75 / 40 + 0.25 / 20)),
        ([(0, 40.0), (4000, 20.0)], 4000, 20.0),
        ([(0, 40.0), (4000, 20.0)], 9000, None),
        ([(100, 30.0), (110, 20.0)], 100, 20.0),
        ([(100, 0.0)], 100, None),
    ],
)
def test_a_plain_rate_is_measured_near_or_on_both_sides(
    points: list[tuple[int, float]], depth: int, expected: float | None
) -> None:
    assert rates(*points).at(depth) == (None if expected is None else pytest.approx(expected))


def test_plain_answers_are_measurements_and_others_are_not() -> None:
    known = PlainRates()
    stepped = replace(record("ssd", SUMMARY), changes=(ModeChanged("off", "it loses"),))
    short = record("off", replace(SUMMARY, tokens=16))
    for useless in (record("sd", SUMMARY), stepped, replace(stepped, mode="off"), short):
        known.learn(useless)
        assert known.at(1050) is None
    known.learn(record("off", SUMMARY))
    assert known.at(1050) == pytest.approx(50.0)


def test_before_anything_came_there_is_nothing_to_tell() -> None:
    assert LiveStats(PlainRates()).figures() == Figures("plain")
    assert started("ssd").figures() == Figures("SSD")


def test_the_figures_add_up_over_the_answer() -> None:
    live = started()
    live.add([mark(3, 4), mark(0, 4, DraftOrigin.FRESH), mark(3, 4)])
    figures = live.figures()
    assert figures.acceptance == pytest.approx(6 / 12)
    assert figures.accepted_length == pytest.approx(9 / 3)
    assert figures.hit_rate == pytest.approx(2 / 3)
    assert figures.tokens_per_s == pytest.approx(9 / 0.3)


def test_the_live_speed_is_that_of_the_last_two_seconds_of_work() -> None:
    live = started()
    live.add([mark(0, 4)] * 100)
    assert live.figures().tokens_per_s == pytest.approx(10.0)
    live.add([mark(3, 4)] * 20)
    assert live.figures().tokens_per_s == pytest.approx(40.0)


def test_a_round_longer_than_the_window_still_counts() -> None:
    live = started()
    live.add([mark(0, 4), mark(3, 4, work_s=8.0)])
    assert live.figures().tokens_per_s == pytest.approx(0.5)


def test_plain_decoding_has_no_acceptance_and_no_ratio() -> None:
    live = started("off", rates((100, 5.0)), prompt_tokens=100)
    live.add([mark(0, 0, DraftOrigin.NONE)] * 3)
    figures = live.figures()
    assert figures.tokens_per_s == pytest.approx(10.0)
    assert replace(figures, tokens_per_s=None) == Figures("plain")


def test_misses_count_only_where_drafts_could_be_prepared() -> None:
    live = started("sd")
    live.add([mark(3, 4, DraftOrigin.FRESH)])
    assert live.figures().hit_rate is None


def test_a_round_that_repeats_the_text_is_neither_hit_nor_miss() -> None:
    live = started("ssd")
    live.add([mark(3, 4), mark(3, 4, DraftOrigin.NGRAM), mark(0, 4, DraftOrigin.FRESH)])
    assert live.figures().hit_rate == pytest.approx(1 / 2)


def test_the_ratio_follows_the_depth_of_the_answer() -> None:
    live = started("sd", rates((100, 20.0), (1000, 10.0)), prompt_tokens=99)
    live.add([mark(0, 1)])
    assert live.figures().ratio == pytest.approx(10 / 20, rel=0.01)
    live.add([mark(19, 19)] * 44)
    assert live.figures().ratio == pytest.approx(200 / 10, rel=0.1)
    live.add([mark(19, 19)] * 44)
    assert live.figures().ratio is None
    assert started("sd", rates((100, 20.0))).figures().ratio is None


def test_a_step_down_is_shown_with_its_reason_and_its_own_speed() -> None:
    live = started("ssd")
    live.add([mark(3, 4)] * 5)
    live.changed(ModeChanged("sd", "drafting ahead lost"))
    live.add([mark(1, 4, DraftOrigin.FRESH)] * 2)
    figures = live.figures()
    assert (figures.mode, figures.note) == ("speculative", "drafting ahead lost")
    assert figures.tokens_per_s == pytest.approx(20.0)
    assert figures.hit_rate == pytest.approx(1.0)


def test_the_first_round_after_a_step_up_is_no_miss() -> None:
    live = started("sd")
    live.changed(ModeChanged("ssd", "it may pay again"))
    live.add([mark(3, 4, DraftOrigin.FRESH), mark(3, 4), mark(3, 4, DraftOrigin.FRESH)])
    assert live.figures().hit_rate == pytest.approx(1 / 2)


def test_a_new_answer_starts_from_nothing() -> None:
    live = started("ssd")
    live.add([mark(3, 4)] * 5)
    live.changed(ModeChanged("sd", "drafting ahead lost"))
    live.start("ngram")
    assert live.figures() == Figures("n-gram")


def test_the_figures_of_a_kept_answer() -> None:
    kept = replace(record("ssd", SUMMARY), plain=PlainRate(1050, 25.0))
    assert of_record(kept) == Figures(
        "SSD",
        tokens_per_s=50.0,
        ratio=2.0,
        acceptance=0.5,
        accepted_length=2.5,
        hit_rate=0.75,
    )
    stepped = replace(kept, changes=(ModeChanged("sd", "it loses"),))
    assert (of_record(stepped).mode, of_record(stepped).note) == ("SSD → speculative", "it loses")


def test_labels_say_what_is_known() -> None:
    kept = record("ssd", replace(SUMMARY, first_token_s=0.25))
    times = "101 tokens in 2.2 s  first after 0.25 s"
    assert label(kept) == f"{times}  SSD  50 tokens/s"
    assert label(replace(kept, plain=PlainRate(1050, 26.0))) == f"{times}  SSD  50 tokens/s  1.9 times plain"
    assert label(replace(kept, plain=PlainRate(1050, 62.5))).endswith("  0.8 times plain")
    lost = replace(kept, changes=(ModeChanged("off", "it loses"),))
    assert label(lost) == f"{times}  SSD → plain  50 tokens/s"
    back = (ModeChanged("sd", "it loses"), ModeChanged("ssd", "it may pay"))
    assert label(replace(kept, changes=back)) == label(kept)
    assert label(record("off", Summary())) == "plain"
    one = replace(SUMMARY, tokens=1, decode_s=0.0, first_token_s=12.3)
    assert label(record("ngram", one)) == "1 token in 12 s  first after 12 s  n-gram"


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (Figures("plain", 6.28), "6.3 tokens/s"),
        (Figures("n-gram", 14.31, 1.04, 0.3), "30% of guesses right, 14 tokens/s, 1.0 times plain"),
        (
            Figures("SSD", 1058.0, 1.44, 0.75, 3.4, 0.82),
            "75% of guesses right, 1,058 tokens/s, 1.4 times plain, 3.4 tokens a round, 82% ready in time",
        ),
        (Figures("speculative", None, None, 0.0), "0% of guesses right"),
    ],
)
def test_figures_are_said_as_far_as_they_are_known(figures: Figures, words: str) -> None:
    assert ", ".join(in_words(figures).values()) == words


def test_the_live_speed_looks_back_on_two_seconds_of_work_at_least() -> None:
    live = started()
    live.add([mark(accepted=7, work_s=1.5), mark(accepted=3, work_s=1.5), mark(accepted=1, work_s=1.5)])
    assert live.figures().tokens_per_s == pytest.approx(6 / 3.0)
