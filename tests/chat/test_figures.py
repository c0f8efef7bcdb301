from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.app.answer_json import speculation
from localspec.chat.figures import Figures, in_words, label, of_record, summary_line, table
from localspec.chat.live_stats import LiveStats
from localspec.chat.plain_rates import PlainRates
from localspec.chat.store.record_codec import from_plain, to_plain
from localspec.chat.timeline import History, describe_totals
from localspec.decoding.tally import Tally
from localspec.types.drafts import DraftOrigin
from localspec.types.events import ModeChanged, RoundDone, RoundStats, Summary
from localspec.types.models import PlainRate
from localspec.types.request import EngineSettings
from tests.chat.talk import record

SUMMARY = Summary(
    prompt_tokens=1000, tokens=101, rounds=40, drafted=120, accepted=60, hits=30, misses=10, decode_s=2.0
)


def test_the_figures_of_a_kept_answer() -> None:
    kept = replace(record("ssd", SUMMARY), plain=PlainRate(1050, 25.0))
    assert of_record(kept) == Figures(
        "SSD",
        tokens_per_s=50.0,
        ratio=2.0,
        acceptance=0.5,
        accepted_length=2.5,
        hit_rate=0.75,
        drafted=120,
    )
    stepped = replace(kept, changes=(ModeChanged("sd", "it loses"),))
    assert (of_record(stepped).mode, of_record(stepped).note) == ("SSD → speculative", "it loses")


def test_labels_say_what_is_known() -> None:
    kept = record("ssd", replace(SUMMARY, first_token_s=0.25))
    times = "101 tokens in 2.2 s  first token after 0.25 s"
    assert label(kept) == f"{times}  SSD  50 tokens/s  50% accepted"
    compared = label(replace(kept, plain=PlainRate(1050, 26.0)))
    assert compared == f"{times}  SSD  50 tokens/s  1.9× plain  50% accepted"
    assert "  0.8× plain  " in label(replace(kept, plain=PlainRate(1050, 62.5)))
    lost = replace(kept, changes=(ModeChanged("off", "it loses"),))
    assert label(lost) == f"{times}  SSD → plain  50 tokens/s  50% accepted"
    back = (ModeChanged("sd", "it loses"), ModeChanged("ssd", "it may pay"))
    assert label(replace(kept, changes=back)) == label(kept)
    assert label(record("off", Summary())) == "plain"
    one = replace(SUMMARY, tokens=1, decode_s=0.0, first_token_s=12.3)
    assert label(record("ngram", one)) == "1 token in 12 s  first token after 12 s  n-gram  50% accepted"


def test_a_short_answer_is_not_compared_with_plain_decoding() -> None:
    short = replace(record("ssd", replace(SUMMARY, decode_s=0.9)), plain=PlainRate(1050, 25.0))
    assert of_record(short).ratio is None
    assert "plain" not in label(short)


@pytest.mark.parametrize(
    ("accepted", "drafted", "words"),
    [
        (1, 1, "100% accepted (1 of 1)"),
        (6, 8, "75% accepted (6 of 8)"),
        (19, 19, "100% accepted (19 of 19)"),
        (15, 20, "75% accepted"),
        (399, 400, "99% accepted"),
        (1, 400, "1% accepted"),
        (0, 400, "0% accepted"),
        (400, 400, "100% accepted"),
    ],
)
def test_acceptance_is_one_figure_wherever_it_is_shown(accepted: int, drafted: int, words: str) -> None:
    rounds = [RoundDone(RoundStats(0, 0, DraftOrigin.NONE, 0.1, 0.0, 0.0, 0.0), 1)]
    counts = [min(4, drafted - start) for start in range(0, drafted, 4)]
    left = accepted
    for count in counts:
        here, left = min(count, left), max(0, left - count)
        rounds.append(RoundDone(RoundStats(count, here, DraftOrigin.FRESH, 0.1, 0.0, 0.0, 0.0), here + 1))
    tally, live = Tally(9, "sd"), LiveStats(PlainRates())
    live.start("sd")
    live.add(rounds)
    for number, each in enumerate(rounds):
        tally.add(each.stats, each.tokens, float(number))
    s = tally.summary()
    kept = record("sd", s)
    percent = words.removesuffix(f" ({accepted} of {drafted})").removesuffix(" accepted")
    assert words in label(kept).split("  ")
    assert in_words(of_record(kept))["acceptance"] == words
    assert in_words(live.figures())["acceptance"] == words
    assert f", {words}" in describe_totals(History(rounds))
    assert words in summary_line("sd", s)
    assert f"{percent} ({accepted} of {drafted} draft tokens)" in "\n".join(
        table(EngineSettings("sd"), "asked for", s)
    )
    assert speculation(EngineSettings("sd"), "", s)["acceptance"] == accepted / drafted
    exported = to_plain(replace(kept, rounds=tuple(rounds)))
    again = from_plain(exported, "record")
    assert (again.summary.acceptance, History(again.rounds).acceptance) == (accepted / drafted,) * 2


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (Figures("plain", 6.28), "6.3 tokens/s"),
        (Figures("n-gram", 14.31, 1.04, 0.3), "30% accepted, 14 tokens/s, 1.0× plain"),
        (
            Figures("SSD", 1058.0, 1.44, 0.75, 3.4, 0.82),
            "75% accepted, 1,058 tokens/s, 1.4× plain, 3.4 tokens/round, 82% prepared",
        ),
        (Figures("speculative", None, None, 0.0), "0% accepted"),
    ],
)
def test_figures_are_reported_as_far_as_they_are_known(figures: Figures, words: str) -> None:
    assert ", ".join(in_words(figures).values()) == words


def test_the_line_in_the_terminal_leaves_out_what_is_not_known() -> None:
    assert summary_line("ssd", SUMMARY) == (
        "SSD  50 tokens/s  50% accepted  2.5 tokens/round  75% prepared  101 tokens, first token after 0.00 s"
    )
    assert (
        summary_line("off", Summary(tokens=1, rounds=1))
        == "OFF  0.0 tokens/s  1 token, first token after 0.00 s"
    )


def test_the_table_in_the_terminal_leaves_out_what_is_not_known() -> None:
    positions = replace(SUMMARY, accepted_at=(30, 15, 0), drafted_at=(40, 30, 0), prompt_s=0.5)
    lines = "\n".join(table(EngineSettings("ssd"), "asked for", positions))
    for figure in ("2,000 tokens/s", "50% (60 of 120", "2.50 tokens", "75% 50% 0%", "75% (30 of 40"):
        assert figure in lines
    bare = "\n".join(table(EngineSettings("off"), "asked for", Summary(tokens=1)))
    assert "acceptance" not in bare
    assert "per round" not in bare
