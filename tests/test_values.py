"""Values become dataclasses by their annotations alone, or a complaint that says where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import inf, nan
from pathlib import Path
from typing import Annotated, Literal, cast

import pytest

from localspec.types.request import SEEDS, EngineSettings, Message, Request, Sampling, Seed
from localspec.values import InvalidValueError, Line, Range, check, plain, range_of, read, read_fields, tagged

LARGEST = 2**53


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
    pairs: tuple[tuple[int, str], ...] = ()
    other: object = None


def test_what_is_right_is_read_and_what_is_unknown_is_ignored() -> None:
    value = {
        "numbers": [1, -LARGEST],
        "parts": [{"size": 3, "share": 1, "new": []}],
        "kind": "b",
        "note": None,
        "pairs": [[1, "a"]],
        "other": {"x": [1, "y"]},
    }
    found = read(Whole, value, "it")
    assert found == Whole((1, -LARGEST), (Part(3, 1.0),), "b", None, ((1, "a"),), {"x": [1, "y"]})
    assert isinstance(found.parts[0].share, float)
    assert read(Whole, {}, "it") == Whole()


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ([], "it is not an object"),
        ({"numbers": 1}, "it.numbers is not a list"),
        ({"numbers": [1, True]}, r"it.numbers\[1\] is not a whole number"),
        ({"numbers": [1, 2.0]}, r"it.numbers\[1\] is not a whole number"),
        ({"numbers": [1, LARGEST + 1]}, r"it.numbers\[1\] is not a whole number of a sensible size"),
        ({"numbers": [-LARGEST - 1]}, r"it.numbers\[0\] is not a whole number of a sensible size"),
        ({"parts": [{}]}, r"it.parts\[0\].size is missing"),
        (
            {"parts": [{"size": 1, "share": float("nan")}]},
            r"it.parts\[0\].share is not a number of a sensible",
        ),
        ({"parts": [{"size": 1, "share": 10**400}]}, r"it.parts\[0\].share is not a number of a sensible"),
        ({"kind": "c"}, "it.kind is not one of a, b"),
        ({"kind": ["a"]}, "it.kind is not one of a, b"),
        ({"note": 1}, "it.note is not a text"),
        ({"pairs": [[1]]}, r"it.pairs\[0\] is not a list of 2"),
        ({"pairs": [[1, 2]]}, r"it.pairs\[0\]\[1\] is not a text"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(value: object, complaint: str) -> None:
    with pytest.raises(InvalidValueError, match=complaint):
        read(Whole, value, "it")


@dataclass(frozen=True)
class Drawn:
    seed: Seed | None = None


@pytest.mark.parametrize("seed", [None, 0, -1, LARGEST + 1, *SEEDS])
def test_seeds_have_64_bits(seed: int | None) -> None:
    assert read(Drawn, {"seed": seed}, "it") == Drawn(seed)


@pytest.mark.parametrize("seed", [SEEDS[0] - 1, SEEDS[1] + 1, 10**400])
def test_larger_seeds_are_none(seed: int) -> None:
    with pytest.raises(
        InvalidValueError,
        match=r"it\.seed is not a whole number from -9223372036854775808 to 9223372036854775807",
    ):
        read(Drawn, {"seed": seed}, "it")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Named:
    name: str


Choice = Part | Named
EITHER = cast("type[object]", Choice)


@dataclass(frozen=True, slots=True)
class Everything:
    share: Annotated[float, Range(0, 1)] | None = None
    line: Line = ""
    colour: Colour = Colour.RED
    data: bytes = b""
    place: Path = Path()
    text: tuple[Named, ...] | str = ""
    switches: tuple[tuple[str, bool | int | float | str], ...] = ()
    logarithm: Annotated[float, Range(-inf, inf)] = 0.0
    only: Literal["a"] = "a"


FULL = Everything(
    0.5,
    "one",
    Colour.BLUE,
    b"\xff\0",
    Path("/a/b"),
    (Named("a"),),
    (("a", True), ("b", 1), ("c", 0.5), ("d", "x")),
    -inf,
)


@pytest.mark.parametrize("value", [FULL, Everything(), replace(FULL, text="a")])
def test_what_is_written_is_read_again_with_its_types(value: Everything) -> None:
    found = read(Everything, json.loads(json.dumps(plain(value))))
    assert found == value
    assert repr(found) == repr(value)  # which distinguishes True from 1, and 1 from 1.0
    assert read(Everything, value) == value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"share": 1.5}, "share is not a number from 0 to 1"),
        ({"share": nan}, "share is not a number from 0 to 1"),
        ({"share": -(10**400)}, "share is not a number from 0 to 1"),
        ({"share": True}, "share is not a number from 0 to 1"),
        ({"share": "0.5"}, "share is not a number from 0 to 1"),
        ({"line": "a\nb"}, "line is not one line of plain text"),
        ({"line": 1}, "line is not a text"),
        ({"colour": "green"}, "colour is not one of red, blue"),
        ({"colour": {}}, "colour is not one of red, blue"),
        ({"only": "b"}, "only is not a"),
        ({"data": "?"}, "data is not a text in base64"),
        ({"data": [1]}, "data is not a text in base64"),
        ({"place": 1}, "place is not a text"),
        ({"text": 1}, "text is not a list or a text"),
        ({"text": [{}]}, "text[0].name is missing"),
        ({"text": None}, "text is not a list or a text"),
        (
            {"switches": [["a", 1], ["b", []]]},
            "switches[1][1] is not true or false or a whole number or a num",
        ),
        ({"logarithm": nan}, "logarithm is not a number from -inf to inf"),
    ],
)
def test_what_does_not_fit_its_annotation_is_named_with_its_place(value: object, complaint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read(Everything, value)
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize("value", [Part(3), Named("a")])
def test_the_tag_reports_dataclasses_apart(value: Choice) -> None:
    assert read(EITHER, json.loads(json.dumps(tagged(value)))) == value
    assert read(EITHER, value) == value


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"name": "a"}, "_type is not one of Part, Named"),
        ({"_type": "Whole", "name": "a"}, "_type is not one of Part, Named"),
        ({"_type": "Part", "name": "a"}, "size is missing"),
        ("Part", "is not an object"),
    ],
)
def test_without_a_tag_that_is_known_nothing_is_read(value: object, complaint: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        read(EITHER, value)
    assert str(caught.value) == complaint


def test_a_user_reads_what_has_to_be_there_and_what_is() -> None:
    def demand(value: object) -> str:
        with pytest.raises(InvalidValueError) as caught:
            read(Everything, value)
        return f"{caught.value.place} {caught.value.demand}"

    assert demand({"share": 2}) == "share has to be a number from 0 to 1, not 2"
    assert demand({"share": True}) == "share has to be a number from 0 to 1, not true"
    assert demand({"colour": "green"}) == "colour has to be one of red, blue, not `green`"
    assert demand({"line": "a\nb"}) == r"line has to be one line of plain text, not 'a\nb'"
    assert demand({"text": [{}]}) == "text[0].name is missing"
    assert demand({"colour": "x" * 99}).endswith("not `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...")


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    branches: tuple[Tree, ...] = ()
    trunk: Tree | None = None


def test_a_dataclass_may_hold_others_of_its_kind() -> None:
    tree = Tree("a", (Tree("b", (Tree("c"),)),), Tree("d"))
    assert read(Tree, json.loads(json.dumps(plain(tree)))) == tree
    with pytest.raises(InvalidValueError, match=r"branches\[0\]\.trunk\.name is not a text"):
        read(Tree, {"name": "a", "branches": [{"name": "b", "trunk": {"name": 3}}]}, "it")


def test_some_fields_are_read_by_their_names() -> None:
    assert read_fields(Everything, {"colour": "blue", "share": 1}) == {"colour": Colour.BLUE, "share": 1.0}
    with pytest.raises(InvalidValueError, match="share is not a number"):
        read_fields(Everything, {"share": "x"})


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (Request("a", Sampling(temperature=-1)), "sampling.temperature is not a number from 0 to 100"),
        (
            Request("a", settings=EngineSettings(draft_length=0)),
            "settings.draft_length is not a whole number",
        ),
        (Request("a", max_tokens=0), "max_tokens is not a whole number from 1"),
        (Request((Message("god", "a"),)), "prompt[0].role is not one of system"),  # type: ignore[arg-type]
        (Request("a", stop=(1,)), "stop[0] is not a text"),  # type: ignore[arg-type]
        (Request("a", logit_bias=((1, inf),)), "logit_bias[0][1] is not a number of a sensible size"),
    ],
)
def test_a_value_made_in_python_is_checked_as_one_that_was_read(request_: Request, complaint: str) -> None:
    check(Request((Message("user", "a"),), max_tokens=1))
    with pytest.raises(InvalidValueError) as caught:
        check(request_)
    assert str(caught.value).startswith(complaint)


def test_the_range_of_a_field_stands_in_its_annotation() -> None:
    assert range_of(Sampling, "top_k") == Range(0, 1_000_000)
    assert range_of(Everything, "share") == Range(0, 1)


def test_an_object_may_have_members_of_one_kind_with_any_names() -> None:
    kind: type[Mapping[str, Part]] = Mapping[str, Part]  # type: ignore[type-abstract]
    assert read(kind, {"a": {"size": 1}, "b c": {"size": 2}}) == {"a": Part(1), "b c": Part(2)}
    with pytest.raises(InvalidValueError, match=r"it.b.size is not a whole number"):
        read(kind, {"a": {"size": 1}, "b": {"size": "2"}}, "it")
    with pytest.raises(InvalidValueError, match="it is not an object"):
        read(kind, [], "it")
