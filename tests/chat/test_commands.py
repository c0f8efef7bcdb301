from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.chat import commands
from localspec.chat.attachments import Completion
from localspec.chat.commands import COMMANDS, Command, complete, parse
from localspec.errors import UserError

NAMES = {"profile": ("coding", "general", "my own"), "theme": ("nord", "gruvbox")}


def choices(kind: str) -> Sequence[str]:
    return NAMES[kind]


def offers(text: str) -> list[str]:
    """Return what the text can become."""
    return [text[: offer.start] + offer.insert for offer in complete(text, choices)]


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", Command("help")),
        ("/HELP  ", Command("help")),
        ("/quit", Command("exit")),
        ("/read notes.txt", Command("attach", "notes.txt")),
        ('/attach "my notes.txt"', Command("attach", "my notes.txt")),
        ("/import 'chat.json'", Command("import", "chat.json")),
        ("/mode", Command("mode")),
        ("/mode  SSD ", Command("mode", "SSD")),
        ("/mode ar", Command("mode", "ar")),
        ("/system You are kind.\nAnd brief.", Command("system", "You are kind.\nAnd brief.")),
        ("/system -", Command("system", "-")),
        ("/rename A title", Command("rename", "A title")),
        ("/temp 0.5", Command("temp", "0.5")),
        ("/compare off, ssd", Command("compare", "off, ssd")),
        ("/branch next", Command("branch", "next")),
        ("/regen sd", Command("regen", "sd")),
    ],
)
def test_commands_are_understood(text: str, command: Command) -> None:
    assert parse(text) == command


@pytest.mark.parametrize(
    "text", ["", "hello", "//help", " /help", "/usr/bin/env is what?", "/* a comment */", "1/2", "/2 is half"]
)
def test_what_is_no_command_is_a_message(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("//help", "/help"),
        ("//HELP me", "/HELP me"),
        ("//quit\nnow", "/quit\nnow"),
        (" /help", "/help"),
        (" /tmp does not exist", "/tmp does not exist"),  # as is said where that is refused
    ],
)
def test_what_kept_a_message_from_being_a_command_is_taken_off(text: str, message: str) -> None:
    assert parse(text) is None
    assert commands.as_message(text) == message


@pytest.mark.parametrize(
    "text",
    [
        "// add two numbers\nint add(int a, int b);",
        "//",
        "///",
        "/// <summary>",
        "//TODO mend this",
        "//int x = 1;",
        "//-----",
        "// /help",
        " / a\n / b",
        " /etc/hosts is what?",
        "  /help",
        "\t/help",
        "  indented",
        "/* comment */",
        "/ a",
        "//* a",
        "/home/me/scripts can these be deleted?",
    ],
)
def test_text_that_is_no_command_anyway_loses_nothing(text: str) -> None:
    assert parse(text) is None
    assert commands.as_message(text) == text


@pytest.mark.parametrize("text", ["/", " /", "/ \n"])
def test_slash_alone_is_told(text: str) -> None:
    if text.startswith("/"):
        with pytest.raises(UserError, match="there is no command `/`"):
            parse(text)
    else:
        assert parse(text) is None


def test_commands_of_another_set_are_understood_in_the_same_way() -> None:
    known = commands.specs_of({"undo", "mode", "exit"})
    assert parse("/QUIT", known) == Command("exit")
    assert parse("//undo", known) is None
    assert commands.as_message("//undo x", known) == "/undo x"
    assert commands.as_message("//help x", known) == "//help x"
    for text, words in (
        ("/undo it", "nothing can follow"),
        ("/mode fast", "no mode"),
        ("/help", "no command"),
    ):
        with pytest.raises(UserError, match=words):
            parse(text, known)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/", "no command `/`"),
        ("/hlep me", "did you mean `/help`?"),
        ("/qiut", "did you mean `/quit`?"),
        ("/new chat", "nothing can follow /new"),
        ("/rename", "/rename TITLE"),
        ("/read", "/attach FILE"),
        ("/mode fast", "auto, off, ngram, sd, ssd"),
        ("/regen fast", "no mode `fast`"),
        ("/compare auto sd", "off, ngram, sd, ssd"),
        ("/temp warm", "0 to 100"),
        ("/temp -1", "0 to 100"),
        ("/temp nan", "0 to 100"),
        ("/branch up", "/branch next"),
        ("/copy all", "/copy code"),
    ],
)
def test_a_mistake_is_explained(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert words in str(caught.value)


def test_arguments_are_read() -> None:
    assert [commands.read_mode(word) for word in ("off", "AR", "ngram", "ssd", "auto")] == [
        "off",
        "off",
        "ngram",
        "ssd",
        None,
    ]
    assert commands.read_modes("off,ssd  ar") == ("off", "ssd")
    assert commands.read_temperature("0.5") == 0.5
    assert (commands.read_branch("next"), commands.read_branch("Previous")) == (1, -1)


@pytest.mark.parametrize(
    ("argument", "wanted"),
    [
        ("", ("md", "")),
        ("json", ("json", "")),
        ("md talk.txt", ("md", "talk.txt")),
        ("talk.JSON", ("json", "talk.JSON")),
        ("my talk.md", ("md", "my talk.md")),
        ('json "my talk.md"', ("json", "my talk.md")),
    ],
)
def test_an_export_has_a_format_and_a_file(argument: str, wanted: tuple[str, str]) -> None:
    assert commands.read_export(argument) == wanted


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```\na\n```\nthen\n```py\nb\n```\ndone", "b\n"),
        ("no code", None),
        ("`inline` alone", None),
        ("> ```py\n> a\n>     b\n> ```\n> end", "a\n    b\n"),
        ("> > ~~~\n> > a\n> > ~~~", "a\n"),
        ("> ```\n> a", "a"),  # no fence ends it
        ("1. do this:\n\n   ```sh\n   a\n   ```\n2. done", "a\n"),
        ("- > ```\n  > a\n  > ```", "a\n"),
        ("> quoted\n\n```\na\n```", "a\n"),
        ("<think>\n```\nno\n```\n</think>\n```\na\n```", "a\n"),
        ("<think>\n```\nno\n```\n</think>\nNothing.", None),
    ],
)
def test_the_last_code_block_is_the_one_to_copy(answer: str, code: str | None) -> None:
    assert commands.last_code_block(answer) == code


def test_every_command_has_its_own_name_and_a_description() -> None:
    names = [name for spec in COMMANDS for name in (spec.name, *spec.aliases)]
    assert len(names) == len(set(names))
    assert all(spec.description for spec in COMMANDS)
    assert {spec.usage for spec in COMMANDS} >= {"/help", "/mode [MODE]", "/attach FILE"}


def test_names_are_completed_with_room_for_an_argument() -> None:
    assert offers("/") == [f"/{spec.name}{' ' if spec.argument_hint else ''}" for spec in COMMANDS]
    assert offers("/th") == ["/thinking", "/theme "]
    assert offers("/Q") == ["/quit"]
    assert offers("/xyz") == []
    offer, _model = complete("/mod", choices)
    assert offer == Completion("/mode ", "/mode [MODE]", "show or change the decoding mode", 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("/mode ", ["/mode auto", "/mode off", "/mode ngram", "/mode sd", "/mode ssd"]),
        ("/mode S", ["/mode sd", "/mode ssd"]),
        ("/mode sd ", []),
        ("/compare off s", ["/compare off sd", "/compare off ssd"]),
        ("/compare ssd s", ["/compare ssd sd"]),
        ("/profile ", ["/profile coding", "/profile general", "/profile my own"]),
        ("/profile my o", ["/profile my own"]),
        ("/theme n", ["/theme nord"]),
        ("/branch p", ["/branch previous"]),
        ("/export ", ["/export md", "/export json"]),
        ("/copy ", ["/copy code"]),
        ("/temp ", []),
        ("/nothing ", []),
        ("/attach no", []),
        ("mode ", []),
        ("/mode \n", []),
    ],
)
def test_arguments_are_completed(text: str, wanted: list[str]) -> None:
    assert offers(text) == wanted


def test_a_mode_is_offered_with_an_explanation() -> None:
    [offer] = complete("/mode of", choices)
    assert offer.description == "plain: nothing is guessed"
