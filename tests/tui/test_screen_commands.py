"""Slash commands, keys and the palette of the whole screen."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import get_args

import pytest
from textual.screen import Screen
from textual.widget import Widget

from localspec.chat.commands.effects import ActionName
from localspec.storage.config import Config
from localspec.types.request import Message
from localspec_tui.screens.compare import AnswerColumn
from localspec_tui.screens.dialogs import AskScreen, EditScreen, MakeRoomScreen, NoteScreen
from localspec_tui.screens.help import HelpScreen
from localspec_tui.screens.search import SearchScreen
from localspec_tui.widgets.sidebar import Sidebar
from localspec_tui.widgets.timeline import Timeline
from tests.scripted import MARKDOWN, Script, ScriptedModels, says
from tests.tui.desktop import desktop
from tests.tui.settled import settled

pytestmark = pytest.mark.asyncio


async def test_every_action_of_a_command_is_known_to_the_screen_or_to_the_plain_chat(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        assert set(get_args(ActionName)) - desk.chat.actions(desk.chat.pane).keys() == {
            "undo",
            "clear",
            "color",
        }


async def test_unknown_command_is_reported_and_kept(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/hlep")
        await desk.shows("did you mean `/help`?")
        assert desk.composer.text == "/hlep"


@pytest.mark.slow
async def test_mode_and_temperature_count_from_the_next_answer_on(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("one")
        await desk.enter("/mode off")
        await desk.shows("mode plain")
        await desk.enter("/temp 0.3")
        await desk.shows("temperature 0.3")
        await desk.answered("two")
        first, second = desk.models.requests
        assert (first.settings.mode, first.steps_down) == ("ssd", True)
        assert (second.settings.mode, second.steps_down) == ("off", True)
        assert second.sampling.temperature == 0.3


@pytest.mark.slow
async def test_mode_that_needs_a_draft_model_is_rejected_without_one(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: ScriptedModels(has_draft=False)) as desk:
        await desk.enter("/mode ssd")
        await desk.shows("needs a draft model")
        assert desk.chat.session.mode is None


@pytest.mark.slow
async def test_profile_switches_by_command_and_by_key_without_reloading(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("one")
        await desk.enter("/profile writing")
        await desk.shows("Writing")
        await desk.answered("two")
        await desk.press("f5")
        await desk.until(lambda: desk.chat.session.profile.name != "writing")
        assert len(desk.opened) == 1
        one, two = (request.prompt for request in desk.models.requests)
        assert isinstance(one[0], Message)
        assert isinstance(two[0], Message)
        assert one[0].role == two[0].role == "system"
        assert one[0].content != two[0].content
        assert desk.models.requests[1].sampling.temperature == 0.9


@pytest.mark.slow
async def test_system_prompt_belongs_to_the_chat(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/system Talk like a pirate.")
        await desk.shows("has its own system prompt")
        await desk.answered("hello")
        assert desk.models.requests[-1].prompt[0] == Message("system", "Talk like a pirate.")
        await desk.enter("/new")
        await desk.until(lambda: not desk.path)
        await desk.answered("hello")
        assert desk.models.requests[-1].prompt[0] != Message("system", "Talk like a pirate.")


def names_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


SAID = {
    "/tag work": "#work; the same command again ",
    "/tag #home": "added #home; the same command again removes it",
    "/tag home new": "added #home and #new",
    "/tag new home #x": "added #new and #home and #x",
    "/tag x new new": "removed #x and #new; the same command again adds it",
    "/tag #": "`#` names no tag; /tag work adds #work to the title",
}


@pytest.mark.slow
async def test_commands_without_an_effect_in_sight_say_what_they_did(tmp_path: Path) -> None:
    script = says("<think>hm</think>fine")
    async with desktop(tmp_path, says("one"), says(""), script) as desk:
        await desk.answered("question")
        await desk.enter("/thinking")
        await desk.shows("no answer in this chat has thinking; it would be shown")
        await desk.press("ctrl+t")
        await desk.shows("no answer in this chat has thinking; it would be folded")
        await desk.enter("/continue")
        await desk.shows("the model added nothing: this answer is complete")
        await desk.until(lambda: not desk.chat.pane.working)
        await desk.answered("another")
        await desk.press("ctrl+t")
        await desk.shows("thinking is shown")
        await desk.press("ctrl+t")
        await desk.shows("thinking is folded")
        await desk.enter("/pin")
        await desk.shows("pinned at the top of the list")
        await desk.enter("/pin")
        await desk.shows("no longer pinned")
        for command, problem in (
            ("/export pdf x", "there is no format `pdf`; formats: md, html, json"),
            ("/export x.pdf", "a chat cannot be written as .pdf; /export md x.pdf writes Markdown"),
        ):
            await desk.enter(command)
            await desk.shows(problem)
    assert not [name for name in names_in(tmp_path) if "x" in name]


@pytest.mark.slow
async def test_tags_stand_before_the_title_where_list_and_search_find_them(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("fine"), config=Config(sidebar=True), size=(120, 30)) as desk:
        await desk.enter("/tag work")
        await desk.shows("ask something first")
        await desk.answered("a question")
        for command, title in (
            ("/tag work", "#work a question"),
            ("/tag #home", "#home #work a question"),
            ("/tag work", "#home a question"),
            ("/tag home new", "#new #home a question"),
            ("/tag new home #x", "#x #new #home a question"),
            ("/tag x new new", "#home a question"),
            ("/tag #", "#home a question"),
        ):
            await desk.enter(command)
            await desk.shows(f"▌ {title}", SAID[command])
        assert [hit.chat.title for hit in desk.store.search("#home")] == ["#home a question"]
        await desk.enter("/new")
        await desk.answered("another one")
        desk.chat.query_one(Sidebar).focus()
        await desk.press("/", *"#home")
        await desk.until(lambda: "another one  2" not in desk.screen_text())
        await desk.press("enter")
        await desk.until(lambda: desk.texts == ["a question", "fine"])


@pytest.mark.slow
async def test_a_chat_is_put_into_a_folder_and_the_folder_is_renamed_folded_and_taken_away(
    tmp_path: Path,
) -> None:
    async with desktop(tmp_path, says("fine"), config=Config(sidebar=True), size=(120, 30)) as desk:
        await desk.enter("/folder Work")
        await desk.shows("ask something first")
        await desk.answered("a question")
        await desk.enter("/folder")
        await desk.shows("this chat is in no folder; folders: none yet")
        await desk.enter("/folder Book club")
        await desk.shows("▾ Book club", "moved to the folder Book club")
        await desk.enter("/rename #tag boats")
        await desk.shows("▌ #tag boats")
        await desk.enter("/rename ships")
        await desk.shows("▌ #tag ships")
        desk.chat.query_one(Sidebar).focus()
        await desk.press("home", "enter")
        await desk.shows("▌▸ Book club")
        assert desk.store.folded() == {"Book club"}
        await desk.press("r", *"Club", "enter")
        await desk.shows("▾ Club")
        await desk.press("delete")
        await desk.shows("Take the folder “Club” away? Its chats stay in the list.")
        await desk.until(lambda: desk.store.folders() == ("Club",))
        await desk.press("escape")
        await desk.enter("/folder -")
        await desk.shows("Today", "moved out of its folder")
        assert desk.store.folders() == ()


@pytest.mark.slow
async def test_chat_is_renamed_pinned_deleted_and_brought_back(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("a question about boats")
        await desk.enter("/rename Boats")
        await desk.until(lambda: desk.chat.session.chat.info.title == "Boats")
        await desk.enter("/pin")
        await desk.until(lambda: desk.chat.session.chat.info.pinned)
        await desk.enter("/delete")
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.press("y")
        await desk.until(lambda: desk.store.chats() == ())
        await desk.press("ctrl+z")
        await desk.until(lambda: desk.chat.session.chat.info.title == "Boats")
        assert [chat.title for chat in desk.store.chats()] == ["Boats"]


@pytest.mark.slow
async def test_search_opens_the_chat_at_the_message(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("Saturn has rings"), says("nothing of the sort")) as desk:
        await desk.answered("planets")
        await desk.enter("/new")
        await desk.answered("something else")
        await desk.press("ctrl+k")
        await desk.until(lambda: isinstance(desk.app.screen, SearchScreen))
        await desk.press(*"saturn")
        await desk.shows("Saturn has rings")
        await desk.press("enter")
        await desk.until(lambda: desk.app.screen is desk.chat and desk.texts[:1] == ["planets"])


@pytest.mark.slow
async def test_chat_is_exported_and_imported(tmp_path: Path) -> None:
    async with desktop(tmp_path, says(MARKDOWN)) as desk:
        await desk.answered("How do I sort?")
        await desk.enter("/export md sort.md")
        await desk.until((tmp_path / "sort.md").exists)
        await desk.enter("/export json sort.json")
        await desk.until((tmp_path / "sort.json").exists)
        await settled(desk.pilot)
        assert "Sorting a list" in (tmp_path / "sort.md").read_text(encoding="utf-8")
        assert json.loads((tmp_path / "sort.json").read_text(encoding="utf-8"))
        await desk.enter("/export md sort.md")
        await desk.shows("exists already")
        await desk.enter("/new")
        await desk.until(lambda: not desk.path)
        await desk.enter("/import sort.json")
        await desk.until(lambda: desk.texts == ["How do I sort?", MARKDOWN])
        assert "imported 0 chats; 1 already there" in {told.message for told in desk.app._notifications}
        desk.store.delete(desk.chat.session.chat.info.id)
        await desk.enter("/import sort.json")
        await desk.until(lambda: [chat.id for chat in desk.store.chats()] == [desk.chat.session.chat.info.id])
        await desk.until(lambda: desk.texts == ["How do I sort?", MARKDOWN])


@pytest.mark.slow
async def test_chats_of_other_programs_are_imported_and_what_they_lack_is_reported(tmp_path: Path) -> None:
    export = Path(__file__).parents[1] / "chat" / "exports" / "claude.json"
    (tmp_path / "conversations.json").write_bytes(export.read_bytes())
    async with desktop(tmp_path) as desk:
        await desk.enter("/import conversations.json")
        await desk.until(lambda: desk.texts == ["What is a tapir?", "An animal."])
        (told,) = desk.app._notifications
        assert told.message.startswith("imported 2 chats; left out: 1 empty chat, 1 file")


@pytest.mark.slow
async def test_modes_side_by_side_and_the_status_line_give_one_ratio(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("some words of an answer " * 27), size=(160, 45)) as desk:
        await desk.answered("go")
        desk.models.plain = 7.0  # what would be measured in passing
        await desk.press(*"/compare ssd off", "enter")
        await desk.shows("Enter keeps the chosen answer", "× plain")
        columns = [column.mode for column in desk.app.screen.query(AnswerColumn)]
        assert columns == ["off", "ssd"]
        found = re.search(r"([0-9.]+× plain)", desk.screen_text())
        assert found is not None
        await desk.press("enter")
        await desk.until(lambda: desk.app.screen is desk.chat and found[1] in desk.status())


@pytest.mark.slow
async def test_answer_and_code_are_copied(tmp_path: Path) -> None:
    async with desktop(tmp_path, says(MARKDOWN)) as desk:
        await desk.answered("How do I sort?")
        await desk.enter("/copy")
        await desk.until(lambda: desk.app.clipboard == MARKDOWN)
        await desk.enter("/copy code")
        await desk.until(lambda: desk.app.clipboard.startswith("numbers = [3, 1, 2]"))


@pytest.mark.slow
async def test_room_is_made_by_leaving_exchanges_out(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("word " * 50)) as desk:
        await desk.answered("first question")
        await desk.answered("second question")
        await desk.enter("/drop")
        await desk.until(lambda: isinstance(desk.app.screen, MakeRoomScreen))
        await desk.shows("first question", "second question")
        await desk.press("home", "space", "enter")
        await desk.until(lambda: desk.app.screen is desk.chat)
        await desk.until(lambda: any(message.dropped for message in desk.path))
        await desk.answered("third question")
        sent = [
            message.content for message in desk.models.requests[-1].prompt if isinstance(message, Message)
        ]
        assert "first question" not in sent
        assert "second question" in sent


async def test_where_nothing_can_be_left_out_no_room_is_offered(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/drop")
        await desk.shows("nothing that could be left out")
        assert desk.app.screen is desk.chat


@pytest.mark.slow
async def test_prompt_that_alone_is_too_long_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 100, encoding="utf-8")
    async with desktop(tmp_path, models=lambda: ScriptedModels(context=64)) as desk:
        await desk.press(*"What is in @long.txt")
        await desk.shows("too long by", "attach less", "context ~", "too long")
        await desk.press(*" ?", "enter")
        await settled(desk.pilot)
        assert desk.composer.text == "What is in @long.txt ?"
        assert not desk.path
        await desk.press(*[*"word " * 3, "ctrl+u"])
        await desk.until(lambda: "too long" not in desk.screen_text())


@pytest.mark.slow
async def test_files_of_chats_may_lie_in_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    async with desktop(tmp_path) as desk:
        await desk.answered("about boats")
        await desk.enter("/export json ~/boats.json")
        await desk.until((home / "boats.json").exists)
        await settled(desk.pilot)
        desk.store.delete(desk.chat.session.chat.info.id)
        await desk.enter("/import ~/boats.json")
        await desk.until(lambda: [chat.title for chat in desk.store.chats()] == ["about boats"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "screen"),
    [("f1", HelpScreen), ("ctrl+k", SearchScreen)],
)
async def test_key_opens_a_screen_and_escape_closes_it(tmp_path: Path, key: str, screen: type) -> None:
    async with desktop(tmp_path) as desk:
        await desk.press(key)
        await desk.until(lambda: isinstance(desk.app.screen, screen))
        await desk.press("escape")
        await desk.until(lambda: desk.app.screen is desk.chat)


def has_gone(widget: Widget) -> bool:
    return not widget.display


@pytest.mark.slow
async def test_panels_open_and_close_by_key(tmp_path: Path) -> None:
    async with desktop(tmp_path, size=(160, 50)) as desk:
        await desk.answered("go")
        for key, widget in (("f3", Timeline), ("ctrl+l", type(desk.log)), ("ctrl+b", Sidebar)):
            shown = desk.chat.query_one(widget)
            assert not shown.display
            await desk.press(key)
            await desk.until(partial(getattr, shown, "display"))
            await desk.press(key)
            await desk.until(partial(has_gone, shown))


@pytest.mark.slow
async def test_words_are_coloured_by_origin(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("some words of an answer")) as desk:
        await desk.answered("go")
        await desk.press("f2")
        await desk.shows("prepared draft", "bonus")
        await desk.press("f2")
        await desk.until(lambda: "prepared draft" not in desk.screen_text())


@pytest.mark.slow
async def test_stats_and_theme_and_edit_of_the_system_prompt(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("go")
        await desk.enter("/stats")
        await desk.until(lambda: isinstance(desk.app.screen, NoteScreen))
        await desk.shows("acceptance", "first token")
        await desk.press("escape")
        await desk.enter("/theme localspec-light")
        await desk.shows("theme localspec-light, saved in config.toml")
        assert desk.app.theme == "localspec-light"
        await desk.enter("/theme no-such")
        await desk.shows("there is no theme")
        await desk.enter("/system")
        await desk.until(lambda: isinstance(desk.app.screen, EditScreen))
        await desk.shows("You are a helpful assistant.")


@pytest.mark.slow
async def test_keys_can_be_changed_in_the_configuration(tmp_path: Path) -> None:
    async with desktop(tmp_path, config=Config(sidebar=False, keys=(("chat.help", "f9"),))) as desk:
        await desk.press("f1")
        await desk.pilot.pause()
        assert desk.app.screen is desk.chat
        await desk.press("f9")
        await desk.until(lambda: isinstance(desk.app.screen, HelpScreen))
        await desk.press(*"f9")
        await desk.shows("F9  ", "Help")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_an_answer_is_seen_beside_its_timeline_and_the_colours(
    size: tuple[int, int], tmp_path: Path
) -> None:
    async with desktop(tmp_path, Script("words of the answer"), size=size) as desk:
        await desk.answered("hi")
        await desk.press("f2", "f3")
        await desk.shows("words of the answer", "verify", "tokens/s", "accepted draft")


@pytest.mark.slow
async def test_the_words_of_a_search_are_highlighted_in_the_chat_that_it_opens(tmp_path: Path) -> None:
    async with desktop(tmp_path, Script("of the café")) as desk:
        await desk.answered("tell me")
        await desk.press("ctrl+n")
        await desk.enter("/search cafe")
        await desk.shows("of the café")
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 2 and desk.transcript.words_found)
        await desk.press("escape")
        assert not desk.transcript.words_found


@pytest.mark.slow
async def test_palette_offers_commands_profiles_and_modes(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        titles = [command.title for command in desk.app.get_system_commands(desk.chat)]
        assert {"/search", "Profile: Coding", "Mode: ssd", "Theme: nord", "Screenshot"} <= set(titles)
        assert {"Keys", "Theme", "Quit"}.isdisjoint(titles)  # F1, /theme and /exit are those
        others = [command.title for command in desk.app.get_system_commands(Screen())]
        assert sorted(others) == ["Quit", "Screenshot", "Theme"]
        await desk.press("ctrl+p")
        await desk.until(lambda: desk.app.screen is not desk.chat)
        await desk.press(*"Mode: off")
        await desk.shows("Mode: off")
        await desk.press("enter", "enter")
        await desk.until(lambda: desk.chat.session.mode == "off")


async def test_leaving_by_command(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/exit")
        await desk.until(lambda: desk.app.return_value == 0)
