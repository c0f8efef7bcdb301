"""What happens in the open chat, without a screen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec.chat import controller
from localspec.errors import ContextFullError, EngineDied, UserError
from localspec.storage.kept_caches import caches_dir, chat_name
from localspec.types.request import Message, Request
from tests.chat.rig import controlled, prompt
from tests.scripted import Gate, Script, ScriptedModels, says

pytestmark = pytest.mark.asyncio


async def test_question_is_answered_and_its_end_is_reported(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("Fine, thanks.")) as rig:
        await rig.asked("How are you?")
        assert rig.view.told == ["asked How are you?", "began", "rests", "ended"]
        assert rig.view.text == "Fine, thanks."
        assert rig.texts == ["How are you?", "Fine, thanks."]
        assert not rig.controller.working
        assert rig.view.errors == [None]


async def test_one_answer_at_a_time(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("one ", gate, "two")) as rig:
        await rig.controller.ask(prompt("first"))
        await asyncio.to_thread(gate.reached.wait, 10)
        assert rig.controller.answering
        last = rig.session.chat.path[0]
        with pytest.raises(UserError, match="an answer is being written"):
            await rig.controller.ask(prompt("second"))
        with pytest.raises(UserError, match="an answer is being written"):
            await rig.controller.answer_again(last)
        with pytest.raises(UserError, match="an answer is being written"):
            await rig.controller.switch(last, 1)
        gate.open()
        await rig.ended()
        assert rig.texts == ["first", "one two"]


class SilentModels(ScriptedModels):
    """Models that count nothing before they are told to."""

    def __init__(self, *scripts: Script) -> None:
        super().__init__(*scripts)
        self.counts = threading.Event()

    def count_tokens(self, messages: Sequence[Message]) -> int:
        self.counts.wait(10)
        return super().count_tokens(messages)

    def _fitting(self, request: Request) -> int:
        return 1


async def test_a_question_of_usual_length_waits_for_no_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "CHECK_S", 60.0)
    models = SilentModels(says("fine"))
    async with controlled(tmp_path, models=models) as rig:
        rig.loader.start()
        await asyncio.to_thread(rig.loader.models)
        await rig.asked("go")
        assert (rig.texts, models.counts.is_set()) == (["go", "fine"], False)
        models.counts.set()
        with pytest.raises(ContextFullError, match="too long by"):
            await rig.controller.ask(prompt("on and on " * 2000))
        assert rig.texts == ["go", "fine"]


async def test_stopped_answer_is_kept(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("half of it ", gate, "the rest")) as rig:
        await rig.controller.ask(prompt("go"))
        await asyncio.to_thread(gate.reached.wait, 10)
        rig.controller.stop()
        await rig.ended()
        assert rig.texts == ["go", "half of it "]
        assert rig.session.chat.path[-1].state == "stopped"


async def test_chat_cannot_be_left_before_the_question_is_asked_in_it(tmp_path: Path) -> None:
    go_on = asyncio.Event()
    async with controlled(tmp_path, says("fine")) as rig:
        before = rig.session.chat.info.id
        rig.view.unsent = (before, "")
        asking = asyncio.create_task(rig.controller.ask(prompt("a question", go_on)))
        await asyncio.sleep(0)
        leaving = asyncio.create_task(rig.controller.switch_chat(rig.session.new))
        await asyncio.sleep(0)
        assert rig.session.chat.info.id == before
        go_on.set()
        await asking
        await leaving
        assert rig.session.chat.info.id != before
        assert rig.store.messages(before)[0].content == "a question"


async def test_answers_are_branches(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("one"), says("two"), says("three")) as rig:
        await rig.asked("go")
        question, first = rig.session.chat.path
        await rig.controller.answer_again(first)
        await rig.ended()
        assert rig.texts == ["go", "two"]
        shown = await rig.controller.switch(rig.session.chat.path[-1], -1)
        assert (shown, rig.texts) == (first.id, ["go", "one"])
        await rig.controller.edit(question, "go on")
        await rig.ended()
        assert rig.texts == ["go on", "three"]
        with pytest.raises(UserError, match="no longer shown"):
            rig.controller.message(first.id)


async def test_edited_answer_is_not_answered_and_can_be_continued(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("one"), says(" and more")) as rig:
        await rig.asked("go")
        await rig.controller.edit(rig.session.chat.path[-1], "mine")
        assert (rig.texts, rig.controller.working) == (["go", "mine"], False)
        with pytest.raises(UserError, match="only an answer can be continued"):
            await rig.controller.go_on(rig.session.chat.path[0])
        await rig.controller.go_on(rig.session.chat.path[-1])
        await rig.ended()
        assert rig.texts == ["go", "mine and more"]


async def test_death_of_the_engine_is_reported_and_what_came_is_kept(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("half ", EngineDied("the engine died"))) as rig:
        await rig.asked("go")
        assert [type(error) for error in rig.view.errors] == [EngineDied]
        assert "messages" in rig.view.told
        assert rig.texts == ["go", "half "]
        ended = rig.loader.models(wait=False)
        await rig.answers.reload()
        assert rig.loader.models(wait=True) is not ended


async def test_deleted_chat_makes_way_for_an_empty_one(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("one")) as rig:
        await rig.asked("go")
        await rig.controller.delete(rig.session.chat.info.id)
        assert (rig.texts, rig.store.chats()) == ([], ())
        assert [chat.title for chat in rig.store.deleted()] == ["go"]


async def test_what_was_deleted_takes_the_files_with_its_caches_along(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("one")) as rig:
        await rig.asked("go")
        models, chat = rig.loader.ready, rig.session.chat.info.id
        assert isinstance(models, ScriptedModels)
        assert models.requests[0].kept_as == chat_name(chat)
        caches_dir().mkdir(parents=True)
        mine, other = caches_dir() / f"a-b.{chat_name(chat)}.kv", caches_dir() / "a-c.chat99.kv"
        for path in (mine, other):
            path.write_bytes(b"caches")
        await rig.controller.delete_messages(rig.session.chat.path[-1])
        assert (mine.exists(), other.exists()) == (False, True)
        mine.write_bytes(b"caches")
        await rig.controller.delete(chat)
        assert (mine.exists(), other.exists()) == (False, True)


async def test_comparison_leaves_the_chat_as_it_was_until_one_is_kept(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("one"), says("two"), says("three")) as rig:
        await rig.asked("go")
        answers = rig.controller.compared(rig.session.chat.path[-1])
        for mode in ("off", "ssd"):
            for _event in answers(mode):
                pass
            assert rig.texts == ["go", "one"]
        other = max(message.id for message in rig.store.messages(rig.session.chat.info.id))
        await rig.controller.keep_compared(None)
        assert rig.texts == ["go", "one"]
        await rig.controller.keep_compared(other)
        assert rig.texts[0] == "go"
        assert rig.session.chat.path[-1].id == other
