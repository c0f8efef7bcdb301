"""Results of servers as texts for a model."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.tools.mcp.contents import (
    LONGEST_TEXT,
    ResourceContent,
    call_text,
    prompt_text,
    resource_content,
)
from tests.tools.mcp.made_server import CONTENTS


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}}


def test_every_kind_of_content_becomes_text() -> None:
    text, is_error = call_text({"content": CONTENTS})
    assert not is_error
    assert text.splitlines() == [
        "one",
        "[image: image/png, 12 bytes]",
        "[audio: audio/wav, 12 bytes]",
        "[resource file:///a.txt: a.txt]",
        "[resource file:///b.txt]",
        "in b",
        "[resource file:///c.bin: application/zip, 12 bytes]",
        "[content of the unknown kind hologram]",
    ]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [], "structuredContent": {"n": 1}}, '{"n": 1}'),
        ({"structuredContent": ["a"]}, '["a"]'),
        ({"content": [{"type": "text", "text": "words"}], "structuredContent": {"n": 1}}, "words"),
        ({"content": "bare"}, "bare"),
        ({"content": {"type": "text", "text": "one"}}, "one"),
        ({"content": [None, 3, {"type": "text"}]}, "[content of the unknown kind text]"),
        ({}, ""),
    ],
)
def test_what_breaks_the_rules_is_read_as_it_is_meant(result: dict[str, Any], text: str) -> None:
    assert call_text(result) == (text, False)


def test_an_error_says_that_it_is_one() -> None:
    assert call_text({"content": [{"type": "text", "text": "no such file"}], "isError": True}) == (
        "no such file",
        True,
    )


def test_a_long_text_is_cut() -> None:
    text, _ = call_text({"content": [{"type": "text", "text": "x" * 10**6}]})
    assert len(text) < LONGEST_TEXT + 100
    assert text.endswith("[the text is longer; the rest is left out]")


def test_a_prompt_names_roles_only_if_others_speak() -> None:
    assert prompt_text({"messages": [user("a"), user("b")]}) == "a\nb"
    answer = {"role": "assistant", "content": {"type": "text", "text": "b"}}
    assert prompt_text({"messages": [user("a"), answer]}) == "user:\na\nassistant:\nb"
    assert prompt_text({"messages": "none"}) == ""


def test_a_resource_is_its_text_and_what_else_it_has() -> None:
    contents = [{"uri": "a:b", "text": "words"}, {"uri": "a:c", "blob": "AAAA", "mimeType": "image/png"}, 3]
    assert resource_content({"contents": contents}) == ResourceContent("words", ("image/png, 3 bytes",))
    assert resource_content({"contents": "none"}) == ResourceContent("")
