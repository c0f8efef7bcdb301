from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from localspec.chat import answering
from localspec.chat.answering import AnswerSaved, Started
from localspec.chat.messages import AnswerRecord, State
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import StoreError, UserError
from localspec.types.events import TextDelta
from localspec.types.request import ToolCall
from tests.campaign.kills import LOST_S
from tests.chat.talk import answer_again, kept, options, streamed, texts
from tests.scripted import MARKDOWN, TIMEOUT_S, Gate, ScriptedModels, says
from tests.waiting import until


class FullDisk(Store):
    """A store that can be told to take no more text, and that can be waited for."""

    is_full = False
    writes = 0
    last = ""
    wrote = threading.Condition()

    def write(
        self,
        message_id: int,
        content: str,
        state: State,
        record: AnswerRecord | None = None,
        calls: Sequence[ToolCall] = (),
    ) -> None:
        try:
            if self.is_full:
                raise StoreError("no room left")
            super().write(message_id, content, state, record, calls)
        finally:
            with self.wrote:
                self.writes += 1
                self.last = content
                self.wrote.notify_all()

    def tried(self, text: str) -> bool:
        """Wait until someone has tried to write this."""
        with self.wrote:
            return self.wrote.wait_for(lambda: self.last == text, TIMEOUT_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FullDisk]:
    with FullDisk(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def chat(store: FullDisk) -> OpenChat:
    chat = OpenChat(store, store.new_chat().id)
    chat.ask("one?")
    return chat


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "SAVE_EVERY_S", 0.005)


@pytest.mark.usefixtures("hasty")
def test_the_text_is_saved_while_it_comes_and_while_the_models_pause(chat: OpenChat, store: FullDisk) -> None:
    first, second = Gate(), Gate()
    answer = chat.answer(ScriptedModels(says("a b c d ", first, "e f ", second, "g")), options())
    reader = threading.Thread(target=lambda: list(answer), daemon=True)
    reader.start()
    for gate, came in ((first, "a b c d "), (second, "a b c d e f ")):
        assert store.tried(came)
        assert gate.reached.wait(TIMEOUT_S)
        assert kept(chat, store) == (came, "writing")
        gate.open()
    reader.join(TIMEOUT_S)
    assert kept(chat, store) == ("a b c d e f g", "complete")


@pytest.mark.slow
def test_the_text_is_safe_half_a_second_after_it_came(chat: OpenChat, store: FullDisk) -> None:
    answer = chat.answer(ScriptedModels(says("a b c", Gate())), options())
    came = next(event.text for event in answer if isinstance(event, TextDelta))
    assert store.tried(came)  # though nothing else comes
    assert answering.SAVE_EVERY_S < LOST_S
    answer.close()


def test_saving_does_not_happen_with_every_token(chat: OpenChat, store: FullDisk) -> None:
    answer = chat.answer(ScriptedModels(says(MARKDOWN * 9)), options())
    came = sum(isinstance(event, TextDelta) for event in answer)
    assert 0 < store.writes < came / 3


@pytest.mark.usefixtures("hasty")
def test_a_full_disk_takes_nothing_from_the_screen(chat: OpenChat, store: FullDisk) -> None:
    answer = chat.answer(ScriptedModels(says("a b c d e f")), options())
    events = [next(answer)]
    store.is_full = True
    with pytest.raises(StoreError):
        events.extend(answer)
    assert streamed(events) == "a b c d e f"
    assert isinstance(events[-1], AnswerSaved)
    assert texts(chat.path) == ["one?", "a b c d e f"]
    assert chat.shown()[-1].label


@pytest.mark.usefixtures("hasty")
def test_an_answer_that_waits_for_long_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "ALIVE_S", 0.0)
    gate, clock = Gate(), [1e9]
    file = tmp_path / "shared.db"
    with Store(file, now=lambda: clock[0]) as ours, Store(file, now=lambda: clock[0]) as theirs:
        chat = OpenChat(ours, ours.new_chat().id)
        chat.ask("one?")
        answer = chat.answer(ScriptedModels(says("a ", gate, "b")), options())
        reader = threading.Thread(target=lambda: list(answer), daemon=True)
        reader.start()
        assert gate.reached.wait(TIMEOUT_S)
        clock[0] += 60.0  # for which nothing came
        until(lambda: kept(chat, theirs) == ("a ", "writing"))
        gate.open()
        reader.join(TIMEOUT_S)
        assert kept(chat, theirs) == ("a b", "complete")


@pytest.mark.usefixtures("hasty")
def test_trouble_with_the_disk_that_passed_is_not_an_error(chat: OpenChat, store: FullDisk) -> None:
    gate = Gate()
    for event in chat.answer(ScriptedModels(says("a b ", gate, "c")), options()):
        if isinstance(event, Started):
            store.is_full = True
        elif isinstance(event, TextDelta) and store.is_full:
            assert store.tried(event.text)
            store.is_full = False
            gate.open()
    assert kept(chat, store) == ("a b c", "complete")


@pytest.mark.usefixtures("hasty")
def test_an_answer_that_someone_took_out_of_the_chat_is_reported(chat: OpenChat, store: FullDisk) -> None:
    answer = chat.answer(ScriptedModels(says("a b c")), options())
    assert store.tried(next(event.text for event in answer if isinstance(event, TextDelta)))
    chat.give_up(chat.path[-1].id)
    with pytest.raises(UserError, match="has no message"):
        list(answer)


def test_an_answer_of_which_nothing_comes_gives_way_to_what_was_shown(
    chat: OpenChat, store: FullDisk
) -> None:
    question = chat.path[-1]
    answer_again(chat, "first")
    chat.ask("two?")
    answer_again(chat, "follows")
    chat.back_to(question.id)
    answer_again(chat, "second")
    chat.switch(chat.path[-1].id, -1)
    shown = ["one?", "first", "two?", "follows"]
    assert texts(chat.path) == shown
    chat.back_to(question.id)
    answer = chat.answer(ScriptedModels(says("never")), options())
    assert isinstance(next(answer), Started)
    answer.close()
    assert texts(chat.path) == shown
    assert texts(OpenChat(store, chat.info.id).path) == shown


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
