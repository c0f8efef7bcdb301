from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from localspec.chat.attached_file import read_attachment
from localspec.chat.attachments import Attached, attach, describe
from localspec.chat.messages import Attachment
from localspec.errors import UserError

NOTES = Attachment("notes.txt", "line one\nline two\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text(NOTES.text, encoding="utf-8")
    (tmp_path / "my notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "Makefile").write_text("all:", encoding="utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("print(1)", encoding="utf-8")
    return tmp_path


def names(text: str, folder: Path) -> list[str]:
    return [attachment.name for attachment in attach(text, folder).files]


def complaint(name: str, folder: Path, limit: int = 1000) -> str:
    with pytest.raises(UserError) as caught:
        read_attachment(name, folder, limit)
    return str(caught.value)


def test_a_file_is_attached_and_the_text_stays(folder: Path) -> None:
    assert attach("Sum up @notes.txt please", folder) == Attached("Sum up @notes.txt please", (NOTES,))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("@notes.txt", ["notes.txt"]),
        ("see (@notes.txt), @src/main.py!", ["notes.txt", "src/main.py"]),
        ('read @"my notes.txt"', ["my notes.txt"]),
        ("two\n@Makefile\nlines", ["Makefile"]),
        ("@./notes.txt.", ["./notes.txt"]),
        ("is it @notes.txt?", ["notes.txt"]),
        ("@notes.txt and @./notes.txt and @notes.txt", ["notes.txt"]),
    ],
)
def test_references_are_found(text: str, wanted: list[str], folder: Path) -> None:
    assert names(text, folder) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "me@notes.txt",
        "mail joe@example.org",
        "@ alone",
        "@",
        "@dataclass\nclass A: ...",
        "@pytest.fixture",
        '@app.route("/x")',
        "@someone what do you think",
        "import @types/node",
        "@/",
        "```\n@notes.txt\n```",
        "~~~ python\n@notes.txt and @missing.txt",
        "@" + "long" * 2000,
        "@nul\0byte",
    ],
)
def test_what_means_no_file_stays_text(text: str, folder: Path) -> None:
    found = attach(text, folder)
    assert (found.text, found.files) == (text, ())


def test_a_backslash_keeps_a_name_as_text(folder: Path) -> None:
    assert attach(r"\@notes.txt or \@missing.txt", folder) == Attached("@notes.txt or @missing.txt")


def test_a_reference_after_code_counts(folder: Path) -> None:
    assert names("```\n@notes.txt\n```\n@Makefile", folder) == ["Makefile"]


def test_the_home_folder_is_known(folder: Path, empty_home: Path) -> None:
    (empty_home / "todo.md").write_text("all", encoding="utf-8")
    assert attach("@~/todo.md", folder).files == (Attachment("~/todo.md", "all"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("@notes.tx and @note.txt", "no file `note.txt`; did you mean `notes.txt`?"),
        ("@./nothing", "no file `./nothing`"),
        ('@"what ever"', "no file `what ever`"),
        ("@~/nothing,", "no file `~/nothing`"),
        ("@~nobody-of-that-name/x.txt", "no file `~nobody-of-that-name/x.txt`"),
        ("@src/nothing", "no file `src/nothing`"),
        ("@src/nothing.py?", "no file `src/nothing.py`"),
    ],
)
def test_what_can_only_be_a_file_has_to_exist(text: str, words: str, folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        attach(text, folder)
    assert words in str(caught.value)
    assert "makes it plain text" in caught.value.hint


def test_a_file_that_is_too_large(folder: Path) -> None:
    (folder / "big.txt").write_text("x" * 3000, encoding="utf-8")
    assert "`big.txt` has 2.93 KiB, more than the 1000 bytes" in complaint("big.txt", folder)
    assert read_attachment("big.txt", folder, 3000).text == "x" * 3000


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0", "byte 0x89 at offset 0"),
        (b"abc\0def", "`file` is binary: a zero byte at offset 3"),
        (b"caf\xe9", "not UTF-8 text: byte 0xe9 at offset 3"),
        (b"\xff\xfea", "not UTF-16"),
        (b"", "`file` is empty"),
        (b"\xef\xbb\xbf \n", "`file` is empty"),
    ],
)
def test_files_that_are_not_text_are_rejected(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    assert words in complaint("file", tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_that_say_what_they_are(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes("Grüße\r\nan alle\n".encode(encoding))
    assert read_attachment("file", tmp_path).text == "Grüße\nan alle\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    assert complaint("pipe", folder) == "`pipe` is a pipe; name a file"


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs sockets with names")
def test_a_socket_is_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("server")
    with pytest.raises(UserError, match="`server` is a socket"):
        attach("@server", folder)


@pytest.mark.skipif(not Path("/dev/zero").is_char_device(), reason="needs devices")
def test_a_device_is_not_read(folder: Path) -> None:
    with pytest.raises(UserError, match="`/dev/zero` is a device"):
        attach("what is in @/dev/zero?", folder)


def test_a_loop_of_links_is_reported(folder: Path) -> None:
    (folder / "loop").symlink_to("pool")
    (folder / "pool").symlink_to("loop")
    with pytest.raises(UserError, match="cannot read `loop`"):
        attach("see @loop please", folder)


def test_a_link_to_nothing_is_reported_whatever_its_name(folder: Path) -> None:
    (folder / "todo").symlink_to("gone")
    with pytest.raises(UserError, match="`todo` links to a file that is gone"):
        attach("see @todo please", folder)


@pytest.mark.skipif(not Path("/proc/kallsyms").is_file(), reason="needs files without a size")
def test_a_file_that_tells_no_size_is_not_cut(folder: Path) -> None:
    with pytest.raises(UserError, match="more than the 1000 bytes"):
        attach("@/proc/kallsyms", folder, 1000)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(folder: Path) -> None:
    (folder / "notes.txt").chmod(0)
    assert "cannot read `notes.txt`: Permission denied" in complaint("notes.txt", folder)


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    assert "is not the name of a file" in complaint("a\0b", tmp_path)


def test_a_link_to_nowhere_is_not_its_own_correction(folder: Path) -> None:
    (folder / "todo.txt").symlink_to("gone.txt")
    assert complaint("todo.txt", folder) == "`todo.txt` links to a file that is gone; name another file"


def test_a_slip_outside_of_a_prompt_is_reported_without_the_at(folder: Path) -> None:
    assert complaint("note.txt", folder) == "there is no file `note.txt`; did you mean `notes.txt`?"


def test_an_attachment_in_words() -> None:
    assert describe(Attachment("a.txt", "é" * 6000), 3104) == "a.txt, 11.7 KiB, 3,104 tokens"
    assert describe(Attachment("a.txt", "x"), 1) == "a.txt, 1 byte, 1 token"
    assert describe(Attachment("a.txt", "x" * 1536)) == "a.txt, 1.5 KiB"
    assert describe(Attachment("a.txt", "x" * 3 * 2**20)) == "a.txt, 3 MiB"
