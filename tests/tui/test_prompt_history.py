"""The walk through earlier prompts, without a screen."""

from __future__ import annotations

from localspec_tui.widgets.composer.composer import PromptHistory

PROMPTS = ("newest", "another", "new", "oldest", "another")


def test_the_walk_visits_different_prompts_newest_first_and_returns_to_the_draft() -> None:
    history, text, seen = PromptHistory(PROMPTS), "", list[str | None]()
    for step in (-1, -1, -1, -1, -1, 1, 1, 1, 1, 1):
        found = history.walk(step, text)
        seen.append(found)
        text = text if found is None else found
    back = ["new", "another", "newest", "", None]
    assert seen == ["newest", "another", "new", "oldest", None, *back]


def test_a_draft_limits_the_walk_to_prompts_that_begin_with_it() -> None:
    history = PromptHistory(PROMPTS)
    assert history.walk(-1, "newe") == "newest"
    assert history.walk(-1, "newest") is None
    assert history.walk(1, "newest") == "newe"


def test_an_edited_prompt_is_the_draft_of_a_new_walk() -> None:
    history = PromptHistory(PROMPTS)
    assert history.walk(-1, "") == "newest"
    assert history.walk(-1, "o") == "oldest"
    assert history.walk(1, "oldest") == "o"
