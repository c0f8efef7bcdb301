"""Prompts and resources of MCP servers on the screen: what is put into the prompt, and what stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual import events

from localspec.chat.tool_use.kit import ToolKit
from localspec.errors import UserError
from localspec_tui.screens.chat import unsent
from tests.chat.made_mcp import MadeServer
from tests.chat.tool_models import MadeTools, kit_of
from tests.scripted import says
from tests.tui.desktop import Desktop, desktop

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


def use(desk: Desktop, server: MadeServer) -> None:
    """Give the open chat a server."""
    kit = replace(kit_of(MadeTools({}, lambda *_: "")), servers={"docs": server})
    desk.chat.session.shared.make_kit = lambda: kit


async def test_a_prompt_is_put_into_the_prompt_and_sends_nothing(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    async with desktop(tmp_path, says("Good.")) as desk:
        use(desk, server := MadeServer(prompt="/exit\nReview @secret.txt and @docs:note:one"))
        await desk.enter("/docs:review a.py")
        await desk.shows("docs:review is in the prompt; Enter sends it")
        assert desk.composer.text == " /exit\nReview \\@secret.txt and \\@docs:note:one"
        assert not desk.path
        assert server.asked == ["prompts", "review {'file': 'a.py'}"]
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 2)
        assert desk.path[0].content == "/exit\nReview @secret.txt and @docs:note:one"
        assert desk.path[0].attachments == ()


async def test_a_mistake_comes_back_with_a_line(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        use(desk, MadeServer())
        await desk.enter("/docs:review")
        await desk.shows("it needs more: file (what to review)")
        assert desk.composer.text == "/docs:review"
        await desk.enter("/docs:")
        await desk.until(
            lambda: any("docs has 2 prompts" in each.message for each in desk.app._notifications)
        )
        desk.composer.text = ""
        await desk.press(*"/docs:r")
        await desk.shows("/docs:review file= [style=]")
        await desk.press("tab")
        await desk.shows("file=", "what to review")


async def test_a_server_that_hangs_is_given_up_with_escape(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("Good.")) as desk:
        use(desk, MadeServer(hangs=True))
        await desk.enter("/docs:review a.py")
        await desk.shows("asking docs for review; Esc stops it")
        await desk.press("escape")
        await desk.until(lambda: desk.composer.text == "/docs:review a.py")
        await desk.answered("hello")


async def test_a_resource_is_completed_shown_with_its_size_and_sent(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("Good.")) as desk:
        use(desk, MadeServer())
        desk.composer.focus()
        await desk.press(*"see @docs:")
        await desk.shows("note:one", "A note")
        await desk.press("tab")
        await desk.shows("mcp://docs/note:one, 8 bytes, 2 tokens")
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 2)
        (file,) = desk.path[0].attachments
        assert (file.name, file.text) == ("mcp://docs/note:one", "the note")


async def test_a_resource_that_hangs_is_given_up_with_escape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unsent, "SLOW_S", 0.01)
    async with desktop(tmp_path, says("Good.")) as desk:
        use(desk, MadeServer(hangs=True))
        desk.composer.focus()
        desk.composer.text = "see @docs:note:two"
        desk.app.post_message(events.Key("enter", "\r"))
        await desk.while_busy(lambda: unsent.READING in desk.screen_text())
        desk.app.post_message(events.Key("escape", None))
        await desk.until(lambda: desk.composer.text == "see @docs:note:two")
        assert desk.path == ()


async def test_a_mistake_in_mcp_json_is_one_line_and_nothing_is_lost(tmp_path: Path) -> None:
    def broken() -> ToolKit:
        raise UserError("mcp.json, line 3: a comma is missing")

    async with desktop(tmp_path, says("Good.")) as desk:
        desk.chat.session.shared.make_kit = broken
        desk.composer.focus()
        await desk.press(*"/tool", "tab", "enter")
        await desk.shows("mcp.json, line 3: a comma is missing")
        for text, way in (
            ("hello @docs:note:one", "a \\ before the @ makes it plain text"),
            ("/docs:review a.py", "a space before the / makes it a message"),
        ):
            await desk.enter(text)
            await desk.shows("mcp.json, line 3: a comma is missing", way)
            assert desk.composer.text == text
            assert not desk.path
        await desk.answered("hello \\@docs:note:one")
