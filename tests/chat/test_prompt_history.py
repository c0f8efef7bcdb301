from __future__ import annotations

import pytest

from localspec_tui.widgets.composer.composer import PromptHistory

PROMPTS = ("tell me more", "why is the sky blue", "tell a joke")


@pytest.fixture
def history() -> PromptHistory:
    return PromptHistory(PROMPTS)


def test_up_goes_from_the_newest_to_the_oldest_and_stops_there(history: PromptHistory) -> None:
    shown = [""]
    while (older := history.walk(-1, shown[-1])) is not None:
        shown.append(older)
    assert tuple(shown[1:]) == PROMPTS
    assert history.walk(1, shown[-1]) == PROMPTS[1]


def test_down_returns_to_the_draft_and_stops_there(history: PromptHistory) -> None:
    assert history.walk(-1, "") == "tell me more"
    assert history.walk(1, "tell me more") == ""
    assert history.walk(1, "") is None


def test_without_a_walk_there_is_nothing_newer(history: PromptHistory) -> None:
    assert history.walk(1, "tell") is None


def test_what_was_typed_narrows_the_walk_and_comes_back(history: PromptHistory) -> None:
    assert history.walk(-1, "tell") == "tell me more"
    assert history.walk(-1, "tell me more") == "tell a joke"
    assert history.walk(-1, "tell a joke") is None
    assert history.walk(1, "tell a joke") == "tell me more"
    assert history.walk(1, "tell me more") == "tell"


def test_a_draft_that_nothing_begins_with_stays(history: PromptHistory) -> None:
    assert history.walk(-1, "how") is None
    assert history.walk(1, "how") is None


def test_the_prompt_that_is_typed_already_is_passed_over(history: PromptHistory) -> None:
    assert history.walk(-1, "tell me more") is None
    assert PromptHistory(("a", "ab", "a")).walk(-1, "a") == "ab"


def test_editing_a_prompt_that_was_called_up_begins_a_new_walk(history: PromptHistory) -> None:
    history.walk(-1, "")
    history.walk(-1, "tell me more")
    assert history.walk(-1, "tell a") == "tell a joke"
    assert history.walk(1, "tell a joke") == "tell a"


def test_the_same_prompt_is_shown_once() -> None:
    history = PromptHistory(("a", "a", "b", "a"))
    assert history.walk(-1, "") == "a"
    assert history.walk(-1, "a") == "b"
    assert history.walk(-1, "b") is None


def test_without_prompts_there_is_nothing() -> None:
    assert PromptHistory(()).walk(-1, "") is None
