from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.chat.figures import Figures
from localspec.chat.live_stats import LiveStats
from localspec.chat.plain_rates import PlainRates
from localspec.types.drafts import DraftOrigin
from localspec.types.events import ModeChanged, RoundDone, RoundStats
from localspec.types.request import Mode
from tests.chat.talk import rates

READ = RoundDone(RoundStats(0, 0, DraftOrigin.NONE, 5.0, 0.0, 0.0, 0.0), 1)


def mark(
    accepted: int = 3, drafted: int = 4, origin: DraftOrigin = DraftOrigin.AHEAD, work_s: float = 0.1
) -> RoundDone:
    half = work_s / 2
    return RoundDone(RoundStats(drafted, accepted, origin, half, half, 0.0, 0.0, ahead_s=9.0), accepted + 1)


def started(
    mode: Mode = "ssd", plain: PlainRates | None = None, prompt_tokens: int | None = None
) -> LiveStats:
    live = LiveStats(plain or PlainRates())
    live.start(mode, prompt_tokens)
    live.add([READ])
    return live


def test_before_anything_came_there_is_nothing_to_tell() -> None:
    assert LiveStats(PlainRates()).figures() == Figures("plain")
    assert started("ssd").figures() == Figures("SSD")


def test_thinking_is_counted_while_it_lasts() -> None:
    live = LiveStats(PlainRates())
    live.start("off", thinking_budget=1024)
    assert not live.figures().thinking
    live.read("<think>\nhm")
    live.add([READ, *[mark(3, 4)] * 100])
    assert live.figures().thinking == "thinking 401 of 1,024"
    live.add([mark(3, 4)] * 200)  # of the tags, too
    assert live.figures().thinking == "thinking 1,024 of 1,024"
    live.read(", so\n</think>\nYes")
    assert not live.figures().thinking
    live.start("off", thinking_budget=-1)
    live.read("<think>")
    assert live.figures().thinking == "thinking 0"
    live.start("off", text="<think>hm ", thinking_budget=20)  # an answer that continues
    live.add([mark(3, 4)])
    assert live.figures().thinking == "thinking 4"


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
    live.add([mark(0, 1)] * 9)
    assert live.figures().ratio is None  # in less than a second
    live.add([mark(0, 1)])
    assert live.figures().ratio == pytest.approx(10 / 20, rel=0.02)
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


def test_the_first_round_after_a_step_up_is_not_a_miss() -> None:
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


def test_the_live_speed_looks_back_on_two_seconds_of_work_at_least() -> None:
    live = started()
    live.add([mark(accepted=7, work_s=1.5), mark(accepted=3, work_s=1.5), mark(accepted=1, work_s=1.5)])
    assert live.figures().tokens_per_s == pytest.approx(6 / 3.0)
