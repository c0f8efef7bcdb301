"""What fails, or comes at a bad moment, takes nothing with it: no text, no answer, not the screen."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from localspec.chat import answering
from localspec.chat.answer_settings import TunedChoice
from localspec.chat.attachments import attach
from localspec.chat.messages import Role
from localspec.chat.resources import Resources
from localspec.errors import EngineDied, ServerLost, StoreError, UserError
from localspec.types.models import DeviceMemory, PlainRate
from localspec.types.request import TaskType
from localspec_tui.screens.compare import CompareScreen
from localspec_tui.screens.dialogs import AskScreen, EditScreen
from localspec_tui.widgets.composer.composer import PromptEntered
from localspec_tui.widgets.composer.prompt_area import PromptArea
from localspec_tui.widgets.status import TitleBar
from tests.scripted import Gate, Script, ScriptedModels, says
from tests.tui.desktop import desktop
from tests.tui.settled import settled
from tests.tui.transcripts import selected

pytestmark = pytest.mark.asyncio


class Measuring(ScriptedModels):
    """Models that measure plain decoding until they are cancelled."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self.gate = Gate()

    def measure_plain(self) -> PlainRate | None:
        with self._busy():
            self._cancelled.clear()
            self._gate = self.gate
            self.gate.wait(self._cancelled, threading.Event())
            return None if self._cancelled.is_set() else PlainRate(self._depth, 1.0)


@pytest.mark.slow
async def test_earlier_answer_is_back_when_another_is_stopped_before_its_first_word(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("first answer"), says(gate, "never")) as desk:
        await desk.answered("question")
        await desk.press("ctrl+r")
        await desk.until(gate.reached.is_set)
        await desk.until(lambda: "first answer" not in desk.screen_text())
        await desk.press("escape")
        await desk.shows("first answer")
        assert desk.texts == ["question", "first answer"]


@pytest.mark.slow
async def test_earlier_answer_is_back_when_the_models_cannot_write_another(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("first answer"), says(EngineDied("signal 6"))) as desk:
        await desk.answered("question")
        await desk.press("ctrl+r")
        await desk.shows("signal 6", "first answer")
        assert desk.texts == ["question", "first answer"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "goes_home"), [("y", True), ("n", False), ("escape", False), ("#yes", True), ("#no", False)]
)
async def test_models_of_a_server_that_is_lost_open_here_or_there_as_one_likes(
    answer: str, goes_home: bool, tmp_path: Path
) -> None:
    went = list[bool]()
    async with desktop(tmp_path, says("so far ", ServerLost("tower:50052 has not answered for 2 s"))) as desk:
        desk.chat.elsewhere.use_local_models = lambda: went.append(True)
        await desk.enter("go")
        await desk.shows("tower:50052 has not answered for 2 s", "Open here", "Reconnect", "so far")
        assert len(desk.opened) == 1
        await (desk.pilot.click(answer) if answer.startswith("#") else desk.press(answer))
        await desk.until(lambda: len(desk.opened) == 2 and desk.loader.ready is not None)
        assert went == [True] * goes_home
        assert desk.path[-1].content.strip() == "so far"


@pytest.mark.slow
async def test_models_that_do_not_open_elsewhere_can_open_here(tmp_path: Path) -> None:
    opened, went = list[ScriptedModels](), list[bool]()

    def models() -> ScriptedModels:
        if opened and not went:
            raise UserError("nothing is listening at tower:50052", "start one there")
        opened.append(ScriptedModels(says("from here")))
        return opened[-1]

    async with desktop(tmp_path, models=models) as desk:
        desk.chat.elsewhere.use_local_models = lambda: went.append(True)
        desk.loader.release()
        await desk.enter("go")
        await desk.shows("nothing is listening at tower:50052")
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.press("n")
        await desk.until(lambda: not isinstance(desk.app.screen, AskScreen))
        assert desk.loader.ready is None
        await desk.enter("/regen")
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.press("y")
        await desk.until(lambda: desk.loader.ready is not None)


@pytest.mark.slow
async def test_chat_can_be_deleted_while_something_is_measured_after_its_answer(tmp_path: Path) -> None:
    async with desktop(tmp_path, models=Measuring) as desk:
        await desk.enter("question")
        models = desk.models
        assert isinstance(models, Measuring)
        await desk.until(models.gate.reached.is_set)
        await desk.until(lambda: not desk.chat.pane.answering)
        await desk.enter("/delete")
        await desk.until(lambda: isinstance(desk.app.screen, AskScreen))
        await desk.press("y")
        await desk.until(lambda: desk.app.screen is desk.chat)  # no other letter follows
        models.gate.open()
        await desk.until(lambda: not desk.chat.pane.working)
        await desk.answered("another")
        assert desk.texts[0] == "another"


@pytest.mark.slow
async def test_end_of_a_measurement_that_was_cut_short_ends_no_later_answer(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, models=lambda: Measuring(says("one"), says("two ", gate, "three"))) as desk:
        await desk.enter("first")
        models = desk.models
        assert isinstance(models, Measuring)
        await desk.until(models.gate.reached.is_set)
        await desk.until(lambda: not desk.chat.pane.answering)
        await desk.enter("second")
        await desk.until(gate.reached.is_set)
        await desk.pilot.pause()
        assert desk.chat.pane.answering
        models.gate.open()
        gate.open()
        await desk.shows("two three")
        await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.slow
async def test_question_stays_in_the_chat_that_is_left_while_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(text: str, folder: Path, limit: int, resources: Resources) -> object:
        if text == "second":  # what is being written is looked at, too
            asked.set()
            go_on.wait(10)
        return attach(text, folder, limit, resources)

    async with desktop(tmp_path) as desk:
        await desk.answered("first")
        first = desk.chat.session.chat.info.id
        monkeypatch.setattr("localspec_tui.screens.chat.unsent.attach", slow)
        desk.chat.pane.post_message(PromptEntered("second"))
        await asyncio.to_thread(asked.wait, 10)
        leaving = asyncio.create_task(desk.chat.run_named("new"))
        for _ in range(20):  # it has all the time to go ahead; a pause would wait for the question itself
            await asyncio.sleep(0.005)
        go_on.set()
        await leaving
        await desk.until(lambda: desk.texts == [] and not desk.chat.pane.working)
        assert [message.content for message in desk.store.messages(first)][2] == "second"


@pytest.mark.slow
async def test_prompt_that_waited_and_is_rejected_makes_way_for_what_is_being_written(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate)) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await desk.enter("see @./missing.txt")
        await desk.until(lambda: desk.chat.session.queue)
        desk.composer.text = "half a thou"
        gate.open()
        await desk.shows("there is no file")
        assert desk.composer.text == "half a thou"
        assert desk.chat.session.queue == ["see @./missing.txt"]


@pytest.mark.slow
async def test_prompts_that_wait_are_kept_with_the_chat_before_a_kill(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("one ", gate)) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        await desk.enter("second")
        number = desk.chat.session.chat.info.id
        await desk.until(lambda: desk.store.chat(number).draft == "second")
        gate.open()
        await desk.until(lambda: len(desk.path) == 4 and not desk.store.chat(number).draft)


@pytest.mark.slow
async def test_text_of_an_answer_is_saved_while_the_models_pause(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("half an ", gate, "answer")) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        chat = desk.chat.session.chat.info.id
        await desk.until(lambda: desk.store.messages(chat)[-1].content == "half an ")
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.slow
async def test_text_that_is_saved_before_it_is_drawn_is_drawn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "SAVE_EVERY_S", 0.001)
    gate = Gate()
    async with desktop(tmp_path, says("alpha beta ", gate)) as desk:
        await desk.enter("go")
        await desk.until(gate.reached.is_set)
        await desk.shows("beta")
        assert desk.chat.query_one(TitleBar).chat_title == "go"
        assert desk.screen_text().count("alpha") == 1
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)


@pytest.mark.slow
async def test_trouble_with_the_store_is_reported_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise StoreError("the chats are damaged")

    async with desktop(tmp_path) as desk:
        await desk.answered("first")
        for name in ("chats", "record"):
            monkeypatch.setattr(desk.store, name, broken)
        await desk.press("f6")
        await desk.enter("second")
        await desk.shows("the chats are damaged")
        await desk.until(lambda: len(desk.path) == 4 and not desk.chat.pane.working)
        assert desk.app.is_running


@pytest.mark.slow
async def test_models_that_end_when_their_memory_is_asked_for_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead() -> tuple[DeviceMemory, ...]:
        raise EngineDied("signal 9")

    async with desktop(tmp_path) as desk:
        monkeypatch.setattr(desk.models, "memory", dead)
        await desk.answered("first")
        await desk.answered("second")


@pytest.mark.slow
async def test_models_that_end_in_a_comparison_are_opened_again(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("first"), says("plain "), says(EngineDied("signal 9"))) as desk:
        await desk.answered("question")
        await desk.press("f4")
        await desk.until(lambda: isinstance(desk.app.screen, CompareScreen))
        await desk.until(lambda: len(desk.opened) == 2 and desk.loader.ready is not None)
        await desk.shows("signal 9", "Enter keeps the chosen answer")
        await desk.press("escape")
        await desk.until(lambda: desk.app.screen is desk.chat)
        assert desk.texts == ["question", "first"]  # what was compared stays beside it


@pytest.mark.slow
async def test_kill_during_a_comparison_leaves_the_answer_that_was_shown(tmp_path: Path) -> None:
    gate = Gate()
    async with desktop(tmp_path, says("first"), says("plain", gate)) as desk:
        await desk.answered("question")
        shown = desk.path[-1].id
        await desk.press("f4")
        await desk.until(lambda: len(desk.store.messages(desk.path[0].chat)) == 3)
        await desk.until(lambda: desk.store.chat(desk.path[0].chat).leaf == shown)
        assert isinstance(desk.app.screen, CompareScreen)
        gate.open()
        await desk.shows("Enter keeps the chosen answer")  # the chats close only after the last mode


@pytest.mark.slow
async def test_notice_is_shown_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice, shown = "tuned for [/models/large] and [b]others[/b]", []

    def recall(_task: TaskType) -> TunedChoice:
        return TunedChoice(None, "", notice)

    def notify(text: str, *, markup: bool = True, **_others: object) -> None:
        shown.append((text, markup))

    async with desktop(tmp_path, tuned_for=recall) as desk:
        monkeypatch.setattr(desk.chat.pane.status, "notify", notify)
        await desk.answered("question")
        assert shown == [(notice, False)]


@pytest.mark.slow
async def test_no_control_character_of_a_prompt_reaches_the_terminal(tmp_path: Path) -> None:
    gate, odd = Gate(), "red \x1b[31mcold\x1b]0;title\x07 \x9bend"
    async with desktop(tmp_path, says("one ", gate)) as desk:
        await desk.enter("first")
        await desk.until(gate.reached.is_set)
        desk.chat.session.queue.append(odd)
        await desk.enter("second")
        await desk.shows("red cold end")
        assert "\x1b" not in desk.screen_text()
        desk.chat.session.queue.clear()
        gate.open()
        await desk.until(lambda: not desk.chat.pane.working)
        desk.chat.say(odd)
        await desk.shows("red cold end")
        await desk.enter(odd)
        await desk.until(lambda: len(desk.path) == 4 and not desk.chat.pane.working)
        await settled(desk.pilot)
        await desk.enter("/edit")
        await desk.until(lambda: isinstance(desk.app.screen, EditScreen))
        await desk.shows("red cold end")
        assert not {"\x1b", "\x07", "\x9b"} & set(desk.screen_text())


@pytest.mark.slow
async def test_name_that_no_disk_takes_is_reported(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        await desk.answered("question")
        for command in ("/export md ", "/import ", "/attach "):
            await desk.enter(command + "a" * 300 + ".md")
            await settled(desk.pilot)
        await desk.enter("/export md " + "a" * 300)
        await desk.shows("File name too long")
        await desk.enter("/import " + "a" * 300)
        await desk.shows("cannot read")


@pytest.mark.slow
async def test_several_chats_of_one_file_are_imported_and_the_last_is_opened(tmp_path: Path) -> None:
    async with desktop(tmp_path, says("fine")) as desk:
        for question in ("one?", "two?"):
            await desk.answered(question)
            await desk.enter(f"/export json {question[:3]}.json")
            await desk.until((tmp_path / f"{question[:3]}.json").exists)
            await desk.enter("/new")
            await desk.until(lambda: not desk.path)
        both = "".join((tmp_path / f"{name}.json").read_text(encoding="utf-8") for name in ("one", "two"))
        (tmp_path / "both.json").write_text(both, encoding="utf-8-sig")
        for chat in desk.store.chats():
            desk.store.delete(chat.id)
        await desk.enter("/import both.json")
        await desk.until(lambda: len(desk.store.chats()) == 2 and desk.texts == ["two?", "fine"])


@pytest.mark.slow
async def test_keys_typed_on_the_way_to_a_message_far_away_are_not_prompt(tmp_path: Path) -> None:
    async with desktop(tmp_path) as desk:
        number, parent = desk.store.new_chat().id, None
        for count in range(100):
            role: Role = "assistant" if count % 2 else "user"
            parent = desk.store.add(number, parent, role, f"message {count}\n\n" * 9).id
        await desk.chat.pane.open_chat(number)
        await desk.press("ctrl+up", "g")
        await desk.until(lambda: selected(desk.transcript) == desk.path[0].id)
        desk.transcript.focus_last()
        seen = set()
        while selected(desk.transcript) != parent:
            await asyncio.sleep(0)
            seen.add(type(desk.app.focused))
        assert PromptArea not in seen


@pytest.mark.slow
async def test_context_is_estimated_where_no_answer_reports_what_it_takes(tmp_path: Path) -> None:
    scripts = says("word " * 50), says("word " * 50, EngineDied("signal 9"))
    async with desktop(tmp_path, *scripts) as desk:
        await desk.answered("question")
        await desk.until(lambda: " context ~" not in desk.status())
        answer = desk.path[-1]
        desk.chat.session.chat.edit(answer.id, "words " * 100)
        await desk.chat.pane.show()
        await desk.until(lambda: " context ~1" in desk.status())
        assert "tokens/s" not in desk.status()
        await desk.enter("another")
        await desk.until(lambda: len(desk.opened) == 2 and not desk.chat.pane.working)
        await desk.shows(" context ~2")
