"""Calls as each form writes them are allowed by its triggers, and wrong arguments are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from inspect import unwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from localspec.chat.calls.triggers import call_triggers
from localspec.llama.grammar import CompiledGrammar
from localspec.llama.lazy_grammar import Heads, LazyConstraint
from localspec.types.request import Grammar
from tests.chat.test_calls_round_trip import (
    FORMS,
    PROPERTIES,
    TEXTS,
    Arguments,
    addressed,
    coder,
    form_of,
    gemma,
    glm,
    harmony,
    marked,
    minimax,
    muse,
    python,
    read,
    repeating,
    spelled,
)

FREE = (coder, minimax, marked, repeating, spelled, muse, glm, gemma, python)  # their arguments are not JSON
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": ["path"], "additionalProperties": False}
TOOLS = (json.dumps({"type": "function", "function": {"name": "write_file", "parameters": PARAMETERS}}),)


class Bytes:
    """A vocabulary of single bytes."""

    def piece(self, token: int) -> bytes:
        return bytes([token])

    def byte_token(self, byte: int) -> int:
        return byte

    def usable(self, grammar: Grammar) -> CompiledGrammar:
        return compiled(grammar)


@cache
def compiled(grammar: Grammar) -> CompiledGrammar:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    return CompiledGrammar("lark", matcher, 256, frozenset())


def constraint(write: Callable[[str, Arguments], str]) -> LazyConstraint:
    triggers = call_triggers(form_of(write), TOOLS, lambda _tag: None)
    return LazyConstraint(Bytes(), [Heads.of(trigger) for trigger in triggers], 0)


def bound(write: Callable[[str, Arguments], str], text: str) -> list[int]:
    """Return the places at which a text is bound, up to that of a refused byte, if there is one."""
    rules, data, places = constraint(write), list(text.encode()), list[int]()
    for place, byte in enumerate(data):
        mask = rules.mask(data[:place])
        if mask is not None:
            places.append(place)
            if (byte in mask.ids) == mask.are_refused:
                return places
    return places


@st.composite
def ordered(draw: st.DrawFn) -> Arguments:
    """Arguments in the order of the schema, of which some may be missing."""
    others = {
        "content": draw(st.none() | TEXTS),
        "lines": draw(st.lists(TEXTS, max_size=2)),
        "count": draw(st.integers(-(10**6), 10**6)),
        "flag": draw(st.booleans()),
    }
    kept = draw(st.sets(st.sampled_from([*others])))
    return {"path": draw(TEXTS), **{key: value for key, value in others.items() if key in kept}}


@pytest.mark.parametrize("write", FORMS)
@settings(max_examples=12, deadline=None)
@given(arguments=ordered(), before=st.sampled_from(["", "\n", "I look.\n", "```\nls\n```\n"]))
def test_a_call_of_the_form_is_allowed_and_only_its_arguments_are_bound(
    write: Callable[[str, Arguments], str], arguments: Arguments, before: str
) -> None:
    if unwrap(write) is harmony or form_of(write).opening == "":
        before = ""
    if write is addressed and before:
        before = f"all\n{before}>>>"
    call, after = write("write_file", arguments), "\nDone: {} ]"
    places = bound(write, f"{before}{call}{after}")
    if unwrap(write) in FREE:
        assert not places
        return
    assert places
    whole = f"{before}{call}".encode()
    written = whole[places[0] : places[-1] + 1]
    assert b'"path"' in written
    assert len(whole) - 60 < places[-1] < len(whole)
    ((name, found),) = read(form_of(write), f"{before}{call}", [7])[2]
    assert (name, json.loads(found)) == ("write_file", arguments)


@pytest.mark.parametrize("write", [write for write in FORMS if unwrap(write) not in FREE])
@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"path": 1}, "1"),
        ({"count": 1}, "count"),
        ({"path": "a", "count": "3"}, '"3"'),
        ({"path": "a", "lines": "b"}, '"b"'),
        ({"path": "a", "flag": None}, "null"),
        ({"path": "a", "more": 1}, "more"),
    ],
)
def test_arguments_that_the_schema_lacks_are_refused_where_they_begin(
    write: Callable[[str, Arguments], str], arguments: Arguments, wrong: str
) -> None:
    text = write("write_file", arguments)
    *_, refused = bound(write, text)
    assert text.encode()[refused:].startswith(wrong.encode())


@pytest.mark.parametrize("write", FORMS)
def test_a_call_of_another_tool_is_free(write: Callable[[str, Arguments], str]) -> None:
    for name in ("write", "write_file_now", "writefile", "rewrite_file"):
        assert not bound(write, write(name, {"path": 1}))


@pytest.mark.timeout(30)  # each repetition took twice as long as the one before
@pytest.mark.parametrize("tag", ["</tool_call>", "<|im_end|>", "<|end|>\n", "```json\n", "] "])
@pytest.mark.parametrize("write", FORMS)
def test_a_model_that_repeats_a_tag_is_soon_looked_at(
    write: Callable[[str, Arguments], str], tag: str
) -> None:
    assert bound(write, 60 * tag + "x") == []


@pytest.mark.timeout(5)  # it took longer, as a namespace could end at any of them
def test_a_model_that_repeats_an_underscore_is_soon_looked_at() -> None:
    assert bound(addressed, 900 * "_") == []
