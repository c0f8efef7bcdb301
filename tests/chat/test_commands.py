from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from localspec.chat.attachments import Completion
from localspec.chat.commands.command import Command, CommandCall, Kind
from localspec.chat.commands.completion import complete_command
from localspec.chat.commands.messages import last_code_block
from localspec.chat.commands.parsing import as_message, as_typed, parse
from localspec.chat.commands.registry import COMMANDS, IN_LINES, LINE_NAMES, ON_SCREEN, SCREEN_NAMES
from localspec.errors import UserError

NAMES = {"profile": ("coding", "general", "my own"), "theme": ("nord", "gruvbox")}


def choices(kind: Kind) -> Sequence[str]:
    return NAMES[kind]


def offers(text: str) -> list[str]:
    """Return what the text can become."""
    return [text[: offer.start] + offer.insert for offer in complete_command(text, choices)]


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/help", "help", None),
        ("/HELP  ", "help", None),
        ("/quit", "exit", None),
        ("/read notes.txt", "attach", "notes.txt"),
        ('/attach "my notes.txt"', "attach", "my notes.txt"),
        ("/import 'chat.json'", "import", "chat.json"),
        ("/mode", "mode", None),
        ("/mode  SSD ", "mode", "ssd"),
        ("/mode ar", "mode", "off"),
        ("/mode Auto", "mode", "auto"),
        ("/system You are kind.\nAnd brief.", "system", "You are kind.\nAnd brief."),
        ("/system -", "system", "-"),
        ("/rename A title", "rename", "A title"),
        ("/temp 0.5", "temp", 0.5),
        ("/temp", "temp", None),
        ("/compare off,ssd  ar", "compare", ("off", "ssd")),
        ("/compare", "compare", ()),
        ("/branch", "branch", "next"),
        ("/branch Previous", "branch", "previous"),
        ("/copy CODE", "copy", True),
        ("/regen sd", "regen", "sd"),
        ("/export", "export", ("md", "")),
        ("/export json", "export", ("json", "")),
        ("/export md talk.txt", "export", ("md", "talk.txt")),
        ("/export talk.JSON", "export", ("json", "talk.JSON")),
        ("/export my talk.md", "export", ("md", "my talk.md")),
        ('/export json "my talk.md"', "export", ("json", "my talk.md")),
        ('/export "my talk"', "export", ("md", "my talk")),
        ("/export md x.html", "export", ("md", "x.html")),
    ],
)
def test_commands_and_their_arguments_are_understood(text: str, name: str, argument: object) -> None:
    assert parse(text) == CommandCall(SCREEN_NAMES[name], argument, text)


@pytest.mark.parametrize(
    "text", ["", "hello", "//help", " /help", "/usr/bin/env is what?", "/* a comment */", "1/2", "/2 is half"]
)
def test_text_that_is_not_a_command_is_a_message(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("//help", "/help"),
        ("//HELP me", "/HELP me"),
        ("//quit\nnow", "/quit\nnow"),
        (" /help", "/help"),
        (" /tmp does not exist", "/tmp does not exist"),  # as is said where that is refused
        (" /docs:review a", "/docs:review a"),
    ],
)
def test_what_kept_a_message_from_being_a_command_is_taken_off(text: str, message: str) -> None:
    assert parse(text) is None
    assert as_message(text) == message


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
def test_text_that_is_not_a_command_anyway_loses_nothing(text: str) -> None:
    assert parse(text) is None
    assert as_message(text) == text


@pytest.mark.parametrize("text", ["/", " /", "/ \n"])
def test_slash_alone_is_reported(text: str) -> None:
    if text.startswith("/"):
        with pytest.raises(UserError, match="there is no command `/`"):
            parse(text)
    else:
        assert parse(text) is None


def test_the_plain_chat_has_commands_of_its_own() -> None:
    call = parse("/QUIT", LINE_NAMES)
    assert call is not None
    assert call.command.name == "exit"
    assert parse("//undo", LINE_NAMES) is None
    assert as_message("//undo x", LINE_NAMES.keys()) == "/undo x"
    assert as_message("//settings x", LINE_NAMES.keys()) == "//settings x"
    for text, words in (
        ("/undo it", "nothing can follow"),
        ("/mode fast", "no mode"),
        ("/settings", "no command"),
    ):
        with pytest.raises(UserError, match=words):
            parse(text, LINE_NAMES)


@pytest.mark.parametrize(
    "text", ["/help me", "/other one", "/docs:a", "/quit", "/usr/bin", "hello", "// a", " /help"]
)
@pytest.mark.parametrize("known", [SCREEN_NAMES, LINE_NAMES])
def test_any_message_can_be_typed(text: str, known: Mapping[str, Command[object]]) -> None:
    typed = as_typed(text, known.keys())
    assert parse(typed, known) is None
    if text != " /help":  # typed as it is, it loses its space
        assert as_message(typed, known.keys()) == text


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
    assert last_code_block(answer) == code


def test_every_command_has_its_own_name_and_a_description() -> None:
    names = [name for command in COMMANDS for name in command.names]
    assert len(names) == len(set(names))
    assert {*ON_SCREEN, *IN_LINES} == set(COMMANDS)
    assert {command.usage for command in COMMANDS} >= {"/help", "/mode [MODE]", "/attach FILE"}


def test_no_two_commands_share_a_key() -> None:
    keys = [command.key for command in COMMANDS if command.key is not None]
    assert len({key.keys for key in keys}) == len({key.id for key in keys}) == len(keys)


def test_names_are_completed_with_room_for_an_argument() -> None:
    assert offers("/") == [f"/{command.name}{' ' if command.argument.hint else ''}" for command in ON_SCREEN]
    assert offers("/th") == ["/thinking ", "/theme "]
    assert offers("/Q") == ["/quit"]
    assert offers("/xyz") == []
    offer, _model = complete_command("/mod", choices)
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
        ("/export ", ["/export md", "/export html", "/export json"]),
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
    [offer] = complete_command("/mode of", choices)
    assert offer.description == "plain: no drafts"
