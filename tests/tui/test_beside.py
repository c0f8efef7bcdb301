"""Two chats side by side: what is typed, clicked and answered in either."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.errors import EngineDied
from localspec.storage.config import Config
from localspec_tui.screens.chat.pane import ChatPane
from localspec_tui.screens.dialogs import AskScreen
from localspec_tui.widgets.sidebar import ChatPicked
from tests.chat.tool_models import CallingModels, MadeTools, called, kit_of
from tests.scripted import Gate, Script, says
from tests.tui.desktop import Desktop, burst, desktop
from tests.tui.settled import settled

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

WIDE, NARROW = (170, 40), (120, 40)
LISTED = Config(sidebar=True)


def panes(desk: Desktop) -> list[ChatPane]:
    return list(desk.chat.panes.all)


def texts(pane: ChatPane) -> list[str]:
    return [message.content for message in pane.chat.path]


def prompts(desk: Desktop) -> list[str]:
    return [pane.composer.text for pane in panes(desk)]


def notices(desk: Desktop) -> list[str]:
    return [notice.message for notice in desk.app._notifications]


async def beside(desk: Desktop) -> tuple[ChatPane, ChatPane]:
    """Open a new chat beside the one that is open."""
    await desk.press("ctrl+backslash")
    await desk.until(lambda: len(panes(desk)) == 2 and desk.chat.pane is panes(desk)[1])
    left, right = panes(desk)
    return left, right


async def test_letters_go_to_the_pane_that_was_opened_left_or_clicked_last(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=WIDE) as desk:
        await burst(desk, [*"one", "ctrl+backslash", *"two", "ctrl+right_square_bracket", *" more"])
        await desk.until(lambda: prompts(desk) == ["one more", "two"])
        left, right = panes(desk)
        await desk.pilot.click(right.welcome)
        await burst(desk, "!")
        await desk.until(lambda: prompts(desk) == ["one more", "two!"])
        await desk.pilot.click(left.title_bar)
        await burst(desk, [*"?", "ctrl+u", "tab"])  # from an empty prompt, Tab goes to the other
        await desk.until(lambda: prompts(desk) == ["", "two!"] and desk.chat.pane is right)


async def test_both_are_answered_at_once_and_escape_stops_the_one_with_the_focus(tmp_path: Path) -> None:
    gates = Gate(), Gate()
    scripts = says("boats ", gates[0], "float"), says("planes ", gates[1], "fly")
    async with desktop(tmp_path, *scripts, size=WIDE) as desk:
        await desk.enter("first")
        await desk.until(gates[0].reached.is_set)
        left, right = await beside(desk)
        await burst(desk, [*"second", "enter"])
        await desk.until(gates[1].reached.is_set)
        await desk.shows("boats", "planes")
        assert (left.answering, right.answering) == (True, True)
        await burst(desk, ["ctrl+right_square_bracket", "escape"])
        await desk.until(lambda: not left.answering)
        assert right.answering
        await burst(desk, ["ctrl+right_square_bracket", "escape"])
        await desk.until(lambda: not desk.chat.answers.is_busy)
        assert [texts(pane) for pane in panes(desk)] == [["first", "boats "], ["second", "planes "]]
        assert notices(desk) == []


async def test_queue_of_the_pane_that_is_not_looked_at_goes_on_there(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate), says("two"), says("three"), size=WIDE) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await burst(
            desk, [*"second", "enter", *"/rename mine", "enter", *"rest", "ctrl+backslash", *"beside"]
        )
        await desk.until(lambda: prompts(desk) == ["rest", "beside"])
        gate.open()
        left = panes(desk)[0]
        await desk.until(lambda: texts(left) == ["first", "one ", "second", "two"] and not left.answering)
        assert left.chat.info.title == "mine"
        assert (prompts(desk), texts(panes(desk)[1])) == (["rest", "beside"], [])
        assert desk.chat.pane is not left


async def test_closing_one_keeps_its_text_and_its_answer_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("planes ", gate, "fly"), size=WIDE) as desk:
        desk.composer.text = "unsent"
        left, right = await beside(desk)
        await desk.press(*"about planes", "enter")
        await desk.until(gate.reached.is_set)
        planes = right.chat.info.id
        await burst(desk, [*"draft", "ctrl+backslash", *"!"])
        await desk.until(lambda: panes(desk) == [left] and left.composer.text == "unsent!")
        await desk.until(lambda: "the answer in “about planes” goes on" in desk.status())
        gate.open()
        await desk.until(lambda: not desk.chat.answers.is_busy)
        assert [message.content for message in desk.store.messages(planes)] == ["about planes", "planes fly"]
        assert desk.store.chat(planes).draft == "draft"
        assert notices(desk) == ["“about planes” is answered"]


async def test_left_one_is_closed_and_the_next_opens_on_the_right(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), size=WIDE) as desk:
        await desk.answered("first")
        left, right = await beside(desk)
        await burst(desk, ["ctrl+right_square_bracket", "ctrl+backslash", "ctrl+backslash", *"new"])
        await desk.until(lambda: len(panes(desk)) == 2 and prompts(desk) == ["", "new"])
        assert panes(desk)[0] is right
        assert left not in panes(desk)
        await settled(desk.pilot)
        assert len(desk.chat.query(ChatPane)) == 2


async def test_chat_of_the_list_opens_beside_and_never_twice(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two"), size=WIDE, config=LISTED) as desk:
        await desk.answered("first")
        await desk.press("ctrl+n")
        await desk.answered("second")
        await desk.press("ctrl+b", "ctrl+b", "down", "b", *"here")
        await desk.until(lambda: [texts(pane)[:1] for pane in panes(desk)] == [["second"], ["first"]])
        await desk.until(lambda: prompts(desk) == ["", "here"])
        await desk.shows("▌ first", "▏ second")
        await desk.press("ctrl+b", "ctrl+b", "up", "enter", *"there")
        await desk.until(lambda: prompts(desk) == ["there", "here"])
        assert [texts(pane)[:1] for pane in panes(desk)] == [["second"], ["first"]]
        await desk.enter("/beside fork")
        await desk.until(lambda: [texts(pane) for pane in panes(desk)] == [["second", "two"]] * 2)
        assert panes(desk)[0].chat.info.id != panes(desk)[1].chat.info.id


async def test_new_chat_does_not_take_the_unsent_one_beside(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), size=WIDE) as desk:
        await desk.answered("first")
        await beside(desk)
        await desk.press(*"unsent")
        await desk.until(lambda: [chat.draft for chat in desk.store.unsent()] == ["unsent"])
        await desk.press("ctrl+right_square_bracket", "ctrl+n")
        await desk.until(lambda: texts(panes(desk)[0]) == [])
        assert prompts(desk) == ["", "unsent"]
        assert len({pane.chat.info.id for pane in panes(desk)}) == 2


async def test_deleted_chat_makes_way_in_its_own_pane_and_a_title_is_shown_there(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two"), size=WIDE, config=LISTED) as desk:
        await desk.answered("first")
        left, right = await beside(desk)
        await desk.press(*"second", "enter")
        await desk.until(lambda: texts(right) == ["second", "two"] and not right.working)
        await desk.press("ctrl+b", "ctrl+b", "end", "r", *"boats", "enter")
        await desk.until(lambda: left.title_bar.chat_title == "boats")
        await desk.press("delete")
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.press("tab", "enter")
        await desk.until(lambda: texts(left) == [])
        assert (texts(right), desk.chat.pane) == (["second", "two"], right)
        await desk.press("ctrl+z")
        await desk.until(lambda: texts(right) == ["first", "one"])


async def test_narrow_screen_shows_the_one_in_use_and_tells_of_the_other(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("planes ", gate, "fly"), size=WIDE) as desk:
        left, right = await beside(desk)
        await desk.press(*"about planes", "enter")
        await desk.until(gate.reached.is_set)
        await desk.press("ctrl+right_square_bracket")
        await desk.pilot.resize_terminal(*NARROW)
        await desk.until(lambda: (left.is_seen, right.is_seen) == (True, False))
        assert "about planes" not in desk.screen_text()
        gate.open()
        await desk.until(lambda: notices(desk) == ["“about planes” is answered"])
        assert desk.chat.answers.unread == {right.chat.info.id: "answered"}
        await burst(desk, [*"left", "ctrl+right_square_bracket", *"right"])
        await desk.until(lambda: prompts(desk) == ["left", "right"])
        assert (left.is_seen, right.is_seen, desk.chat.answers.unread) == (False, True, {})
        await desk.shows("planes fly")
        await desk.pilot.resize_terminal(*WIDE)
        await desk.until(lambda: left.is_seen and right.is_seen)


async def test_one_pane_alone_opens_no_second_without_room(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=NARROW) as desk:
        await desk.press("ctrl+backslash")
        await desk.shows("two chats side by side need 160 columns; this terminal has 120")
        assert len(panes(desk)) == 1


async def test_both_are_open_again_after_a_restart(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two"), size=WIDE) as desk:
        await desk.answered("first")
        await beside(desk)
        await desk.press(*"second", "enter")
        await desk.until(lambda: texts(panes(desk)[1]) == ["second", "two"])
        await desk.press("ctrl+right_square_bracket", *"draft")
    async with desktop(tmp_path, size=NARROW) as desk:
        assert len(panes(desk)) == 1
        await desk.pilot.resize_terminal(*WIDE)
        await desk.until(lambda: len(panes(desk)) == 2)
        await desk.shows("first", "second")
        assert (prompts(desk), desk.chat.pane) == (["draft", ""], panes(desk)[0])
        assert [pane.has_class("-active") for pane in panes(desk)] == [True, False]
        await desk.press("ctrl+backslash")
        await desk.until(lambda: len(panes(desk)) == 1)
        await settled(desk.pilot)
    async with desktop(tmp_path, size=WIDE) as desk:
        await settled(desk.pilot)
        assert [texts(pane)[:1] for pane in panes(desk)] == [["second"]]


async def test_death_of_the_engine_while_both_are_answered_is_told_in_both(tmp_path: Path) -> None:
    gate = Gate()
    died = EngineDied("the engine died")
    script = Script(["half ", gate, died])
    async with desktop(tmp_path, script, script, size=WIDE) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        left, right = await beside(desk)
        await desk.press(*"second", "enter")
        await desk.until(lambda: right.answering)
        gate.open()
        await desk.until(lambda: not desk.chat.answers.is_busy)
        await desk.until(lambda: desk.loader.ready is not None and len(desk.opened) == 2)
        said = [pane.notice.said for pane in (left, right)]  # one may not have begun
        assert [words.removesuffix("; the text so far is saved") for words in said] == ["the engine died"] * 2
        assert all(texts(pane)[0] in {"first", "second"} for pane in (left, right))


async def test_keys_scroll_search_and_open_panels_where_the_focus_is(tmp_path: Path) -> None:
    long = "\n\n".join(f"line {number}" for number in range(60))
    async with desktop(tmp_path, says(long), says(long), size=WIDE) as desk:
        await desk.answered("first")
        left, right = await beside(desk)
        await desk.press(*"second", "enter")
        await desk.until(lambda: len(texts(right)) == 2 and not right.working)
        at_end = left.transcript.scroll_y
        await desk.press("pageup", "f3", "ctrl+k", "escape", *"here")
        await desk.until(lambda: prompts(desk) == ["", "here"])
        assert left.transcript.scroll_y == at_end
        assert right.transcript.scroll_y < right.transcript.max_scroll_y
        assert (left.timeline.has_class("hidden"), right.timeline.has_class("hidden")) == (True, False)


async def test_unsent_text_belongs_to_its_chat_in_whichever_pane(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two"), size=WIDE) as desk:
        await desk.answered("first")
        left, right = await beside(desk)
        await desk.press(*"second", "enter")
        await desk.until(lambda: len(texts(right)) == 2 and not right.working)
        await burst(desk, [*"mine", "ctrl+backslash"])
        await desk.until(lambda: panes(desk) == [left])
        second = next(chat.id for chat in desk.store.chats() if chat.title == "second")
        await desk.pilot.pause()
        left.post_message(ChatPicked(second))
        await desk.until(lambda: texts(left) == ["second", "two"] and left.composer.text == "mine")


async def test_pane_is_closed_by_the_cross_in_its_title(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), size=WIDE) as desk:
        await desk.answered("first")
        left, right = await beside(desk)
        await desk.until(lambda: str(left.title_bar.render()).rstrip().endswith("×"))
        await desk.until(lambda: 0 < right.title_bar.region.x == left.title_bar.outer_size.width)
        await desk.pilot.click(left.title_bar, offset=(left.title_bar.outer_size.width - 2, 0))
        await desk.until(lambda: panes(desk) == [right])
        await desk.until(lambda: "×" not in str(right.title_bar.render()))


async def test_question_about_a_call_waits_in_its_pane_and_takes_no_letters_of_the_other(
    tmp_path: Path,
) -> None:
    tools = MadeTools({"change": "writes"}, lambda *_: "written")
    scripts = says(called("change", path="a.txt")), says("It is changed.")
    async with desktop(tmp_path, models=lambda: CallingModels(*scripts), size=WIDE) as desk:
        desk.chat.session.shared.make_kit = lambda: kit_of(tools)
        desk.chat.session.update_settings(tools=("made",))
        left = desk.chat.pane
        await desk.enter("change a.txt")
        await desk.until(lambda: left.consent.waits)
        await burst(desk, ["ctrl+backslash", *"yes y"])
        await desk.until(lambda: prompts(desk) == ["", "yes y"])
        assert left.consent.waits
        await burst(desk, ["ctrl+right_square_bracket", "escape"])
        await desk.until(lambda: not desk.chat.answers.is_busy)
        assert (left.consent.waits, tools.ran, prompts(desk)) == (False, [], ["", "yes y"])
