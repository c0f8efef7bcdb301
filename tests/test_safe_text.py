from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.safe_text import safe_line, safe_text, whole_text

ANYTHING = st.text(st.characters(blacklist_categories=()) | st.sampled_from("\x1b[]\x07\x9b;52cm\u202e\r\n"))
KEPT = "\n\t"
OBEYED = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029}


def is_obeyed(character: str) -> bool:
    return unicodedata.category(character) == "Cc" or ord(character) in OBEYED


@given(ANYTHING)
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert not any(is_obeyed(each) for each in safe_text(text) if each not in KEPT)
    assert not any(map(is_obeyed, safe_line(text)))


@given(ANYTHING)
def test_what_no_one_obeys_is_left_as_it_is(text: str) -> None:
    plain = "".join(each for each in text if not is_obeyed(each))
    assert safe_text(plain) == plain
    assert safe_line(plain) == plain


@pytest.mark.parametrize(
    ("text", "lines", "line"),
    [
        ("a\x1b[31mred\x1b[0m\r\nb", "ared\nb", "a[31mred[0m b"),
        ("\x1b]52;c;SGk=\x07x\x1b]0;t\x1b\\y", "xy", "]52;c;SGk=x]0;t\\y"),
        ("\x1b]8;;never ended", "8;;never ended", "]8;;never ended"),
        ("a\u202eb\u2028c\x85d", "ab\nc\nd", "ab c d"),
        ("👨‍👩‍👧 مرحبا\u00a0x", "👨‍👩‍👧 مرحبا\u00a0x", "👨‍👩‍👧 مرحبا\u00a0x"),
    ],
)
def test_texts_and_names(text: str, lines: str, line: str) -> None:
    assert (safe_text(text), safe_line(text)) == (lines, line)


@given(st.text(st.characters(blacklist_categories=()) | st.sampled_from("\ud800\udcff\udfff")))
def test_a_whole_text_can_be_written_and_stays_apart(text: str) -> None:
    whole = whole_text(text)
    assert whole.encode("utf-8").decode("utf-8") == whole
    assert (whole == text) == text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text)


def test_names_that_differ_in_bytes_that_are_not_text_stay_apart() -> None:
    assert whole_text("a\udcfe") == "a\\udcfe" != whole_text("a\udcff")
