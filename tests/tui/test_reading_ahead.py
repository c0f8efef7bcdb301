"""The screen has idle models read ahead, shows it quietly, and nothing that the user does waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from localspec.errors import EngineDied
from localspec.storage.config import Config, read_config
from localspec.storage.paths import config_dir
from localspec.types.events import ReadAhead
from localspec.types.request import Message
from localspec_tui.screens.chat import unsent
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.settings import SettingRow, SettingsScreen
from tests.reading_models import ReadingModels
from tests.scripted import Gate, says
from tests.tui.desktop import Desktop, burst, desktop
from tests.tui.settled import settled

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

LONG = "What does this do when the list that it gets is empty or has one single element and none besides? "
LONG += "Please explain every step of it in plain words. "


@pytest.fixture(autouse=True)
def pauses_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent, "REST_S", 0.02)


def reading(desk: Desktop) -> ReadingModels:
    assert isinstance(desk.models, ReadingModels)
    return desk.models


async def wishes(desk: Desktop, begun: str | None) -> None:
    """Wait until the models are to read this of the question, None for nothing."""
    await desk.until(lambda: reading(desk).wish == begun)


def notes(folder: Path, name: str = "notes.txt") -> str:
    (folder / name).write_text("The fox sleeps in the afternoon.\n" * 20, encoding="utf-8")
    return f"@{name}"


async def test_the_profile_is_read_when_a_pair_opens_and_the_answer_after_it(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: ReadingModels(says("An answer."))) as desk:
        await wishes(desk, "")
        assert [message.role for message in prompt(desk)] == ["system", "user"]
        await desk.answered("Why?")
        await wishes(desk, "")
        assert [message.content for message in prompt(desk)[1:]] == ["Why?", "An answer.", ""]
    async with desktop(tmp_path, models=lambda: ReadingModels(says("An answer."))) as desk:
        await wishes(desk, "")
        assert prompt(desk)[-2].content == "An answer."  # the chat that is opened at the start


def prompt(desk: Desktop) -> tuple[Message, ...]:
    last = reading(desk).wishes[-1]
    assert last is not None
    assert not isinstance(last.prompt, str)
    return last.prompt


async def test_what_is_typed_in_bursts_is_read_up_to_its_last_whole_word(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=ReadingModels) as desk:
        desk.composer.focus()
        await burst(desk, LONG)
        await wishes(desk, LONG.rstrip())
        await burst(desk, "And wh")
        await wishes(desk, f"{LONG}And")
        begun = [reading(desk).begun(each) for each in reading(desk).wishes if each]
        assert all(LONG.startswith(text) or text == f"{LONG}And" for text in begun)
        assert len(begun) < 30  # not with every key


@pytest.mark.parametrize("wait", [0.0, 0.005, 0.02, 0.025, 0.05])
async def test_enter_at_any_moment_ends_it_before_the_answer(tmp_path: Path, wait: float) -> None:
    gate = Gate()
    async with desktop(tmp_path, models=lambda: ReadingModels(says("Some ", gate, "words."))) as desk:
        desk.composer.focus()
        await burst(desk, LONG)
        await asyncio.sleep(wait)
        await desk.press("enter")
        await desk.until(gate.reached.is_set)
        assert reading(desk).wish is None
        await burst(desk, LONG)  # typed during the answer
        await settled_but_answering(desk)
        assert reading(desk).wish is None
        gate.open()
        await wishes(desk, LONG.rstrip())
        assert reading(desk).told_while_answering == []
        assert desk.texts == [LONG, "Some words."]


async def settled_but_answering(desk: Desktop) -> None:
    """Wait until what was typed is weighed."""
    composer = desk.chat.pane.composer
    await desk.until(lambda: composer._looked_at == desk.composer.text)


async def test_a_stopped_answer_is_read_as_far_as_it_came(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, models=lambda: ReadingModels(says("Some ", gate, "words."))) as desk:
        await desk.enter("Why?")
        await desk.until(gate.reached.is_set)
        await desk.press("escape")
        await wishes(desk, "")
        assert prompt(desk)[-2].content.strip() == "Some"
        await desk.press("escape")  # with nothing to stop
        await settled(desk.pilot)
        assert reading(desk).wish == ""


async def test_another_chat_is_read_once_it_is_open(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: ReadingModels(says("An answer."))) as desk:
        await desk.answered("Why?")
        first = desk.chat.session.chat.info.id
        await burst(desk, LONG)
        await wishes(desk, LONG.rstrip())
        await desk.press("ctrl+n")
        await desk.until(lambda: len(prompt(desk)) == 2 and reading(desk).wish == "")
        await desk.chat.pane.open_chat(first)
        await desk.until(lambda: len(prompt(desk)) == 4 and reading(desk).wish == LONG.rstrip())  # its draft


async def test_an_attached_file_is_read_at_once_and_the_line_says_when(tmp_path: Path) -> None:
    name = notes(tmp_path)
    text = (tmp_path / "notes.txt").read_text(encoding="utf-8")
    async with desktop(tmp_path, models=ReadingModels) as desk:
        desk.composer.text = f"{name} "
        await desk.until(lambda: (reading(desk).wish or "").startswith(f"File notes.txt:\n```\n{text[:40]}"))
        await desk.shows("notes.txt, 660 bytes")
        reading(desk).so_far = ReadAhead(64, 200)
        await settled(desk.pilot)
        assert ", read" not in desk.status()
        reading(desk).read_all()
        await desk.shows("tokens, read")
        await burst(desk, "Why")
        await settled_but_answering(desk)
        assert ", read" in desk.status()  # it stays while more is typed
        other = notes(tmp_path, "todo.txt")
        desk.composer.text = f"{name} {other} "
        await desk.shows("tokens, read; todo.txt", "tokens ")
        assert not desk.status().rstrip().endswith("read")
        desk.composer.text = ""
        await wishes(desk, "")
        await desk.until(lambda: "notes.txt" not in desk.status())


async def test_an_error_is_not_replaced_by_the_line_about_files(tmp_path: Path) -> None:
    gate = Gate()
    name = notes(tmp_path)
    async with desktop(tmp_path, models=lambda: ReadingModels(says(gate, EngineDied("signal 6")))) as desk:
        await desk.enter("Why?")
        await desk.until(gate.reached.is_set)
        desk.composer.text = f"{name} "
        await desk.shows("notes.txt, 660 bytes")
        gate.open()
        await desk.shows("signal 6")
        await desk.until(lambda: desk.loader.ready is not None and len(desk.opened) == 2)
        await desk.until(lambda: reading(desk).wish is not None)
        await settled(desk.pilot)
        assert "signal 6" in desk.status()


async def test_models_that_die_while_they_read_are_open_again_before_enter(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: ReadingModels(says("An answer."))) as desk:
        await wishes(desk, "")
        reading(desk)._died = EngineDied("the model process was ended by the system")
        await burst(desk, LONG)
        await desk.until(lambda: len(desk.opened) == 2 and desk.loader.ready is not None)
        await wishes(desk, LONG.rstrip())
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 2 and not desk.chat.pane.working)
        assert desk.texts == [LONG, "An answer."]


async def test_models_that_die_unnoticed_cost_a_line_and_no_chat(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: ReadingModels(says("An answer."))) as desk:
        await wishes(desk, "")
        reading(desk)._died = EngineDied("the model process was ended by the system")
        await desk.enter("Why?")
        await desk.shows("the model process was ended by the system")
        await desk.until(lambda: len(desk.opened) == 2 and desk.loader.ready is not None)
        await desk.enter("/regen")
        await desk.until(lambda: len(desk.path) == 2 and not desk.chat.pane.working)


async def test_nothing_is_read_while_answers_are_compared(tmp_path: Path) -> None:
    gate = Gate()
    scripts = says("An answer."), says(gate, "in one mode"), says("in another")
    async with desktop(tmp_path, models=lambda: ReadingModels(*scripts)) as desk:
        await desk.answered("Why?")
        desk.composer.focus()
        await burst(desk, LONG)
        await desk.chat.run_named("compare")
        await desk.until(lambda: isinstance(desk.app.screen, CompareScreen))
        await desk.until(gate.reached.is_set)
        await settled_but_answering(desk)
        assert reading(desk).wish is None
        assert reading(desk).told_while_answering == []
        await desk.press("escape")
        gate.open()
        await desk.until(lambda: not isinstance(desk.app.screen, CompareScreen))
        await wishes(desk, LONG.rstrip())


async def test_it_is_switched_off_in_the_settings_and_that_is_kept(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=ReadingModels, size=(80, 24)) as desk:
        await wishes(desk, "")
        await desk.press("ctrl+o")
        await desk.until(lambda: isinstance(desk.app.screen, SettingsScreen) and desk.app.screen.focused)
        (row,) = [each for each in desk.app.screen.query(SettingRow) if each.setting.name == "read_ahead"]
        row.field.focus()
        await desk.shows("Read ahead: idle models read the chat")
        await desk.press("enter", "ctrl+s")
        await desk.shows("saved: Read ahead in config.toml")
        await wishes(desk, None)
        assert not read_config(config_dir() / "config.toml").read_ahead
        await burst(desk, LONG)
        await settled_but_answering(desk)
        assert reading(desk).wish is None


async def test_the_meter_shows_what_is_still_to_be_read(tmp_path: Path) -> None:
    answer = "word " * 2000
    async with desktop(tmp_path, models=lambda: ReadingModels(says(answer)), size=(80, 24)) as desk:
        await desk.answered("Why?")
        await wishes(desk, "")
        await desk.until(lambda: "▓▓░░░" in desk.status())
        reading(desk).so_far = ReadAhead(10, 2000)
        await desk.until(lambda: "▒▒░░░" in desk.status())
        reading(desk).so_far = ReadAhead(1500, 2000)
        await desk.until(lambda: "▓▒░░░" in desk.status())
        reading(desk).read_all(2000)
        await desk.until(lambda: "▓▓░░░" in desk.status())


async def test_a_chat_that_opens_with_it_switched_off_reads_nothing(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=ReadingModels, config=Config(read_ahead=False)) as desk:
        desk.chat.session.shared.reads_ahead = False
        await burst(desk, LONG)
        await settled_but_answering(desk)
        assert reading(desk).wish is None


async def test_nothing_is_read_while_another_chat_is_answered_and_the_open_one_after_it(
    tmp_path: Path,
) -> None:
    gate = Gate()
    async with desktop(tmp_path, models=lambda: ReadingModels(says("half ", gate, "whole"))) as desk:
        await wishes(desk, "")
        await desk.enter("a question")
        await desk.until(gate.reached.is_set)
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        await burst(desk, LONG)
        await desk.until(lambda: desk.chat.pane.composer._counted[0] == len(LONG))
        assert reading(desk).wish is None
        gate.open()
        await wishes(desk, LONG.rstrip())
        assert not reading(desk).told_while_answering


async def test_of_two_chats_side_by_side_the_one_in_use_is_read(tmp_path: Path) -> None:
    gate = Gate()
    script = says("one ", gate, "two")
    async with desktop(tmp_path, size=(170, 40), models=lambda: ReadingModels(script)) as desk:
        await wishes(desk, "")
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await burst(desk, ["ctrl+backslash", *LONG])
        await desk.until(lambda: desk.chat.pane.composer.text == LONG)
        await wishes(desk, None)
        gate.open()  # the answer of the other chat ends
        await wishes(desk, LONG.rstrip())
        assert [message.content for message in prompt(desk)[1:]] == [LONG.rstrip()]
        await desk.press("ctrl+right_square_bracket")
        await wishes(desk, "")
        assert [message.content for message in prompt(desk)[1:]] == ["first", "one two", ""]
