from __future__ import annotations

import pytest

from localspec.chat.thinking import Part, split, without_thinking


def kinds(text: str, *, streaming: bool = False) -> list[tuple[str, str, bool]]:
    parts = split(text, streaming=streaming)
    for part in parts:  # what a reader colours by place has to be where it says
        assert text[part.start : part.start + len(part.text)] == part.text
    return [(part.kind, part.text, part.closed) for part in parts]


@pytest.mark.parametrize("text", ["Hello", "  indented\n\n", "a < b", "<b>bold</b>", "say <think> aloud"])
def test_an_answer_without_thinking_is_one_part_as_it_is(text: str) -> None:
    assert split(text) == (Part("answer", text),)
    assert without_thinking(text) == text


def test_an_empty_text_has_no_parts() -> None:
    assert split("") == split("", streaming=True) == ()


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("<think>", "</think>"),
        ("<thinking>", "</thinking>"),
        ("<Think>", "</THINK>"),
        ("[THINK]", "[/THINK]"),
        ("<thought>", "</thought>"),
        ("<reasoning>", "</reasoning>"),
        ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ],
)
def test_tags_that_models_write(opening: str, closing: str) -> None:
    text = f"\n{opening}\nhm, let me see\n{closing}\n\nIt is 4.\n"
    assert kinds(text) == [("thinking", "hm, let me see", True), ("answer", "It is 4.", True)]
    assert without_thinking(text) == "It is 4."


def test_empty_thinking_leaves_no_trace() -> None:
    assert kinds("<think>\n\n</think>\n\nHello") == [("answer", "Hello", True)]
    assert without_thinking("<think>\n\n</think>\n\nHello") == "Hello"


def test_thinking_goes_on_until_its_tag_closes() -> None:
    assert kinds("<think>hm", streaming=True) == [("thinking", "hm", False)]
    assert kinds("<think>", streaming=True) == [("thinking", "", False)]
    assert kinds("<think>hm") == [("thinking", "hm", False)]
    assert without_thinking("<think>hm") == ""


def test_another_closing_tag_does_not_end_thinking() -> None:
    assert kinds("<think>a </thinking> b</think>c")[0] == ("thinking", "a </thinking> b", True)


def test_thinking_may_come_in_several_blocks() -> None:
    assert kinds("<think>a</think>\n<think>b</think>\nSo.\n\n<think>c</think>\nDone") == [
        ("thinking", "a", True),
        ("thinking", "b", True),
        ("answer", "So.", True),
        ("thinking", "c", True),
        ("answer", "Done", True),
    ]
    assert without_thinking("<think>a</think>\nSo.\n\n<think>c</think>\nDone") == "So.\n\nDone"


@pytest.mark.parametrize("fence", ["```", "~~~~", "  ```xml"])
def test_tags_in_code_stay_text(fence: str) -> None:
    text = f"Look:\n{fence}\n<think>\nhm\n</think>\n{fence.strip('xml ')}\nand `</think>`"
    assert kinds(text) == [("answer", text, True)]
    assert kinds(text, streaming=True) == [("answer", text, True)]
    unfinished = text.partition("</think>")[0]
    assert kinds(unfinished, streaming=True) == [("answer", unfinished, True)]


def test_a_tag_after_code_counts_again() -> None:
    text = "```\n<think>\n```\n<think>hm</think>\nyes"
    assert [part.kind for part in split(text)] == ["answer", "thinking", "answer"]


def test_a_tag_that_an_answer_speaks_of_stays_text() -> None:
    text = "Models write\n<think> before they answer."
    assert kinds(text) == [("answer", text, True)]
    text = "The tag </think> ends it."
    assert kinds(text) == [("answer", text, True)]


def test_a_closing_tag_alone_shows_that_the_prompt_opened_it() -> None:
    assert kinds("hm, yes\n</think>\n\nFour.") == [("thinking", "hm, yes", True), ("answer", "Four.", True)]
    assert kinds("hm, yes</think>\nFour.") == [("thinking", "hm, yes", True), ("answer", "Four.", True)]
    assert without_thinking("</think>\n\nFour.") == "Four."


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nhm, let me see\n</think>\n\nIt is 4.",
        "<|begin_of_thought|>hm<|end_of_thought|>\nIt is 4.",
        "[THINK]hm[/THINK]It is 4.",
    ],
)
def test_no_piece_of_a_tag_flashes_up_while_it_is_written(text: str) -> None:
    for end in range(1, len(text) + 1):
        for _, shown, _ in kinds(text[:end], streaming=True):
            assert not set(shown) & set("<>|[]/"), text[:end]


def test_what_only_looks_like_a_tag_is_shown_when_that_is_clear() -> None:
    assert kinds("<thi", streaming=True) == []
    assert kinds("<this", streaming=True) == [("answer", "<this", True)]
    assert kinds("a\n<", streaming=True) == [("answer", "a\n", True)]
    assert kinds("a <", streaming=True) == [("answer", "a <", True)]
    assert kinds("<thi") == [("answer", "<thi", True)]
