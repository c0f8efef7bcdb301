from __future__ import annotations

import pytest

from localspec_tui.widgets.explained import explained, glossary


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("auto: plain is fastest here", ["auto", "plain"]),
        ("80% accepted  58 tokens/s  1.9× plain", ["accepted", "tokens/s", "× plain"]),
        ("SSD → speculative  3.4 tokens/round", ["SSD", "speculative", "tokens/round"]),
        ("task  mode  K  fan-out  temp  C  simulated", ["K", "fan-out", "temp", "C", "simulated"]),
        ("Draft 6, N-gram; c continues, drafting ok", ["Draft", "N-gram"]),
        ("a temple of targets", ["target"]),
    ],
)
def test_words_are_found_where_they_stand(text: str, words: list[str]) -> None:
    found = list(explained(text))
    assert [text[place.start : place.stop] for place, _ in found] == words
    assert all(meaning.startswith(f"{word}: ") for word, (_, meaning) in zip(words, found, strict=True))


def test_every_meaning_is_one_short_sentence() -> None:
    assert all(20 < len(meaning) < 150 and "\n" not in meaning for meaning in glossary().values())
