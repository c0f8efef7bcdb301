"""Leaving a chat while something is in progress in it: nothing is lost, and nothing lands elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from localspec.errors import StoreError
from localspec_tui.screens.dialogs import AskScreen
from localspec_tui.screens.search import SearchScreen
from localspec_tui.widgets.sidebar import ChangeAsked, ChatPicked
from localspec_tui.widgets.status import TitleBar
from tests.scripted import Gate, says
from tests.tui.desktop import Desktop, burst, desktop

pytestmark = pytest.mark.asyncio


async def _midway(desk: Desktop, gate: Gate) -> int:
    """Ask something and wait until the answer is half written; return the chat."""
    await desk.enter("a long story, please")
    await desk.until(gate.reached.is_set)
    await desk.shows("the beginning")
    return desk.chat.session.chat.info.id


@pytest.mark.slow
async def test_prompts_that_wait_stay_with_their_chat_as_unsent_text(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("the beginning ", gate, "the end"), says("fine")) as desk:
        story = await _midway(desk, gate)
        await desk.enter("go on")
        await desk.until(lambda: desk.chat.session.queue)
        desk.composer.text = "and th"
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        await desk.shows(
            "the answer in “a long story, please” goes on; its queued prompts are kept there as unsent text"
        )
        assert desk.composer.text == ""
        await desk.enter("something else")
        await desk.until(lambda: desk.texts == ["something else", "fine"])
        gate.open()
        await desk.until(lambda: not desk.chat.answers.is_busy)
        await desk.chat.pane.open_chat(story)
        assert desk.texts == ["a long story, please", "the beginning the end"]
        assert desk.composer.text == "go on\n\nand th"


@pytest.mark.slow
async def test_text_typed_just_before_leaving_is_there_again(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("first")
        first = desk.chat.session.chat.info.id
        desk.composer.text = "half a thou"
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        await desk.chat.pane.open_chat(first)
        assert desk.composer.text == "half a thou"


@pytest.mark.slow
async def test_open_chat_that_is_picked_again_keeps_its_queue_and_its_text(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("the beginning ", gate, "the end"), says("fine")) as desk:
        story = await _midway(desk, gate)
        await desk.enter("go on")
        await desk.press(*"half a thou")
        await desk.until(lambda: desk.chat.session.queue == ["go on"])
        desk.chat.post_message(ChatPicked(story))
        await desk.press(*"ght")
        await desk.until(lambda: desk.composer.text == "half a thought")
        assert desk.chat.session.queue == ["go on"]
        gate.open()
        await desk.until(lambda: desk.texts[1:] == ["the beginning the end", "go on", "fine"])
        assert desk.composer.text == "half a thought"


@pytest.mark.slow
async def test_what_is_typed_and_sent_before_ctrl_n_stays_in_the_chat_that_is_left(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two")) as desk:
        await desk.answered("first")
        first = desk.chat.session.chat.info.id
        await desk.press(*"half")
        is_free = asyncio.Event()
        desk.composer.prompt.call_later(is_free.wait)  # the prompt is behind with its keys
        asyncio.get_running_loop().call_later(0.3, is_free.set)
        await burst(desk, [*" a thou", "ctrl+n", *"new"])
        await desk.until(lambda: desk.composer.text == "new")
        assert desk.store.chat(first).draft == "half a thou"
        await desk.chat.pane.open_chat(first)
        await burst(desk, [*"ght", "enter", *"more", "ctrl+n"])
        await desk.until(lambda: desk.composer.text == "new")
        await desk.until(lambda: not desk.chat.answers.is_busy)
        texts = [message.content for message in desk.store.messages(first)]
        assert (texts[2:], desk.store.chat(first).draft) == (["half a thought", "two"], "more")


@pytest.mark.slow
async def test_new_chat_keeps_text_that_was_typed_into_an_empty_one(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("first")
        first = desk.chat.session.chat.info.id
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        desk.composer.text = "half a thou"
        await desk.chat.pane.open_chat(first)
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        assert desk.composer.text == "half a thou"


@pytest.mark.slow
async def test_new_chat_brings_the_newest_unsent_text_of_an_earlier_start_back(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("first")
        first = desk.chat.session.chat.info.id
        await burst(desk, ["ctrl+n", *"half a thou"])
        await desk.until(lambda: desk.composer.text == "half a thou")
        await desk.chat.pane.open_chat(first)
    async with desktop(tmp_path) as desk:
        assert desk.texts[0] == "first"
        await burst(desk, ["ctrl+n", *"ght"])
        await desk.until(lambda: desk.composer.text == "half a thought")
        await desk.answered("half a thought")
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        assert desk.composer.text == ""


@pytest.mark.slow
async def test_text_typed_and_prompts_that_wait_when_quitting_are_there_at_the_next_start(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("the beginning ", gate)) as desk:
        await _midway(desk, gate)
        await desk.enter("go on")
        await desk.until(lambda: desk.chat.session.queue)
        desk.composer.text = "and th"
        await desk.pilot.pause()
        desk.app.exit(0)
    async with desktop(tmp_path) as desk:
        await desk.until(lambda: desk.composer.text == "go on\n\nand th")


@pytest.mark.slow
async def test_deleting_another_chat_leaves_an_answer_under_way_whole(tmp_path: Path) -> None:
    gate, second = Gate(), Gate()
    scripts = says("old"), says("the beginning ", gate, "the middle ", second, "the end")
    async with desktop(tmp_path, *scripts) as desk:
        await desk.answered("old one")
        old = desk.chat.session.chat.info.id
        await desk.enter("/new")
        await desk.until(lambda: desk.texts == [])
        await _midway(desk, gate)
        desk.chat.post_message(ChangeAsked("delete", desk.store.chat(old)))
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.press("y")
        await desk.until(desk.store.deleted)
        gate.open()
        await desk.until(second.reached.is_set)
        await desk.shows("the beginning the middle")
        second.open()
        await desk.shows("the beginning the middle the end")


@pytest.mark.slow
async def test_no_room_is_made_while_an_answer_is_written(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("the beginning ", gate)) as desk:
        await _midway(desk, gate)
        await desk.enter("/drop")
        await desk.shows("an answer is being written")
        assert desk.app.screen is desk.chat


@pytest.mark.slow
async def test_chat_that_another_program_deleted_is_reported_to_be_gone(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("about boats")
        boats = desk.chat.session.chat.info.id
        await desk.enter("/new")
        await desk.until(lambda: desk.texts == [])
        await desk.press("ctrl+k")
        await desk.until(lambda: isinstance(desk.app.screen, SearchScreen))
        await desk.shows("about boats")
        desk.store.delete(boats)
        await desk.press("enter")
        await desk.shows("was deleted")


@pytest.mark.slow
async def test_open_chat_that_another_program_deleted_can_be_left(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("about boats")
        desk.store.delete(desk.chat.session.chat.info.id)
        await desk.enter("more about boats")
        await desk.shows("was deleted")
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        await desk.answered("about planes")


@pytest.mark.slow
async def test_edit_that_cannot_be_kept_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_named: object) -> None:
        raise StoreError("the disk is full")

    async with desktop(tmp_path) as desk:
        await desk.answered("first")
        await desk.enter("/edit")
        await desk.until(lambda: desk.app.screen is not desk.chat)
        monkeypatch.setattr(desk.store, "add", full)
        await desk.press("x", "ctrl+s")
        await desk.shows("the disk is full")


@pytest.mark.slow
async def test_an_answer_may_end_when_the_title_is_gone_already(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("first")
        await desk.chat.query_one(TitleBar).remove()
        desk.chat.pane.show_figures()
        assert desk.texts[0] == "first"
