"""Texts in the encodings that programs write, at every place that reads one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.chat.attached_file import read_attachment
from localspec.errors import UserError
from localspec.storage.text_file import decode_text, read_text

TEXT = "Grüße\nan alle: 日本 🙂\n"
ENCODINGS = {
    "UTF-8": TEXT.encode(),
    "UTF-8 with a mark": TEXT.encode("utf-8-sig"),
    "UTF-16, as Windows PowerShell writes it": b"\xff\xfe" + TEXT.encode("utf-16-le"),
    "UTF-16, the other end first": b"\xfe\xff" + TEXT.encode("utf-16-be"),
    "UTF-32": b"\xff\xfe\0\0" + TEXT.encode("utf-32-le"),
    "ends of lines of Windows": b"\xff\xfe" + TEXT.replace("\n", "\r\n").encode("utf-16-le"),
}
READERS: dict[str, Callable[[Path], str]] = {
    "a flag's file": lambda path: read_text(str(path), "system prompt"),
    "an attachment": lambda path: read_attachment(path.name, path.parent).text,
    "standard input": lambda path: decode_text(path.read_bytes(), "it").replace("\r\n", "\n"),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("data", ENCODINGS.values(), ids=ENCODINGS)
def test_every_encoding_that_says_what_it_is_is_read(
    data: bytes, read: Callable[[Path], str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(data)
    assert read(tmp_path / "text") == TEXT


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize(
    ("data", "told", "hint"),
    [
        ("é".encode("latin-1"), "not UTF-8 text: byte 0xe9 at offset 0", "iconv -f LATIN1 -t utf-8"),
        (b"\xff\xfea", "not UTF-16 text: byte 0x61 at offset 2", "iconv"),
        (b"\xff\xfea\0\0\0", "is binary: a zero byte at offset 4", "only text"),
        ("hello".encode("utf-16-le"), "is binary: a zero byte at offset 1", "iconv -f UTF-16LE -t utf-8"),
        ("hello".encode("utf-16-be"), "is binary: a zero byte at offset 0", "iconv -f UTF-16BE -t utf-8"),
        (b"ab\0c", "is binary: a zero byte at offset 2", "only text"),
    ],
)
def test_what_is_not_a_text_is_reported_with_its_place_and_a_way(
    data: bytes, told: str, hint: str, read: Callable[[Path], str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(UserError) as caught:
        read(tmp_path / "text")
    assert told in caught.value.message
    assert hint in caught.value.hint


def test_a_byte_order_mark_is_one_only_at_the_beginning() -> None:
    mark = "\ufeffx"
    assert decode_text(mark.encode(), "it") == "x"
    assert decode_text(mark.encode(), "it", offset=9) == mark


def test_the_home_folder_may_be_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x").write_text("Be kind.", encoding="utf-8")
    assert read_text("~/x", "system prompt") == "Be kind."
