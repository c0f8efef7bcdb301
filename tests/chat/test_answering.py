from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest

from localspec.chat.answering import AnswerEvent, AnswerSaved, Started
from localspec.chat.figures import of_record
from localspec.chat.messages import State
from localspec.chat.open_chat import OpenChat
from localspec.chat.store import Store
from localspec.errors import Cancelled, ContextFullError, EngineDied, EngineError, UserError
from localspec.types.drafts import Provenance
from localspec.types.events import (
    Finished,
    FinishReason,
    GenerationEvent,
    ModeChanged,
    PromptProgress,
    RoundDone,
    TextDelta,
    ThinkingOpened,
)
from localspec.types.request import Message, Request
from tests.chat.talk import answer_again, kept, options, streamed, texts
from tests.scripted import MARKDOWN, ScriptedModels, Step, says, talks_on


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def chat(store: Store) -> OpenChat:
    chat = OpenChat(store, store.new_chat().id)
    chat.ask("one?")
    return chat


def test_an_answer_begins_with_its_place_and_ends_as_it_is_kept(chat: OpenChat, store: Store) -> None:
    events = list(chat.answer(ScriptedModels(says(MARKDOWN)), options()))
    started, saved = events[0], events[-1]
    assert isinstance(started, Started)
    assert (started.message.content, started.message.state) == ("", "writing")
    assert isinstance(saved, AnswerSaved)
    assert saved.message == chat.path[-1]
    assert streamed(events) == MARKDOWN
    assert kept(chat, store) == (MARKDOWN, "complete")


def test_the_record_reports_how_the_answer_came_about(chat: OpenChat, store: Store) -> None:
    models = ScriptedModels(says("a b c ", ModeChanged("sd", "ssd lost"), "d e f g"))
    *events, saved = chat.answer(models, replace(options("ssd"), reason="it pays", profile="coding"))
    assert isinstance(saved, AnswerSaved)
    record = OpenChat(store, chat.info.id).record(saved.message.id)
    assert record is not None
    assert saved.record is not None
    assert replace(record, rounds=saved.record.rounds) == saved.record
    assert (record.mode, record.reason, record.profile) == ("ssd", "it pays", "coding")
    assert (record.target, record.draft, record.seed) == ("large", "small", 7)
    assert record.changes == (ModeChanged("sd", "ssd lost"),)
    rounds = [RoundDone(event.stats, event.tokens) for event in events if isinstance(event, RoundDone)]
    assert list(saved.record.rounds) == rounds
    assert [mark.tokens for mark in record.rounds] == [mark.tokens for mark in rounds]
    assert record.summary == next(event.summary for event in events if isinstance(event, Finished))


OPENED = ThinkingOpened("<think>\n")


def test_the_first_token_counts_from_the_question(chat: OpenChat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.chat.answering.monotonic", lambda: 107.5)
    found = []
    for asked_s in (None, 100.0):
        *_, saved = chat.answer(ScriptedModels(says("a b")), options(), asked_s=asked_s)
        assert isinstance(saved, AnswerSaved)
        assert saved.record is not None
        found.append(saved.record.summary)
    assert found[1] == replace(found[0], first_token_s=found[0].first_token_s + 7.5)


@pytest.mark.parametrize(
    ("steps", "content"),
    [
        (("hm ", "</think> ", "Four."), "<think>\nhm </think> Four."),
        (("hm and",), "<think>\nhm and"),  # cut, it is still thinking
        ((PromptProgress(1, 1), "hm ", EngineDied("gone")), "<think>\nhm "),
    ],
)
def test_thinking_that_the_prompt_opened_is_kept_with_its_tag(
    chat: OpenChat, store: Store, steps: tuple[Step, ...], content: str
) -> None:
    events: list[AnswerEvent] = []
    with suppress(EngineDied):
        events.extend(chat.answer(ScriptedModels(says(OPENED, *steps)), options()))
    assert kept(chat, store)[0] == content
    record = chat.record(chat.path[-1].id)
    assert record is not None
    assert sum(span.length for span in record.spans) == len(content)
    assert record.spans[0].provenance is Provenance.TARGET
    if events:
        assert streamed(events) == content
        assert OPENED not in events
    assert not any("hm" in message.content for message in chat.prompt())


def test_a_tag_alone_is_not_an_answer(chat: OpenChat) -> None:
    events = list(chat.answer(ScriptedModels(says(OPENED, Cancelled())), options()))
    assert streamed(events) == ""
    assert texts(chat.path) == ["one?"]


def test_thinking_that_continues_keeps_its_one_tag(chat: OpenChat, store: Store) -> None:
    list(chat.answer(ScriptedModels(says(OPENED, "hm ", reason="length")), options()))
    models = ScriptedModels(says(OPENED, "so</think> ", "Four."))
    list(chat.answer(models, options(), continues=chat.path[-1].id))
    assert models.requests[0].prompt[-1] == Message("assistant", "<think>\nhm ")
    assert kept(chat, store)[0] == "<think>\nhm so</think> Four."
    assert chat.prompt()[-1] == Message("assistant", "Four.")


def test_an_answer_that_speaks_of_tags_keeps_its_beginning(chat: OpenChat) -> None:
    text = "It ends with\n`</think>`, or\n</think>\nThat is all."
    list(chat.answer(ScriptedModels(says(text)), options()))
    assert chat.prompt()[-1] == Message("assistant", text)


def test_the_spans_say_for_each_character_where_it_comes_from(chat: OpenChat) -> None:
    *events, saved = chat.answer(ScriptedModels(says(MARKDOWN)), options())
    assert isinstance(saved, AnswerSaved)
    assert saved.record is not None
    spans = saved.record.spans
    expected = [
        piece.provenance
        for event in events
        if isinstance(event, TextDelta)
        for piece in event.pieces
        for _ in piece.text
    ]
    assert [span.provenance for span in spans for _ in range(span.length)] == expected
    assert all(one.provenance is not other.provenance for one, other in pairwise(spans))
    assert set(expected) > {Provenance.PREPARED, Provenance.TARGET}


def test_the_models_get_what_was_asked_for(chat: OpenChat) -> None:
    models = ScriptedModels()
    usual = options("sd")
    asked = replace(usual, request=replace(usual.request, max_tokens=9, stop=("END",), steps_down=True))
    list(chat.answer(models, asked))
    (request,) = models.requests
    assert request.prompt == chat.prompt()[:-1]
    assert (request.settings.mode, request.max_tokens, request.stop) == ("sd", 9, ("END",))
    assert (request.steps_down, request.seed) == (True, 7)


def test_a_seed_that_no_one_gave_is_drawn_and_recorded(chat: OpenChat) -> None:
    models, seeds = ScriptedModels(), []
    for _ in range(3):
        *_, saved = chat.answer(models, options(seed=None))
        assert isinstance(saved, AnswerSaved)
        assert saved.record is not None
        seeds.append(saved.record.seed)
    assert seeds == [request.seed for request in models.requests]
    assert len(set(seeds)) > 1


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        ("stop", "complete"),
        ("length", "length"),
        ("context", "context"),
        ("circles", "circles"),
        ("cancelled", "stopped"),
    ],
)
def test_the_state_reports_how_an_answer_ended(
    chat: OpenChat, store: Store, reason: FinishReason, state: State
) -> None:
    list(chat.answer(ScriptedModels(says("text", reason=reason)), options()))
    assert kept(chat, store) == ("text", state)


@pytest.mark.parametrize(
    ("error", "state"),
    [(EngineDied("gone"), "failed"), (EngineError("broken"), "failed"), (KeyError("bug"), "failed")],
)
def test_an_error_comes_after_what_was_written_is_kept(
    chat: OpenChat, store: Store, error: Exception, state: State
) -> None:
    events: list[AnswerEvent] = []
    with pytest.raises(type(error)):
        events.extend(chat.answer(ScriptedModels(says("so far ", error)), options()))
    assert kept(chat, store) == ("so far ", state)
    saved = events[-1]
    assert isinstance(saved, AnswerSaved)
    assert saved.record is not None
    assert saved.record.summary.tokens == len(["so", " far", " "])
    assert of_record(saved.record).mode == "SSD"


def test_a_cancel_is_not_an_error(chat: OpenChat, store: Store) -> None:
    *_, saved = chat.answer(ScriptedModels(says("so far ", Cancelled())), options())
    assert isinstance(saved, AnswerSaved)
    assert kept(chat, store) == ("so far ", "stopped")


def test_closing_early_keeps_what_came_and_frees_the_models(chat: OpenChat, store: Store) -> None:
    models = ScriptedModels(talks_on("on "), says("again"))
    answer = chat.answer(models, options())
    seen = [next(answer) for _ in range(8)]
    answer.close()
    assert kept(chat, store) == (streamed(seen), "stopped")
    assert streamed(chat.answer(models, options())) == "again"


@pytest.mark.parametrize("error", [ContextFullError("full"), EngineDied("gone"), UserError("no")])
def test_an_answer_of_which_nothing_came_leaves_nothing(
    chat: OpenChat, store: Store, error: Exception
) -> None:
    with pytest.raises(type(error)):
        list(chat.answer(ScriptedModels(says(error)), options()))
    for seen in (chat, OpenChat(store, chat.info.id)):
        assert texts(seen.path) == ["one?"]
        assert seen.info.leaf == chat.path[-1].id
    answer_again(chat, "1")
    assert chat.shown()[-1].branches == 1


def test_a_stop_before_the_first_word_leaves_nothing(chat: OpenChat) -> None:
    events = list(chat.answer(ScriptedModels(says(Cancelled())), options()))
    assert [type(event) for event in events] == [Started]
    answer = chat.answer(ScriptedModels(), options())
    next(answer)
    answer.close()
    assert texts(chat.path) == ["one?"]


def test_an_answer_that_is_empty_on_purpose_stays(chat: OpenChat, store: Store) -> None:
    list(chat.answer(ScriptedModels(says()), options()))
    assert kept(chat, store) == ("", "complete")


def test_without_a_question_there_is_not_an_answer(store: Store) -> None:
    with pytest.raises(UserError, match="no question"):
        list(OpenChat(store, store.new_chat().id).answer(ScriptedModels(), options()))


def test_the_sums_of_an_answer_that_broke_off_are_those_of_its_rounds(chat: OpenChat) -> None:
    steps = ("a b c d e f g h ", ModeChanged("sd", "it loses"), "i j k l m n o p q r s t ")
    summaries = []
    for ending in ((), (EngineDied("gone"),)):
        with suppress(EngineDied):
            list(chat.answer(ScriptedModels(says(*steps, *ending)), options("ssd")))
        record = chat.record(chat.path[-1].id)
        assert record is not None
        s = record.summary
        summaries.append((s.tokens, s.rounds, s.drafted, s.accepted_at, s.hits, s.misses))
    assert summaries[0] == summaries[1]
    assert all(summaries[0])


class Reluctant(ScriptedModels):
    """Models that do not notice when no one reads their answer any more."""

    answers: ClassVar[list[Iterator[GenerationEvent]]] = []

    def generate(self, request: Request) -> Iterator[GenerationEvent]:
        self.answers.append(super().generate(request))
        return self.answers[-1]


def test_closing_early_stops_the_models_at_once(chat: OpenChat) -> None:
    models = Reluctant(talks_on("on "), says("again"))
    answer = chat.answer(models, options())
    while not isinstance(next(answer), TextDelta):
        pass
    answer.close()
    assert streamed(chat.answer(models, options())) == "again"
