from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.chat.figures import Figures, in_words, label, of_record, summary_line, table
from localspec.types.events import ModeChanged, Summary
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
    )
    stepped = replace(kept, changes=(ModeChanged("sd", "it loses"),))
    assert (of_record(stepped).mode, of_record(stepped).note) == ("SSD → speculative", "it loses")


def test_labels_say_what_is_known() -> None:
    kept = record("ssd", replace(SUMMARY, first_token_s=0.25))
    times = "101 tokens in 2.2 s  first token after 0.25 s"
    assert label(kept) == f"{times}  SSD  50 tokens/s"
    assert label(replace(kept, plain=PlainRate(1050, 26.0))) == f"{times}  SSD  50 tokens/s  1.9× plain"
    assert label(replace(kept, plain=PlainRate(1050, 62.5))).endswith("  0.8× plain")
    lost = replace(kept, changes=(ModeChanged("off", "it loses"),))
    assert label(lost) == f"{times}  SSD → plain  50 tokens/s"
    back = (ModeChanged("sd", "it loses"), ModeChanged("ssd", "it may pay"))
    assert label(replace(kept, changes=back)) == label(kept)
    assert label(record("off", Summary())) == "plain"
    one = replace(SUMMARY, tokens=1, decode_s=0.0, first_token_s=12.3)
    assert label(record("ngram", one)) == "1 token in 12 s  first token after 12 s  n-gram"


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
        "SSD  50.0 tok/s  acc 50%  len 2.5  hit 75%  101 tokens, first token after 0.00 s"
    )
    assert (
        summary_line("off", Summary(tokens=1, rounds=1))
        == "OFF  0.0 tok/s  1 tokens, first token after 0.00 s"
    )


def test_the_table_in_the_terminal_leaves_out_what_is_not_known() -> None:
    positions = replace(SUMMARY, accepted_at=(30, 15, 0), drafted_at=(40, 30, 0), prompt_s=0.5)
    lines = "\n".join(table(EngineSettings("ssd"), "asked for", positions))
    for figure in ("2000.0 tok/s", "50.0% (60 of 120", "2.50 tokens", "0.75 0.50 0.00", "75.0% (30 of 40"):
        assert figure in lines
    bare = "\n".join(table(EngineSettings("off"), "asked for", Summary(tokens=1)))
    assert "acceptance" not in bare
    assert "per round" not in bare
