"""Prompts that a person keeps as files."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from localspec.chat.commands import complete, may_be_own, own_templates
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


FRONT_MATTER = [
    ("---\ndescription: Review a file\nargument-hint: FILE\n---\nFind $ARGUMENTS", "Review a file", "FILE"),
    (
        "---\nargument-hint: [file] [lines]\n---\n# Find mistakes\nFind $ARGUMENTS",
        "Find mistakes",
        "[file] [lines]",
    ),
    (
        '---\ndescription: "In: quotes"\nallowed-tools:\n  - Read\n- Bash\n---\n\nFind $ARGUMENTS',
        "In: quotes",
        "[TEXT]",
    ),
    ("---\ndescription: |- # why\n  One\n  ---\n  two\n---\nFind $ARGUMENTS", "One --- two", "[TEXT]"),
    ("---\ndescription: >\n  Over two\n  lines\nmodel: x\n---\nFind $ARGUMENTS", "Over two lines", "[TEXT]"),
    ("---\ndescription:\n  Below\n\n# a comment\n...\nFind $ARGUMENTS", "Below", "[TEXT]"),
    ("---\r\ndescription: Windows\r\n---\r\nFind $ARGUMENTS", "Windows", "[TEXT]"),
    ("\ufeff---\nDescription: BOM\n---  \nFind $ARGUMENTS", "BOM", "[TEXT]"),
    ("---\n---\nFind $ARGUMENTS", "Find $ARGUMENTS", "[TEXT]"),
]


@pytest.mark.parametrize(("text", "description", "hint"), FRONT_MATTER)
def test_front_matter_describes_a_command_and_is_not_sent(
    folder: Path, text: str, description: str, hint: str
) -> None:
    (folder / "tidy.md").write_text(text, encoding="utf-8", newline="")
    found = own_templates()
    assert [(spec.description, spec.argument_hint) for spec in found.specs] == [(description, hint)]
    assert found.filled_in("/tidy a.py") == "Find a.py"


@pytest.mark.parametrize(
    "text",
    [
        "---\nA line between rules, in words.\n---\nmore",
        "---\nnever: closed",
        "--- \ntext",
        "----\nkey: value\n----",
        "first\n---\nkey: value\n---",
    ],
)
def test_what_only_looks_like_front_matter_is_sent(folder: Path, text: str) -> None:
    (folder / "tidy.md").write_text(text, encoding="utf-8")
    assert own_templates().filled_in("/tidy") == text


def test_a_heading_below_a_description_is_part_of_the_prompt(folder: Path) -> None:
    (folder / "tidy.md").write_text("---\ndescription: Tidy up\n---\n# Task\nTidy", encoding="utf-8")
    assert own_templates().filled_in("/tidy") == "# Task\nTidy"


NAMES = """
    fix2 2fix code_review -x über résumé e\u0301te\u0301 обзор σύνοψη 要約 总结 요약
    ملخص סיכום हिन्दी ภาษาไทย தமிழ் ქართული
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_any_script(folder: Path, name: str) -> None:
    (folder / f"{name}.md").write_text("Sum up: $ARGUMENTS", encoding="utf-8")
    found = own_templates()
    assert found.problems == []
    for form in (name, name.upper(), unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)):
        if form.lower() == name or not name.isascii():
            assert may_be_own(f"/{form} @a.txt")
            assert found.filled_in(f"/{form} @a.txt") == "Sum up: @a.txt"
    (offer,) = complete(f"/{unicodedata.normalize('NFC', name)[:2]}", lambda _kind: (), found.specs)[-1:]
    assert offer.insert == f"/{unicodedata.normalize('NFC', name)} "


@pytest.mark.parametrize("name", ["two words", "a.b", "what?", "a,b", "(x)", "@x", "£5"])
def test_signs_in_names_are_refused(folder: Path, name: str) -> None:
    (folder / f"{name}.md").write_text("x", encoding="utf-8")
    (problem,) = own_templates().problems
    assert "letters, digits, dashes and underscores" in problem


def test_of_two_files_for_a_name_the_first_counts(folder: Path) -> None:
    (folder / "Tidy.md").write_text("one", encoding="utf-8")
    (folder / "tidy.md").write_text("two", encoding="utf-8")
    found = own_templates()
    if len(list(folder.iterdir())) == 2:  # else the disk takes them for one
        assert found.problems == ["commands/tidy.md is not used: another file is /tidy already"]
    assert len(found.specs) == 1
    assert found.filled_in("/tidy") in ("one", "two")


@pytest.mark.parametrize("text", ["# Only a heading\n", "---\ndescription: x\n---\n"])
def test_a_file_without_a_prompt_is_told(folder: Path, text: str) -> None:
    (folder / "tidy.md").write_text(text, encoding="utf-8")
    found = own_templates()
    assert found.problems == ["commands/tidy.md is not used: it holds no prompt"]
    assert found.filled_in("/tidy") == "/tidy"


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
