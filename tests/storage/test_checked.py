"""JSON values become dataclasses, or a complaint that says where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from localspec.storage.json_file import LARGEST, UnexpectedError, checked


@dataclass(frozen=True, slots=True)
class Part:
    size: int
    share: float = 0.5


@dataclass(frozen=True, slots=True)
class Whole:
    numbers: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    kind: Literal["a", "b"] = "a"
    note: str | None = None


def test_what_is_right_is_read_and_what_is_unknown_is_ignored() -> None:
    value = {
        "numbers": [1, -LARGEST],
        "parts": [{"size": 3, "share": 1, "new": []}],
        "kind": "b",
        "note": None,
    }
    found = checked(Whole, value, "it")
    assert found == Whole((1, -LARGEST), (Part(3, 1.0),), "b", None)
    assert isinstance(found.parts[0].share, float)
    assert checked(Whole, {}, "it") == Whole()


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "it is not an object"),
        ({"numbers": 1}, "it.numbers is not a list"),
        ({"numbers": [1, True]}, r"it.numbers\[1\] is not a whole number"),
        ({"numbers": [1, 2.0]}, r"it.numbers\[1\] is not a whole number"),
        ({"numbers": [1, LARGEST + 1]}, r"it.numbers\[1\] is no number of a sensible size"),
        ({"numbers": [-LARGEST - 1]}, r"it.numbers\[0\] is no number of a sensible size"),
        ({"parts": [{}]}, r"it.parts\[0\].size is missing"),
        ({"parts": [{"size": 1, "share": float("nan")}]}, r"it.parts\[0\].share is no number of a sensible"),
        ({"parts": [{"size": 1, "share": 10**400}]}, r"it.parts\[0\].share is no number of a sensible"),
        ({"kind": "c"}, "it.kind is none of a, b"),
        ({"kind": ["a"]}, "it.kind is none of a, b"),
        ({"note": 1}, "it.note is not a text"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(value: object, complaint: str) -> None:
    with pytest.raises(UnexpectedError, match=complaint):
        checked(Whole, value, "it")
