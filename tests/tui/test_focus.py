"""What is typed goes where a user means it to go, however fast they type."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Button, TextArea

from localspec.storage.config import Config
from localspec_tui.screens.dialogs import AskScreen, EditScreen
from localspec_tui.widgets.sidebar import ChatList
from tests.scripted import Gate, says
from tests.tui.desktop import Desktop, burst, desktop
from tests.tui.settled import settled

pytestmark = pytest.mark.asyncio

SIZES = [(80, 24), (110, 30), (160, 45)]
WITH_CHATS = Config(sidebar=True)
TYPED = "done, regret anything: [yes] {} copy that"


async def three_chats(desk: Desktop) -> list[int]:
    """Have two chats and open a third that holds an answer; return all of them."""
    for question in ("about boats", "about trains"):
        await desk.answered(question)
        await desk.press("ctrl+n")
        await desk.until(lambda: not desk.path)
    await desk.answered("about planes")
    await settled(desk.pilot)
    return sorted(chat.id for chat in desk.store.chats())


async def nothing_but_a_prompt(desk: Desktop, typed: str, chats: list[int]) -> None:
    """Wait until what was typed stands in the prompt, and nothing else came of it."""
    await desk.until(lambda: not desk.chat.pane.working and desk.composer.text == typed)
    assert desk.app.screen is desk.chat
    assert sorted(chat.id for chat in desk.store.chats()) == chats
    assert not any(chat.pinned for chat in desk.store.chats())


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_tab_loses_nothing_of_what_is_typed(tmp_path: Path, size: tuple[int, int]) -> None:
    async with desktop(tmp_path, size=size, config=WITH_CHATS) as desk:
        await burst(desk, [*"done, ", "tab", *"regret"])
        await desk.until(lambda: desk.composer.text == "done, regret")
        await settled(desk.pilot)
        await burst(desk, ["tab"])
        await settled(desk.pilot)
        await burst(desk, [*" anything"])
        await desk.until(lambda: desk.composer.text == "done, regret anything")


@pytest.mark.slow
async def test_unbound_letters_go_to_the_prompt(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.chat.mount(Button("of no use for letters", id="button"))
        for widget in (desk.chat.query_one("#button"), None):
            desk.chat.set_focus(widget)
            await burst(desk, TYPED)
            await desk.until(lambda: desk.composer.text == TYPED)
            desk.composer.text = ""


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_text_typed_after_an_action_goes_to_the_prompt(tmp_path: Path, size: tuple[int, int]) -> None:
    scripts = [says("an answer\n\n```\ncode\n```\n")] * 6
    async with desktop(tmp_path, *scripts, size=size, config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        for key in "rcyYt[":
            before = len(desk.models.requests)
            await burst(desk, ["ctrl+up", key, *TYPED])
            await nothing_but_a_prompt(desk, TYPED, chats)
            assert len(desk.models.requests) == before + (key in "rc")
            desk.composer.text = ""
        await desk.press("ctrl+up")  # shows the words
        rows = desk.screen_text().splitlines()
        y = next(y for y, row in enumerate(rows) if "compare modes" in row)
        await desk.pilot.click(offset=(rows[y].index("copy") + 1, y))
        await burst(desk, TYPED)
        await nothing_but_a_prompt(desk, TYPED, chats)


@pytest.mark.slow
@pytest.mark.parametrize(("leaving", "keys"), [("ctrl+s", "ke"), ("escape", "e")])
async def test_text_typed_after_editing_goes_to_the_prompt(tmp_path: Path, leaving: str, keys: str) -> None:
    async with desktop(tmp_path, *[says("an answer")] * 5, size=(110, 30), config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        await burst(desk, ["ctrl+up", *keys])
        await desk.until(lambda: isinstance(desk.app.screen, EditScreen))
        if leaving == "ctrl+s":
            desk.app.screen.query_one(TextArea).text = "something else"
        await desk.press(leaving)
        await burst(desk, TYPED)
        await nothing_but_a_prompt(desk, TYPED, chats)


@pytest.mark.slow
async def test_letters_without_a_meaning_where_the_focus_is_are_a_prompt(tmp_path: Path) -> None:
    async with desktop(tmp_path, *[says("an answer")] * 5, size=(110, 40), config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        places = (["ctrl+up"], ["ctrl+b", "ctrl+b"], ["f3", "shift+tab"], ["ctrl+l", "shift+tab"])
        for place in places:
            typed = "Done" if place[0] == "ctrl+l" else "done, regret"  # d means something to the log
            await desk.press(*place)
            assert not isinstance(desk.app.focused, TextArea)
            await burst(desk, typed)
            await nothing_but_a_prompt(desk, typed, chats)
            desk.composer.text = ""


@pytest.mark.slow
async def test_a_text_pasted_while_the_focus_is_on_a_message_is_a_prompt(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("question")
        await desk.press("ctrl+up")
        desk.app.post_message(events.Paste("regenerate it"))
        await desk.press("!")
        assert desk.composer.text == "regenerate it!"


@pytest.mark.slow
async def test_a_letter_that_means_nothing_at_a_question_is_a_prompt(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("question")
        await burst(desk, ["ctrl+up", "k", *"create more"])
        await desk.until(lambda: desk.composer.text == "create more")


@pytest.mark.slow
async def test_focus_goes_to_the_prompt_when_the_chats_give_way_to_a_narrow_window(tmp_path: Path) -> None:
    async with desktop(tmp_path, *[says("an answer")] * 5, size=(160, 40), config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        desk.chat.query_one(ChatList).focus()
        await desk.pilot.pause()
        await desk.pilot.resize_terminal(80, 24)
        await settled(desk.pilot)
        await burst(desk, "r p j done")
        await nothing_but_a_prompt(desk, "r p j done", chats)


@pytest.mark.slow
async def test_a_deed_that_is_rejected_gives_the_focus_to_the_prompt(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate)) as desk:
        await desk.enter("go")
        await desk.until(gate.reached.is_set)
        await burst(desk, ["ctrl+up", "r", *TYPED])
        await desk.until(lambda: desk.composer.text == TYPED)
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.slow
async def test_what_is_typed_while_a_chat_opens_is_kept(tmp_path: Path) -> None:
    async with desktop(tmp_path, *[says("an answer")] * 5, size=(110, 40), config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        await desk.press("ctrl+n", *"a draft")
        await settled(desk.pilot)
        left = desk.chat.session.chat.info.id
        going = asyncio.create_task(desk.chat.pane.open_chat(chats[0]))
        await asyncio.sleep(0)
        await burst(desk, "done")
        await going
        await desk.until(lambda: desk.composer.text == "done")
        assert desk.store.chat(left).draft == "a draft"


@pytest.mark.slow
async def test_title_typed_in_a_burst_is_the_title(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("an answer"), size=(110, 40), config=WITH_CHATS) as desk:
        await desk.answered("about boats")
        number = desk.chat.session.chat.info.id
        await desk.press("ctrl+b")
        await burst(desk, ["ctrl+b", "r", *"pop jigs /", "enter"])
        await desk.until(lambda: desk.store.chat(number).title == "pop jigs /")
        await burst(desk, ["slash", *"rpg"])
        await desk.until(lambda: "rpg" in desk.screen_text())
        await settled(desk.pilot)
        assert not desk.store.chat(number).pinned
        assert desk.composer.text == ""


@pytest.mark.slow
async def test_a_chat_goes_to_the_bin_only_after_a_yes_and_comes_back(tmp_path: Path) -> None:
    async with desktop(tmp_path, *[says("an answer")] * 5, size=(110, 40), config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        await desk.press("ctrl+b", "ctrl+b", "G")
        for no in ("escape", "n"):
            await desk.press("delete")
            await desk.shows("Move “about boats” (2 messages) to the bin?")
            await desk.press(no)
            await nothing_but_a_prompt(desk, "", chats)
        await desk.press("delete")
        await desk.shows("Move “about boats” (2 messages) to the bin?")
        await desk.press("y")
        await desk.shows("“about boats” is in the bin; Ctrl+Z restores it", "Bin (kept for 30 days)")
        await nothing_but_a_prompt(desk, "", chats[1:])
        await desk.press("ctrl+z")
        await desk.shows("“about boats” is restored")
        await nothing_but_a_prompt(desk, "", chats)
        assert desk.chat.session.chat.info.id == chats[2]  # which was open all the time
        assert "Bin" not in desk.screen_text()


@pytest.mark.slow
async def test_chats_come_back_from_the_list_after_another_start(tmp_path: Path) -> None:
    async with desktop(tmp_path, *[says("an answer")] * 5, size=(110, 40), config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        await desk.press("ctrl+b", "ctrl+b", "G", "delete", "y")
        await desk.shows("“about boats” is in the bin")
    async with desktop(tmp_path, size=(110, 40), config=WITH_CHATS) as desk:
        await burst(desk, [*"draft", "ctrl+u", "ctrl+z", "ctrl+z", "ctrl+z"])  # of the text alone
        await settled(desk.pilot)
        assert sorted(chat.id for chat in desk.store.chats()) == chats[1:]
        await burst(desk, ["ctrl+b", "ctrl+b", "ctrl+z"])
        await desk.shows("“about boats” is restored")
        assert sorted(chat.id for chat in desk.store.chats()) == chats
        await burst(desk, ["ctrl+b", "ctrl+b", "ctrl+z"])
        await desk.shows("there is nothing in the bin")


@pytest.mark.slow
async def test_the_open_chat_is_deleted_and_undone_from_the_prompt_or_taken_out_of_the_bin(
    tmp_path: Path,
) -> None:
    async with desktop(tmp_path, *[says("an answer")] * 5, size=(110, 40), config=WITH_CHATS) as desk:
        chats = await three_chats(desk)
        for way in ("key", "bin"):
            await desk.enter("/delete")
            await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
            await desk.press("y")
            await desk.until(lambda: not desk.path)
            await desk.press("x", "ctrl+z")  # of the text first
            assert (desk.composer.text, len(desk.store.chats())) == ("", 2)
            if way == "key":
                await desk.press("ctrl+z")
            else:
                await desk.press(
                    "ctrl+b", "ctrl+b", "end", "r", "backspace"
                )  # the letter is no command there
                await desk.press("ctrl+b", "ctrl+b", "G", "enter")
            await desk.until(lambda: desk.chat.session.chat.info.id == chats[2] and desk.path)
            await nothing_but_a_prompt(desk, "", chats)
