from __future__ import annotations

import pytest
from textual._xterm_parser import XTermParser
from textual.widgets import TextArea

from localspec_tui.widgets.composer.composer import (
    Completions,
    QueuedPromptAsked,
    QueueStrip,
)
from tests.tui.composer_host import ComposerHost
from tests.tui.settled import settled


@pytest.mark.asyncio
async def test_notices_leave_the_prompt_free() -> None:
    app = ComposerHost()
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        for number in range(3):
            app.notify(f"notice {number}", timeout=60)
        await pilot.pause()
        assert max(toast.region.bottom for toast in app.screen.query("Toast")) <= app.composer.region.y
        await pilot.click("#prompt")
        await pilot.press(*"text")
        assert app.composer.text == "text"


@pytest.mark.asyncio
async def test_enter_sends_and_empties() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press(*"hi there", "enter")
        assert app.sent == ["hi there"]
        assert app.composer.text == ""


@pytest.mark.asyncio
async def test_blank_text_is_not_sent_and_kept() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("space", "ctrl+j", "enter")
        assert app.sent == []
        assert app.composer.text == " \n"


@pytest.mark.asyncio
async def test_up_and_down_walk_the_prompts_and_come_back_to_the_draft() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.composer.set_history(["newest", "old\nwith two lines", "oldest"])
        await pilot.press("up")
        assert app.composer.text == "newest"
        await pilot.press("up", "up")
        assert app.composer.text == "oldest"
        await pilot.press("down", "down", "down")
        assert app.composer.text == ""


@pytest.mark.asyncio
async def test_a_sent_prompt_is_the_newest_of_the_history() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.composer.set_history(["before"])
        await pilot.press(*"again", "enter", "up")
        assert app.composer.text == "again"
        await pilot.press("up")
        assert app.composer.text == "before"


@pytest.mark.asyncio
async def test_a_prompt_called_up_can_be_undone() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.composer.set_history(["draft and more"])
        await pilot.press(*"draft", "up")
        assert app.composer.text == "draft and more"
        await pilot.press("ctrl+z")
        assert app.composer.text == "draft"


@pytest.mark.asyncio
async def test_the_draft_is_reported_and_can_be_set() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press("a")
        assert app.drafts == ["a"]
        app.composer.text = "kept\r\ndraft"
        await pilot.pause()
        assert app.composer.text == "kept\ndraft"
        await pilot.press("!")
        assert app.composer.text == "kept\ndraft!"
        assert not app.query_one(Completions).is_open


@pytest.mark.asyncio
async def test_keys_of_the_screen_with_priority_reach_it() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press(*"abc", "home", "ctrl+k", "escape")
        assert app.did == ["search", "stop"]
        assert app.composer.text == "abc"


@pytest.mark.asyncio
async def test_keys_typed_ahead_of_a_busy_screen_take_effect_in_order() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.pause()
        for event in XTermParser().feed("one\ntwx\x7fo\x1b\rthree\rrest"):
            app.post_message(event)
        await pilot.pause()
        assert app.sent == ["one\ntwo\nthree"]
        assert app.composer.text == "rest"


@pytest.mark.asyncio
async def test_enter_elsewhere_is_not_taken() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        await pilot.press(*"abc")
        app.query_one("#elsewhere").focus()
        await pilot.press("enter")
        assert app.sent == []


@pytest.mark.asyncio
async def test_remapped_keys_send_and_leave_enter_to_the_text() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.set_keymap({"composer.send": "ctrl+g"})
        await pilot.press("a", "enter", "b", "ctrl+g")
        assert app.sent == ["a\nb"]


@pytest.mark.asyncio
async def test_the_placeholder_says_what_keys_do_while_an_answer_runs() -> None:
    app = ComposerHost()
    async with app.run_test():
        area = app.query_one(TextArea)
        idle = area.placeholder
        app.composer.set_answering(True)
        assert area.placeholder != idle
        assert "queue" in str(area.placeholder)
        app.composer.set_answering(False)
        assert area.placeholder == idle


@pytest.mark.asyncio
async def test_the_queue_is_shown_edited_and_removed_by_keys() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        queue = app.query_one(QueueStrip)
        assert not queue.display
        app.composer.set_queue(["first", "second\nwith more", "third"])
        await pilot.pause()
        assert queue.size.height == 3
        await pilot.press("alt+up")
        assert app.heard.pop() == QueuedPromptAsked(2, "edit")
        await pilot.press("shift+tab", "down", "x")
        assert app.heard.pop() == QueuedPromptAsked(1, "remove")
        await pilot.press("e")
        assert app.heard.pop() == QueuedPromptAsked(1, "edit")
        app.composer.set_queue([])
        await pilot.pause()
        assert not queue.display
        assert app.area.has_focus
        await pilot.press("alt+up")
        assert app.heard == []


@pytest.mark.asyncio
async def test_the_queue_is_edited_and_removed_by_mouse() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.composer.set_queue(["first", "second"])
        await pilot.pause()
        await pilot.click(QueueStrip, offset=(10, 1))
        assert app.heard == [QueuedPromptAsked(1, "edit")]
        await pilot.click(QueueStrip, offset=(1, 0))
        await settled(pilot)
        assert app.heard[1:] == [QueuedPromptAsked(0, "remove")]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_cursor_stays_in_the_queue_when_its_first_prompt_is_asked() -> None:
    app = ComposerHost()
    async with app.run_test() as pilot:
        app.composer.set_queue(["first", "second", "third"])
        app.query_one(QueueStrip).highlighted = 2
        app.composer.set_queue(["second", "third"])
        await pilot.pause()
        assert app.query_one(QueueStrip).highlighted == 1
