"""Arguments of calls as models write them: whole, cut anywhere, or no JSON at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.lenient_json import completed_object, read_object, with_whole_characters

TEXTS = st.text(alphabet='ab"\\/{}[]:,\n\té🦜', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9e9, 9e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.booleans(), st.data())
def test_arguments_that_are_cut_anywhere_are_closed(
    arguments: dict[str, object], ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    assert read_object(text) == completed_object(text) == arguments
    cut = text[: data.draw(st.integers(1, len(text)))]
    closed = completed_object(cut)
    assert [*closed][:-1] == [*arguments][: max(0, len(closed) - 1)]  # only the last key may be a part
    for name in [*closed][:-1]:
        assert closed[name] == arguments[name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" \n", {}),
        ("null", {}),
        ("{}", {}),
        ("{", {}),
        ('{"a', {"a": None}),
        ('{"a":', {"a": None}),
        ('{"a": 1, "ab": 2, "a', {"a": 1, "ab": 2}),
        ('{"a": tr', {"a": True}),
        ('{"a": -', {"a": None}),
        ('{"a": 1.', {"a": 1}),
        ('{"a": 1e', {"a": 1}),
        ('{"a": [1,', {"a": [1]}),
        ('{"a": "b\\', {"a": "b"}),
        ('{"a": "b\\u12', {"a": "b"}),
        ('{"a": "b\\ud83d', {"a": "b\ufffd"}),
        ('{"a": "b\nc"}', {"a": "b\nc"}),
        ('{"a": NaN, "b": -1e999}', {"a": "NaN", "b": "-1e999"}),
        (r'"{\"a\": 1}"', {"a": 1}),
    ],
)
def test_what_may_be_meant_is_read(text: str, expected: dict[str, object]) -> None:
    assert completed_object(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        "NaN",
        "rm -rf build",
        "{'a': 1}",
        '{"a": 1}}',
        '{"a": 1}{"b": 2}',
        '{"a": ' + "9" * 5000 + "}",
        '{"a": ' * 101 + "1" + "}" * 101,
        "{" * 101,
        "[" * 100_000,
    ],
)
def test_what_is_no_object_stays_as_a_text(text: str) -> None:
    assert read_object(text) is None
    assert completed_object(text) == {"arguments": text}


def test_brackets_in_texts_are_not_deep() -> None:
    code = {"code": "{" * 500}
    assert completed_object(json.dumps(code)) == code
    assert completed_object(json.dumps(code)[:-2]) == code
    assert completed_object('{"a": ' * 100 + "1") == json.loads('{"a": ' * 100 + "1" + "}" * 100)


@given(st.text(st.characters() | st.characters(categories=["Cs"])))
def test_every_text_becomes_whole_characters(text: str) -> None:
    read = json.loads(with_whole_characters(json.dumps(text)))
    assert read == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert read.encode("utf-8").decode("utf-8") == read
