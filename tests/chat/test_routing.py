"""Which messages are about programs, in several languages of users and of machines."""

from __future__ import annotations

import time

import pytest

from localspec.chat.routing import ENTRIES, READ, Route, route
from tests.chat.routing_examples import CODE, FOLLOW_UPS
from tests.chat.routing_others import OTHER

ENOUGH_RIGHT = 0.95
LONGEST_S = 1.0  # of the CPU; it takes 0.03, and a pattern that goes back and forth takes minutes


def test_nearly_all_messages_go_where_they_belong() -> None:
    wrong = [text for text in CODE if route(text) != "coding"]
    wrong += [text for text in OTHER if route(text) != "general"]
    assert len(wrong) <= (1 - ENOUGH_RIGHT) * (len(CODE) + len(OTHER)), wrong


def test_neither_kind_pays_for_the_other() -> None:
    for texts, right in ((CODE, "coding"), (OTHER, "general")):
        wrong = [text for text in texts if route(text) != right]
        assert len(wrong) <= (1 - ENOUGH_RIGHT) * len(texts), wrong


@pytest.mark.parametrize(("before", "text", "right"), FOLLOW_UPS)
def test_a_follow_up_stays_and_a_new_topic_does_not(before: Route, text: str, right: Route) -> None:
    assert route(text, before=before) == right


@pytest.mark.parametrize(
    ("files", "right"),
    [
        (("src/loop.py",), "coding"),
        (("Dockerfile",), "coding"),
        (("notes.md", "main.RS"), "coding"),
        (("letter.txt", "notes.md"), "general"),
        (("table.csv",), "general"),
        ((), "general"),
    ],
)
def test_source_files_that_come_along_decide(files: tuple[str, ...], right: Route) -> None:
    assert route("What do you think of this?", files) == right


def test_fence_of_prose_is_not_a_program() -> None:
    assert route("Improve:\n```text\nDear Anna, I am well.\n```") == "general"
    assert route("Improve:\n```js\nlet\n```") == "coding"


def test_only_the_beginning_of_a_long_message_is_read() -> None:
    prose = "The council met on Tuesday. " * (READ // 20)
    assert route(f"{prose}\n```python\nx = 1\n```") == "general"
    assert route(f"```python\nx = 1\n```\n{prose}") == "coding"


@pytest.mark.parametrize(
    "piece", ["\n", " ", "\t ", "a_", "a.", "a", "(", "x = ", "for ", "word (or two) ", "`", "の"]
)
def test_no_text_takes_long(piece: str) -> None:
    started = time.process_time()
    route(piece * (READ // len(piece)))
    assert time.process_time() - started < LONGEST_S


def test_lists_of_words_have_no_holes() -> None:
    assert [kind for kind, entries in ENTRIES.items() if "" in entries] == []
