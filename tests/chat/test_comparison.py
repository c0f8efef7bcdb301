from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.chat.comparison import ComparedAnswer, figures, first_difference, plain_rate, verdict
from localspec.types.events import ModeChanged
from localspec.types.request import Mode
from tests.tui.answers import plain, record_of, sd, ssd

ROUNDS = {"off": plain(60), "sd": sd(40), "ssd": ssd(40)}


def answer(
    mode: Mode, text: str = "a text", temperature: float = 0.0, complete: bool = True
) -> ComparedAnswer:
    return ComparedAnswer(text, record_of(ROUNDS[mode], mode, temperature), complete)


def test_the_ratio_is_to_the_plain_answer_of_the_same_comparison() -> None:
    answers = [answer("off"), answer("ssd")]
    rate = plain_rate(answers) or 0.0
    assert rate == pytest.approx(55, rel=0.05)
    summary = answers[1].record.summary
    ratio = (summary.tokens - 1) / summary.decode_s / rate
    assert f"{ratio:.1f}× plain" in figures(answers[1], rate)[0]
    assert "× plain" not in figures(answers[0], rate)[0]


@pytest.mark.parametrize("plain_answer", [answer("sd"), answer("off", complete=False)])
def test_without_a_whole_plain_answer_there_is_not_a_ratio(plain_answer: ComparedAnswer) -> None:
    assert plain_rate([plain_answer]) is None
    assert "× plain" not in "".join(figures(answer("ssd"), None))


def test_a_plain_answer_that_changed_its_mode_is_not_a_measure() -> None:
    changed = answer("off")
    changed = replace(changed, record=replace(changed.record, changes=(ModeChanged("sd", "pays"),)))
    assert plain_rate([changed]) is None


def test_figures_of_each_mode() -> None:
    assert len(figures(answer("off"), None)) == 2
    assert "hits" not in figures(answer("sd"), None)[-1]
    assert "prepared" in figures(answer("ssd"), None)[-1]


def test_first_difference() -> None:
    assert first_difference("same", "same") is None
    assert first_difference("same", "some") == 1
    assert first_difference("same", "same and more") == 4


def test_equal_texts_at_temperature_zero() -> None:
    assert verdict([answer("ssd"), answer("off")]) == "SSD wrote the same text as Plain."


def test_a_difference_is_shown_where_it_begins() -> None:
    text = verdict([answer("off", "one two three"), answer("sd", "one two four")])
    assert text.startswith("Speculative differs from Plain from character 9, after “one two”")
    assert "equally likely" in text


def test_a_text_that_was_stopped_is_held_against_what_it_has() -> None:
    stopped = answer("sd", "one two", complete=False)
    assert (
        verdict([answer("off", "one two three"), stopped])
        == "Speculative and Plain are the same up to the end of the shorter one."
    )


def test_above_zero_the_distribution_is_what_is_the_same() -> None:
    text = verdict([answer("off", "a", 0.8), answer("sd", "b", 0.8)])
    assert "same distribution" in text
    assert "0.8" in text


def test_one_answer_is_compared_with_nothing() -> None:
    assert verdict([answer("off")]) == ""
