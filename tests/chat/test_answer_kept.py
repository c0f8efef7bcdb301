from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answering import Saved, Started
from localspec.chat.messages import AnswerRecord, State
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import StoreError
from localspec.types import TextDelta
from tests.chat.talk import answer_again, kept, options, streamed, texts
from tests.scripted import MARKDOWN, Gate, ScriptedModels, says


class FullDisk(Store):
    """A store that can be told to take no more text."""

    is_full = False
    writes = 0

    def write(self, message_id: int, content: str, state: State, record: AnswerRecord | None = None) -> None:
        self.writes += 1
        if self.is_full:
            raise StoreError("no room left")
        super().write(message_id, content, state, record)


class Clock:
    """A clock that moves by a step with every look."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.step_s = step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FullDisk]:
    with FullDisk(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def chat(store: FullDisk) -> OpenChat:
    chat = OpenChat(store, store.new_chat().id)
    chat.ask("one?")
    return chat


def test_the_text_is_saved_while_it_comes(store: FullDisk) -> None:
    chat = OpenChat(store, store.new_chat().id, clock=Clock(step_s=1.0))
    chat.ask("one?")
    gate = Gate()
    answer = chat.answer(ScriptedModels(says("a b c d ", gate, "e")), options())
    came = ""
    for event in answer:
        came += event.text if isinstance(event, TextDelta) else ""
        if isinstance(event, TextDelta):
            assert kept(chat, store) == (came, "writing")
        if came == "a b c d ":
            gate.open()


def test_saving_does_not_happen_with_every_token(chat: OpenChat, store: FullDisk) -> None:
    models = ScriptedModels(says(MARKDOWN * 3))
    hasty = OpenChat(store, chat.info.id, clock=Clock(step_s=0.1))
    came = sum(isinstance(event, TextDelta) for event in hasty.answer(models, options()))
    assert came / 6 < store.writes < came / 3


def test_a_full_disk_takes_nothing_from_the_screen(store: FullDisk) -> None:
    chat = OpenChat(store, store.new_chat().id, clock=Clock(step_s=1.0))
    chat.ask("one?")
    answer = chat.answer(ScriptedModels(says("a b c d e f")), options())
    events = [next(answer)]
    store.is_full = True
    with pytest.raises(StoreError):
        events.extend(answer)
    assert streamed(events) == "a b c d e f"
    assert isinstance(events[-1], Saved)
    assert texts(chat.path) == ["one?", "a b c d e f"]
    assert chat.shown()[-1].label


def test_trouble_with_the_disk_that_passed_is_no_error(store: FullDisk) -> None:
    chat = OpenChat(store, store.new_chat().id, clock=Clock(step_s=1.0))
    chat.ask("one?")
    for event in chat.answer(ScriptedModels(says("a b c d e f")), options()):
        store.is_full = isinstance(event, Started)
    assert kept(chat, store) == ("a b c d e f", "complete")


def test_others_read_and_walk_while_an_answer_is_written(chat: OpenChat) -> None:
    question = chat.path[-1]
    answer_again(chat, "first")
    gate = Gate()
    models = ScriptedModels(says("sec", gate, "ond"))
    writer = threading.Thread(target=lambda: list(chat.answer(models, options())), daemon=True)
    writer.start()
    assert gate.reached.wait(10)
    assert chat.path[-1].state == "writing"
    chat.switch(chat.path[-1].id, -1)
    assert texts(chat.path) == ["one?", "first"]
    chat.edit(question.id, "uno?")
    gate.open()
    writer.join(10)
    assert texts(chat.path) == ["uno?"]
    chat.switch(chat.path[-1].id, -1)
    chat.switch(chat.path[-1].id, 1)
    assert texts(chat.path) == ["one?", "second"]


def test_giving_up_does_not_pull_a_reader_back_who_has_walked_on(chat: OpenChat) -> None:
    answer_again(chat, "first")
    gate = Gate()
    models = ScriptedModels(says(gate, "second"))
    writer = threading.Thread(target=lambda: list(chat.answer(models, options())), daemon=True)
    writer.start()
    assert gate.reached.wait(10)
    chat.switch(chat.path[-1].id, -1)
    models.cancel()
    writer.join(10)
    assert texts(chat.path) == ["one?", "first"]
    assert chat.shown()[-1].branches == 1
