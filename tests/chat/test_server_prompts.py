"""Prompts of MCP servers as commands: what is asked, how arguments are read, and what is said of mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from localspec.chat.commands.command import CommandContext
from localspec.chat.commands.completion import complete_input
from localspec.chat.commands.effects import Put, Say, Wait
from localspec.chat.commands.own import own_commands
from localspec.chat.commands.parsing import parse
from localspec.chat.commands.servers import read_arguments
from localspec.errors import Cancelled, UserError
from localspec.tools.mcp.listings import McpPrompt, PromptArgument
from tests.chat.made_mcp import PLAIN, REVIEW, MadeServer

NOWHERE = cast("CommandContext", None)  # these commands look at nothing of the chat


def done(server: MadeServer, text: str, stop: Event | None = None) -> Say | Put:
    call = own_commands(lambda: {"docs": server}).parse(text)
    assert call is not None
    (wait,) = call.effects(NOWHERE)
    assert isinstance(wait, Wait)
    return wait.work(stop or Event())


def completions(server: MadeServer, text: str) -> list[str]:
    servers = {"docs": server}
    own = own_commands(lambda: servers).commands
    return [each.insert for each in complete_input(text, lambda _: (), Path(), own, servers)]


def test_a_prompt_is_asked_for_with_its_arguments() -> None:
    server = MadeServer(prompt="Review a.py.")
    assert done(server, "/docs:review a.py") == Put("Review a.py.", "docs:review")
    assert server.asked == ["prompts", "review {'file': 'a.py'}"]
    done(server, "/Docs:Review style='very short' a b.py")
    assert server.asked[2:] == ["review {'style': 'very short', 'file': 'a b.py'}"]


def test_names_that_cannot_be_typed_are_written_otherwise() -> None:
    server = MadeServer()
    done(server, "/docs:plain_one")
    assert server.asked[-1] == "plain one {}"


def test_typing_starts_nothing() -> None:
    server = MadeServer()
    for text in ("/", "/d", "/docs", "/docs:", "/docs:r", "/docs:review ", "/docs:review a"):
        completions(server, text)
    assert server.asked == []
    assert "/docs:" in completions(server, "/d")
    assert completions(server, "/docs:r") == []


def test_known_prompts_are_completed_with_their_arguments() -> None:
    server = MadeServer()
    said = done(server, "/docs:")
    assert isinstance(said, Say)
    assert said.text == "docs has 2 prompts: review file= [style=], plain_one"
    assert completions(server, "/docs:") == ["/docs:", "/docs:review ", "/docs:plain_one"]
    assert completions(server, "/docs:R") == ["/docs:review "]
    assert "/docs:review " not in completions(server, "/")
    assert completions(server, "/docs:review ") == ["file=", "style="]
    assert completions(server, "/docs:review file=a.py s") == ["style="]
    assert completions(server, "/docs:review file=a.py f") == []


def test_prompts_of_a_running_server_become_known_by_themselves() -> None:
    server = MadeServer(runs=True)
    came = Event()
    server.memory.on_news = came.set
    completions(server, "/docs:")
    assert came.wait(10)
    assert "/docs:review " in completions(server, "/docs:r")
    assert server.asked == ["prompts"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("a.py", {"file": "a.py"}),
        ("a.py formal and short", {"file": "a.py", "style": "formal and short"}),
        ('"a b.py" formal', {"file": "a b.py", "style": "formal"}),
        ("style=x file=y", {"style": "x", "file": "y"}),
        ('file="" style=x', {"file": "", "style": "x"}),
        ("style= a.py", {"style": "", "file": "a.py"}),
        ("style=x what's a=b here", {"style": "x", "file": "what's a=b here"}),
        ("style=x two\nlines", {"style": "x", "file": "two\nlines"}),
    ],
)
def test_arguments_are_given_by_name_or_in_order(words: str, expected: dict[str, str]) -> None:
    assert read_arguments(REVIEW, words) == expected


@pytest.mark.parametrize(
    ("prompt", "words", "problem"),
    [
        (REVIEW, "", "it needs more: file (what to review); its arguments: file= [style=]"),
        (REVIEW, "style=x", "it needs more: file (what to review)"),
        (REVIEW, "file=a style=b c", "there is no argument for `c`; its arguments: file= [style=]"),
        (PLAIN, "words", "there is no argument for `words`; its arguments: none"),
    ],
)
def test_arguments_that_do_not_fit_are_one_line(prompt: McpPrompt, words: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        read_arguments(prompt, words)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "/docs:reviw a",
            "docs has no prompt `reviw`; did you mean `review`?; it has: review file= [style=]",
        ),
        ("/docs:zzz", "docs has no prompt `zzz`; it has: review file= [style=], plain_one"),
    ],
)
def test_a_prompt_that_is_not_there_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        done(MadeServer(), text)
    assert str(caught.value).startswith(problem)


def test_a_server_that_fails_or_hangs_ends_in_a_line() -> None:
    with pytest.raises(UserError, match=r"^it ended$"):
        done(MadeServer(problem="it ended"), "/docs:review a")
    with pytest.raises(UserError, match=r"^the prompt review of docs is empty$"):
        done(MadeServer(prompt=" \n"), "/docs:review a")
    stop = Event()
    stop.set()
    with pytest.raises(Cancelled):
        done(MadeServer(hangs=True), "/docs:review a", stop)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "/doc:review a",
            "there is no MCP server `doc`; did you mean `/docs:`?; mcp.json has docs; a space before the /",
        ),
        (
            "/other:",
            "there is no MCP server `other`; mcp.json has docs; a space before the / makes it a mess",
        ),
    ],
)
def test_a_server_that_is_not_there_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        done(MadeServer(), text)
    assert str(caught.value).startswith(problem)


def test_a_mistake_in_mcp_json_is_told_where_a_prompt_is_called() -> None:
    def servers() -> dict[str, MadeServer]:
        raise UserError("mcp.json, line 3: no value")

    own = own_commands(servers)
    with pytest.raises(
        UserError, match=r"^mcp\.json, line 3: no value; a space before the / makes it a message$"
    ):
        own.parse("/docs:review a")
    assert own.parse("/usr/bin is what?") is None


@pytest.mark.parametrize("text", ["/C:\\a b", "/a://b", "/usr/docs:x", "docs:review", " /docs:review", "/:x"])
def test_other_texts_are_messages(text: str) -> None:
    assert own_commands(lambda: {"docs": MadeServer()}).parse(text) is None
    assert parse(text) is None


def test_names_of_a_lying_server_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = McpPrompt(
        "docs",
        "a\n\x1b[2Jb",
        "",
        (PromptArgument("x\ny", "", required=True), PromptArgument("", "", required=False)),
    )

    def prompts(_self: MadeServer, _stop: Event | None = None) -> Sequence[McpPrompt]:
        return [evil] * 500

    monkeypatch.setattr(MadeServer, "prompts", prompts)
    said = done(MadeServer(), "/docs:")
    assert isinstance(said, Say)
    assert said.text.isprintable()
