"""Asking, answering, stopping, queueing: the screen as a whole on scripted models."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import units
from localspec.chat.figures import Figures
from localspec.errors import EngineDied
from localspec.storage.config import Config
from localspec.storage.paths import config_dir
from localspec.types.request import EngineSettings, Message
from localspec_tui.screens.chat import screen as chat_screen
from localspec_tui.widgets.status import speed_parts
from localspec_tui.widgets.welcome import Welcome
from tests.scripted import MARKDOWN, Gate, ScriptedModels, says
from tests.tui.desktop import Desktop, desktop
from tests.tui.settled import settled

pytestmark = pytest.mark.asyncio


@pytest.mark.slow
async def test_question_is_answered_and_kept(tmp_path: Path) -> None:
    async with desktop(tmp_path, says(MARKDOWN)) as desk:
        await desk.answered("How do I sort?")
        await desk.shows("How do I sort?", "Sorting a list", "stable")
        assert desk.texts == ["How do I sort?", MARKDOWN]
        assert desk.composer.text == ""
    async with desktop(tmp_path) as desk:
        await desk.shows("How do I sort?", "stable")


@pytest.mark.slow
async def test_empty_chat_welcomes_and_says_whom_one_talks_to(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.shows("LocalSpec", "large + small", "Ctrl+K")
        await desk.answered("hello")
        assert not desk.chat.query_one(Welcome).display


@pytest.mark.slow
async def test_figures_of_an_answer_stand_in_the_status_line_with_a_measured_ratio(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("word " * 200)) as desk:
        await desk.answered("go")
        await desk.until(lambda: "× plain" in desk.status())
        assert "auto: SSD" in desk.status()
        assert "tokens/s" in desk.status()
        assert "accepted" in desk.status()


@pytest.mark.slow
async def test_a_gpu_that_makes_its_programs_is_reported_while_it_does(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("the beginning ", gate, "the end")) as desk:
        await desk.enter("tell me")
        await desk.until(gate.reached.is_set)
        desk.models.makes_programs_s = 12.3
        await desk.shows("compiling GPU kernels, once: 12 s so far")
        desk.models.makes_programs_s = None
        await desk.until(lambda: "programs" not in desk.status())
        gate.open()


class Idle(ScriptedModels):
    """Models that measure costs while no one asks anything."""

    measuring = False

    def known_settings(self, settings: EngineSettings | None = None) -> tuple[EngineSettings, str]:
        return self.choose_settings(settings)

    def is_measuring(self) -> bool:
        return self.measuring

    def measure_before_leaving(self, limit_s: float) -> None:
        raise AssertionError("the screen does not leave after an answer")


@pytest.mark.slow
async def test_what_is_measured_between_answers_is_reported_until_it_ends(tmp_path: Path) -> None:
    models = Idle(says("one"), says("two"))
    async with desktop(tmp_path, models=lambda: models) as desk:
        await desk.answered("first")
        models.measuring = True
        await desk.until(lambda: units.MEASURING in desk.status())
        models.measuring = False
        await desk.until(lambda: units.MEASURING not in desk.status())
        await desk.answered("second")


async def test_auto_does_not_call_plain_decoding_fastest_before_it_is_measured() -> None:
    for reason, shown in ((units.UNMEASURED, "auto: plain"), ("measured", "auto: plain is fastest here")):
        (part,) = speed_parts(Figures(units.MODE_NAMES["off"]), reason)
        assert part.text == shown


@pytest.mark.slow
async def test_escape_stops_the_answer_and_keeps_what_came(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("the beginning ", gate, "the end")) as desk:
        await desk.enter("tell me")
        await desk.until(gate.reached.is_set)
        await desk.shows("the beginning")
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        assert desk.path[-1].content.strip() == "the beginning"
        assert desk.path[-1].state == "stopped"
        await desk.shows("stopped")


@pytest.mark.slow
async def test_ctrl_c_stops_an_answer_and_leaves_when_pressed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_screen, "QUIT_WITHIN_S", 600.0)  # a busy machine needs more than 2 s
    gate = Gate()
    async with desktop(tmp_path, says("on and on ", gate)) as desk:
        await desk.enter("talk")
        await desk.until(gate.reached.is_set)
        await desk.press("ctrl+c")
        await desk.until(lambda: not desk.chat.pane.working)
        await desk.press("ctrl+c")
        assert desk.app.is_running
        await desk.shows("Ctrl+C again quits")
        await desk.press("ctrl+c")
        await desk.until(lambda: desk.app.return_code is not None or not desk.app.is_running)
        assert desk.app.return_value == 0


@pytest.mark.slow
async def test_prompts_entered_meanwhile_wait_and_are_answered_in_order(tmp_path: Path) -> None:
    gate = Gate()
    scripts = says("one ", gate), says("two"), says("three")
    async with desktop(tmp_path, *scripts) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await desk.enter("second")
        await desk.enter("third")
        await desk.shows("1. second", "2. third")
        assert len(desk.path) == 2
        gate.open()
        await desk.until(lambda: len(desk.path) == 6 and not desk.chat.pane.working)
        assert [text.strip() for text in desk.texts] == ["first", "one", "second", "two", "third", "three"]


@pytest.mark.slow
async def test_queued_prompts_are_not_sent_after_a_stop(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate), says("two")) as desk:
        await desk.press(*"first", "enter")
        await desk.until(gate.reached.is_set)
        await desk.press(*"second", "enter", *"third", "enter")
        await desk.shows("1. second", "2. third")
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        await desk.shows(
            "1. second", "stopped; Enter in an empty prompt sends", "Enter sends the queued prompt"
        )
        await settled(desk.pilot)
        assert desk.texts[1:] == ["one "]
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 6 and not desk.chat.pane.working)
        assert [text.strip() for text in desk.texts][2:] == ["second", "two", "third", "two"]
        await desk.shows("Ask anything")


@pytest.mark.slow
async def test_a_new_chat_is_listed_from_its_first_question_on(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says(gate, "one"), config=Config(sidebar=True)) as desk:
        await desk.shows("Your chats will be listed")
        await desk.press(*"boats", "enter")
        await desk.until(gate.reached.is_set)
        await desk.until(lambda: "Your chats will" not in desk.screen_text())
        await desk.shows("Today")
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.slow
async def test_queued_prompt_can_be_taken_back_for_editing(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate)) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await desk.enter("second")
        await desk.until(lambda: desk.chat.session.queue)
        await desk.press("alt+up")
        await desk.until(lambda: desk.composer.text == "second")
        assert desk.chat.session.queue == []
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)
        assert len(desk.path) == 2


@pytest.mark.slow
async def test_what_is_being_written_waits_while_a_queued_prompt_is_edited(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate)) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await desk.enter("second")
        await desk.until(lambda: desk.chat.session.queue)
        desk.composer.text = "not yet sent"
        await desk.press("alt+up")
        await desk.until(lambda: desk.composer.text == "second")
        assert desk.chat.session.queue == ["not yet sent"]
        gate.open()
        await desk.until(lambda: len(desk.path) == 4 and not desk.chat.pane.working)


@pytest.mark.slow
async def test_death_of_the_models_keeps_the_text_and_opens_them_again(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("so far ", EngineDied("the models were ended: signal 6"))) as desk:
        await desk.enter("go")
        await desk.until(lambda: len(desk.opened) == 2 and desk.loader.ready is not None)
        await desk.until(lambda: not desk.chat.pane.working)
        assert desk.path[-1].content.strip() == "so far"
        assert desk.path[-1].state == "failed"
        await desk.shows("so far", "signal 6")


@pytest.mark.slow
async def test_attached_file_travels_with_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk", encoding="utf-8")
    async with desktop(tmp_path) as desk:
        await desk.answered("What does @notes.txt say?")
        sent = desk.models.requests[-1].prompt[-1]
        assert not isinstance(sent, str)
        assert "buy milk" in sent.content
        await desk.shows("notes.txt")


@pytest.mark.slow
async def test_a_file_that_is_named_and_not_attached_is_reported(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk", encoding="utf-8")
    async with desktop(tmp_path) as desk:
        await desk.answered("Is me@notes.txt an address?")
        assert desk.path[0].attachments == ()
        (told,) = desk.app._notifications
        assert told.message.startswith("@notes.txt is not attached: ")


async def test_missing_attachment_is_reported_and_the_prompt_stays(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("What does @./missing.txt say?")
        await desk.shows("missing.txt")
        await desk.until(lambda: desk.composer.text == "What does @./missing.txt say?")
        assert desk.path == ()


@pytest.mark.slow
async def test_full_context_is_reported_and_room_is_offered(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=lambda: ScriptedModels(says("word " * 30), context=80)) as desk:
        await desk.answered("question " * 20)
        await desk.enter("another " * 40)
        await desk.shows("Too long by", "Leave out and answer")
        await desk.press("escape")
        await desk.shows("still too long by", "/room to leave out exchanges")
        await desk.press(*"/room", "enter")
        await desk.shows("Leave out and answer")
        await desk.press("enter")
        await desk.until(lambda: len(desk.path) == 4 and not desk.chat.pane.working)
        assert [message.dropped for message in desk.path] == [True, True, False, False]
        assert len(desk.models.requests) == 3  # the one that was too long, too
        prompt = desk.models.requests[-1].prompt
        asked = [message.content for message in prompt if isinstance(message, Message)]
        assert asked[-1] == "another " * 40
        assert not any("question" in content for content in asked)


@pytest.mark.slow
async def test_an_answer_that_continues_gets_its_room_first(tmp_path: Path) -> None:
    scripts = says("old " * 20), says("begun " * 20), says("more " * 3)
    async with desktop(tmp_path, *scripts, models=lambda: ScriptedModels(*scripts, context=80)) as desk:
        await desk.answered("first")
        await desk.answered("question " * 20)
        desk.models.target = replace(desk.models.target, context=60)
        await desk.enter("/continue")
        await desk.shows("Leave out and answer")
        await desk.press("enter")
        await desk.until(lambda: not desk.chat.pane.working and desk.texts[-1].endswith("more "))
        assert [message.dropped for message in desk.path] == [True, True, False, False]


@pytest.mark.slow
async def test_the_meter_does_not_fall_while_one_types_during_an_answer(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("word " * 400, gate)) as desk:
        await desk.enter("question " * 100)
        await desk.until(gate.reached.is_set)
        await desk.until(lambda: used(desk) >= 500)
        before = used(desk)
        await desk.press(*"more")
        assert used(desk) >= before
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.slow
async def test_the_meter_does_not_fall_from_the_first_letter_to_the_answer(tmp_path: Path) -> None:
    gates = Gate(), Gate()
    async with desktop(tmp_path, *(says(gate, "word " * 9) for gate in gates)) as desk:
        for gate in gates:
            seen = [used(desk)]

            def is_weighed(seen: list[int] = seen) -> bool:
                seen.append(used(desk))
                composer = desk.chat.pane.composer
                return composer._counted[0] == len(composer.text)

            for keys in ("words of some length " * 3, ["enter"]):
                for key in keys:
                    await desk.press("space" if key == " " else key)
                    is_weighed()
                await desk.until(is_weighed)
            await desk.until(gate.reached.is_set)
            assert seen[-1] >= 12
            assert seen == sorted(seen)
            gate.open()
            await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.slow
async def test_the_meter_follows_what_is_left_out_and_comes_back(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("old " * 200), says("new")) as desk:
        await desk.answered("first")
        await desk.answered("second")
        await desk.until(lambda: used(desk) > 200)
        for is_left_out in (True, False):
            await desk.enter("/room")
            await desk.shows("Free up context")
            await desk.press("space", "enter")
            await desk.until(lambda: (used(desk) < 100) is is_left_out)  # noqa: B023


def used(desk: Desktop) -> int:
    found = re.search(r"context ~?([0-9.]+)(k?)/", desk.status())
    return round(float(found[1]) * (1024 if found[2] else 1)) if found else 0


@pytest.mark.slow
async def test_long_prompt_is_warned_of_until_it_is_shorter(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("fine"), models=lambda: ScriptedModels(context=80)) as desk:
        desk.composer.text = "word " * 100
        await desk.shows("too long by", "shorten it")
        desk.composer.text = "word"
        await desk.until(lambda: "too long" not in desk.screen_text())
        await desk.answered("word")
        desk.composer.text = "word " * 100
        await desk.shows("too long by", "shorten it")


@pytest.mark.slow
async def test_resizing_while_an_answer_streams_keeps_it_whole(tmp_path: Path) -> None:
    gates = [Gate(), Gate(), Gate()]
    script = says("alpha " * 40, gates[0], "beta " * 40, gates[1], "gamma " * 40, gates[2], "omega")
    async with desktop(tmp_path, script) as desk:
        await desk.enter("go")
        for gate, size in zip(gates, [(80, 24), (200, 50), (40, 12)], strict=True):
            await desk.until(gate.reached.is_set)
            await desk.pilot.resize_terminal(*size)
            gate.open()
        await desk.until(lambda: not desk.chat.pane.working)
        await desk.shows("omega")
        assert desk.path[-1].content == "alpha " * 40 + "beta " * 40 + "gamma " * 40 + "omega"


@pytest.mark.slow
async def test_text_is_whole_again_after_a_narrow_window(tmp_path: Path) -> None:
    question = "one two three four five six seven eight nine ten eleven twelve thirteen"
    async with desktop(tmp_path, says("alpha " * 12 + "omega"), size=(100, 30)) as desk:
        await desk.answered(question)
        await desk.shows(question)
        for width in (40, 100):
            await desk.pilot.resize_terminal(width, 30)
            await settled(desk.pilot)
        await desk.shows(question, "alpha " * 12 + "omega")


@pytest.mark.slow
async def test_files_named_in_the_prompt_are_weighed_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one two three", encoding="utf-8")
    async with desktop(tmp_path) as desk:
        desk.composer.text = "What does @notes.txt say"
        await desk.shows("notes.txt", ", 3 tokens")


@pytest.mark.slow
async def test_trouble_with_a_file_is_reported_in_full_until_the_prompt_is_fixed(tmp_path: Path) -> None:
    (tmp_path / "a rather long name of a file.txt").write_bytes(b"caf\xe9")
    async with desktop(tmp_path, size=(80, 24)) as desk:
        await desk.enter('What does @"a rather long name of a file.txt" say')
        await desk.shows("is not UTF-8 text", "pictures and", "makes it plain text")
        assert "context" in desk.screen_text()
        desk.composer.text = "never mind"
        await desk.until(lambda: "pictures and" not in desk.screen_text())


@pytest.mark.slow
async def test_another_chat_begins_without_what_was_said_about_the_last(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/nonsense")
        await desk.shows("there is no command")
        await desk.press("ctrl+n")
        await desk.until(lambda: "there is no command" not in desk.screen_text())


@pytest.mark.slow
async def test_figures_belong_to_the_chat_that_is_open(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("hello")
        await desk.until(lambda: "tokens/s" in desk.status())
        first = desk.chat.session.chat.info.id
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        await desk.until(lambda: "tokens/s" not in desk.status())
        await desk.chat.pane.open_chat(first)
        await desk.until(lambda: "tokens/s" in desk.status())


@pytest.mark.slow
async def test_unsent_text_is_there_again_at_the_next_start(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        desk.composer.text = "half a thou"
        await desk.until(lambda: desk.store.chat(desk.chat.session.chat.info.id).draft)
    async with desktop(tmp_path) as desk:
        await desk.until(lambda: desk.composer.text == "half a thou")
        await desk.answered("half a thought")
        await desk.until(lambda: not desk.store.chat(desk.chat.session.chat.info.id).draft)


@pytest.mark.slow
async def test_unsent_text_of_a_chat_that_was_left_is_in_sight_at_the_next_start(tmp_path: Path) -> None:
    config = Config(sidebar=True)
    async with desktop(tmp_path, says("fine"), config=config) as desk:
        await desk.answered("a question")
        first = desk.chat.session.chat.info.id
        await desk.press("ctrl+n")
        await desk.until(lambda: desk.texts == [])
        await desk.press(*"never sent")
        await desk.chat.pane.open_chat(first)
        await desk.shows("Not sent yet", "never sent")
    async with desktop(tmp_path, config=config) as desk:
        await desk.shows("Not sent yet", "never sent")
        lines = desk.screen_text().splitlines()
        row = next(at for at, line in enumerate(lines) if "never sent" in line)
        await desk.pilot.click(offset=(lines[row].index("never"), row))
        await desk.until(lambda: desk.composer.text == "never sent")
        assert "Not sent yet" not in desk.screen_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "asked"),
    [
        ("// add two numbers\nint add(int a, int b);", "// add two numbers\nint add(int a, int b);"),
        (" / a\n / b", " / a\n / b"),
        ("//help", "/help"),
        ("//own x", "/own x"),
        (" /tmp does not exist", "/tmp does not exist"),
    ],
)
async def test_slashes_of_a_prompt_are_asked_as_written(tmp_path: Path, typed: str, asked: str) -> None:
    folder = config_dir() / "commands"
    folder.mkdir()
    (folder / "own.md").write_text("mine", encoding="utf-8")
    async with desktop(tmp_path, says("fine")) as desk:
        await desk.answered(typed)
        assert desk.texts[0] == asked


@pytest.mark.slow
async def test_escape_before_the_first_word_leaves_the_question_alone(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says(gate, "never")) as desk:
        await desk.enter("go")
        await desk.until(gate.reached.is_set)
        await desk.press("escape")
        await desk.until(lambda: not desk.chat.pane.working)
        assert desk.texts == ["go"]
        await desk.until(lambda: "Assistant" not in desk.screen_text())


@pytest.mark.slow
async def test_colours_are_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with desktop(tmp_path, says("some words of an answer")) as desk:
        await desk.answered("go")
        await desk.press("f2", "f3")
        await desk.shows("accepted draft (underlined)", "prepared ahead")
        assert desk.app.no_color


@pytest.mark.slow
async def test_end_goes_back_to_the_end_unless_a_prompt_is_being_written(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("line\n\n" * 60), size=(80, 24)) as desk:
        await desk.answered("go")
        await desk.press("pageup", "pageup")
        await desk.until(lambda: not desk.transcript.following)
        desk.composer.text = "some words"
        await desk.press("home", "end")
        await desk.pilot.pause()
        assert not desk.transcript.following
        desk.composer.text = ""
        await desk.press("end")
        await desk.until(lambda: desk.transcript.following)


@pytest.mark.slow
async def test_why_a_command_was_refused_is_reported_until_it_is_another(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.enter("/hlep")
        await desk.until(lambda: desk.store.chat(desk.chat.session.chat.info.id).draft == "/hlep")
        await settled(desk.pilot)
        await desk.shows("did you mean `/help`")
        desk.composer.text = "help"
        await desk.until(lambda: "did you mean" not in desk.screen_text())
