"""A file that is there is found behind an `@`, whatever touches its name."""

from __future__ import annotations

import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from localspec.chat.attachments import Attached, attach, reference_at_end

SIGNS = """ ( [ { < " ' ` * ** _ ~ - ... , ; : = | ! ? & $ § “ „ ‘ «
    ‹ 「 『 （ 【 《 ， 。 ： 、 ； ！ ？ … — · """
CLOSING = """ . ) ] } > ” ’ » › 」 』 ） 】 》 ． ｡ । ॥ ؟ ، ؛ ۔ ። ։ ". **. / 's -Datei .Then """
WORDS = """ 请总结 これは を読んで 요약 를 прочти и διάβασε και اقرأ ثم קרא ואז पढ़ो और อ่าน 👉 é """
BEFORE = ("", " ", "\n", "\t", "see ", "a = ", "Read:", "--file=", "요약 ", *SIGNS.split(), *WORDS.split())
BEHIND = ("", " ", "\n", ".\n", ". Then", "(below)", *SIGNS.split(), *CLOSING.split(), *WORDS.split())
NAMES = st.text(
    st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/\0"),
    min_size=1,
    max_size=20,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("notes.txt", "main.py", "Makefile", "my notes.txt", "app"):
        (tmp_path / name).write_text(f"of {name}\ntwo\nthree\n", encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def empty() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def texts(prompt: str, folder: Path) -> list[str]:
    return [file.text for file in attach(prompt, folder).files]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NAMES, st.sampled_from(BEFORE), st.sampled_from(BEHIND))
def test_any_file_is_attached_in_any_surroundings(empty: Path, name: str, before: str, behind: str) -> None:
    assume(name not in {".", ".."} and name[0] != "~" and not name[0].isspace())
    assume(len(name.encode()) <= 255 and name == unicodedata.normalize("NFC", name))
    file = empty / name
    try:
        file.write_text("found", encoding="utf-8")
        prompt = f"{before}@{name}{behind}"
        assert attach(prompt, empty).text == prompt
        assert texts(prompt, empty) == ["found"], prompt
    finally:
        file.unlink(missing_ok=True)


@pytest.mark.parametrize("before", BEFORE)
def test_a_file_is_attached_in_any_surroundings(before: str, folder: Path) -> None:
    for behind in BEHIND:
        prompt = f"{before}@notes.txt{behind}"
        found = attach(prompt, folder)
        assert [file.name for file in found.files] == ["notes.txt"], prompt
        assert found.notes == (), prompt


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("@notes.txt@main.py", ["notes.txt", "main.py"]),
        ("比较@notes.txt和@main.py。", ["notes.txt", "main.py"]),
        ("@notes.txt;@main.py,@Makefile", ["notes.txt", "main.py", "Makefile"]),
        ("read @my notes.txt please", ["my notes.txt"]),
        ("read @“my notes.txt” and @'main.py'", ["my notes.txt", "main.py"]),
        ("@notes.txt and @app.route and me@main.py", ["notes.txt"]),
    ],
)
def test_several_names(prompt: str, wanted: list[str], folder: Path) -> None:
    assert [file.name for file in attach(prompt, folder).files] == wanted


@pytest.mark.parametrize(
    ("typed", "kept"), [("r\u00e9sum\u00e9", "re\u0301sume\u0301"), ("e\u0301", "\u00e9")]
)
def test_accents_may_be_written_either_way(typed: str, kept: str, tmp_path: Path) -> None:
    (tmp_path / kept).write_text("mine")
    assert texts(f"Look at @{typed}", tmp_path) == ["mine"]


@pytest.mark.parametrize(
    ("prompt", "name", "text"),
    [
        ("@notes.txt:2", "notes.txt:2", "two\n"),
        ("What does @notes.txt:2-3 do?", "notes.txt:2-3", "two\nthree\n"),
        ("@notes.txt:2–9.", "notes.txt:2-3", "two\nthree\n"),
        ("看@notes.txt#L2。", "notes.txt:2", "two\n"),
        ("@notes.txt#L2-L3, please", "notes.txt:2-3", "two\nthree\n"),
        ("@notes.txt:2:17: error", "notes.txt:2", "two\n"),
        ('@"my notes.txt":3', "my notes.txt:3", "three\n"),
        ("(@./notes.txt:3)", "./notes.txt:3", "three\n"),
        ("@notes.txt:3pm", "notes.txt", "of notes.txt\ntwo\nthree\n"),
        ("@notes.txt: 3 apples", "notes.txt", "of notes.txt\ntwo\nthree\n"),
    ],
)
def test_lines_of_a_file(prompt: str, name: str, text: str, folder: Path) -> None:
    found = attach(prompt, folder)
    assert [(file.name, file.text) for file in found.files] == [(name, text)]
    assert found.files[0].source == name.rpartition(":")[0] or found.files[0].source == name
    assert found.notes == ()


@pytest.mark.parametrize("lines", [":12", ":0", ":3-2", "#L44-L50"])
def test_lines_that_are_not_there_are_reported_and_all_is_attached(lines: str, folder: Path) -> None:
    prompt = f"@notes.txt{lines}"
    found = attach(prompt, folder)
    assert [file.name for file in found.files] == ["notes.txt"]
    (line,) = found.notes
    assert line.startswith("all of notes.txt is attached: it has 3 lines")


def test_lines_of_a_file_that_is_too_large_as_a_whole(folder: Path) -> None:
    (folder / "big.log").write_text("".join(f"line {number}\n" for number in range(1, 1001)))
    assert texts("@big.log:700-701", folder) == ["line 700\nline 701\n"]
    assert attach("@big.log:2", folder, 100).files[0].text == "line 2\n"
    for prompt in ("@big.log", "@big.log:1-900", "@big.log:5000"):
        with pytest.raises(Exception, match=r"more than the 100 bytes .* as @big\.log:1-200"):
            attach(prompt, folder, 100)


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("me@notes.txt", "an address or a path"),
        ("see a/@notes.txt", "an address or a path"),
        (r"C:\dir\@notes.txt", "an address or a path"),
        ("first.last+tag@main.py", "an address or a path"),
        ("```\n@notes.txt\n```", "code block"),
        ("> ```\n> @notes.txt\n> ```", "code block"),
        ("@notes.txt.bak", "continues"),
        ("@notes.txt_old", "continues"),
        ("@Makefile2", "continues"),
        ("@app.route('/x')", "continues"),
    ],
)
def test_names_that_are_not_attached_are_reported(prompt: str, why: str, folder: Path) -> None:
    found = attach(prompt, folder)
    assert (found.text, found.files) == (prompt, ())
    (line,) = found.notes
    assert "is not attached: " in line
    assert why in line


def test_a_file_that_is_attached_is_not_reported_as_missing(folder: Path) -> None:
    prompt = "me@notes.txt, and @notes.txt:2"
    assert attach(prompt, folder).notes == ()


@pytest.mark.parametrize(
    "prompt",
    [
        "joe@example.org",
        "@dataclass",
        "@someone",
        r"\@notes.txt",
        "no file at all",
        "`git@github.com:a/b.git`",
    ],
)
def test_mere_text_is_not_spoken_of(prompt: str, folder: Path) -> None:
    found = attach(prompt, folder)
    assert (found.files, found.notes) == ((), ())


@pytest.mark.parametrize("prompt", ['"\\@notes.txt"', "看\\@notes.txt", "(\\@note.txt)"])
def test_a_backslash_keeps_a_name_as_text_wherever_it_counts(prompt: str, folder: Path) -> None:
    assert attach(prompt, folder) == Attached(prompt.replace("\\", ""))


@pytest.mark.parametrize("prompt", [r"[\@#]", r"\w+\@\w+", r"a\@someone", r"the regex \@[a-z]+"])
def test_a_backslash_before_no_name_stays(prompt: str, folder: Path) -> None:
    assert attach(prompt, folder) == Attached(prompt)


@pytest.mark.parametrize("prompt", ["@note.txt", "看@note.txt吧", "（@note.txt）", "@note.txt:3"])
def test_a_slip_is_rejected_in_any_script(prompt: str, folder: Path) -> None:
    with pytest.raises(Exception, match=r"there is no file `note\.txt`; did you mean `notes\.txt`"):
        attach(prompt, folder)


@pytest.mark.parametrize("prompt", ["x = '@note.txt'", '"@" + name + "."', "from '@/parts/a.js'"])
def test_code_within_a_sentence_is_not_a_slip(prompt: str, folder: Path) -> None:
    assert attach(prompt, folder) == Attached(prompt)


@pytest.mark.parametrize(
    ("text", "start"),
    [("看@no", 2), ("“@", 2), ("@notes.txt和@ma", 12), ("me@no", None), (r"\@no", None), ("a/@no", None)],
)
def test_a_name_is_completed_where_it_would_be_attached(text: str, start: int | None) -> None:
    assert reference_at_end(text) == start
