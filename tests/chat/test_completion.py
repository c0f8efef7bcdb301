from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.chat import attachments
from localspec.chat.attachments import MAX_COMPLETIONS, complete_path, complete_reference
from localspec.chat.commands.command import Kind
from localspec.chat.commands.completion import complete_input


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "notes.txt",
        "Now.md",
        "my notes.txt",
        ".hidden",
        "src/main.py",
        "src/my module.py",
        "a b/c.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("text", encoding="utf-8")
    return tmp_path


def choices(kind: Kind) -> Sequence[str]:
    return ("general",) if kind == "profile" else ()


def offers(text: str, folder: Path) -> list[str]:
    return [text[: offer.start] + offer.insert for offer in complete_input(text, choices, folder)]


def inserts(prefix: str, folder: Path) -> list[str]:
    return [offer.insert for offer in complete_path(prefix, folder)]


@pytest.mark.parametrize(
    ("prefix", "wanted"),
    [
        ("", ['"a b/', '"my notes.txt"', "notes.txt", "Now.md", "src/"]),
        ("n", ["notes.txt", "Now.md"]),
        ("NOTES", ["notes.txt"]),
        (".", [".hidden"]),
        ("src", ["src/"]),
        ("src/", ["src/main.py", '"src/my module.py"']),
        ("./src/ma", ["./src/main.py"]),
        ('"a b/', ['"a b/c.txt"']),
        ("nowhere/", []),
        ("notes.txt/", []),
    ],
)
def test_paths_are_completed(prefix: str, wanted: list[str], folder: Path) -> None:
    assert inserts(prefix, folder) == wanted


def test_a_file_is_offered_with_its_size(folder: Path) -> None:
    [file, source] = [offer for offer in complete_path("", folder) if offer.label in {"notes.txt", "src/"}]
    assert (file.description, source.description) == ("4 bytes", "")


def test_folders_and_patterns_say_what_they_attach(folder: Path) -> None:
    about = {offer.insert: offer.description for offer in complete_reference("src/", folder)}
    assert (about["src/"], about["src/**"]) == ("list its files", "attach its text files")
    assert [offer.description for offer in complete_reference("src/m*", folder)] == ["2 files"]


def test_the_home_folder_is_completed(folder: Path, empty_home: Path) -> None:
    (empty_home / "todo.md").write_text("all", encoding="utf-8")
    folders = ["~/cache/", "~/config/", "~/data/", "~/state/"]  # of settings and chats
    assert inserts("~", folder) == inserts("~/", folder) == [*folders, "~/todo.md"]


def test_names_that_cannot_be_written_are_left_out(folder: Path) -> None:
    (folder / 'say "x').touch()
    (folder / "new\nline").touch()
    (folder / "src2").symlink_to(folder / "nothing")
    assert inserts("s", folder) == ["src/", "src2"]
    assert inserts("ne", folder) == []


def test_a_huge_folder_is_not_read_to_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(MAX_COMPLETIONS + 20):
        (folder / f"x{number:03}").touch()
    assert len(complete_path("x", folder)) == MAX_COMPLETIONS
    monkeypatch.setattr(attachments, "MAX_ENTRIES", 7)
    assert len(complete_path("x", folder)) <= 7


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/hel", ["/help"]),
        ("/profile g", ["/profile general"]),
        ("/attach no", ["/attach notes.txt", "/attach Now.md"]),
        ('/attach "my n', ['/attach "my notes.txt"']),
        ("/attach my n", ['/attach "my notes.txt"']),
        ("/export md no", ["/export md notes.txt", "/export md Now.md"]),
        ("look at @no", ["look at @notes.txt", "look at @Now.md"]),
        ("@src/", ["@src/main.py", '@"src/my module.py"', "@src/", "@src/**"]),
        ('@"a b/', ['@"a b/c.txt"', '@"a b/"', '@"a b/**"']),
        ("@src/*.py", ["@src/*.py"]),
        ("@src/*.rs", []),
        ("@**/my*", ["@**/my*"]),
        (
            "/attach src/",
            ["/attach src/main.py", '/attach "src/my module.py"', "/attach src/", "/attach src/**"],
        ),
        ("/import src/", ["/import src/main.py", '/import "src/my module.py"']),
        ("(@src/ma", ["(@src/main.py"]),
        ("two\n@sr", ["two\n@src/"]),
        ("/system be like @no", ["/system be like @notes.txt", "/system be like @Now.md"]),
        ("me@no", []),
        ("no", []),
        ("@notes.txt and", []),
        ("```\n@no", []),
        ("```\ncode\n```\n@src", ["```\ncode\n```\n@src/"]),
    ],
)
def test_tab_in_the_prompt(text: str, wanted: list[str], folder: Path) -> None:
    assert offers(text, folder) == wanted
