"""PDF files are attached as text, page by page, or refused in one line."""

from __future__ import annotations

import base64
import threading
import zlib
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from localspec import pdf
from localspec.chat.attached_file import read_attachment
from localspec.chat.attachments import attach
from localspec.errors import Cancelled, UserError
from tests.made_pdf import (
    ATTACKS,
    CATALOG,
    HELVETICA,
    one_page,
    packed,
    page,
    pages,
    stream,
    text_pdf,
    written,
)
from tests.made_pdf import pdf as pdf_of

AES = zlib.decompress(  # encrypted by AES-128 with an empty password, written by pypdf and cryptography
    base64.b64decode(
        "eNqNU71rFEEU7wetbBSCDJjT6pydz92B4yC5DxQNCTkNiFjMzkdyctkNu3MxEUS0sfJ/sBIExUb0H7DWItgKxs5WbAKKs3uX"
        "5OAs3F2Wee/93u99TmOt22/iqxQ0Dr9/PgAYRjBP74NWC6Bb+zsWoo7yapRvArSmNm0JSQCsg3Yb2MxUQDLnUOMAujE0JbwL"
        "aYWH9wDq5OPMQzzjSv/pWgUqbIBOIqEVa4ZqOd8LXFF4BSYwlmTCmPkALCGbINdtmY8LHZKsGPvBOjlgyI+TnnzT+Gwm/k2b"
        "bfotKFhlL31h1TZ4+iQ/c9i80Dn3+l337KtP9A46Ki8/z/WHpR9fmj9fHDRfXlz89vb92rMrf349Wtj4+MC03yz/Xrgk3ePz"
        "6uviURVnSjWNyOcqrrIEaDBOfS1WSgzQsiptnT+6Zke71g+1mslbzLBsQBYKr37TCjBJQgchI5JJERNJQgOGI28LiAZeZUYV"
        "BqBV2OJCOJXE1FpKdSxjbWgqI+aMMi7BTDlFmXFS0cQJaxhOZcIs0cIoopRwvA3QbdiijihrDZaUp4liJDUR40xJyayWwiQk"
        "SR2z3DIb82DHgkVRkIVzTkU4SgJLp19PaeDN9LQ09lu93WoDUDfXqzs2q0ArEC31BhvktFAxnWZw3e7DCUElFCfCacv2CutA"
        "BGMQnTxQcE45dPBEh8N4akt2qhNsTocJndMRjud0VMzzMTqj84UajmxRz3EwfGhDemg9z8Mlmezz9W7Y+VbKhcJaaEWIdVhq"
        "kiqJY6ITjVnCRdr+H0i4Lb1MF/s7Horju1B6Vfi6MTEjoNHorfbBX6I6Hfk="
    )
)
pytestmark = pytest.mark.slow  # each starts a process


def refused(data: bytes, folder: Path, name: str = "a.pdf", limit: int = 100_000) -> UserError:
    (folder / "a.pdf").write_bytes(data)
    with pytest.raises(UserError) as caught:
        attach(f"sum up @{name}", folder, limit)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("`a.pdf` ")
    return caught.value


def outcome(folder: Path) -> str:
    try:
        return read_attachment("a.pdf", folder).text
    except UserError as error:
        return str(error)


def encrypted(user_password: str) -> bytes:
    """Return a file encrypted by RC4, which everyone opens if the password is empty."""
    writer, file = PdfWriter(clone_from=PdfReader(BytesIO(text_pdf("secret")))), BytesIO()
    writer.encrypt(user_password, "owner's", algorithm="RC4-128")
    writer.write(file)
    return file.getvalue()


def test_pages_are_marked(tmp_path: Path) -> None:
    (tmp_path / "paper.pdf").write_bytes(text_pdf("Hello\nworld", "", "The end"))
    (file,) = attach("sum up @paper.pdf.", tmp_path).files
    assert file.name == "paper.pdf"
    assert file.text == ("[Page 1 of 3]\nHello\nworld\n\n[Page 2 of 3: no text]\n\n[Page 3 of 3]\nThe end\n")


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("a.pdf:2", ["[Page 2 of 4]"]),
        ("a.pdf:2-3", ["[Page 2 of 4]", "[Page 3 of 4]"]),
        ("a.pdf:3-9", ["[Page 3 of 4]", "[Page 4 of 4]"]),
    ],
)
def test_numbers_of_pages(name: str, marks: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(text_pdf("one", "two", "three", "four"))
    found = attach(f"@{name}", tmp_path)
    assert [file.name for file in found.files] == [name]
    assert [line for line in found.files[0].text.split("\n") if line.startswith("[")] == marks
    assert (found.files[0].source, found.notes) == ("a.pdf", ())


def test_what_is_a_pdf_file_is_seen_in_it_and_not_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "paper").write_bytes(b"junk before\n" + text_pdf("Hello"))
    (tmp_path / "notes.pdf").write_text("plain text")
    assert read_attachment("paper", tmp_path).text == "[Page 1 of 1]\nHello\n"
    assert read_attachment("notes.pdf", tmp_path).text == "plain text"


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pdf").write_bytes(text_pdf("first"))
    first = read_attachment("a.pdf", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(pdf, "Child", None)
        assert read_attachment("a.pdf", tmp_path) == first
    (tmp_path / "a.pdf").write_bytes(text_pdf("second one"))
    assert "second one" in read_attachment("a.pdf", tmp_path).text


def test_text_of_strangers_holds_no_control_sequences(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(one_page(stream(b"BT /F1 12 Tf (\x1b[2Jsafe\x07 \\000text) Tj ET")))
    assert read_attachment("a.pdf", tmp_path).text == "[Page 1 of 1]\nsafe text\n"


def test_a_text_that_is_too_long_says_which_pages_fit(tmp_path: Path) -> None:
    error = refused(text_pdf(*["word " * 60] * 9), tmp_path, limit=1000)
    assert error.message == "`a.pdf` has 9 pages, of which 1 to 3 fill the 1000 bytes that can be attached"
    assert error.hint.startswith("attach some, as @a.pdf:1-3")
    assert attach("@a.pdf:1-3", tmp_path, 1000).files
    error = refused(text_pdf("word " * 600), tmp_path, limit=1000)
    assert error.message == "`a.pdf` has more text on page 1 than the 1000 bytes that can be attached"


def test_a_page_that_is_missing(tmp_path: Path) -> None:
    assert refused(text_pdf("one"), tmp_path, "a.pdf:3").message == "`a.pdf` has 1 page, and no page 3"


def test_scanned_pages_are_refused(tmp_path: Path) -> None:
    error = refused(text_pdf("", ""), tmp_path)
    assert error.message == "`a.pdf` has no text: its pages are pictures"
    assert "ocrmypdf" in error.hint


def test_a_broken_page_leaves_the_others(tmp_path: Path) -> None:
    broken = b"<< /Length 4 0 R >>\nstream\nBT ET\nendstream"
    objects = [CATALOG, pages(b"3 0 R 6 0 R", 2), page(4), broken, HELVETICA, page(7)]
    (tmp_path / "a.pdf").write_bytes(pdf_of([*objects, stream(written("sound"))]))
    text = read_attachment("a.pdf", tmp_path).text
    assert text == "[Page 1 of 2: cannot be read]\n\n[Page 2 of 2]\nsound\n"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_in_one_line_or_in_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "SECONDS", 3.0)
    (tmp_path / "a.pdf").write_bytes(ATTACKS[name])
    said = outcome(tmp_path)
    assert said.startswith("[Page 1 of 1") or (said.startswith("`a.pdf` ") and "\n" not in said)


def test_an_encrypted_file_that_everyone_can_open_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(encrypted(""))
    assert outcome(tmp_path) == "[Page 1 of 1]\nsecret\n"


def test_a_password_is_not_guessed(tmp_path: Path) -> None:
    error = refused(encrypted("mine"), tmp_path)
    assert error.message == "`a.pdf` is encrypted with a password"
    assert error.hint.startswith("save a copy of it without the password")


def test_a_cipher_that_needs_another_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(AES)
    said = outcome(tmp_path)
    if find_spec("cryptography") or find_spec("Crypto"):
        assert said == "[Page 1 of 1]\nsecret\n"
    else:
        assert "needs the Python package `cryptography`; install it beside LocalSpec" in said


def test_a_file_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "SECONDS", 1.0)
    endless = one_page(packed(b"(a) Tj " * 5_000_000))
    assert refused(endless, tmp_path).message == "`a.pdf` takes more than 1 s to read"


def test_reading_that_is_stopped_ends_at_once_and_can_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(text_pdf("one"))
    begun, ended = tmp_path / "begun", list[Exception]()
    waits = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(60)"
    monkeypatch.setattr(pdf, "_CODE", waits)

    def read() -> None:
        try:
            read_attachment("a.pdf", tmp_path)
        except Cancelled as error:
            ended.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    while not begun.exists():
        reader.join(0.01)
    pdf.stop_reading()
    reader.join(10)
    assert "reading `a.pdf` was stopped" in str(ended[0])
    monkeypatch.undo()
    assert "one" in read_attachment("a.pdf", tmp_path).text


def test_a_file_that_takes_too_much_memory_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "MEMORY", 60 * 2**20)
    large = one_page(packed(b"BT /F1 1 Tf (" + b"a" * 30_000_000 + b") Tj ET"))
    assert refused(large, tmp_path).message == "`a.pdf` takes more than 60 MiB of memory to read"


def test_a_process_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_CODE", "import os; os.abort()")
    assert refused(text_pdf("one"), tmp_path).message == "`a.pdf` ends the process that reads it (SIGABRT)"


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "MAX_BYTES", 100)
    assert "more than the 100 bytes of a PDF file" in refused(text_pdf("one"), tmp_path).message
