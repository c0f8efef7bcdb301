"""Prompts that a user keeps as files."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.commands.command import CommandContext
from localspec.chat.commands.completion import complete_command
from localspec.chat.commands.effects import Ask
from localspec.chat.commands.own import OwnCommands, may_be_own, own_commands
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.storage.paths import config_dir
from localspec.storage.profiles import profiles


@pytest.fixture
def folder() -> Path:
    path = config_dir() / "commands"
    path.mkdir()
    return path


def prompt_of(found: OwnCommands, typed: str) -> str | None:
    """Return what a command of the user's own asks, None where the text is none."""
    with Store(None) as store:
        session = ChatSession(store, profiles(Path("nowhere")).good, SessionRequest())
        call = found.parse(typed)
        if call is None:
            return None
        (effect,) = call.effects(CommandContext(session, None, Path()))
    assert isinstance(effect, Ask)
    return effect.prompt


def test_without_a_folder_there_are_none() -> None:
    assert own_commands() == OwnCommands()
    assert own_commands().parse("/tidy x") is None


@pytest.mark.parametrize(
    ("text", "typed", "prompt"),
    [
        ("Explain $ARGUMENTS.", "/tidy this  thing ", "Explain this  thing."),
        ("Explain $ARGUMENTS.", "/TIDY\n@a.py", "Explain @a.py."),
        ("Look at @notes.txt", "/tidy", "Look at @notes.txt"),
        ("Look at it", "/tidy and again", "Look at it\n\nand again"),
        ("# What it is for\n\nLook\nat it\n", "/tidy", "Look\nat it"),
        ("\ufeffa\r\nb", "/tidy", "a\nb"),
        ("/new is no command here", "/tidy", "/new is no command here"),
        ("/other is none either", "/tidy", "/other is none either"),
        ("// a comment", "/tidy", "// a comment"),
        ("/ a", "/tidy", "/ a"),
        ("x", "/tidying", None),
        ("x", "tell /tidy", None),
    ],
)
def test_what_follows_is_filled_in(folder: Path, text: str, typed: str, prompt: str | None) -> None:
    (folder / "tidy.md").write_text(text, encoding="utf-8", newline="")
    assert prompt_of(own_commands(), typed) == prompt


def test_they_are_described_and_completed(folder: Path) -> None:
    (folder / "tidy.md").write_text("# Make it neat\nTidy $ARGUMENTS", encoding="utf-8")
    (folder / "Long.md").write_text("word " * 40, encoding="utf-8")
    (folder / "note.txt").write_text("no command", encoding="utf-8")
    commands = own_commands().commands
    assert [(command.usage, len(command.on_screen)) for command in commands] == [
        ("/long [TEXT]", 60),
        ("/tidy [TEXT]", 12),
    ]
    (offer,) = complete_command("/tid", lambda _kind: (), commands)
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
    found = own_commands()
    assert [(command.on_screen, command.argument.hint) for command in found.commands] == [(description, hint)]
    assert prompt_of(found, "/tidy a.py") == "Find a.py"


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
    assert prompt_of(own_commands(), "/tidy") == text


def test_a_heading_below_a_description_is_part_of_the_prompt(folder: Path) -> None:
    (folder / "tidy.md").write_text("---\ndescription: Tidy up\n---\n# Task\nTidy", encoding="utf-8")
    assert prompt_of(own_commands(), "/tidy") == "# Task\nTidy"


NAMES = """
    fix2 2fix code_review -x über résumé e\u0301te\u0301 обзор σύνοψη 要約 总结 요약
    ملخص סיכום हिन्दी ภาษาไทย தமிழ் ქართული
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_any_script(folder: Path, name: str) -> None:
    (folder / f"{name}.md").write_text("Sum up: $ARGUMENTS", encoding="utf-8")
    found = own_commands()
    assert found.problems == ()
    for form in (name, name.upper(), unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)):
        if form.lower() == name or not name.isascii():
            assert may_be_own(f"/{form} @a.txt")
            assert prompt_of(found, f"/{form} @a.txt") == "Sum up: @a.txt"
    (offer,) = complete_command(
        f"/{unicodedata.normalize('NFC', name)[:2]}", lambda _kind: (), found.commands
    )[-1:]
    assert offer.insert == f"/{unicodedata.normalize('NFC', name)} "


@pytest.mark.parametrize("name", ["two words", "a.b", "what?", "a,b", "(x)", "@x", "£5"])
def test_signs_in_names_are_rejected(folder: Path, name: str) -> None:
    (folder / f"{name}.md").write_text("x", encoding="utf-8")
    (problem,) = own_commands().problems
    assert "letters, digits, dashes and underscores" in problem


def test_of_two_files_for_a_name_the_first_counts(folder: Path) -> None:
    (folder / "Tidy.md").write_text("one", encoding="utf-8")
    (folder / "tidy.md").write_text("two", encoding="utf-8")
    found = own_commands()
    if len(list(folder.iterdir())) == 2:  # else the disk takes them for one
        assert found.problems == ("commands/tidy.md is not used: another file is /tidy already",)
    assert len(found.commands) == 1
    assert prompt_of(found, "/tidy") in ("one", "two")


@pytest.mark.parametrize("text", ["# Only a heading\n", "---\ndescription: x\n---\n"])
def test_a_file_without_a_prompt_is_reported(folder: Path, text: str) -> None:
    (folder / "tidy.md").write_text(text, encoding="utf-8")
    found = own_commands()
    assert found.problems == ("commands/tidy.md is not used: it has no prompt",)
    assert found.parse("/tidy") is None


def test_malformed_files_are_reported_in_one_line(folder: Path) -> None:
    (folder / "good.md").write_text("Hello", encoding="utf-8")
    (folder / "mode.md").write_text("Hello", encoding="utf-8")
    (folder / "two words.md").write_text("Hello", encoding="utf-8")
    (folder / "bytes.md").write_bytes(b"\xff\xfe\x00")
    (folder / "empty.md").write_text("\n", encoding="utf-8")
    (folder / "folder.md").mkdir()
    found = own_commands()
    assert [command.name for command in found.commands] == ["good"]
    assert [problem.partition(" is not used: ")[0] for problem in found.problems] == [
        f"commands/{name}.md" for name in ("bytes", "empty", "folder", "mode", "two words")
    ]
    assert "/mode is a command already" in found.problems[3]
    assert not any("\n" in problem for problem in found.problems)
