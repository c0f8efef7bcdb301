"""Answers of several chats at once, on models that have seats for them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from localspec.chat.loading import ModelLoader
from localspec.chat.messages import AnswerRecord
from localspec.chat.store import Store
from localspec.errors import EngineError
from localspec.hardware.placement.open_plan import OpenPlan
from localspec.inference.runtime import Runtime, SeatedAnswer
from localspec.types.events import GenerationEvent, Paused
from localspec.types.models import PlainRate, SavedConversations
from localspec.types.request import Mode, Request
from tests.chat.rig import (
    Rig,
    answered_alone,
    answered_together,
    asked,
    controlled,
    greedy,
    idle,
    kept,
    opened,
    until,
)
from tests.inference.runtimes import in_f32
from tests.letter_tokens import LetterTokens
from tests.scripted import Gate, Script, ScriptedModels, says

pytestmark = pytest.mark.asyncio


class SeatedModels(LetterTokens, ScriptedModels):
    """Models with two seats, and room for `fitting` answers; each script is an answer's."""

    def __init__(self, *scripts: Script, fitting: int = 2) -> None:
        super().__init__(*scripts)
        self.seats, self.fitting = 2, fitting
        self.at_work: list[OneScripted] = []
        self.still: dict[int, Iterator[GenerationEvent]] = {}
        self.numbers = count()
        self.arriving = threading.Lock()

    def for_one_of_several(self) -> OneScripted:
        return OneScripted(self)

    def next_script(self) -> Script:
        return self._scripts.pop(0)

    def measure_plain(self) -> PlainRate | None:
        assert not self.at_work, "it would wait for their ends"
        return PlainRate(100, 10.0)

    def keep_conversations(self, limit: int) -> None: ...

    def saved(self) -> SavedConversations:
        return SavedConversations(0)

    def read(self, request: Request) -> Iterator[GenerationEvent]:
        raise NotImplementedError


class OneScripted(ScriptedModels):
    """The models for one of several answers."""

    def __init__(self, models: SeatedModels) -> None:
        super().__init__()
        self._all = models

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self._scripts = [self._all.next_script()]
        self._all.requests.append(request)
        yield from self._seated(super().generate(request))

    def resume(self, number: int) -> Iterator[GenerationEvent]:
        yield from self._seated(self._all.still.pop(number))

    def _seated(self, events: Iterator[GenerationEvent]) -> Iterator[GenerationEvent]:
        seated = self._all
        with seated.arriving:
            seated.at_work.append(self)
            is_crowded_out = len(seated.at_work) > seated.fitting
        try:
            if is_crowded_out:
                number = next(seated.numbers)
                seated.still[number] = events
                yield Paused(number)
                return
            yield from events
        finally:
            seated.at_work.remove(self)


@asynccontextmanager
async def seated(folder: Path, models: SeatedModels, **settings: bool) -> AsyncIterator[Rig]:
    async with controlled(folder, models=models) as rig:
        rig.session.shared.titles = settings.get("titles", False)
        yield rig


def record_in(rig: Rig, chat: int) -> AnswerRecord:
    found = rig.store.record(rig.store.messages(chat)[-1].id)
    assert found is not None
    return found


async def test_two_chats_are_written_at_once_and_neither_mixes(tmp_path: Path) -> None:
    gates = Gate(), Gate()
    models = SeatedModels(says("boats ", gates[0], "float"), says("planes ", gates[1], "fly"))
    async with seated(tmp_path, models) as rig:
        first = await asked(rig, "boats?", gates[0])
        await rig.new()
        second = await asked(rig, "planes?", gates[1])
        assert len(models.at_work) == 2
        assert not any(answer.turn.is_waiting for answer in rig.answers._running.values())
        for gate in gates:
            gate.open()
        await idle(rig)
        assert kept(rig, first) == ["boats?", "boats float"]
        assert kept(rig, second) == ["planes?", "planes fly"]


@pytest.mark.parametrize("place", [0, 1])
async def test_stop_ends_one_of_them_alone(tmp_path: Path, place: int) -> None:
    gates = Gate(), Gate()
    async with seated(tmp_path, SeatedModels(*(says("one ", gate, "two") for gate in gates))) as rig:
        chats = [await asked(rig, "first", gates[0])]
        await rig.new()
        chats.append(await asked(rig, "second", gates[1]))
        stopped, goes_on = chats[place], chats[1 - place]
        await opened(rig, stopped)
        rig.view.over.clear()
        rig.controller.stop()
        await rig.ended()
        assert rig.store.messages(stopped)[-1].state == "stopped"
        assert list(rig.answers.being_answered()) == [goes_on]
        gates[1 - place].open()
        await idle(rig)
        assert rig.store.messages(goes_on)[-1].content == "one two"


async def test_one_that_fails_leaves_the_other_alone(tmp_path: Path) -> None:
    gate, failing = Gate(), Gate()
    models = SeatedModels(says("one ", gate, "two"), says("three ", failing, EngineError("no memory")))
    async with seated(tmp_path, models) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        second = await asked(rig, "second", failing)
        failing.open()
        await rig.ended()
        assert rig.store.messages(second)[-1].state == "failed"
        gate.open()
        await idle(rig)
        assert kept(rig, first) == ["first", "one two"]


async def test_a_third_waits_for_a_seat_and_what_has_no_room_for_the_end_of_another(tmp_path: Path) -> None:
    gate = Gate()
    models = SeatedModels(says("one ", gate, "two"), says("three"), says("four"), fitting=1)
    async with seated(tmp_path, models) as rig:
        chats = [await asked(rig, "first", gate)]
        for question in ("second", "third"):
            await rig.new()
            chats.append(await asked(rig, question))
        answers = [rig.answers._running[chat].turn for chat in chats]
        await until(lambda: [answer.is_waiting for answer in answers] == [False, True, True])
        await until(lambda: len(models.still) == 2)
        gate.open()
        await idle(rig)
        assert [kept(rig, chat)[1] for chat in chats] == ["one two", "three", "four"]


async def test_a_title_is_written_beside_an_answer_in_another_chat(tmp_path: Path) -> None:
    gate, naming = Gate(), Gate()
    models = SeatedModels(says("one ", gate, "two"), says("Light."), says("The blue ", naming, "sky"))
    async with seated(tmp_path, models, titles=True) as rig:
        await asked(rig, "first", gate)
        await rig.new()
        second = await asked(rig, "Why is the sky blue, and not green?", naming)
        assert len(models.at_work) == 2
        naming.open()
        await until(lambda: rig.store.chat(second).title == "The blue sky")
        assert list(rig.answers.being_answered()) != [second]
        gate.open()
        await idle(rig)


async def test_the_speed_of_an_answer_in_company_is_compared_with_nothing(tmp_path: Path) -> None:
    gate, words = Gate(), "and on " * 40
    models = SeatedModels(says("one ", gate, words), says(words), says(words))
    async with seated(tmp_path, models) as rig:
        first = await asked(rig, "first", gate)
        await rig.new()
        second = await asked(rig, "second")
        await rig.ended()
        assert record_in(rig, second).plain is None
        gate.open()
        await idle(rig)
        assert record_in(rig, first).plain is None
        await rig.new()
        await rig.asked("third")
        await idle(rig)
        assert record_in(rig, rig.session.chat.info.id).plain is not None


async def test_a_question_in_another_chat_stops_no_title(tmp_path: Path) -> None:
    naming = Gate()
    models = SeatedModels(says("Light."), says("The blue ", naming, "sky"), says("one"), says("two"))
    async with seated(tmp_path, models, titles=True) as rig:
        first = await asked(rig, "Why is the sky blue, and not green?", naming)
        await rig.new()
        second = await asked(rig, "second")
        await until(lambda: kept(rig, second) == ["second", "one"])
        naming.open()
        await idle(rig)
        assert rig.store.chat(first).title == "The blue sky"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "sd", "ssd"])
async def test_answers_on_a_real_pair_are_those_that_each_chat_gets_alone(
    tmp_path: Path, demo_target_f32: Path, demo_draft: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    options = in_f32(demo_target_f32, 2048)
    plan = OpenPlan(options, replace(options, path=demo_draft), seats=2)
    with Store(tmp_path / "chats.db") as store, Runtime.open(plan) as pair:
        rig = Rig(store, ModelLoader(lambda _on_progress: pair), greedy(mode))
        alone = await answered_alone(rig)
        both, real = threading.Barrier(2), pair.for_one_of_several

        def when_both_have_come() -> SeatedAnswer:
            both.wait(10)
            return real()

        monkeypatch.setattr(pair, "for_one_of_several", when_both_have_come)
        assert await answered_together(rig) == alone
