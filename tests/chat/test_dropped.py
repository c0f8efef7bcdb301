"""Paths as terminals and file managers insert them become references."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from urllib.parse import quote as percent

import pytest

from localspec.chat.attachments import attach
from localspec.chat.dropped import as_references, with_references

NAMES = (
    "notes.txt",
    "my notes.txt",
    "fred's dog.md",
    'say "x".md',
    "a\\b.txt",
    "100%.txt",
    "[id] (1).py",
    "日本.txt",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).write_text(name)
    (tmp_path / "src").mkdir()
    return tmp_path


def escaped(path: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "/._-" else f"\\{sign}" for sign in path)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "bare (Alacritty)": str,
    "quoted (GNOME, Konsole, Windows)": quote,
    "in quotes always": lambda path: "'" + path.replace("'", "'\\''") + "'",
    "in double quotes": lambda path: '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"',
    "escaped (macOS, kitty)": escaped,
    "quoted and escaped (VS Code)": lambda path: f'"{escaped(path)}"' if '"' not in path else quote(path),
    "an address": lambda path: f"file://{percent(path)}",
    "an address of this host": lambda path: f"file://localhost{percent(path)}",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", NAMES)
def test_a_dropped_path_is_attached(name: str, spelling: str, folder: Path) -> None:
    dropped = SPELLINGS[spelling](str(folder / name))
    for text in (dropped, f"{dropped} ", f" {dropped}\r\n"):
        references = as_references(text, folder.parent)
        assert references is not None, text
        assert [file.text for file in attach(references, folder.parent).files] == [name], references
        assert [file.text for file in attach(f"{references} what is it?", folder.parent).files] == [name]


@pytest.mark.parametrize("separator", [" ", "\n", "\r\n"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_several_at_once(spelling: str, separator: str, folder: Path) -> None:
    dropped = separator.join(SPELLINGS[spelling](str(folder / name)) for name in NAMES)
    references = as_references(dropped, folder)
    assert references is not None
    assert [file.text for file in attach(references, folder).files] == list(NAMES)


def test_paths_are_shown_from_the_folder_or_from_home(
    folder: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (empty_home / "todo.md").write_text("all")
    paths = (folder / "my notes.txt", folder / "src", empty_home / "todo.md", folder)
    assert as_references("\n".join(map(str, paths)), folder) == f'@"my notes.txt" @src/ @~/todo.md @{folder}/'
    assert as_references("~/todo.md", folder) == "@~/todo.md"
    monkeypatch.chdir(folder)
    assert as_references(str(folder / "notes.txt"), Path()) == "@notes.txt"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "/",
        "/help",
        "/nowhere/at all",
        "notes.txt",
        "src/",
        "./notes.txt",
        "https://example.org/notes.txt",
        "file://elsewhere{folder}/notes.txt",
        "see {folder}/notes.txt",
        "{folder}/notes.txt is missing",
        "{folder}/gone.txt",
        "'{folder}/notes.txt",
        "{folder}/notes.txt\0",
        "x" * 20_000,
    ],
)
def test_other_text_stays_as_it_is(text: str, folder: Path) -> None:
    assert as_references(text.replace("{folder}", str(folder)), folder) is None


def test_a_link_to_nothing_is_reported_when_it_is_dropped(folder: Path) -> None:
    (folder / "gone").symlink_to("nothing")
    assert as_references(str(folder / "gone"), folder) == "@gone"


def test_a_name_that_is_not_utf_8(folder: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    try:
        (folder / name).write_text("found")
    except OSError:
        pytest.skip("this disk has only names in UTF-8")
    references = as_references(f"file://{folder}/caf%E9.txt", folder)
    assert references is not None
    assert [file.text for file in attach(references, folder).files] == ["found"]


def test_a_line_may_begin_with_paths(folder: Path) -> None:
    line = f"'{folder}/my notes.txt' {folder}/notes.txt what differs?"
    assert with_references(line, folder) == '@"my notes.txt" @notes.txt what differs?'
    assert with_references(f"{folder}/src", folder) == "@src/"
    for other in (
        "/nothing/here",
        "what is /etc/passwd for?",
        "",
        "@notes.txt what?",
        f" {folder}/src is what?",
    ):
        assert with_references(other, folder) == other
