from __future__ import annotations

import pytest

from localspec.chat.conversation import Conversation
from localspec.errors import UserError
from localspec.types import Message

TWO_TURNS = Conversation("Be brief.").ask("one?").answer("1").ask("two?").answer("2")


def contents(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def test_the_system_prompt_comes_first_and_only_if_there_is_one() -> None:
    assert TWO_TURNS.messages[0] == Message("system", "Be brief.")
    assert contents(TWO_TURNS.with_system("")) == ["one?", "1", "two?", "2"]


def test_a_change_leaves_the_old_value_alone() -> None:
    before = contents(TWO_TURNS)
    TWO_TURNS.ask("three?").answer("3").undo().edit(0, "zero?")
    assert contents(TWO_TURNS) == before


def test_undo_takes_back_a_question_with_its_answer() -> None:
    assert contents(TWO_TURNS.undo()) == ["Be brief.", "one?", "1"]


def test_undo_takes_back_a_question_that_has_no_answer() -> None:
    assert contents(TWO_TURNS.ask("three?").undo()) == contents(TWO_TURNS)


def test_regenerate_waits_for_the_last_answer_again() -> None:
    again = TWO_TURNS.regenerate()
    assert contents(again) == ["Be brief.", "one?", "1", "two?"]
    assert again.regenerate() == again


def test_editing_drops_what_followed() -> None:
    edited = TWO_TURNS.edit(0, "uno?")
    assert contents(edited) == ["Be brief.", "uno?"]
    assert edited.awaits_answer


def test_a_new_question_replaces_one_without_an_answer() -> None:
    assert contents(TWO_TURNS.ask("three?").ask("four?"))[-2:] == ["2", "four?"]


def test_clear_keeps_the_system_prompt() -> None:
    assert contents(TWO_TURNS.clear()) == ["Be brief."]


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.undo(),
        lambda c: c.regenerate(),
        lambda c: c.answer("nobody asked"),
        lambda c: c.edit(0, "nothing there"),
    ],
)
def test_an_empty_conversation_refuses(change: object) -> None:
    assert callable(change)
    with pytest.raises(UserError):
        change(Conversation())


def test_an_answer_can_be_edited_and_is_not_a_question() -> None:
    edited = TWO_TURNS.edit(3, "two")
    assert contents(edited)[-1] == "two"
    assert not edited.awaits_answer
