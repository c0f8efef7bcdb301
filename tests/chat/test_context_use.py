from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from localspec.chat.messages import Role, StoredMessage
from localspec.chat.prompting import (
    ContextBudget,
    Exchange,
    after_answer,
    check_alone,
    context_budget,
    estimate,
    exchanges,
    warning,
)
from localspec.errors import ContextFullError
from localspec.types.events import Summary
from localspec.types.request import Message
from tests.chat.talk import record
from tests.scripted import model_info


def message(number: int, role: Role, content: str, *, dropped: bool = False) -> StoredMessage:
    return StoredMessage(number, 1, number - 1 or None, role, content, 0.0, dropped=dropped)


def count(messages: Sequence[Message]) -> int:
    """Count words, a mark before each turn, and ten words that the template adds once."""
    return 10 + sum(1 + len(turn.content.split()) for turn in messages)


def test_an_answer_reports_what_the_context_holds_after_it() -> None:
    assert after_answer(record("sd", Summary(prompt_tokens=300, tokens=50))) == 350
    assert after_answer(record("sd", Summary(tokens=50))) is None


def test_an_estimate_is_about_right() -> None:
    assert 80 <= estimate([Message("user", "x" * 400)]) <= 130


@pytest.mark.parametrize(
    ("used", "estimated", "line"),
    [
        (0, False, None),
        (800, False, None),
        (835, False, "the context is 83% full; use /room to leave out earlier exchanges"),
        (835, True, "the context is about 83% full; use /room to leave out earlier exchanges"),
        (999, False, "the context is 99% full; use /room to leave out earlier exchanges"),
        (1000, False, "too long by 1 tokens; use /room to leave out earlier exchanges"),
        (1200, True, "too long by about 201 tokens; use /room to leave out earlier exchanges"),
    ],
)
def test_it_is_reported_before_it_hurts(used: int, estimated: bool, line: str | None) -> None:
    assert warning(used, 1000, estimated=estimated) == line


def test_what_could_be_left_out_is_counted_without_the_template_s_frame() -> None:
    path = [
        message(1, "user", "one two"),
        message(2, "assistant", "three four five"),
        message(3, "user", "six", dropped=True),
        message(4, "assistant", "seven", dropped=True),
        message(5, "user", "eight"),
    ]
    assert exchanges(path, count) == (
        Exchange((1, 2), "one two", 2 + 5, False),
        Exchange((3, 4), "six", 2 + 2, True),
    )


def test_questions_that_belong_together_are_left_out_together() -> None:
    path = [message(1, "user", "one"), message(2, "user", "two"), message(3, "assistant", "three")]
    assert exchanges(path, count) == (Exchange((1, 2, 3), "one\n\ntwo", 3 + 3, False),)


def test_a_question_with_an_empty_answer_still_waits() -> None:
    assert exchanges([message(1, "user", "one"), message(2, "assistant", "")], count) == ()


LONG_CHAT = (
    message(1, "user", "one two"),
    message(2, "assistant", "three four five"),
    message(3, "user", "six", dropped=True),
    message(4, "assistant", "seven", dropped=True),
    message(5, "user", "eight"),
    message(6, "assistant", "nine"),
)


def test_room_counts_what_is_sent_and_what_that_is_without_each_exchange() -> None:
    waiting = (*LONG_CHAT, message(7, "user", "ten eleven"))
    room = context_budget("be brief", waiting, 30, count)
    sent = [message for message in waiting if not message.dropped]
    words = [Message("system", "be brief"), *(Message(each.role, each.content) for each in sent)]
    assert (room.waits, room.taken(room.dropped)) == (True, count(words))
    assert room.fixed == 10 + 3 + 3
    assert [one.ids for one in room.exchanges] == [(1, 2), (3, 4), (5, 6)]


def test_an_answer_that_continues_stays_and_is_not_offered() -> None:
    room = context_budget("", LONG_CHAT, 30, count, continues=True)
    assert [one.ids for one in room.exchanges] == [(1, 2), (3, 4)]
    assert room.fixed == 10 + 2 + 2
    assert room.waits


ROOM = ContextBudget(
    tuple(Exchange((number,), "", 1000 * number, number == 1) for number in (1, 3, 2)), 8000, fixed=2500
)


@pytest.mark.parametrize(
    ("size", "waits", "out"),
    [
        (20_000, False, {0}),
        (8000, False, {0, 1}),
        (100, False, {0, 1}),
        (4500, True, {0, 1, 2}),
        (4501, True, {0, 1}),
    ],
)
def test_the_oldest_are_proposed_until_the_rest_fits(size: int, waits: bool, out: set[int]) -> None:
    room = replace(ROOM, size=size, waits=waits)
    assert room.proposed() == out
    assert room.excess(out) == max(0, room.taken(out) - size + 1)


@pytest.mark.parametrize(("trained", "hint"), [(50, "attach less, or shorten it"), (4000, "with -c 2048")])
def test_what_never_fits_is_reported_with_what_helps(trained: int, hint: str) -> None:
    target = replace(model_info("large", 50), training_context=trained)
    assert check_alone("be brief", "a word", (), target, count) == 16
    with pytest.raises(ContextFullError, match="too long by 12 tokens: it takes 61 of 50") as caught:
        check_alone("", "word " * 50, (), target, count)
    assert hint in caught.value.hint
    assert ("-c" in caught.value.hint) is (trained > 61)
