from __future__ import annotations

import random
import subprocess
from pathlib import Path
from threading import Event, Thread

import pytest

from localspec.errors import UserError
from localspec.tools.differences import diff_block, fenced
from localspec.tools.reading import FileReader, ReadArguments
from localspec.tools.workspace import Workspace
from localspec.tools.writing import EditArguments, FileWriter, WriteArguments


@pytest.fixture
def writer(tmp_path: Path) -> FileWriter:
    return FileWriter(Workspace(tmp_path))


def edit(writer: FileWriter, path: str, old: str, new: str) -> str:
    return writer.edit(EditArguments(path, old, new), Event()).text


def write(writer: FileWriter, path: str, text: str) -> str:
    return writer.write(WriteArguments(path, text), Event()).text


def read(writer: FileWriter, path: str, first: int | None = None, last: int | None = None) -> str:
    return FileReader(writer.workspace).read(ReadArguments(path, first, last), Event()).text


def test_a_file_that_was_not_read_is_not_replaced_at_once(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\n")
    for _ in ("the preview", "without one"):
        writer.workspace.seen.add("f", b"another text")
        with pytest.raises(
            UserError, match="`f` is there, with 2 lines: line 1 `one`, line 2 `two`; edit_file"
        ):
            writer.preview_write(WriteArguments("f", "three\n"))
    assert write(writer, "f", "three\n") == "replaced `f`: 6 bytes"  # the model has read the lines by now
    assert write(writer, "f", "four\n") == "replaced `f`: 5 bytes"
    assert edit(writer, "f", "four", "five") == "edited `f`: line 1 `five` is there now"
    assert write(writer, "f", "six\n") == "replaced `f`: 4 bytes"


def test_a_long_file_has_to_be_read_before_it_is_replaced(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("line\n" * 30)
    for _ in range(2):
        with pytest.raises(
            UserError, match="`f` is there, with 30 lines, and you have not read all of it; read_file"
        ):
            write(writer, "f", "three\n")
    read(writer, "f")
    assert write(writer, "f", "three\n") == "replaced `f`: 6 bytes"


def test_an_edit_is_no_reading(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\n" + "line\n" * 30)
    edit(writer, "f", "one", "two")
    with pytest.raises(UserError, match="you have not read all of it"):
        write(writer, "f", "three\n")


def test_a_new_file_and_a_replaced_one_are_reported(writer: FileWriter, tmp_path: Path) -> None:
    assert write(writer, "a/b.txt", "one\n") == "wrote `a/b.txt`: 4 bytes"
    assert write(writer, "a/b.txt", "two") == "replaced `a/b.txt`: 3 bytes"
    assert (tmp_path / "a/b.txt").read_bytes() == b"two"


def test_an_edit_keeps_the_executable_bit(writer: FileWriter, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\necho 1\n")
    script.chmod(0o755)
    assert edit(writer, "run.sh", "echo 1", "echo 2") == "edited `run.sh`: line 2 `echo 2` is there now"
    assert script.stat().st_mode & 0o777 == 0o755


def test_edits_of_one_file_at_once_are_all_in_it(writer: FileWriter, tmp_path: Path) -> None:
    count = 20
    (tmp_path / "f").write_text("".join(f"<{number}>\n" for number in range(count)))
    threads = [
        Thread(target=edit, args=(writer, "f", f"<{number}>", f"[{number}]")) for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "f").read_text() == "".join(f"[{number}]\n" for number in range(count))


def test_what_changed_after_the_user_saw_the_diff_is_not_overwritten(
    writer: FileWriter, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("old\n")
    read(writer, "f")
    writer.preview_write(WriteArguments("f", "new\n"))
    (tmp_path / "f").write_text("the user's\n")
    with pytest.raises(UserError, match="`f` has changed meanwhile; read it again"):
        write(writer, "f", "new\n")
    assert (tmp_path / "f").read_text() == "the user's\n"
    read(writer, "f")
    writer.preview_write(WriteArguments("f", "new\n"))
    assert write(writer, "f", "new\n") == "replaced `f`: 4 bytes"


def test_a_file_that_appeared_after_the_preview_is_not_overwritten(
    writer: FileWriter, tmp_path: Path
) -> None:
    writer.preview_write(WriteArguments("f", "new\n"))
    (tmp_path / "f").write_text("the user's\n")
    with pytest.raises(UserError, match="has changed meanwhile"):
        write(writer, "f", "new\n")


def test_the_preview_is_a_diff_of_the_place(writer: FileWriter, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(1, 21)]
    (tmp_path / "f").write_text("\n".join(lines) + "\n")
    assert writer.preview_edit(EditArguments("f", "line 10\n", "ten\n")) == (
        "```diff\n--- f\n+++ f\n@@ -7,7 +7,7 @@\n line 7\n line 8\n line 9\n-line 10\n+ten\n line 11\n"
        " line 12\n line 13\n```"
    )
    assert writer.preview_write(WriteArguments("n", "a\nb")) == (
        "```diff\n--- /dev/null\n+++ n\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n```"
    )
    read(writer, "f")
    assert writer.preview_write(WriteArguments("f", (tmp_path / "f").read_text())) == "`f` already says this"


def test_the_preview_of_a_call_that_must_fail_fails(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x\nx\n")
    for wanted in (
        EditArguments("f", "x", "y"),
        EditArguments("g", "x", "y"),
        EditArguments(".git/config", "x", "y"),
    ):
        with pytest.raises(UserError):
            writer.preview_edit(wanted)
    with pytest.raises(UserError, match="is outside"):
        writer.preview_write(WriteArguments("../f", "x"))


def test_a_binary_file_is_named_and_not_compared(writer: FileWriter, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\0" * 1000)
    assert writer.preview_write(WriteArguments("f", "x")) == "Replaces the binary file `f` of 1000 bytes"


def test_nothing_in_a_diff_acts_on_the_terminal_or_ends_the_fence() -> None:
    block = diff_block("f", "a\x1b[2Kb\n````\n", "c\u202ed\n```\n\tx\n")
    assert block.startswith("`````diff\n")
    assert block.endswith("\n`````")
    assert "\x1b" not in block
    assert "\u202e" not in block
    assert "-a[2Kb" in block
    assert "+\tx" in block


def test_a_file_that_was_read_in_parts_is_known_once_no_line_is_missing(
    writer: FileWriter, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("line\n" * 30)
    for first, last in ((1, 10), (21, 30), (12, 20)):
        read(writer, "f", first, last)
        with pytest.raises(UserError, match="you have not read all of it"):
            write(writer, "f", "short\n")
    read(writer, "f", 11, 12)
    read(writer, "f", 13)
    assert write(writer, "f", "short\n") == "replaced `f`: 6 bytes"


def test_a_change_of_line_endings_is_seen() -> None:
    block = diff_block("f", "a\r\nb\r\n", "a\nb\r\n")
    assert "-a␍\n+a\n b\n" in block


@pytest.mark.slow
def test_the_diff_of_a_large_file_is_short_and_quick() -> None:
    old = "".join(f"{number}\n" for number in range(100_000))
    new = "".join(f"{number} x\n" for number in range(100_000))
    assert diff_block("f", old, new).endswith("199,702 more lines\n```") or "more lines\n```" in diff_block(
        "f", old, new
    )
    assert len(diff_block("f", old, old.replace("50000\n", "fifty\n", 1)).splitlines()) == 13


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fenced("a ```` b", "sh") == "`````sh\na ```` b\n`````"


@pytest.mark.parametrize(
    ("old", "text", "new"),
    [
        (b"a\r\nb\r\n", "a\nc\n", b"a\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nc\n", b"a\r\nc\r\n"),
        (b"a\r\nb\n", "a\nc\n", b"a\nc\n"),
        (b"\xef\xbb\xbfa\r\n", "b\n", b"\xef\xbb\xbfb\r\n"),
        (b"\xef\xbb\xbfa\n", "\ufeffb\n", b"\xef\xbb\xbfb\n"),
        ("a\n".encode("utf-16"), "ü\n", "ü\n".encode("utf-16")),
        (b"\0\r\n", "text\n", b"text\n"),
        (b"", "a\r\nb\n", b"a\r\nb\n"),
        (None, "a\r\nb\n", b"a\r\nb\n"),
    ],
)
def test_a_replaced_file_keeps_its_endings_and_encoding(
    writer: FileWriter, tmp_path: Path, old: bytes | None, text: str, new: bytes
) -> None:
    if old is not None:
        (tmp_path / "f").write_bytes(old)
        writer.workspace.seen.add("f", old)
    write(writer, "f", text)
    assert (tmp_path / "f").read_bytes() == new


@pytest.mark.parametrize("text", ["a\0b", "a\ud83d", "\udcff"])
def test_what_is_no_text_is_not_written(writer: FileWriter, tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(UserError, match="`text` has a zero byte or half of a character"):
        write(writer, "f", text)
    with pytest.raises(UserError, match="`new_text` has a zero byte or half of a character"):
        edit(writer, "f", "x", text)
    assert (tmp_path / "f").read_text() == "x"


@pytest.mark.slow
def test_git_applies_the_diffs_of_random_changes(tmp_path: Path) -> None:
    generator = random.Random(5)
    for _ in range(60):
        old = "".join(generator.choices(["a\n", "b\n", "c\n", "\n", "`x`\n"], k=generator.randint(1, 40)))
        lines = old.splitlines(keepends=True)
        for _ in range(generator.randint(1, 3)):
            at = generator.randrange(len(lines) + 1)
            added = generator.choices(["new\n", "b\n"], k=generator.randint(0, 3))
            lines[at : at + generator.randint(0, 3)] = added
        new = "".join(lines)[: None if generator.random() < 0.7 else -1]
        if new == old:
            continue
        (tmp_path / "f").write_text(old)
        patch = "\n".join(diff_block("f", old, new).split("\n")[1:-1]) + "\n"
        subprocess.run(
            ["git", "apply", "-p0", "--unidiff-zero", "-"], input=patch, text=True, cwd=tmp_path, check=True
        )
        assert ((tmp_path / "f").read_text() if (tmp_path / "f").exists() else "") == new
