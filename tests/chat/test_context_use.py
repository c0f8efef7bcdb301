from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.chat.messages import Role, StoredMessage
from localspec.chat.prompting import Exchange, after_answer, estimate, exchanges, warning
from localspec.types import Message, Summary
from tests.chat.talk import record


def message(number: int, role: Role, content: str, *, dropped: bool = False) -> StoredMessage:
    return StoredMessage(number, 1, number - 1 or None, role, content, 0.0, dropped=dropped)


def count(messages: Sequence[Message]) -> int:
    """Count words, a mark before each turn, and ten words that the template adds once."""
    assert [turn.role for turn in messages] == ["user", "assistant"] * (len(messages) // 2)
    return 10 + sum(1 + len(turn.content.split()) for turn in messages)


def test_an_answer_tells_what_the_context_holds_after_it() -> None:
    assert after_answer(record("sd", Summary(prompt_tokens=300, tokens=50))) == 350
    assert after_answer(record("sd", Summary(tokens=50))) is None


def test_an_estimate_is_about_right() -> None:
    assert 80 <= estimate([Message("user", "x" * 400)]) <= 130


@pytest.mark.parametrize(
    ("used", "estimated", "line"),
    [
        (0, False, None),
        (800, False, None),
        (835, False, "the context is 83 % full; leave out earlier exchanges to make room"),
        (835, True, "the context is about 83 % full; leave out earlier exchanges to make room"),
        (999, False, "the context is 99 % full; leave out earlier exchanges to make room"),
        (1000, False, "the context is full; leave out earlier exchanges to go on"),
        (1200, True, "the context is full; leave out earlier exchanges to go on"),
    ],
)
def test_it_is_said_before_it_hurts(used: int, estimated: bool, line: str | None) -> None:
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
    assert exchanges(path, count) == (Exchange((1, 2, 3), "one\n\ntwo", 2 + 3, False),)


def test_a_question_with_an_empty_answer_still_waits() -> None:
    assert exchanges([message(1, "user", "one"), message(2, "assistant", "")], count) == ()
