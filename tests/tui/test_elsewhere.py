"""Answers that go on while one looks elsewhere: the list, the notices, the questions about them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from localspec.chat.store import Store
from localspec.errors import EngineDied
from localspec.models.pair_request import ModelChoice
from localspec.storage.config import Config
from localspec_tui.screens.chat.screen import ChatScreen
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.dialogs import AskScreen
from localspec_tui.widgets.sidebar import ChangeAsked
from localspec_tui.widgets.status import TitleBar
from localspec_tui.widgets.timeline import Timeline
from tests.scripted import MARKDOWN, Gate, says
from tests.tui.desktop import Desktop, burst, desktop
from tests.tui.settled import settled
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

LISTED = Config(sidebar=True)


async def asked(desk: Desktop, text: str, gate: Gate) -> int:
    """Ask something, wait until its answer is at the gate, and return the chat."""
    await desk.enter(text)
    await desk.until(gate.reached.is_set)
    return desk.chat.session.chat.info.id


async def left(desk: Desktop) -> None:
    await desk.press("ctrl+n")
    await desk.until(lambda: desk.texts == [])


def busy(desk: Desktop) -> bool:
    return desk.chat.answers.is_busy


def row(desk: Desktop, title: str) -> str:
    """Return the line of a chat in the list."""
    lines = [line[:30] for line in desk.screen_text().splitlines()[1:]]  # without the title of the open one
    return next((line for line in lines if title in line), "")


def notices(desk: Desktop) -> list[str]:
    return [notice.message for notice in desk.app._notifications]


async def test_answer_goes_on_is_marked_and_told_until_its_chat_is_opened(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("the beginning ", gate, "the end"), config=LISTED) as desk:
        boats = await asked(desk, "about boats", gate)
        await desk.until(lambda: "… writing" in row(desk, "about boats"))
        await left(desk)
        await desk.until(lambda: "the answer in “about boats” goes on" in desk.status())
        await desk.until(lambda: "the beginning" not in desk.screen_text())
        await desk.until(lambda: "… writing" in row(desk, "about boats"))
        gate.open()
        await desk.until(lambda: "● answered" in row(desk, "about boats"))
        await desk.until(lambda: notices(desk) == ["“about boats” is answered"])
        await desk.chat.pane.open_chat(boats)
        await desk.shows("the beginning the end")
        await desk.until(lambda: notices(desk) == [])
        await desk.until(lambda: " 2 " in row(desk, "about boats"))


@pytest.mark.parametrize("at", ["at once", "in the thinking", "in the middle"])
@pytest.mark.parametrize("comes_back", [False, True])
async def test_burst_of_keys_loses_nothing_of_an_answer(tmp_path: Path, at: str, comes_back: bool) -> None:
    gate = Gate()
    begun = {"at once": (), "in the thinking": ("<think>\nhm ",), "in the middle": ("half ",)}[at]
    async with desktop(tmp_path, says(*begun, gate, "the rest"), says("other answer")) as desk:
        desk.composer.focus()
        await burst(desk, [*"boats", "enter", "ctrl+n"] if at == "at once" else [*"boats", "enter"])
        await desk.until(gate.reached.is_set)
        boats = desk.chat.session.chat.info.id
        if at != "at once":
            await burst(desk, ["ctrl+n", *"planes"])
            await desk.until(lambda: desk.texts == [] and desk.composer.text == "planes")
        else:
            await desk.until(lambda: desk.texts == [])
            (boats,) = desk.chat.answers.being_answered()
        if comes_back:
            await desk.chat.pane.open_chat(boats)
        gate.open()
        await desk.until(lambda: not busy(desk))
        assert [message.content for message in desk.store.messages(boats)][1] == "".join((*begun, "the rest"))
        assert (desk.texts == []) is not comes_back


async def test_who_comes_back_sees_the_text_so_far_once_and_its_figures(tmp_path: Path) -> None:
    gate, second, last = Gate(), Gate(), Gate()
    script = says("alpha " * 30, gate, "beta " * 30, second, "gamma", last)
    async with desktop(tmp_path, says("some words"), script) as desk:
        await desk.answered("first")
        await left(desk)
        story = await asked(desk, "a story", gate)
        first = next(chat.id for chat in desk.store.chats() if chat.title == "first")
        await desk.press("f3")
        await desk.chat.pane.open_chat(first)
        await desk.shows("some words")
        await desk.until(lambda: not desk.chat.pane.answering)
        gate.open()
        await desk.until(second.reached.is_set)
        await desk.chat.pane.open_chat(story)
        assert desk.chat.pane.answering
        await desk.shows("Esc stops")
        await desk.until(lambda: "tokens/s" in desk.status())
        await desk.until(lambda: [desk.screen_text().count(word) for word in ("alpha", "beta")] == [30, 30])
        assert "answer in progress" in str(desk.chat.query_one(Timeline).border_title)
        second.open()
        await desk.until(last.reached.is_set)
        await desk.shows("gamma")
        last.open()
        await desk.until(lambda: not busy(desk))
        await settled(desk.pilot)
        assert desk.texts[-1] == "alpha " * 30 + "beta " * 30 + "gamma"
        await desk.until(lambda: desk.screen_text().count("alpha") == 30)
        assert notices(desk) == []


async def test_markdown_that_was_written_elsewhere_is_laid_out_when_one_comes_back(tmp_path: Path) -> None:
    gate, second = Gate(), Gate()
    async with desktop(tmp_path, says(gate, MARKDOWN, second, "The end.")) as desk:
        sort = await asked(desk, "sort", gate)
        await left(desk)
        gate.open()
        await desk.until(second.reached.is_set)
        await desk.chat.pane.open_chat(sort)
        await desk.shows("Sorting a list", "stable: equal items", "sort()")
        assert "```" not in desk.screen_text()
        second.open()
        await desk.shows("The end.")


async def test_two_chats_are_answered_by_turns_and_escape_stops_the_shown_one(tmp_path: Path) -> None:
    gate, second = Gate(), Gate()
    scripts = says("boats ", gate, "float"), says("planes ", second, "fly")
    async with desktop(tmp_path, *scripts, config=LISTED) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        planes = await asked(desk, "about planes", second)
        await desk.shows("planes")
        await desk.until(lambda: "… writing" in row(desk, "about boats"))
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.answering)
        assert desk.texts == ["about planes", "planes "]
        await desk.press("escape", "escape")  # nothing more to stop here
        assert list(desk.chat.answers.being_answered()) == [boats]
        gate.open()
        await desk.until(lambda: not busy(desk))
        assert desk.store.messages(boats)[-1].content == "boats float"
        assert desk.store.messages(planes)[-1].state == "stopped"


async def test_escape_just_after_leaving_stops_nothing(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float")) as desk:
        boats = await asked(desk, "about boats", gate)
        await burst(desk, ["ctrl+n", "escape", "escape"])
        await desk.until(lambda: desk.texts == [])
        gate.open()
        await desk.until(lambda: not busy(desk))
        assert desk.store.messages(boats)[-1].content == "boats float"
        assert desk.store.messages(boats)[-1].state == "complete"


async def test_chat_being_answered_is_deleted_with_a_word_about_that_and_comes_back(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float"), config=LISTED) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        desk.chat.post_message(ChangeAsked("delete", desk.store.chat(boats)))
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.shows("Its answer stops", "the text so far goes into the bin")
        await desk.press("y")
        await desk.until(lambda: not busy(desk) and desk.store.deleted())
        await settled(desk.pilot)
        assert notices(desk) == []
        await desk.press("ctrl+z")
        await desk.until(lambda: not desk.store.deleted())
        await desk.chat.pane.open_chat(boats)
        assert desk.texts == ["about boats", "boats "]
        gate.open()
        await desk.answered("go on")


async def test_deletion_that_is_not_wanted_leaves_the_answer_alone(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float")) as desk:
        boats = await asked(desk, "about boats", gate)
        await desk.enter("/delete")
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.press("n")
        gate.open()
        await desk.until(lambda: not busy(desk))
        assert desk.store.messages(boats)[-1].content == "boats float"


async def test_renamed_chat_is_told_by_its_new_title(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float"), config=LISTED) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        desk.chat.post_message(ChangeAsked("rename", desk.store.chat(boats), "ships"))
        await desk.until(lambda: "… writing" in row(desk, "ships"))
        gate.open()
        await desk.until(lambda: notices(desk) == ["“ships” is answered"])
        await desk.chat.pane.open_chat(boats)
        assert desk.chat.query_one(TitleBar).chat_title == "ships"


async def test_export_of_a_chat_being_answered_has_its_text_so_far(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float")) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        await desk.chat.pane.open_chat(boats)
        await desk.until(lambda: desk.store.messages(boats)[-1].content == "boats ")
        await desk.enter("/export md boats.md")
        await desk.until((tmp_path / "boats.md").exists)
        assert "boats" in (tmp_path / "boats.md").read_text(encoding="utf-8")
        gate.open()
        await desk.until(lambda: not busy(desk))
        assert desk.texts == ["about boats", "boats float"]


async def test_death_of_the_models_is_told_for_every_chat_and_they_open_again(tmp_path: Path) -> None:
    gate = Gate()
    scripts = says("boats ", gate), says("planes ", EngineDied("signal 9"))
    async with desktop(tmp_path, *scripts, config=LISTED) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        await desk.enter("about planes")
        await desk.until(lambda: not busy(desk) and len(desk.opened) == 2)
        await desk.until(lambda: desk.loader.ready is not None)
        await desk.shows("signal 9; the text so far is saved")
        said = ["“about boats” is not answered: signal 9; the text so far is saved"]
        await desk.until(lambda: notices(desk) == said)
        await desk.until(lambda: "! failed" in row(desk, "about boats"))
        assert [desk.store.messages(chat)[-1].content for chat in (boats, boats + 1)] == ["boats ", "planes "]
        await desk.chat.pane.open_chat(boats)
        await desk.until(lambda: notices(desk) == [] and "failed" not in row(desk, "about boats"))


async def test_quitting_while_two_are_written_keeps_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ChatScreen, "on_unmount", lambda _screen: None
    )  # which may come after the models' end
    gate, second = Gate(), Gate()
    async with desktop(tmp_path, says("boats ", gate, "float"), says("planes ", second, "fly")) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        planes = await asked(desk, "about planes", second)
        await desk.press("ctrl+q")
        await desk.until(lambda: not desk.app.is_running)

        def states() -> set[str]:
            return {desk.store.messages(chat)[-1].state for chat in (boats, planes)}

        await asyncio.to_thread(until, lambda: states() == {"stopped"})
    with Store(tmp_path / "chats.db") as store:
        last = {chat: store.messages(chat)[-1] for chat in (boats, planes)}
        assert [message.content for message in last.values()] == ["boats ", "planes "]
        assert {message.state for message in last.values()} == {"stopped"}


async def test_ctrl_c_says_that_answers_end(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float")) as desk:
        await asked(desk, "about boats", gate)
        await left(desk)
        await desk.press("ctrl+c")
        await desk.shows("Ctrl+C again quits; answers being written end, and their text is saved")
        gate.open()
        await desk.until(lambda: not busy(desk))


async def test_other_models_are_opened_only_when_one_agrees(tmp_path: Path) -> None:
    gate, chosen = Gate(), list[ModelChoice]()
    scripts = says("boats ", gate, "float")
    async with desktop(tmp_path, scripts, on_choice=chosen.append) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        choice = ModelChoice(tmp_path / "other.gguf", None)
        for key, is_opened in (("n", False), ("y", True)):
            await desk.chat.models.open(choice)
            await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
            await desk.shows("Opening other models stops the answers in", "“about boats”")
            await desk.press(key)
            await desk.until(lambda: desk.app.screen is desk.chat)
            await desk.until(lambda: bool(chosen) is is_opened)  # noqa: B023
            assert bool(desk.chat.answers.being_answered()) is not is_opened
        assert desk.store.messages(boats)[-1].content == "boats "
        await desk.until(lambda: desk.loader.ready is not None)
        gate.open()
        await desk.answered("hello")


async def test_comparison_waits_for_the_answers_of_other_chats(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("planes fly"), says("boats ", gate, "float")) as desk:
        await desk.answered("about planes")
        planes = desk.chat.session.chat.info.id
        await left(desk)
        await asked(desk, "about boats", gate)
        await desk.chat.pane.open_chat(planes)
        await desk.press("f4")
        await desk.shows("“about boats” is being answered")
        gate.open()
        await desk.until(lambda: not busy(desk))
        await desk.press("f4")
        await desk.until(lambda: isinstance(desk.app.screen, CompareScreen))
        await desk.shows("Enter keeps the chosen answer")


async def test_marks_of_other_chats_stand_at_the_top_where_the_list_is_hidden(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float"), size=(80, 24)) as desk:
        boats = await asked(desk, "about boats", gate)
        assert desk.chat.query_one(TitleBar).elsewhere == ""
        await left(desk)
        await desk.until(lambda: desk.chat.query_one(TitleBar).elsewhere == "… 1 writing")
        gate.open()
        await desk.shows("● 1 answered")
        await desk.press("ctrl+b")
        await desk.until(lambda: "● answered" in row(desk, "about boats"))
        assert desk.chat.query_one(TitleBar).elsewhere == ""
        await desk.press("ctrl+b")
        await desk.shows("● 1 answered")
        await desk.chat.pane.open_chat(boats)
        await desk.until(lambda: desk.chat.query_one(TitleBar).elsewhere == "")


async def test_another_profile_is_that_of_the_open_chat_alone(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float")) as desk:
        boats = await asked(desk, "about boats", gate)
        before = desk.store.chat(boats).profile
        await left(desk)
        await desk.press("f5")
        await desk.until(lambda: desk.chat.session.chat.info.profile != before)
        gate.open()
        await desk.until(lambda: not busy(desk))
        assert desk.store.chat(boats).profile == before


async def test_chat_of_an_answer_in_another_window_shows_it_as_being_written(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("boats ", gate, "float")) as desk:
        boats = await asked(desk, "about boats", gate)
        await left(desk)
        await desk.until(lambda: desk.store.messages(boats)[-1].content == "boats ")
        with Store(tmp_path / "chats.db") as other:
            assert other.messages(boats)[-1].state == "writing"
            assert other.messages(boats)[-1].content == "boats "
        gate.open()
        await desk.until(lambda: not busy(desk))


async def test_many_answers_leave_threads_for_all_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # of which Python makes five threads
    gate = Gate()
    async with desktop(tmp_path, *(says("some ", gate, "more") for _ in range(6))) as desk:
        for number in range(6):
            await desk.enter(f"question {number}")
            await desk.until(lambda: desk.chat.pane.answering)
            await left(desk)
        assert len(desk.chat.answers.being_answered()) == 6
        gate.open()
        await desk.until(lambda: not busy(desk))
        await desk.until(lambda: len(notices(desk)) == 6)
