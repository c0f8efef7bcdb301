"""JSON files of dataclasses: private, with a schema, and of no use where they make no sense."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from localspec.errors import StoreError
from localspec.storage.json_file import JsonFile
from localspec.values import InvalidValueError


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
        (" " * 2000, "it is larger than 1000 bytes"),
        ("[]", "the file is not an object"),
    ],
)
def test_a_file_that_cannot_be_used_is_none_and_the_log_reports_why(
    tmp_path: Path, text: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "whole.json"
    path.write_text(text, encoding="utf-8")
    file = JsonFile(path, Whole, 3, 1000, lambda whole: whole.note != "bad")
    assert file.read() is None
    assert caplog.messages == [f"{path} cannot be used: {reason}"]
    with pytest.raises((OSError, InvalidValueError), match=reason):
        file.load()


def test_who_waits_too_long_for_another_program_is_reported(tmp_path: Path) -> None:
    file = JsonFile(tmp_path / "whole.json", Whole)
    with file.locked(1.0), pytest.raises(StoreError, match="another program is using it"), file.locked(0.01):
        pass
