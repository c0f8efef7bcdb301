"""JSON values become dataclasses, or a complaint that says where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from localspec.errors import StoreError
from localspec.storage.json_file import LARGEST, JsonFile, UnexpectedError, checked
from localspec.types import SEEDS, Seed


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
    found = checked(Whole, value, "it")
    assert found == Whole((1, -LARGEST), (Part(3, 1.0),), "b", None, ((1, "a"),), {"x": [1, "y"]})
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
        ({"pairs": [[1]]}, r"it.pairs\[0\] is not a list of 2"),
        ({"pairs": [[1, 2]]}, r"it.pairs\[0\]\[1\] is not a text"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(value: object, complaint: str) -> None:
    with pytest.raises(UnexpectedError, match=complaint):
        checked(Whole, value, "it")


def test_a_file_comes_back_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "below" / "whole.json", Whole, schema=3)
    assert file.read() is None
    file.write(Whole((1, 2), (Part(3),), pairs=((1, "a"),)))
    assert file.read() == Whole((1, 2), (Part(3),), pairs=((1, "a"),))
    assert json.loads(file.path.read_text(encoding="utf-8"))["schema"] == 3
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"schema": 4}', "its schema is 4, and this program knows 3"),
        ('{"kind": "a"}', "its schema is None, and this program knows 3"),
        ('{"schema": 3, "numbers": 1}', "the file.numbers is not a list"),
        ('{"schema": 3, "note": "bad"}', "its figures make no sense together"),
        (" " * 2000, "it is larger than 1 kB"),
        ("[]", "the file is not an object"),
    ],
)
def test_a_file_that_cannot_be_used_is_none_and_the_log_tells_why(
    tmp_path: Path, text: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "whole.json"
    path.write_text(text, encoding="utf-8")
    file = JsonFile(path, Whole, 3, 1000, lambda whole: whole.note != "bad")
    assert file.read() is None
    assert caplog.messages == [f"{path} cannot be used: {reason}"]
    with pytest.raises((OSError, UnexpectedError), match=reason):
        file.load()


def test_who_waits_too_long_for_another_program_is_told(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "whole.json", Whole)
    with file.locked(1.0), pytest.raises(StoreError, match="another program holds it"), file.locked(0.01):
        pass


@dataclass(frozen=True)
class Drawn:
    seed: Seed | None = None


@pytest.mark.parametrize("seed", [None, 0, -1, LARGEST + 1, *SEEDS])
def test_seeds_have_64_bits(seed: int | None) -> None:
    assert checked(Drawn, {"seed": seed}, "it") == Drawn(seed)


@pytest.mark.parametrize("seed", [SEEDS[0] - 1, SEEDS[1] + 1, 10**400])
def test_larger_seeds_are_none(seed: int) -> None:
    with pytest.raises(UnexpectedError, match=r"it\.seed is no number of a sensible size"):
        checked(Drawn, {"seed": seed}, "it")
