from __future__ import annotations

import re
from itertools import groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localspec.chat.thinking import Part, ThinkingReader, split, without_thinking
from localspec.chat.untagged import with_opening_tag
from localspec.thinking_tags import THINKING_TAGS, ThinkingTags, opened_at_end, tags_of


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
        *((tags.opening, f"{tags.closing}{tags.turn}{tags.answer}") for tags in THINKING_TAGS),
        ("<Think>", "</THINK>"),
    ],
)
def test_tags_that_models_write(opening: str, closing: str) -> None:
    text = f"\n{opening}\nhm, let me see\n{closing}\n\nIt is 4.\n"
    assert kinds(text) == [("thinking", "hm, let me see", True), ("answer", "It is 4.", True)]
    assert without_thinking(text) == "It is 4."


@pytest.mark.parametrize(
    "text",
    [
        "<think>\n<think>\nhm</think>Four.",
        "<think><THINK>hm</think>\n</think>\n\nFour.",
        "<|channel>thought\n<|channel>thought\nhm<channel|>Four.",
    ],
)
def test_a_tag_that_is_written_twice_counts_once(text: str) -> None:
    assert kinds(text) == [("thinking", "hm", True), ("answer", "Four.", True)]
    for end in range(len(text)):
        for _, shown, _ in kinds(text[:end], streaming=True):
            assert not set(shown) & set("<>|/"), text[:end]


def test_thinking_may_speak_of_its_tag() -> None:
    assert kinds("<think>hm, <think> opens it</think>Four.") == [
        ("thinking", "hm, <think> opens it", True),
        ("answer", "Four.", True),
    ]


def test_empty_thinking_leaves_no_trace() -> None:
    assert kinds("<|channel>thought\n<channel|>Four.") == [("answer", "Four.", True)]
    assert kinds("<think>\n\n</think>\n\nHello") == [("answer", "Hello", True)]
    assert without_thinking("<think>\n\n</think>\n\nHello") == "Hello"


def test_thinking_continues_until_its_tag_closes() -> None:
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


STRAY = [
    "hm, yes\n</think>\n\nFour.",
    "hm, yes</think>\nFour.",
    "hm\n\nyes\n  [/THINK] Four.",
    "</think>Four.",
]


@pytest.mark.parametrize("text", [*STRAY, "The tag\n`</think>` ends it.", "It ends with\n</think>\nso."])
def test_a_closing_tag_alone_is_text(text: str) -> None:
    assert kinds(text) == kinds(text, streaming=True) == [("answer", text, True)]
    assert without_thinking(text) == text


@pytest.mark.parametrize("text", STRAY)
def test_in_old_answers_a_closing_tag_alone_reports_what_the_prompt_opened(text: str) -> None:
    tagged = with_opening_tag(text)
    assert tagged.endswith(text)
    thought, answer = re.split(r"</think>|\[/THINK\]", text)
    assert [part for part in kinds(tagged) if part[0] == "thinking"] == (
        [("thinking", thought.strip(), True)] if thought else []
    )
    assert without_thinking(tagged).strip() == answer.strip()
    assert with_opening_tag(tagged) == tagged


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Four.",
        "<think>hm</think>\nFour.\n</think>",
        "The tag </think> ends it.",
        "It ends with `</think>`",
        "```\n</think>\n```\nis how it ends",
        "So.\n<think>hm</think>\nFour.</think>",
        "hm<|end|>",
        "<|channel>thought\nhm\n<channel|>Four.",
    ],
)
def test_other_old_answers_are_as_they_were(text: str) -> None:
    assert with_opening_tag(text) == text


def read(pieces: list[str], opened: ThinkingTags | None = None) -> list[tuple[str, str]]:
    """The parts of a text that a reader gets in pieces, with neighbours of one kind joined."""
    reader = ThinkingReader(opened)
    told = [stretch for piece in pieces for stretch in reader.feed(piece)]
    told += reader.feed("", more=False)
    assert "".join(text for _, text in told) == "".join(pieces)
    groups = groupby(told, lambda stretch: stretch[0])
    return [(kind, "".join(text for _, text in group)) for kind, group in groups]


SCRAPS = [
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>thought", "<channel|>", "<|channel|>", "<"),
    *("analysis", "final", "<|message|>", "<|end|>", "<|start|>assistant", "`", "```", "~~~\n", "```py\n"),
    *("\n", "\n\n", "  ", " ", "hm", "So.", "</thi", "nk>", "/", "\t"),
]


@given(st.lists(st.sampled_from(SCRAPS), max_size=14), st.booleans())
@example(
    ["<think>", "hm", "</think>", "\n\n", "So.", "\n", "[THINK]", "hm", "[/THINK]", "\n", "\n", "So."], False
)
@example(["hm", "\n\n", "</thi", "nk>", "\n", "  ", "So."], True)
def test_a_text_is_read_alike_in_one_piece_in_scraps_and_by_letters(
    scraps: list[str], is_opened: bool
) -> None:
    opened, text = (tags_of("<think>") if is_opened else None), "".join(scraps)
    whole = read([text], opened)
    assert read(scraps, opened) == read(list(text), opened) == whole
    if not is_opened:
        assert [part.text for part in split(text) if part.kind == "thinking" and part.text] == [
            said for kind, said in whole if kind == "thinking"
        ]


@given(st.lists(st.sampled_from(SCRAPS), max_size=14))
def test_what_the_prompt_opens_reads_as_if_the_model_had(scraps: list[str]) -> None:
    text = "".join(scraps)
    told = read([text], tags_of("<think>"))
    kept = split(f"<think>\n{text}")
    assert [part.text for part in kept if part.kind == "thinking" and part.text] == [
        said for kind, said in told if kind == "thinking"
    ]
    assert [part.text for part in kept if part.kind == "answer"] == [
        said.strip("\n") for kind, said in told if kind == "answer" and said.strip("\n")
    ]


@pytest.mark.parametrize(
    ("prompt", "opening"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<｜Assistant｜><think>", "<think>"),
        ("Assistant: <think> ", "<think> "),
        ("<|turn>model\n<|channel>thought\n", "<|channel>thought\n"),
        ("assistant\n<THINK>\n\n", "<THINK>\n\n"),
        ("assistant\n<|inner_prefix|>", "<|inner_prefix|>"),
        ("<|turn>model\n", ""),
        ("<|turn>model\n<|channel>thought\n<channel|>", ""),
        ("assistant\n<think>\n\n</think>\n\n", ""),
        ("What does <think> mean?<|im_end|>\nassistant\n", ""),
        ("<|channel|>final<|message|>", ""),
    ],
)
def test_what_a_prompt_opens_is_reported_by_its_end(prompt: str, opening: str) -> None:
    assert opened_at_end(prompt) == opening
    if opening:
        assert tags_of(opening).opening.lower() == opening.strip().lower()


def test_thinking_is_reported_at_once_and_tags_never() -> None:
    reader = ThinkingReader(tags_of("<think>\n"))
    pieces = ["hm", ", let", " me see", "\n", "</", "think", ">", "\n\nIt", " is 4."]
    assert [[*reader.feed(piece)] for piece in pieces] == [
        [("thinking", "hm")],
        [("thinking", ", let")],
        [("thinking", " me see")],
        [],
        [],
        [],
        [("tag", "\n"), ("tag", "</think>")],
        [("tag", "\n\n"), ("answer", "It")],
        [("answer", " is 4.")],
    ]


@pytest.mark.slow
def test_long_texts_are_read_in_time_that_grows_with_their_length() -> None:
    reader, later = ThinkingReader(tags_of("<think>")), ThinkingReader()
    for _ in later.feed("So.\n<think>"):
        pass
    for _ in range(40_000):  # 400 kB by the token
        assert sum(len(text) for _, text in reader.feed("word after")) == 10
        assert [*later.feed("word after")] == []


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
