"""Answers that take turns at real models write what they write alone, and end one by one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answer_turns import AnswerTurn, AnswerTurns
from localspec.chat.loading import ModelLoader
from localspec.chat.store import Store
from localspec.inference import turns
from localspec.inference.attached import AttachedModels, Server
from localspec.inference.runtime import Runtime
from localspec.types.events import Finished, GenerationEvent
from localspec.types.request import EngineSettings, Mode, Request
from tests.chat.rig import QUESTIONS, Rig, answered_alone, answered_together, greedy
from tests.inference.runtimes import open_pair, text_of
from tests.server.running import serving
from tests.server.turning_models import TurningModels
from tests.waiting import until


@pytest.fixture(scope="module")
def pair(demo_target_q8: Path, demo_draft: Path) -> Iterator[Runtime]:
    with open_pair(demo_target_q8, demo_draft) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "sd", "ssd"])
@pytest.mark.parametrize("room", [0, 2**30], ids=["read again", "restored"])
def test_answers_in_two_chats_are_those_that_each_gets_alone(
    tmp_path: Path, pair: Runtime, monkeypatch: pytest.MonkeyPatch, mode: Mode, room: int
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)  # a turn is a round
    pair.keep_conversations(room)
    resumed: list[int] = []
    resume = pair.resume

    def counted(number: int) -> Iterator[GenerationEvent]:
        resumed.append(number)
        return resume(number)

    monkeypatch.setattr(pair, "resume", counted)

    async def course() -> None:
        with Store(tmp_path / "chats.db") as store:
            rig = Rig(store, ModelLoader(lambda _on_progress: pair), greedy(mode))
            alone = await answered_alone(rig)
            assert not resumed
            assert await answered_together(rig) == alone
            last = [store.messages(chat.id)[-1] for chat in store.chats()[: len(QUESTIONS)]]
            records = [store.record(message.id) for message in last]
            drafted = [record is not None and record.summary.drafted > 0 for record in records]
            if mode != "ssd":  # whose turns of one round may end before a draft is ready
                assert drafted == [mode == "sd"] * len(QUESTIONS)

    try:
        asyncio.run(course())
    finally:
        pair.keep_conversations(0)
    assert len(resumed) >= len(QUESTIONS)  # how often else depends on the drafts that were ready


class Writer:
    """An answer in a thread of its own."""

    def __init__(self, turn: AnswerTurn, models: AttachedModels, request: Request) -> None:
        self.turn, self.events = turn, list[GenerationEvent]()
        self.thread = threading.Thread(target=self._write, args=(models, request), daemon=True)
        self.thread.start()

    def _write(self, models: AttachedModels, request: Request) -> None:
        with self.turn.taken(models):
            for event in self.turn.generate(request):
                self.events.append(event)

    @property
    def reason(self) -> str:
        self.thread.join(20)
        last = self.events[-1]
        assert isinstance(last, Finished)
        return last.reason


def test_of_two_answers_of_a_server_one_can_be_cancelled_alone() -> None:
    steps = threading.Semaphore(0)
    with serving(lambda: TurningModels(steps=steps)) as served:
        models, shared = AttachedModels(Server(served.url)), AnswerTurns()
        one, other = (
            Writer(AnswerTurn(shared), models, Request(letter, settings=EngineSettings(), max_tokens=40))
            for letter in "ab"
        )
        until(lambda: bool(served.service.queue.jobs()[0]) and len(served.service.queue.jobs()[1]) == 1)
        one.turn.cancel()
        steps.release(200)
        assert (one.reason, other.reason) == ("cancelled", "length")
        assert text_of(other.events) == "b" * 40
