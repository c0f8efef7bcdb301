"""Two chats open at once, in two views over the same store and models."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.controller import ChatController, open_in
from localspec.errors import EngineDied, UserError
from localspec.types.events import GenerationEvent
from localspec.types.request import Request
from tests.chat.rig import Rig, View, controlled, idle, prompt, until
from tests.scripted import Gate, ScriptedModels, says

pytestmark = pytest.mark.asyncio


def beside(rig: Rig, chat: int | None = None) -> ChatController:
    """Open another view, with a new chat or a given one."""
    session = rig.session.beside()
    open_in(session, rig.answers, chat)
    return ChatController(session, rig.answers, View(session))


def view(controller: ChatController) -> View:
    found = controller.answers.view_of(controller.session.chat.info.id)
    assert isinstance(found, View)
    return found


def texts(controller: ChatController) -> list[str]:
    return [message.content for message in controller.session.chat.path]


async def test_each_view_hears_of_its_own_answer(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("boats ", gate, "float"), says("planes fly")) as rig:
        other = beside(rig)
        await rig.controller.ask(prompt("boats?"))
        await asyncio.to_thread(gate.reached.wait, 10)
        await other.ask(prompt("planes?"))
        await asyncio.wait_for(view(other).over.wait(), 10)
        await until(lambda: (rig.view.text, view(other).text) == ("boats ", "planes fly"))
        gate.open()
        await idle(rig)
        assert (rig.texts, texts(other)) == (["boats?", "boats float"], ["planes?", "planes fly"])
        assert not [line for line in rig.view.told if "answered" in line]
        assert rig.answers.unread == {}


async def test_death_of_the_engine_is_told_in_both_and_models_open_once_again(tmp_path: Path) -> None:
    gate, died = Gate(), EngineDied("gone")
    async with controlled(tmp_path, says("half ", gate, died), says(died)) as rig:
        other = beside(rig)
        await rig.controller.ask(prompt("first"))
        await asyncio.to_thread(gate.reached.wait, 10)
        await other.ask(prompt("second"))
        gate.open()
        await idle(rig)
        await asyncio.gather(*rig.tasks)
        assert [type(error) for error in (*rig.view.errors, *view(other).errors)] == [EngineDied] * 2
        assert rig.texts == ["first", "half "]


class ClosedAtDeath(ScriptedModels):
    """Models that are closed before anyone else can call them, as by a view that opens others."""

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        try:
            yield from super().generate(request)
        except EngineDied:
            self.close()
            raise


async def test_answer_that_waited_for_models_is_told_why_they_have_ended(tmp_path: Path) -> None:
    gate = Gate()
    models = ClosedAtDeath(says("half ", gate, EngineDied("gone")))
    async with controlled(tmp_path, models=models) as rig:
        other = beside(rig)
        await rig.controller.ask(prompt("first"))
        await asyncio.to_thread(gate.reached.wait, 10)
        await other.ask(prompt("second"))
        await until(lambda: (rig.view.text, view(other).text) == ("half ", "half "))
        gate.open()
        await idle(rig)
        await asyncio.gather(*rig.tasks)
        assert [str(error) for error in (*rig.view.errors, *view(other).errors)] == ["gone"] * 2


async def test_chat_is_open_in_one_view_alone(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("one")) as rig:
        await rig.asked("go")
        first = rig.session.chat.info.id
        with pytest.raises(UserError, match="is open beside"):
            beside(rig, first)
        other = beside(rig)
        view(other).unsent = (other.session.chat.info.id, "unsent")
        with pytest.raises(UserError, match="is open beside"):
            await other.open_chat(first)
        assert other.session.chat.info.id != first
        rig.view.unsent = (first, "")
        await rig.controller.switch_chat(rig.controller.new)
        assert rig.session.chat.info.id != other.session.chat.info.id  # whose text is not sent


async def test_view_that_is_closed_hears_nothing_and_its_answer_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("planes ", gate, "fly")) as rig:
        other = beside(rig)
        await other.ask(prompt("planes?"))
        await asyncio.to_thread(gate.reached.wait, 10)
        closed, planes = view(other), other.session.chat.info.id
        closed.unsent = (planes, "a draft")
        await other.close()
        told = list(closed.told)
        gate.open()
        await idle(rig)
        assert (closed.told, rig.answers.unread) == (told, {planes: "answered"})
        assert rig.store.chat(planes).draft == "a draft"
        assert [message.content for message in rig.store.messages(planes)] == ["planes?", "planes fly"]


async def test_files_that_are_read_in_one_view_hold_up_nothing_in_the_other(tmp_path: Path) -> None:
    read = asyncio.Event()
    async with controlled(tmp_path, says("one"), says("two")) as rig:
        other = beside(rig)
        asking = asyncio.create_task(rig.controller.ask(prompt("with a long file", read)))
        await asyncio.sleep(0)
        await other.ask(prompt("without"))
        await asyncio.wait_for(view(other).over.wait(), 10)
        assert (rig.texts, texts(other)) == ([], ["without", "one"])
        read.set()
        await asking
        await idle(rig)
        assert rig.texts == ["with a long file", "two"]


async def test_deleted_chat_of_another_view_is_not_what_makes_way_here(tmp_path: Path) -> None:
    async with controlled(tmp_path, says("one"), says("two")) as rig:
        await rig.asked("first")
        other = beside(rig)
        await other.ask(prompt("second"))
        await idle(rig)
        await other.delete(other.session.chat.info.id)
        assert (rig.texts, texts(other)) == (["first", "one"], [])


async def test_a_view_hears_nothing_once_the_program_ends(tmp_path: Path) -> None:
    gate = Gate()
    async with controlled(tmp_path, says("boats ", gate, "float")) as rig:
        await rig.controller.ask(prompt("boats?"))
        await until(lambda: rig.view.text == "boats ")
        rig.answers.close()
        gate.open()
        await asyncio.gather(*rig.tasks)
        assert rig.view.text == "boats "
        assert not rig.view.over.is_set()
