"""Answering again, editing, continuing, walking between branches, comparing modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.widgets import TextArea

from localspec.models.pair_request import ModelChoice
from localspec.storage.config import Config
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.dialogs import EditScreen
from localspec_tui.screens.models import ModelsScreen
from localspec_tui.screens.search import SearchScreen
from localspec_tui.widgets.composer.composer import QueueStrip
from localspec_tui.widgets.log_panel import LogLines
from localspec_tui.widgets.transcript.message import ActionAsked
from tests.scripted import Gate, Script, says
from tests.tui.desktop import Desktop, burst, desktop
from tests.tui.settled import settled
from tests.tui.transcripts import selected

pytestmark = pytest.mark.asyncio


async def to_message(desk: Desktop, index: int) -> None:
    """Give a message of the shown branch the focus."""
    await desk.press("ctrl+up")
    for _ in range(len(desk.path) - 1 - index):
        await desk.press("k")
    await desk.until(lambda: selected(desk.transcript) == desk.path[index].id)


async def rewrite(desk: Desktop, text: str) -> None:
    """Put another text into the editor and save it."""
    desk.app.screen.query_one(TextArea).text = text
    await desk.press("ctrl+s")


async def at_rest(desk: Desktop) -> None:
    await desk.until(lambda: not desk.chat.pane.working)
    await settled(desk.pilot)


@pytest.mark.slow
async def test_list_of_chats_counts_the_shown_branch_and_says_how_many_there_are(tmp_path: Path) -> None:
    config = Config(sidebar=True)
    scripts = says("first answer"), says("second answer"), says("third")
    async with desktop(tmp_path, *scripts, config=config, size=(120, 30)) as desk:
        await desk.answered("question")
        await desk.shows("question                  2 ")
        await desk.press("ctrl+r")
        await desk.until(lambda: desk.texts[-1] == "second answer")
        await at_rest(desk)
        await desk.shows("2 of 3 ")
        await desk.answered("and then?")
        await desk.shows("4 of 5 ")
        await to_message(desk, 1)
        await desk.press("[")
        await desk.shows("first answer", "2 of 5 ")


@pytest.mark.slow
async def test_regenerating_makes_a_branch_and_brackets_walk_between_them(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("first answer"), says("second answer")) as desk:
        await desk.answered("question")
        await desk.press("ctrl+r")
        await desk.until(lambda: desk.texts[-1] == "second answer")
        await at_rest(desk)
        await desk.shows("second answer", "2/2")
        assert "first answer" not in desk.screen_text()
        await to_message(desk, 1)
        await desk.press("[")
        await desk.shows("first answer", "1/2")
        assert desk.texts == ["question", "first answer"]
        await to_message(desk, 1)
        await desk.press("]")
        await desk.shows("second answer", "2/2")


@pytest.mark.slow
async def test_edited_question_is_answered_on_a_branch_of_its_own(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("about cats"), says("about dogs")) as desk:
        await desk.answered("cats?")
        await to_message(desk, 0)
        await desk.press("e")
        await desk.until(lambda: isinstance(desk.app.screen, EditScreen))
        await rewrite(desk, "dogs?")
        await desk.until(lambda: desk.texts == ["dogs?", "about dogs"])
        await at_rest(desk)
        await to_message(desk, 0)
        await desk.press("[")
        await desk.until(lambda: desk.texts == ["cats?", "about cats"])


@pytest.mark.slow
async def test_stopped_answer_is_continued_where_it_ends(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one two ", gate), says("three four")) as desk:
        await desk.enter("count")
        await desk.until(gate.reached.is_set)
        await desk.press("escape")
        await at_rest(desk)
        await to_message(desk, 1)
        await desk.press("c")
        await desk.until(lambda: desk.path[-1].content == "one two three four")
        await at_rest(desk)
        await desk.shows("one two three four")
        last = desk.models.requests[-1].prompt[-1]
        assert not isinstance(last, str)
        assert (last.role, last.content) == ("assistant", "one two ")


@pytest.mark.slow
async def test_edited_answer_can_be_continued(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("it is red"), says(" and round")) as desk:
        await desk.answered("describe it")
        await to_message(desk, 1)
        await desk.press("e")
        await desk.until(lambda: isinstance(desk.app.screen, EditScreen))
        await rewrite(desk, "it is blue")
        await desk.until(lambda: desk.texts[-1] == "it is blue")
        await settled(desk.pilot)
        await desk.enter("/continue")
        await desk.until(lambda: desk.texts[-1] == "it is blue and round")


@pytest.mark.slow
async def test_modes_are_compared_with_one_seed_and_the_chosen_answer_stays(tmp_path: Path) -> None:
    scripts = says("first"), says("plain text"), says("drafted text"), says("prepared text")
    async with desktop(tmp_path, *scripts) as desk:
        await desk.answered("question")
        await desk.press("f4")
        await desk.until(lambda: isinstance(desk.app.screen, CompareScreen))
        await desk.shows("plain text", "drafted text", "prepared text")
        compared = desk.models.requests[-3:]
        assert [request.settings.mode for request in compared] == ["off", "sd", "ssd"]
        assert len({request.seed for request in compared}) == 1
        assert not any(request.steps_down for request in compared)
        await desk.press("escape")
        await desk.until(lambda: desk.app.screen is desk.chat)
        await desk.shows("first", "1/4")
        await desk.press("f4")
        await desk.until(lambda: isinstance(desk.app.screen, CompareScreen))
        await desk.shows("Enter keeps the chosen answer")
        await desk.press("enter")
        await desk.until(lambda: desk.app.screen is desk.chat)
        await desk.shows("7/7")


@pytest.mark.slow
@pytest.mark.parametrize("index", [1, 3])
@pytest.mark.parametrize("is_done", [True, False])
async def test_comparison_that_is_left_hides_nothing_of_the_chat(
    tmp_path: Path, index: int, is_done: bool
) -> None:
    gate = Gate()
    if is_done:
        gate.open()
    scripts = says("one"), says("two"), says("plain"), says("drafted", gate), says("prepared")
    async with desktop(tmp_path, *scripts) as desk:
        await desk.answered("first question")
        await desk.answered("second question")
        before = desk.texts
        await to_message(desk, index)
        await desk.press("m")
        await desk.until(lambda: isinstance(desk.app.screen, CompareScreen))
        if is_done:
            await desk.shows("Enter keeps the chosen answer")
        else:
            await desk.until(gate.reached.is_set)
        await desk.press("escape")
        await desk.until(lambda: desk.app.screen is desk.chat)
        await settled(desk.pilot)
        assert desk.texts == before
        chat = desk.store.chat(desk.chat.session.chat.info.id)
        assert chat.leaf == desk.path[-1].id  # and so it is at the next start


@pytest.mark.slow
async def test_text_typed_at_a_comparison_keeps_no_answer_before_it_has_ended(tmp_path: Path) -> None:
    gate = Gate()
    scripts = says("one"), says("two"), says("a stub ", gate, "and more"), says("drafted"), says("prepared")
    async with desktop(tmp_path, *scripts) as desk:
        await desk.answered("first question")
        await desk.answered("second question")
        before = desk.texts
        await to_message(desk, 1)
        await desk.press("m")
        await desk.shows("a stub")
        await burst(desk, [*"ake it shorter", "enter"])
        gate.open()
        await desk.shows("Enter keeps the chosen answer")
        await desk.press("escape")
        await desk.until(lambda: desk.app.screen is desk.chat)
        await settled(desk.pilot)
        assert desk.texts == before


@pytest.mark.slow
async def test_comparison_of_a_question_without_an_answer_leaves_one(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says(gate, "never"), says("plain")) as desk:
        await desk.enter("question")
        await desk.until(gate.reached.is_set)
        await desk.press("escape")
        await at_rest(desk)
        assert desk.texts == ["question"]
        await desk.enter("/compare off")
        await desk.until(lambda: isinstance(desk.app.screen, CompareScreen))
        await desk.shows("Enter keeps the chosen answer")
        await desk.press("escape")
        await desk.until(lambda: desk.app.screen is desk.chat)
        await desk.until(lambda: desk.texts == ["question", "plain"])


@pytest.mark.slow
@pytest.mark.parametrize("keys_first", [[], ["ctrl+up"], ["ctrl+up", "k"]])
@pytest.mark.parametrize("letters", ["explain", "more [1]", "compare", "remember", "y"])
async def test_text_typed_after_a_click_on_a_message_goes_to_the_prompt(
    tmp_path: Path, keys_first: list[str], letters: str
) -> None:
    async with desktop(tmp_path, says("the answer")) as desk:
        await desk.answered("question")
        await desk.press(*keys_first)
        lines = desk.screen_text().splitlines()
        for words in ("question", "the answer"):
            row = max(at for at, line in enumerate(lines) if words in line)
            await desk.pilot.click(offset=(lines[row].index(words) + 1, row))
        await desk.press(*letters)
        await desk.until(lambda: desk.composer.text == letters)
        assert desk.app.screen is desk.chat
        assert desk.texts == ["question", "the answer"]
        await desk.press("ctrl+up", "e")  # on purpose
        await desk.until(lambda: isinstance(desk.app.screen, EditScreen))


@pytest.mark.slow
async def test_regenerate_is_rejected_while_an_answer_is_written(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate)) as desk:
        await desk.enter("go")
        await desk.until(gate.reached.is_set)
        await desk.press("ctrl+r")
        await desk.shows("an answer is being written")
        gate.open()
        await at_rest(desk)


@pytest.mark.slow
async def test_branches_are_walked_key_after_key(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two"), says("three")) as desk:
        await desk.answered("count")
        for number in (2, 3):
            await desk.press("ctrl+r")
            await desk.shows(f"{number}/{number}")
            await desk.until(lambda: not desk.chat.pane.working)
        await desk.press("ctrl+up")
        for key, text in [("[", "two"), ("[", "one"), ("[", "one"), ("]", "two"), ("]", "three")]:
            await desk.press(key)
            await settled(desk.pilot)
            assert desk.texts == ["count", text]
            assert selected(desk.transcript) == desk.path[-1].id
        await desk.press("[", "[", "]", "[")  # in one burst
        await settled(desk.pilot)
        assert desk.texts == ["count", "one"]
        await desk.press("]", "]", "q")  # no key of a message
        await desk.until(lambda: desk.composer.text == "q")
        await settled(desk.pilot)
        assert desk.texts == ["count", "three"]
        assert desk.composer.has_focus_within
        await desk.press("backspace")
        await desk.enter("/branch previous")
        await desk.until(lambda: desk.texts == ["count", "two"])
        await desk.press("a")
        assert desk.composer.text == "a"


@pytest.mark.slow
async def test_another_branch_is_shown_at_the_place_of_the_one_before(tmp_path: Path) -> None:
    def long(which: str) -> Script:
        return says(which + "".join(f"\n\nparagraph {number}" for number in range(30)))

    def heading() -> str:
        return next((row for row in desk.screen_text().splitlines() if "/2 ›" in row), "")

    scripts = long("first"), long("second"), long("third"), long("other")
    async with desktop(tmp_path, *scripts, size=(80, 24)) as desk:
        for question in ("one", "two", "three"):
            await desk.answered(question)
        await burst(desk, ["ctrl+up", "k", "k", "r"])
        await desk.shows("paragraph 29")
        await at_rest(desk)
        await burst(desk, ["ctrl+up", "["])
        await desk.shows("second", "‹ 1/2 ›")
        await burst(desk, ["]", "[", "]"])
        await desk.shows("other", "‹ 2/2 ›")
        await desk.press("escape", "pageup")
        await desk.until(heading)
        row = desk.screen_text().splitlines().index(heading())
        column = heading().index("‹")
        await desk.pilot.click(offset=(column, row))
        await desk.shows("second", "‹ 1/2 ›")
        assert desk.screen_text().splitlines()[row] == heading()
        await burst(desk, ["ctrl+up", "k", "k", "[", "[", "escape"])  # there is no earlier one
        await settled(desk.pilot)
        await desk.answered("four")
        await desk.shows("paragraph 29")
        assert desk.transcript.following


@pytest.mark.slow
async def test_what_is_typed_after_a_click_on_the_log_or_a_waiting_prompt_is_a_prompt(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate), says("two")) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await desk.enter("waits")
        await desk.enter("waits too")
        await desk.press("ctrl+l")
        await desk.pilot.click(LogLines)
        await desk.press(*"dewy ")
        await desk.pilot.click(QueueStrip, offset=(1, 0))  # its cross
        await desk.press(*"exit")
        await desk.until(lambda: desk.composer.text == "dewy exit")
        assert desk.chat.session.queue == ["waits too"]


@pytest.mark.slow
async def test_hit_of_a_search_is_shown_on_whichever_branch_it_is(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("Saturn has rings"), says("nothing of the sort")) as desk:
        await desk.answered("planets")
        await desk.press("ctrl+r")
        await desk.until(lambda: desk.texts[-1] == "nothing of the sort")
        await at_rest(desk)
        await desk.press("ctrl+k")
        await desk.until(lambda: isinstance(desk.app.screen, SearchScreen))
        await desk.press(*"saturn")
        await desk.shows("Saturn has rings")
        await desk.press("enter")
        await desk.shows("Saturn has rings", "1/2")
        assert desk.texts == ["planets", "Saturn has rings"]


@pytest.mark.slow
async def test_keys_that_outrun_the_screen_are_not_lost(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("one"), says("two"), says("three")) as desk:
        await desk.answered("count")
        for number in (2, 3):
            await desk.press("ctrl+r")
            await desk.shows(f"{number}/{number}")
            await desk.until(lambda: not desk.chat.pane.working)
        last = desk.path[-1].id
        for _ in range(2):  # both from the message that was shown when the keys came
            desk.chat.pane.post_message(ActionAsked("previous", last))
        await desk.until(lambda: desk.texts == ["count", "one"])
        desk.chat.pane.post_message(ActionAsked("next", last))
        await desk.until(lambda: desk.texts == ["count", "two"])


@pytest.mark.slow
async def test_a_message_is_deleted_with_what_is_below_it_and_ctrl_z_restores_it(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("first answer"), says("second answer")) as desk:
        await desk.answered("one")
        await desk.answered("two")
        await to_message(desk, 1)
        await desk.press("delete")
        await desk.shows("Delete this answer and 2 messages below it?")
        await desk.press("escape")
        assert len(desk.path) == 4
        await to_message(desk, 1)
        await desk.press("delete")
        await desk.shows("below it?")
        await desk.press("y")
        await desk.shows("3 messages deleted; Ctrl+Z restores them")
        assert desk.texts == ["one"]
        await settled(desk.pilot)
        assert "second answer" not in desk.screen_text()
        await desk.press("ctrl+z")
        await desk.shows("3 messages restored", "second answer")
        assert desk.texts == ["one", "first answer", "two", "second answer"]
        await to_message(desk, 3)
        await desk.press("delete")
        await desk.shows("Delete this answer?")
        await desk.press("y")
        await desk.until(lambda: len(desk.path) == 3)
    async with desktop(tmp_path) as desk:
        await desk.press("ctrl+b", "ctrl+z")
        await desk.shows("1 message restored", "second answer")


@pytest.mark.slow
async def test_a_chat_goes_on_in_a_new_one_from_a_message(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("first answer"), says("second answer"), says("third answer")) as desk:
        await desk.answered("one")
        await desk.answered("two")
        before = desk.chat.session.chat.info.id
        await to_message(desk, 1)
        await desk.press("f")
        await desk.shows("a new chat with the messages so far", "one (fork)")
        assert desk.texts == ["one", "first answer"]
        await desk.answered("three")
        assert desk.texts == ["one", "first answer", "three", "third answer"]
        assert len(desk.store.messages(before)) == 4
        await desk.enter("/fork")
        await desk.until(lambda: desk.chat.session.chat.info.title == "one (fork) (fork)")


@pytest.mark.slow
async def test_a_question_is_answered_again_with_models_that_are_chosen_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desktop(tmp_path, says("the same words")) as desk:
        await desk.answered("one")
        choice, chat = ModelChoice(tmp_path / "other.gguf", None), desk.chat.session.chat.info.id
        titles: list[object] = []

        def choose(screen: ModelsScreen) -> None:
            titles.append(screen.query_one(".frame").border_title)
            screen.app.call_later(screen.dismiss, choice)

        monkeypatch.setattr(ModelsScreen, "on_mount", choose)
        await to_message(desk, 1)
        await desk.press("R")
        await desk.until(lambda: len(desk.opened) == 2 and len(desk.store.messages(chat)) == 3)
        await at_rest(desk)
        assert titles == ["Answer again with other models"]
        await desk.shows("2/2", "other")
        assert desk.texts == ["one", "the same words"]
