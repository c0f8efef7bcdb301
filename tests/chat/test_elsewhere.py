"""Answers that go on in their chats while another one is open, and share the models by turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import chain, cycle
from pathlib import Path

import pytest

from localspec.chat import answers
from localspec.chat.loading import Closed, ModelLoader
from localspec.chat.store import Store
from localspec.errors import Cancelled, EngineDied, EngineError, UserError
from localspec.inference import turns
from localspec.types.events import PromptProgress
from tests.chat.rig import Rig, asked, controlled, kept, opened, prompt, until
from tests.scripted import Gate, Script, ScriptedModels, says, talks_on

pytestmark = pytest.mark.asyncio


def models(rig: Rig) -> ScriptedModels:
    found = rig.loader.models(wait=False)
    assert isinstance(found, ScriptedModels)
    return found


@pytest.mark.parametrize("before", [(), ("the beginning ",), ("<think>\nhm ",)], ids=["", "text", "thinking"])
async def test_answer_goes_on_where_its_chat_is_left(tmp_path: Path, before: tuple[str, ...]) -> None:
    gate = Gate()
    async with controlled(tmp_path, says(*before, gate, "the rest")) as rig:
        first = await asked(rig, "go", gate)
        rig.view.unsent = (first, "not sent yet")
        await rig.controller.switch_chat(rig.session.new)
        assert (rig.texts, rig.controller.answering) == ([], False)
        assert rig.store.chat(first).draft == "not sent yet"
        assert list(rig.answers.being_answered()) == [first]
        gate.open()
        await rig.ended()
        assert kept(rig, first) == ["go", "".join(before) + "the rest"]
        assert rig.store.messages(first)[-1].state == "complete"
        assert rig.answers.unread == {first: "answered"}
        assert rig.view.told[-2:] == ["go answered", "go rests"]
        assert not rig.answers.is_busy
        await opened(rig, first)
        assert rig.answers.unread == {}
        assert rig.texts[0] == "go"


async def test_chat_that_is_left_at_the_end_of_its_answer_has_the_whole_of_it(tmp_path: Path) -> None:
    for number in range(8):  # at some moment between the last word and the report of the end
        async with controlled(tmp_path / str(number), says("one ", "two")) as rig:
            first = await asked(rig, "go")
            await until(lambda rig=rig, first=first: kept(rig, first)[1:])  # type: ignore[misc]
            await asyncio.sleep(number * 0.0005)
            await rig.new()
            await until(lambda rig=rig: not rig.answers.is_busy)  # type: ignore[misc]
            assert kept(rig, first) == ["go", "one two"]
            assert rig.answers.unread in ({}, {first: "answered"})


async def test_who_comes_back_sees_all_so_far_and_the_rest_as_it_comes(tmp_path: Path) -> None:
    gates = Gate(), Gate(), Gate()
    script = says("one ", gates[0], "two ", gates[1], "three ", gates[2], "four")
    async with controlled(tmp_path, script) as rig:
        first = await asked(rig, "go", gates[0])
        for gate, following, so_far in zip(gates, gates[1:], ("one two ", "one two three "), strict=False):
            await rig.new()
            gate.open()
            await asyncio.to_thread(following.reached.wait, 10)
            await opened(rig, first)
            assert rig.view.text == so_far
            assert rig.controller.answering
        gates[-1].open()
        await rig.ended()
        assert rig.view.text == "one two three four"
        assert rig.texts == ["go", "one two three four"]
        assert rig.view.told[-1] == "ended"
        assert rig.answers.unread == {}


async def test_second_chat_is_answered_while_the_first_is_written_and_neither_mixes(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("boats ", gate, "float"), says("planes fly")) as rig:
        first = await asked(rig, "boats?", gate)
        await rig.new()
        second = await asked(rig, "planes?")
        await rig.ended()
        assert rig.view.text == "planes fly"
        assert rig.texts == ["planes?", "planes fly"]
        assert kept(rig, first)[0] == "boats?"
        assert list(rig.answers.being_answered()) == [first]
        gate.open()
        await until(lambda: not rig.answers.is_busy)
        assert kept(rig, first) == ["boats?", "boats float"]
        assert kept(rig, second) == ["planes?", "planes fly"]
        prompts = [[message.content for message in request.prompt][-1:] for request in models(rig).requests]  # type: ignore[union-attr]
        assert prompts == [["boats?"], ["planes?"]]


async def test_answers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    gate = Gate()  # or it could be at its end before the other begins
    script = Script(chain(["a ", gate], cycle(["a "])))
    async with controlled(tmp_path, script, talks_on("b ")) as rig:
        first = await asked(rig, "a", gate)
        await rig.new()
        second = await asked(rig, "b")
        gate.open()
        tokens = {chat: answer.turn for chat, answer in rig.answers._running.items()}
        one, other = tokens[first], tokens[second]
        await until(lambda: min(one.tokens, other.tokens) > 200 and abs(one.share - other.share) < 50)
        rig.answers.close()
        await asyncio.gather(*rig.tasks)
        assert {*kept(rig, first)[1].split()} == {"a"}
        assert {*kept(rig, second)[1].split()} == {"b"}


@pytest.mark.parametrize("waits", [False, True], ids=["at work", "waiting for its turn"])
async def test_stop_ends_the_answer_of_the_open_chat_alone(tmp_path: Path, waits: bool) -> None:
    gate, second = Gate(), Gate()
    async with controlled(tmp_path, says("one ", gate, "two"), says("three ", second, "four")) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        other = await asked(rig, "second", second)  # the first one is paused for it
        stopped, goes_on = (first, other) if waits else (other, first)
        await opened(rig, stopped)
        answer = rig.controller.running
        assert answer is not None
        assert answer.turn.is_waiting is waits
        rig.view.over.clear()
        rig.controller.stop()
        await rig.ended()
        assert rig.store.messages(stopped)[-1].state == "stopped"
        assert list(rig.answers.being_answered()) == [goes_on]
        assert not (waits and models(rig).paused)  # it was dropped
        record = rig.store.record(rig.store.messages(stopped)[-1].id)
        assert record is not None
        assert (record.summary.tokens, record.summary.prompt_tokens > 0) == (2, True)
        gate.open()
        second.open()
        await until(lambda: not rig.answers.is_busy)
        assert {first: "one two", other: "three four"}[goes_on] == kept(rig, goes_on)[1]
        assert rig.answers.unread == {goes_on: "answered"}


async def test_stop_before_the_first_turn_leaves_the_question_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.chat.answer_turns.PARALLEL", 1)  # the second waits for the whole of it
    gate = Gate()
    async with controlled(tmp_path, says("one ", gate, "two"), says("three")) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        second = await asked(rig, "second")
        answer = rig.controller.running
        assert answer is not None
        await until(lambda: answer.turn.is_waiting)
        rig.controller.stop()
        await rig.ended()
        assert kept(rig, second) == ["second"]
        gate.open()
        await until(lambda: not rig.answers.is_busy)
        assert kept(rig, first) == ["first", "one two"]


async def test_chat_with_an_answer_in_progress_can_be_deleted_and_the_other_goes_on(tmp_path: Path) -> None:
    gate, second = Gate(), Gate()
    async with controlled(tmp_path, says("one ", gate, "two"), says("three ", second, "four")) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        other = await asked(rig, "second", second)
        await rig.controller.delete(first)
        assert list(rig.answers.being_answered()) == [other]
        assert rig.texts[0] == "second"
        assert [chat.title for chat in rig.store.deleted()] == ["first"]
        second.open()
        await rig.ended()
        assert kept(rig, other) == ["second", "three four"]
        rig.store.restore(first)
        assert kept(rig, first) == ["first", "one "]
        assert rig.store.messages(first)[-1].state == "stopped"
        assert rig.answers.unread == {}
        assert "first answered" not in rig.view.told


async def test_death_of_the_models_is_told_by_each_chat_and_keeps_what_came(tmp_path: Path) -> None:
    gate = Gate()
    scripts = says("one ", gate), says("three ", EngineDied("signal 9")), says("again")
    async with controlled(tmp_path, *scripts) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        second = await asked(rig, "second")
        await until(lambda: not rig.answers.is_busy)
        assert [type(error) for error in rig.view.errors] == [EngineDied]
        assert rig.answers.unread == {first: "failed"}
        assert kept(rig, first) == ["first", "one "]
        assert kept(rig, second) == ["second", "three "]
        states = [rig.store.messages(chat)[-1].state for chat in (first, second)]
        assert states == ["failed", "failed"]


async def test_error_in_a_chat_that_was_left_is_told_and_leaves_it_ready(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says(gate, EngineError("no memory")), says("fine")) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        gate.open()
        await until(lambda: not rig.answers.is_busy)
        assert rig.answers.unread == {first: "failed"}
        await opened(rig, first)
        assert rig.texts == ["first"]
        rig.view.over.clear()
        await rig.controller.answer_again(rig.session.chat.path[0])
        await rig.ended()
        assert rig.texts == ["first", "fine"]


async def test_closing_while_two_are_written_keeps_both(tmp_path: Path) -> None:
    gate, second = Gate(), Gate()
    async with controlled(tmp_path, says("one ", gate, "two"), says("three ", second, "four")) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        other = await asked(rig, "second", second)
        rig.answers.close()
        await asyncio.gather(*rig.tasks)
        assert (kept(rig, first)[1], kept(rig, other)[1]) == ("one ", "three ")
        states = [rig.store.messages(chat)[-1].state for chat in (first, other)]
        assert states == ["stopped", "stopped"]


async def test_models_are_free_only_when_no_chat_is_being_answered(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("one ", gate, "two")) as rig:
        first = await asked(rig, "boats", gate)
        await rig.new()
        with pytest.raises(UserError, match="“boats” is being answered"):
            await rig.controller.free_models()
        await rig.answers.stop_all()
        await rig.controller.free_models()
        assert kept(rig, first) == ["boats", "one "]
        assert rig.answers.unread == {}  # who stopped it knows


async def test_branch_that_is_written_stays_shown_when_its_chat_is_found_again(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("old"), says("new ", gate, "one")) as rig:
        await rig.asked("go")
        old = rig.session.chat.path[-1]
        await rig.controller.answer_again(old)
        await asyncio.to_thread(gate.reached.wait, 10)
        await opened(rig, old.chat, old.id)  # by a search
        assert rig.session.chat.path[-1].id != old.id
        assert rig.view.text == "new "
        rig.view.over.clear()
        gate.open()
        await rig.ended()
        assert rig.texts == ["go", "new one"]


async def test_question_entered_just_before_its_chat_was_left_is_answered_there(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("fine")) as rig:
        first = rig.session.chat.info.id
        await rig.answers.changing.acquire()  # both come while something else is shown
        rig.view.unsent = (first, "")
        leaving = asyncio.create_task(rig.controller.switch_chat(rig.session.new))
        await asyncio.sleep(0)
        asking = asyncio.create_task(rig.controller.ask(prompt("go")))
        await asyncio.sleep(0)
        rig.answers.changing.release()
        await asyncio.gather(leaving, asking)
        assert rig.texts == []
        assert "asked go" not in rig.view.told
        await until(lambda: not rig.answers.is_busy)
        assert kept(rig, first) == ["go", "fine"]
        assert rig.answers.unread == {first: "answered"}


async def test_no_more_chats_are_answered_at_once_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST", 2)
    gates = Gate(), Gate()
    async with controlled(tmp_path, *(says("not ", gate, "yet") for gate in gates), says("done")) as rig:
        for gate in gates:
            await asked(rig, "go", gate)
            await rig.new()
        with pytest.raises(UserError, match="2 chats are being answered already"):
            await rig.controller.ask(prompt("once more"))
        assert rig.texts == []
        for gate in gates:
            gate.open()
        await until(lambda: not rig.answers.is_busy)
        await rig.asked("once more")
        assert rig.texts == ["once more", "done"]


async def test_question_cuts_short_what_is_measured_for_another_chat(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("one"), says("title ", gate), says("two")) as rig:
        rig.session.shared.titles = True
        await rig.controller.ask(prompt("first"))
        await until(lambda: rig.view.text == "one" and gate.reached.is_set())
        await rig.new()
        await asked(rig, "second")
        await rig.ended()
        await until(lambda: rig.texts == ["second", "two"] and not rig.answers.is_busy)


async def test_chat_is_deleted_while_another_waits_for_its_first_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.chat.answer_turns.PARALLEL", 1)
    gate = Gate()
    async with controlled(tmp_path, says("one ", gate), says("two")) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        second = await asked(rig, "second")
        await rig.controller.delete(first)
        await rig.ended()
        assert kept(rig, second) == ["second", "two"]
        assert [chat.id for chat in rig.store.deleted()] == [first]
        assert [chat.id for chat in rig.store.chats()] == [second]


async def test_question_asked_while_another_prompt_is_read_gets_its_own_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    gate, second = Gate(), Gate()
    rest = [PromptProgress(done, 99) for done in range(2, 100)]
    script = says(PromptProgress(1, 99), gate, *rest, "boats")
    async with controlled(tmp_path, script, says("planes", second)) as rig:
        first = await asked(rig, "boats?", gate)
        await rig.new()
        other = await asked(rig, "planes?")
        answer = rig.controller.running
        assert answer is not None
        await until(lambda: answer.turn.is_waiting)
        gate.open()  # in the middle of a prompt, the other has its turn
        await asyncio.to_thread(second.reached.wait, 10)
        assert kept(rig, first) == ["boats?", ""]
        second.open()
        await until(lambda: not rig.answers.is_busy)
        assert kept(rig, first) == ["boats?", "boats"]
        assert kept(rig, other) == ["planes?", "planes"]
        record = rig.store.record(rig.store.messages(first)[-1].id)
        assert record is not None
        assert record.summary.first_token_s > 0


async def test_stop_while_the_models_are_opened_leaves_the_question_of_another_chat(tmp_path: Path) -> None:
    opening = threading.Event()

    def open_models(on_progress: Callable[[float], bool]) -> ScriptedModels:
        opening.wait(10)
        if not on_progress(0.5):
            raise Cancelled("stopped")
        return ScriptedModels(says("fine"))

    with Store(tmp_path / "chats.db") as store:
        rig = Rig(store, ModelLoader(open_models))
        first = await asked(rig, "first")
        await rig.new()
        second = await asked(rig, "second")
        rig.controller.stop()
        await rig.ended()
        assert isinstance(rig.view.errors[-1], Cancelled)
        opening.set()
        await until(lambda: not rig.answers.is_busy)
        assert kept(rig, first) == ["first", "fine"]
        assert kept(rig, second) == ["second"]
        rig.loader.close()


async def test_stop_of_the_only_question_stops_opening_the_models(tmp_path: Path) -> None:
    opening = threading.Event()

    def open_models(_on_progress: Callable[[float], bool]) -> ScriptedModels:
        opening.wait(10)
        return ScriptedModels()

    with Store(tmp_path / "chats.db") as store:
        rig = Rig(store, ModelLoader(open_models))
        rig.loader.start()
        await asked(rig, "first")
        rig.controller.stop()
        await rig.ended()
        assert rig.loader.state == Closed()
        opening.set()
        rig.loader.close()


async def test_marks_of_answers_that_were_not_seen_outlast_the_program(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("fine")) as rig:
        first = await asked(rig, "one")
        await rig.new()
        await until(lambda: rig.answers.unread == {first: "answered"})
    async with controlled(tmp_path, says("fine")) as rig:
        assert rig.answers.unread == {first: "answered"}
        await opened(rig, first)
        assert rig.answers.unread == {}
    async with controlled(tmp_path, says("fine")) as rig:
        assert rig.answers.unread == {}


async def test_two_windows_with_one_unsent_chat_end_up_with_a_chat_each(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("to one")) as one:
        one.store.set_draft(one.session.chat.info.id, "half a question")
        async with controlled(tmp_path, says("to the other")) as other:
            other.session.new()
            other.session.update_settings(temperature=0.5)
            assert other.session.chat.info.id == one.session.chat.info.id
            await one.asked("first")
            await other.asked("second")
            assert one.texts == ["first", "to one"]
            assert other.texts == ["second", "to the other"]
            assert other.session.chat.info.settings.temperature == 0.5
            assert len(one.store.chats()) == 2
