"""Prompts that a person keeps as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.commands import complete, own_templates
from localspec.storage.paths import config_dir


@pytest.fixture
def folder() -> Path:
    path = config_dir() / "commands"
    path.mkdir()
    return path


def test_without_a_folder_there_are_none() -> None:
    assert own_templates().specs == []
    assert own_templates().filled_in("/tidy x") == "/tidy x"


@pytest.mark.parametrize(
    ("text", "typed", "prompt"),
    [
        ("Explain $ARGUMENTS.", "/tidy this  thing ", "Explain this  thing."),
        ("Explain $ARGUMENTS.", "/TIDY\n@a.py", "Explain @a.py."),
        ("Look at @notes.txt", "/tidy", "Look at @notes.txt"),
        ("Look at it", "/tidy and again", "Look at it\n\nand again"),
        ("# What it is for\n\nLook\nat it\n", "/tidy", "Look\nat it"),
        ("\ufeffa\r\nb", "/tidy", "a\nb"),
        ("/new is no command here", "/tidy", "//new is no command here"),
        ("/other is none either", "/tidy", " /other is none either"),
        ("// a comment", "/tidy", "// a comment"),
        ("/ a", "/tidy", "/ a"),
        ("x", "/tidying", "/tidying"),
        ("x", "tell /tidy", "tell /tidy"),
    ],
)
def test_what_follows_is_filled_in(folder: Path, text: str, typed: str, prompt: str) -> None:
    (folder / "tidy.md").write_text(text, encoding="utf-8", newline="")
    assert own_templates().filled_in(typed) == prompt


def test_they_are_described_and_completed(folder: Path) -> None:
    (folder / "tidy.md").write_text("# Make it neat\nTidy $ARGUMENTS", encoding="utf-8")
    (folder / "Long.md").write_text("word " * 40, encoding="utf-8")
    (folder / "note.txt").write_text("no command", encoding="utf-8")
    specs = own_templates().specs
    assert [(spec.usage, len(spec.description)) for spec in specs] == [
        ("/long [TEXT]", 60),
        ("/tidy [TEXT]", 12),
    ]
    (offer,) = complete("/tid", lambda _kind: (), specs)
    assert (offer.insert, offer.description) == ("/tidy ", "Make it neat")


def test_what_is_none_is_told_in_a_line(folder: Path) -> None:
    (folder / "good.md").write_text("Hello", encoding="utf-8")
    (folder / "mode.md").write_text("Hello", encoding="utf-8")
    (folder / "two words.md").write_text("Hello", encoding="utf-8")
    (folder / "bytes.md").write_bytes(b"\xff\xfe\x00")
    (folder / "empty.md").write_text("\n", encoding="utf-8")
    (folder / "folder.md").mkdir()
    found = own_templates()
    assert list(found.prompts) == ["good"]
    assert [problem.partition(" is not used: ")[0] for problem in found.problems] == [
        f"commands/{name}.md" for name in ("bytes", "empty", "folder", "mode", "two words")
    ]
    assert "/mode is a command already" in found.problems[3]
    assert not any("\n" in problem for problem in found.problems)
