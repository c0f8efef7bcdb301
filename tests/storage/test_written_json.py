"""JSON files that users write: each mistake with its line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from localspec.errors import UserError
from localspec.storage.written_json import line_of, read_written_json

TEXT = """{
  "a": 1,
  "b": {
    "list": [
      "x",
      {"deep": [true]}
    ],
    "text\\n": "y"
  }
}
"""


@dataclass(frozen=True, slots=True)
class Item:
    port: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "file.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        ((), 1),
        (("a",), 2),
        (("b", "list", 0), 5),
        (("b", "list", 1, "deep", 0), 6),
        (("b", "text\n"), 8),
        (("b", "missing"), 3),
        (("b", "list", 7), 4),
        (("a", "no object"), 2),
    ],
)
def test_the_line_of_a_value_is_found(steps: tuple[str | int, ...], line: int) -> None:
    assert line_of(TEXT, *steps) == line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{\n "a": 1,\n}', "line 3"),
        ('{\n // comment\n "a": 1}', "line 2"),
        ('{\n "a": 1,\n "b": 2,\n "a": 3}', "line 4: the name `a` is in one object twice"),
        ("[1]", "has to hold an object"),
        (b'{"a":\n "\xff"}', "line 2: byte 0xff is not UTF-8"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_a_mistake_of_the_notation_is_told_in_one_line(
    tmp_path: Path, text: str | bytes, complaint: str
) -> None:
    with pytest.raises(UserError) as caught:
        read_written_json(written(tmp_path, text))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_value_is_told_with_its_line_and_place(tmp_path: Path) -> None:
    file = read_written_json(written(tmp_path, '{"item": {\n  "env": {\n    "PORT": 80\n  }\n}}'))
    with pytest.raises(UserError, match=r"line 3: `item.env.PORT` has to be a text, not 80; put it"):
        file.value(Item, file.values["item"], "item")


@pytest.mark.parametrize("text", ["", "\n", "\ufeff{}"])
def test_an_empty_file_is_an_empty_object(tmp_path: Path, text: str) -> None:
    assert read_written_json(written(tmp_path, text)).values == {}
    assert read_written_json(tmp_path / "none.json").values == {}


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read"):
        read_written_json(tmp_path)
