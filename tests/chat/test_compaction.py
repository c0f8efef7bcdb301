"""Long conversations: what a summary replaces, which summaries are refused, and who reads what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.chat.answer_settings import SessionRequest
from localspec.chat.answering import AnswerSaved, Summarised, Summarising
from localspec.chat.compaction import INSTRUCTION, compaction
from localspec.chat.export import chat_text, parse_all
from localspec.chat.messages import StoredMessage
from localspec.chat.prompting import SUMMARY_ASKED
from localspec.chat.session import ChatSession
from localspec.chat.store import Store
from localspec.errors import Cancelled, EngineDied, StoreError, UserError
from localspec.storage.profiles import profiles
from localspec.types.request import Request
from tests.scripted import Script, ScriptedModels, says, talks_on

QUESTIONS = 6
SUMMARY = "Boats, and their colours."


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "chats.db") as store:
        yield store


@pytest.fixture
def session(store: Store) -> ChatSession:
    """A chat of a few exchanges, whose words are as easy to count as tokens."""
    known = [replace(each, system_prompt="Be kind.") for each in profiles(Path("nowhere")).good]
    at = ChatSession(store, known, SessionRequest())
    for number in range(QUESTIONS):
        ask(at, f"question {number} " + "word " * 20, f"answer {number} " + "word " * 30)
    return at


def ask(session: ChatSession, question: str, answer: str = "fine") -> Request:
    models = ScriptedModels(says(answer))
    session.chat.ask(question)
    assert any(isinstance(event, AnswerSaved) for event in session.answer(models))
    return models.requests[0]


def compact(session: ChatSession, script: Script, context: int = 4096) -> ScriptedModels:
    models = ScriptedModels(script, context=context)
    list(session.compact(models))
    return models


def read(session: ChatSession) -> list[str]:
    return [message.content for message in session.chat.prompt()]


def contents(request: Request) -> list[str]:
    assert not isinstance(request.prompt, str)
    return [message.content for message in request.prompt]


def summaries(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.summary for message in messages if message.summary]


def test_the_older_half_is_summarised_and_the_newest_exchanges_stay(session: ChatSession) -> None:
    before = read(session)
    models = compact(session, says(SUMMARY))
    (asked,) = models.requests
    assert contents(asked) == [*before[:7], INSTRUCTION]
    assert (asked.max_tokens, asked.thinking_budget, asked.stop) == (None, 0, ())
    assert read(session) == ["Be kind.", SUMMARY_ASKED, SUMMARY, *before[7:]]
    roles = [message.role for message in session.chat.prompt()]
    assert roles == ["system", *["user", "assistant"] * 4]
    assert [message.content for message in session.chat.path] == before[1:]  # nothing is deleted


def test_a_summary_is_told_with_what_it_frees(session: ChatSession) -> None:
    models = ScriptedModels(says(SUMMARY))
    events = list(session.compact(models))
    told = [event for event in events if isinstance(event, Summarising)]
    assert [told[0].tokens, told[-1].tokens] == [0, 4]
    assert told[0].what.startswith("6 messages, about ")
    (end,) = [event for event in events if isinstance(event, Summarised)]
    stays = models.count_tokens(session.chat.prompt())
    assert (
        end.words
        == f"6 messages summarised: 174 tokens became 11; the next answer reads {stays} tokens again"
    )


def test_a_second_summary_takes_the_first_one_in(session: ChatSession) -> None:
    compact(session, says(SUMMARY))
    models = compact(session, says("Boats again."))
    (asked,) = models.requests
    assert contents(asked)[1:3] == [SUMMARY_ASKED, SUMMARY]
    assert read(session)[:3] == ["Be kind.", SUMMARY_ASKED, "Boats again."]
    assert len(summaries(session.chat.path)) == 2
    last = next(message for message in reversed(session.chat.path) if message.summary)
    session.chat.set_summary(last.id, "")
    assert read(session)[:3] == ["Be kind.", SUMMARY_ASKED, SUMMARY]


def test_a_summary_can_be_edited_and_taken_back(session: ChatSession, store: Store) -> None:
    before = read(session)
    compact(session, says(SUMMARY))
    place = next(message for message in session.chat.path if message.summary)
    session.chat.set_summary(place.id, "In other words.")
    session.open(session.chat.info.id)
    assert read(session)[2] == "In other words."
    assert [hit.message for hit in store.search("other words")] == [place.id]
    assert not store.search("colours")
    session.chat.set_summary(place.id, "")
    session.open(session.chat.info.id)
    assert read(session) == before
    assert not store.search("other words")


def test_a_branch_from_before_is_untouched(session: ChatSession) -> None:
    path = session.chat.path
    compact(session, says(SUMMARY))
    session.chat.edit(path[2].id, "another question")
    assert read(session) == ["Be kind.", *(message.content for message in path[:2]), "another question"]
    session.chat.edit(path[8].id, "a later one")
    assert read(session)[1:3] == [SUMMARY_ASKED, SUMMARY]
    assert read(session)[-1] == "a later one"


def test_the_last_message_that_was_summarised_can_be_continued(session: ChatSession) -> None:
    before = read(session)
    compact(session, says(SUMMARY))
    place = next(message for message in session.chat.path if message.summary)
    session.chat.back_to(place.id)
    assert read(session) == before[:7]
    models = ScriptedModels(says(" and more"))
    list(session.answer(models, continues=place.id))
    assert contents(models.requests[0]) == before[:7]
    session.chat.ask("next")
    assert read(session) == ["Be kind.", SUMMARY_ASKED, SUMMARY, "next"]


def test_exchanges_that_are_left_out_are_in_no_summary(session: ChatSession) -> None:
    path = session.chat.path
    session.chat.leave_out([path[0].id])
    models = compact(session, says(SUMMARY))
    assert path[0].content not in contents(models.requests[0])
    covered = session.chat.message(path[0].id)
    session.chat.leave_out([path[-1].id])
    assert session.chat.message(covered.id).dropped  # what the summary stands for stays as it was
    assert path[-1].content not in read(session)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (says(""), "it is empty"),
        (says("  \n"), "it is empty"),
        (says("<think>hm</think>"), "it is empty"),
        (says("<think>hm"), "it is empty"),
        (says("a b", reason="circles"), "it repeats itself"),
        (says("a b", reason="context"), "it was cut because the context is full"),
        (talks_on(), "it is longer than 174 tokens"),
        (says("word " * 168), "it takes 175 tokens, and what it would replace 174"),
    ],
)
def test_a_summary_of_no_use_changes_nothing(session: ChatSession, script: Script, why: str) -> None:
    before = session.chat.path
    with pytest.raises(UserError, match="the summary is not used: ") as refused:
        compact(session, script)
    assert refused.value.message.endswith(why)
    assert session.chat.path == before
    session.chat.reload()
    assert session.chat.path == before


def cancel_later(session: ChatSession, models: ScriptedModels) -> None:
    """Cancel a summary as soon as some of it has come."""
    for event in session.compact(models):
        if isinstance(event, Summarising) and event.tokens:
            models.cancel()


def test_one_that_is_stopped_or_fails_changes_nothing(session: ChatSession, store: Store) -> None:
    before = session.chat.path
    models = ScriptedModels(talks_on())
    with pytest.raises(Cancelled):
        cancel_later(session, models)
    with closing(session.compact(ScriptedModels(talks_on()))) as events:  # type: ignore[type-var]
        next(events)
        next(events)
    with pytest.raises(EngineDied):
        compact(session, says("Boats", EngineDied("gone")))
    assert session.chat.path == before
    store.close()
    with pytest.raises(StoreError):
        compact(session, says(SUMMARY))
    assert session.chat.path == before


def test_thinking_is_no_part_of_a_summary(session: ChatSession) -> None:
    compact(session, says(f"<think>hm</think>\n\n{SUMMARY}\n"))
    assert read(session)[2] == SUMMARY


def test_a_profile_may_ask_in_its_own_words(session: ChatSession) -> None:
    session.shared.take_profiles(replace(each, summary_prompt="Short, please.") for each in session.profiles)
    models = compact(session, says(SUMMARY))
    assert contents(models.requests[0])[-1] == "Short, please."


def test_a_chat_with_one_exchange_has_nothing_to_summarise(store: Store) -> None:
    at = ChatSession(store, profiles(Path("nowhere")).good, SessionRequest())
    with pytest.raises(UserError, match="nothing to summarise"):
        compact(at, says(SUMMARY))
    ask(at, "one")
    with pytest.raises(UserError, match="nothing to summarise"):
        compact(at, says(SUMMARY))
    at.chat.ask("a waiting question")
    with pytest.raises(UserError, match="nothing to summarise"):
        compact(at, says(SUMMARY))


def test_what_is_too_long_to_be_read_at_once_is_summarised_in_parts(session: ChatSession) -> None:
    """The oldest part that fits is first; compacting again goes on from its summary."""
    size = 260
    chat, count = session.chat, ScriptedModels().count_tokens
    assert count(chat.prompt()) > size
    wanted = compaction(chat.system, chat.path, size, count)
    assert 0 < wanted.messages < 8
    assert count(wanted.prompt) + wanted.longest < size
    compact(session, says(SUMMARY), size)
    again = compaction(chat.system, chat.path, size, count)
    assert again.messages > wanted.messages
    assert count(again.prompt) + again.longest < size


def test_the_newest_exchanges_stay_up_to_a_share_of_the_context(session: ChatSession) -> None:
    chat, count = session.chat, ScriptedModels().count_tokens
    for size in (600, 800, 4096):
        wanted = compaction(chat.system, chat.path, size, count)
        newest = 12 - wanted.messages
        assert newest * 28 <= max(0.25 * size, 56)
    assert compaction(chat.system, chat.path, 4096, count).messages == 6


def test_a_summary_goes_with_exports_and_imports(session: ChatSession, store: Store) -> None:
    compact(session, says(SUMMARY))
    chat = store.chat(session.chat.info.id)
    text = chat_text(store, chat, "md")
    assert text.index(SUMMARY) > text.index("answer 2")
    assert text.index(SUMMARY) < text.index("question 3")
    ((info, messages, records),) = parse_all(chat_text(store, chat, "json"))
    assert summaries(messages) == [SUMMARY]
    store.delete(chat.id)
    again = store.add_chat(info, messages, records)
    session.open(again.id)
    assert read(session)[2] == SUMMARY
    assert [hit.chat.id for hit in store.search("colours")] == [again.id]


def test_the_screen_gets_the_summary_behind_what_it_stands_for(session: ChatSession) -> None:
    compact(session, says(SUMMARY))
    shown = session.chat.shown()
    assert [item.covered for item in shown] == [True] * 6 + [False] * 7
    summary = shown[6]
    assert (summary.summarises, summary.message.content) == (6, SUMMARY)
    assert summary.message.id == -shown[5].message.id


def test_a_chat_is_nearly_full_by_what_it_takes_now(session: ChatSession) -> None:
    assert not session.is_nearly_full(ScriptedModels())
    small = ScriptedModels(context=400)
    assert session.is_nearly_full(small)
    compact(session, says(SUMMARY), 400)
    assert not session.is_nearly_full(small)


def test_a_question_that_does_not_fit_is_answered_after_a_summary(session: ChatSession) -> None:
    chat = session.chat
    chat.ask("one more " + "word " * 20)
    models = ScriptedModels(says(SUMMARY), says("Yes."), context=370)
    assert models.count_tokens(chat.prompt()) > 370

    def job(models: object, _turn: object) -> Iterator[object]:
        yield from session.answer(models, chat=chat)  # type: ignore[arg-type]

    events = list(session.answer_in_less(job, chat)(models, Turnless(models)))  # type: ignore[arg-type]
    assert any(isinstance(event, Summarised) for event in events)
    assert chat.path[-1].content == "Yes."
    assert contents(models.requests[1])[2] == SUMMARY


class Turnless:
    """The turns of an answer that shares its models with no other."""

    def __init__(self, models: ScriptedModels) -> None:
        self.generate = models.generate
