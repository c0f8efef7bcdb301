from __future__ import annotations

import random
import re

import pytest

from localspec.errors import UserError
from localspec.tools.replacing import TextEdit, decoded, replaced

OPERATIONS = 2000
PIECES = [
    b"a",
    b"b",
    b"ab",
    b" ",
    b"\t",
    b"\n",
    b"\r\n",
    b"\r",
    b"x = 1",
    "ü€😀".encode(),
    b"\xff",
    b"\xe9",
    b"$&",
]


def edit(data: bytes, old: str, new: str) -> bytes:
    file = decoded(data, "f")
    return file.encoded(replaced(file.text, (TextEdit(old, new),), "f"))


def ending(before: bytes, middle: bytes, after: bytes) -> bytes:
    """Return the ending of the line that is edited, else of the next, else of the one before."""
    for part in (middle, after):
        if b"\n" in part:
            return b"\r\n" if part.partition(b"\n")[0].endswith(b"\r") else b"\n"
    return b"\r\n" if before.rpartition(b"\n")[0].endswith(b"\r") else b"\n"


@pytest.mark.slow
def test_an_edit_that_was_made_already_is_said_to_be() -> None:
    with pytest.raises(UserError, match=r"`new_text` does, at line 2; this edit has been made already"):
        replaced("a\nthe text\n", (TextEdit("teh text", "the text"),), "f")
    with pytest.raises(
        UserError, match="`old_text` does not occur in `f`; the most similar is line 2 `the text`"
    ):
        replaced("a\nthe text\n", (TextEdit("teh text", ""),), "f")


def test_random_edits_keep_every_other_byte() -> None:
    generator = random.Random(4)
    done = ambiguous = 0
    for _ in range(OPERATIONS):
        pieces = generator.choices(PIECES, k=generator.randint(1, 30))
        start = generator.randrange(len(pieces))
        end = generator.randint(start + 1, min(start + 4, len(pieces)))
        before, middle, after = (b"".join(part) for part in (pieces[:start], pieces[start:end], pieces[end:]))
        data = before + middle + after
        splits_an_ending = before.endswith(b"\r") and middle.startswith(b"\n")
        if splits_an_ending or middle.endswith(b"\r") or b"\r\r\n" in data:  # no text of a model
            continue
        try:
            old = middle.decode()
        except UnicodeDecodeError:  # no model can write that
            continue
        new = generator.choice(["new", "", "one\ntwo", r"\1 $& $1 \g<0>", "€"])
        flat, wanted = data.replace(b"\r\n", b"\n"), middle.replace(b"\r\n", b"\n")
        count = sum(flat.startswith(wanted, at) for at in range(len(flat)))
        if count != 1:
            with pytest.raises(UserError, match=f"occurs {count} times"):
                edit(data, old, new)
            ambiguous += 1
            continue
        written = new.encode().replace(b"\n", ending(before, middle, after))
        expected = before + written + after
        if data.endswith(b"\n") and expected and not expected.endswith(b"\n"):
            expected += b"\r\n" if data.endswith(b"\r\n") else b"\n"
        assert edit(data, old.replace("\r\n", "\n"), new) == expected, (data, old, new)
        done += 1
    assert done > OPERATIONS / 4
    assert ambiguous > OPERATIONS / 10


def test_new_lines_get_the_endings_of_the_file() -> None:
    assert edit(b"a\r\nb\r\nc\r\n", "b\n", "x\ny\n") == b"a\r\nx\r\ny\r\nc\r\n"
    assert edit(b"a\r\nb\r\nc\r\n", "a\nb", "z") == b"z\r\nc\r\n"
    assert edit(b"a\nb\n", "b", "x\r\ny") == b"a\nx\ny\n"
    assert edit(b"one\r\ntwo\nthree\n", "two", "2\n2") == b"one\r\n2\n2\nthree\n"  # mixed stays mixed


def test_the_last_line_stays_ended_and_an_open_one_open() -> None:
    assert edit(b"a\nb\n", "b\n", "c") == b"a\nc\n"
    assert edit(b"a\r\nb\r\n", "b\n", "c") == b"a\r\nc\r\n"
    assert edit(b"a\nb", "b", "c") == b"a\nc"
    assert edit(b"a\n", "a\n", "") == b""


@pytest.mark.parametrize("codec", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_the_encoding_and_its_mark_stay(codec: str) -> None:
    mark = b"\xfe\xff" if codec == "utf-16-be" else b""
    data = mark + "grün\r\nblau\r\n".encode(codec)
    assert edit(data, "grün\n", "weiß\n€\n") == mark + "weiß\r\n€\r\nblau\r\n".encode(codec)


def test_latin_1_around_an_edit_stays() -> None:
    assert edit(b"caf\xe9 = 1\ntea = 2\n", "tea = 2", "tea = 3") == b"caf\xe9 = 1\ntea = 3\n"


@pytest.mark.parametrize("new", ["$&", "$$", "$`", "$'", r"\1", r"\g<0>", "%s", "{}"])
def test_no_sign_in_the_new_text_is_special(new: str) -> None:
    assert edit(b'log("done");\n', 'log("done");', f'log("{new} ok");') == f'log("{new} ok");\n'.encode()


@pytest.mark.parametrize(
    ("data", "old", "complaint"),
    [
        (b"x\ny\nx\n", "x", "occurs 2 times in `f`: line 1 `x`, line 3 `x`; take the whole line"),
        (b"aaa\n", "aa", "occurs 2 times in `f`: line 1 `aaa`;"),
        (b"x\n" * 9, "x", r"occurs 9 times in `f`: line 1 `x`, .*, line 5 `x`, \.\.\."),
        (b"def f():\n    return 1\n", "def f():\n  return 1", "lines 1-2 differ from it only in blanks"),
        (b"\tx = 1\n", "    x = 1", "line 1 differs from it only in blanks"),
        (b"a = 1\nb = 2\n", "1\ta = 1\n2\tb = 2", "leave out the line numbers"),
        (
            b"import os\ndef compute(a, b):\n",
            "def computes(a, b):",
            r"is line 2 `def compute\(a, b\):`: copy from",
        ),
        (
            b"a\n\x1b[31mkeeps teh " + b"list " * 99,
            " teh.",
            r"perhaps line 2 `\[31mkeeps teh (list )+.{0,4}\.\.\.` is",
        ),
        (b"nothing like it\n", "zzzz", "the file has 2 lines"),
        (b"a\n", "", "`old_text` is empty"),
        (b"a\n", "a", "are the same"),
    ],
)
def test_a_text_that_is_not_there_once_is_explained(data: bytes, old: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        edit(data, old, "a" if old == "a" else "new")


def test_a_binary_file_is_not_edited() -> None:
    with pytest.raises(UserError, match="is binary"):
        decoded(b"GIF\0\1", "f")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_several_edits_are_made_in_the_text_as_it_was(end: str) -> None:
    text = f"a = 1{end}b = 2{end}c = 3{end}"
    edits = (TextEdit("c = 3", "c = 30\nd = 4"), TextEdit("a = 1", "b = 2"), TextEdit("b = 2\n", ""))
    assert replaced(text, edits, "f") == f"b = 2{end}c = 30{end}d = 4{end}"


@pytest.mark.parametrize(
    ("edits", "complaint"),
    [
        (("one\ntwo", "x"), "the edits 1 and 2 overlap in `f`: nothing was changed; make one edit of both"),
        (("two", "x"), "the edits 1 and 2 overlap"),
        (("o", "x"), "edit 2 of 2: `old_text` is not unique: it occurs 2 times in `f`"),
        (("four", "x"), "edit 2 of 2: `old_text` does not occur in `f`"),
        (("", "x"), "edit 2 of 2: `old_text` is empty"),
    ],
)
def test_edits_that_cannot_be_made_together_change_nothing(edits: tuple[str, str], complaint: str) -> None:
    with pytest.raises(UserError, match=re.escape(complaint)):
        replaced("one\ntwo\n", (TextEdit("two", "2"), TextEdit(*edits)), "f")
