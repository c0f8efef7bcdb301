"""Summaries of long chats on the screen: asked for, proposed, shown, edited, taken back and stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.prompting import SUMMARY_ASKED
from localspec.storage.config import Config
from localspec.types.request import Message
from localspec_tui.screens.dialogs import AskScreen, EditScreen
from localspec_tui.widgets.transcript.message import MessageView
from tests.scripted import Gate, ScriptedModels, says
from tests.tui.desktop import Desktop, desktop
from tests.tui.settled import settled

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]
LONG = "word " * 20
QUIET = Config(titles=False)


async def talk(desk: Desktop, exchanges: int) -> None:
    for number in range(exchanges):
        await desk.answered(f"question {number}")


def asked(models: ScriptedModels) -> list[str]:
    return [message.content for message in models.requests[-1].prompt if isinstance(message, Message)]


def summary_view(desk: Desktop) -> MessageView:
    return next(view for view in desk.transcript.query(MessageView) if view.item.summarises)


async def test_a_summary_is_shown_unfolded_edited_and_taken_back(tmp_path: Path) -> None:
    scripts = *(says(f"answer {number} {LONG}") for number in range(4)), says("In short."), says("next")
    async with desktop(tmp_path, *scripts, config=QUIET) as desk:
        await talk(desk, 4)
        await desk.enter("/compact")
        await desk.shows("4 messages summarised; Enter shows them", "In short.")
        await desk.shows("tokens became", "the next answer reads")
        assert "answer 1" not in desk.screen_text()
        assert "question 2" in desk.screen_text()
        assert len(desk.path) == 8
        await settled(desk.pilot)
        summary_view(desk).focus()
        await desk.press("enter")
        await desk.shows("answer 1", "summarised; Enter shows them")
        await settled(desk.pilot)
        assert summary_view(desk).has_focus
        await desk.press("enter")
        await desk.until(lambda: "answer 1" not in desk.screen_text())
        await settled(desk.pilot)
        await desk.press("e")
        await desk.until(lambda: isinstance(desk.app.screen, EditScreen))
        await desk.press("ctrl+a", *"Other words. ", "ctrl+s")
        await desk.shows("Other words. In short.")
        await desk.until(lambda: not isinstance(desk.app.screen, EditScreen))
        await desk.answered("and now?")
        assert asked(desk.models)[-7:] == [
            SUMMARY_ASKED,
            "Other words. In short.",
            "question 2",
            f"answer 2 {LONG}",
            "question 3",
            f"answer 3 {LONG}",
            "and now?",
        ]
        await desk.enter("/compact undo")
        await desk.shows("the summary is taken back")
        await desk.until(lambda: "answer 1" in desk.screen_text() and "Enter shows" not in desk.screen_text())


async def test_escape_stops_a_summary_and_nothing_changes(tmp_path: Path) -> None:
    gate = Gate()
    scripts = *(says(f"answer {number} {LONG}") for number in range(4)), says("In short", gate), says("next")
    async with desktop(tmp_path, *scripts, config=QUIET) as desk:
        await talk(desk, 4)
        before = desk.path
        await desk.enter("/compact")
        await desk.shows("summarising 4 messages", "2 tokens so far; Esc stops it")
        await desk.enter("waits")
        await desk.until(lambda: desk.chat.session.queue)
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        assert desk.path == before
        await desk.shows("answer 1", "Enter in an empty prompt sends the next queued prompt")


async def test_a_refused_summary_is_told_in_a_line(tmp_path: Path) -> None:
    scripts = *(says(f"answer {number} {LONG}") for number in range(4)), says("")
    async with desktop(tmp_path, *scripts, config=QUIET) as desk:
        await desk.enter("/compact")
        await desk.shows("there is nothing to summarise yet")
        await talk(desk, 4)
        before = desk.path
        await desk.enter("/compact")
        await desk.shows("the summary is not used: it is empty; nothing has changed")
        assert desk.path == before


def small(*scripts: str) -> ScriptedModels:
    return ScriptedModels(*map(says, scripts), context=500)


def answers(count: int) -> list[str]:
    return [f"answer {number} " + "word " * 100 for number in range(count)]


async def test_near_the_limit_a_summary_is_proposed_once(tmp_path: Path) -> None:
    models = small(*answers(4), "In short.", "more")
    async with desktop(tmp_path, models=lambda: models, config=QUIET) as desk:
        await talk(desk, 3)
        assert not isinstance(desk.app.screen, AskScreen)
        await desk.enter("question 3")
        await desk.shows("The context is nearly full", "the older 4 messages, about", "Summarise  y")
        await desk.press("escape")
        await desk.until(lambda: not isinstance(desk.app.screen, AskScreen))
        assert len(desk.models.requests) == 4
        await desk.enter("/room")
        await desk.shows("Free up context", "Summarise 4 messages")
        await desk.pilot.pause(0.6)  # what is typed at once is for the prompt
        await desk.press("s")
        await desk.shows("4 messages summarised")


async def test_auto_summarises_by_itself_and_does_not_go_on_for_ever(tmp_path: Path) -> None:
    models = small(*answers(4), "In short.", "fine")
    async with desktop(tmp_path, models=lambda: models, config=QUIET) as desk:
        desk.chat.session.shared.compaction_mode = "auto"
        await talk(desk, 3)
        await desk.enter("question 3")
        await desk.shows("4 messages summarised")
        await desk.until(lambda: not desk.chat.pane.working)
        assert len(desk.models.requests) == 5
        desk.models.target = replace(desk.models.target, context=260)  # of which the rest takes most
        assert desk.chat.session.is_nearly_full(desk.models)
        await desk.answered("question 4")
        assert not await desk.chat.pane.controller.compaction_due()  # before the chat has grown
        assert len(desk.models.requests) == 6
        assert asked(models)[:3] == [desk.chat.session.chat.system, SUMMARY_ASKED, "In short."]


async def test_a_question_that_does_not_fit_is_answered_after_a_summary(tmp_path: Path) -> None:
    models = small(*answers(3), "never", "In short.", "fine")
    async with desktop(tmp_path, models=lambda: models, config=QUIET) as desk:
        desk.chat.session.shared.compaction_mode = "auto"
        await talk(desk, 3)
        await desk.enter("long " * 190)
        await desk.until(lambda: desk.texts[-1] == "fine" and not desk.chat.pane.working)
        await desk.shows("summarised; Enter shows them")
        assert "In short." in asked(desk.models)
