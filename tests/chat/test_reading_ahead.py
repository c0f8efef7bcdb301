"""What idle models are told to read, and that nothing older than an answer is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.loading import ModelLoader
from localspec.chat.messages import Attachment
from localspec.chat.prompting import question_of
from localspec.chat.reading_ahead import MIN_TYPED, ReadingAhead, whole_words
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.inference.interface import OpenModels
from localspec.storage.profiles import profiles
from localspec.types.events import ReadAhead
from localspec.types.request import Message, Request
from tests.reading_models import ReadingModels
from tests.scripted import ScriptedModels, says

TYPED = "What does this function do when the list is empty or has only one ele"
NOTES, TODO = Attachment("notes.txt", "first"), Attachment("todo.txt", "second")


class Rig:
    """What reads ahead for a chat of its own."""

    def __init__(self, folder: Path, models: OpenModels) -> None:
        self.store = Store(folder / "chats.db")
        self.session = ChatSession(self.store, profiles(folder).good, SessionRequest(), "coding")
        self.loader = ModelLoader(lambda _on_progress: models)
        self.loader.start()
        self.loader.models()
        self.is_working = False
        self.reading = ReadingAhead(self.session, self.loader, lambda: self.is_working)


@pytest.fixture
def models() -> ReadingModels:
    return ReadingModels(says("An answer."))


@pytest.fixture
def rig(tmp_path: Path, models: ReadingModels) -> Iterator[Rig]:
    found = Rig(tmp_path, models)
    yield found
    found.loader.close()
    found.store.close()


def prompt(request: Request | None) -> tuple[Message, ...]:
    assert request is not None
    assert not isinstance(request.prompt, str)
    return request.prompt


def test_a_new_chat_is_read_with_the_prompt_of_its_profile(rig: Rig, models: ReadingModels) -> None:
    rig.reading.ask()
    system, question = prompt(models.wishes[-1])
    assert (system.role, system.content) == ("system", rig.session.profile.system_prompt)
    assert question == Message("user", "")


def test_what_is_read_begins_what_is_asked(rig: Rig, models: ReadingModels) -> None:
    for asked in ("Why?", "And then?"):
        rig.reading.ask(TYPED, [NOTES], MIN_TYPED)
        *earlier, begun = prompt(models.wishes[-1])
        rig.reading.stop()
        rig.session.chat.ask(f"{TYPED}ment? {asked}", [NOTES])
        list(rig.session.answer(models))
        *before, question = prompt(models.requests[-1])
        assert before == earlier
        assert question.content.startswith(begun.content)
        assert models.wishes[-2].template_variables == models.requests[-1].template_variables  # type: ignore[union-attr]
    assert len(earlier) == 3  # the system prompt and a turn


def test_the_draft_model_reads_where_the_next_answer_drafts(rig: Rig, models: ReadingModels) -> None:
    for mode in ("off", "sd"):
        rig.session.update_settings(mode=mode)
        rig.reading.ask()
        assert models.wishes[-1].settings.mode == mode  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "begun"),
    [
        ("", ""),
        ("one", ""),
        ("one two", "one"),
        ("one two ", "one two"),
        ("one\n\n  two\n", "one\n\n  two"),
        ("x" * 39, ""),
        ("猫は寝ている。" * 20, ("猫は寝ている。" * 20)[:-40]),
        (f"see {'x' * 100}", f"see {'x' * 60}"),
    ],
)
def test_a_word_that_may_grow_is_left_out(text: str, begun: str) -> None:
    assert whole_words(text) == begun
    assert text.startswith(begun)


def test_a_long_text_without_blanks_takes_no_time() -> None:
    assert whole_words("x" * 2_000_000 + " and so on") == "x" * 2_000_000 + " and so"


@pytest.mark.parametrize(("tokens", "is_read"), [(MIN_TYPED - 1, False), (MIN_TYPED, True)])
def test_a_short_question_is_not_read(rig: Rig, models: ReadingModels, tokens: int, *, is_read: bool) -> None:
    rig.reading.ask(TYPED, (), tokens)
    assert models.wish == (whole_words(TYPED) if is_read else "")


def test_a_command_is_not_read_but_files_are_at_once(rig: Rig, models: ReadingModels) -> None:
    rig.reading.ask(f"/regen {TYPED}", (), 99)
    assert models.wish == ""
    rig.reading.ask("Why", [NOTES], 3)
    assert models.wish == question_of("", [NOTES])


def test_nothing_is_told_while_an_answer_is_written(rig: Rig, models: ReadingModels) -> None:
    rig.is_working = True
    rig.reading.ask(TYPED, [NOTES], 99)
    assert models.wishes == []
    assert rig.reading.so_far() is None


def test_a_wish_that_an_answer_overtakes_is_ended_before_it(
    rig: Rig, models: ReadingModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = rig.session.next_request

    def slow(models: OpenModels, question: str) -> Request:
        found = request(models, question)
        rig.is_working = True  # Enter, in the middle of it
        rig.reading.stop()
        return found

    monkeypatch.setattr(rig.session, "next_request", slow)
    rig.reading.ask(TYPED, (), 99)
    assert models.wish is None


def test_the_last_progress_stays_until_there_is_news(rig: Rig, models: ReadingModels) -> None:
    rig.reading.ask("", [NOTES], 9)
    assert rig.reading.so_far() is None
    models.so_far = ReadAhead(64, 200)
    assert rig.reading.so_far() == ReadAhead(64, 200)
    rig.reading.ask("Why is", [NOTES], 12)
    assert rig.reading.so_far() == ReadAhead(64, 200)
    models.so_far = ReadAhead(128, 200)
    assert rig.reading.so_far() == ReadAhead(128, 200)
    rig.reading.stop()
    assert rig.reading.so_far() is None


def test_files_are_read_in_their_order_until_another_is_in_their_place(
    rig: Rig, models: ReadingModels
) -> None:
    def read(*files: Attachment) -> int:
        rig.reading.so_far()
        return rig.reading.files_read(files)

    rig.reading.ask("", [NOTES], 9)
    assert read(NOTES) == 0
    models.so_far = ReadAhead(64, 200)
    assert read(NOTES) == 0
    models.read_all()
    assert read(NOTES) == 1
    rig.reading.ask("", [NOTES, TODO], 18)
    assert read(NOTES, TODO) == 1
    models.read_all()
    assert read(NOTES, TODO) == 2
    assert read(TODO) == 0
    assert read() == 0
    rig.reading.stop()
    assert read(NOTES, TODO) == 0


def test_it_can_be_switched_off_and_on(rig: Rig, models: ReadingModels) -> None:
    rig.reading.ask()
    rig.session.shared.reads_ahead = False
    rig.reading.ask(TYPED, (), 99)
    assert models.wish is None
    assert rig.reading.so_far() is None
    rig.session.shared.reads_ahead = True
    rig.reading.ask(TYPED, (), 99)
    assert models.wish == whole_words(TYPED)


def test_models_that_cannot_read_ahead_are_left_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ScriptedModels())
    rig.reading.ask(TYPED, [NOTES], 99)
    rig.reading.stop()
    assert rig.reading.so_far() is None
    rig.loader.release()
    rig.reading.ask(TYPED, [NOTES], 99)
    rig.loader.close()
    rig.store.close()
