"""JSON files that users write: every mistake is reported with file and line.

Independent of the meaning of the values.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import NoReturn, TypeVar

from localspec.errors import UserError, os_errors_as
from localspec.storage.paths import read_plain
from localspec.values import TEXT, InvalidValueError, Step, read

T = TypeVar("T")
MAX_FILE = 2**20  # bytes
_SPACE = re.compile(r"\s*")
_VALID = 'the file has to be valid JSON: names and texts in "...", no comments, no comma before } or ]'


@dataclass(frozen=True, slots=True)
class WrittenJson:
    """A JSON file with an object in it; returns checked values and knows their lines."""

    path: Path
    text: str
    values: dict[str, object]

    def value(self, kind: type[T], value: object, *path: Step) -> T:
        """Check a value that was found at `path`; raises UserError with its line."""
        try:
            return read(kind, value)
        except InvalidValueError as error:
            steps = (*path, *error.path)
            hint = f"choose from: {', '.join(error.choices)}" if error.choices else ""
            if error.wanted == TEXT and isinstance(error.value, int | float):
                hint = 'put it in quotes: "..."'
            self.complain(f"`{InvalidValueError('', steps).place}` {error.demand}", hint, *steps)

    def complain(self, what: str, hint: str, *path: Step) -> NoReturn:
        """Raise the UserError that says what is wrong with the value at a path, and where."""
        raise UserError(f"{self.path}, line {line_of(self.text, *path)}: {what}", hint)


def read_written_json(path: Path) -> WrittenJson:
    """Read a file, as an empty object if there is none; raises UserError with the line at fault."""
    try:
        data = read_plain(path, MAX_FILE)
    except FileNotFoundError:
        return WrittenJson(path, "{}", {})
    except OSError as error:
        with os_errors_as(f"cannot read {path}"):
            raise error from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        bad = f"byte {data[error.start]:#04x} is not UTF-8 text"
        raise UserError(f"{path}, line {line}: {bad}", "save the file as UTF-8") from None
    return _parsed(path, text if text.strip() else "{}")


def _parsed(path: Path, text: str) -> WrittenJson:
    def once(members: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(members)
        if len(found) < len(members):
            names = [name for name, _ in members]
            twice = next(name for name in names if names.count(name) > 1)
            line = text.count("\n", 0, text.rfind(json.dumps(twice))) + 1
            raise UserError(f"{path}, line {line}: the name `{twice}` is in one object twice", "remove one")
        return found

    try:
        values = json.loads(text, object_pairs_hook=once)
    except JSONDecodeError as error:
        what = f"{error.msg[:1].lower()}{error.msg[1:]}"
        raise UserError(f"{path}, line {error.lineno}: {what}", _VALID) from None
    except (ValueError, RecursionError) as error:  # numbers and nestings beyond all measure
        raise UserError(f"{path}: {error}", _VALID) from None
    if not isinstance(values, dict):
        raise UserError(f"{path}, line 1: the file has to hold an object: {{...}}")
    return WrittenJson(path, text, values)


def line_of(text: str, *path: Step) -> int:
    """Return the number of the line with the value at a path, or with what surrounds it if it is missing."""
    at = 0
    for step in path:
        found = _begin_of(text, at, step)
        if found is None:
            break
        at = found
    return text.count("\n", 0, _after_space(text, at)) + 1


def _begin_of(text: str, at: int, step: Step) -> int | None:
    """Return the place in valid JSON of one member of the object or list at `at`; None if it is missing."""
    at = _after_space(text, at)
    kind = text[at]
    if kind not in "{[":
        return None
    at = _after_space(text, at + 1)
    count = 0
    while text[at] not in "}]":
        name: Step = count
        if kind == "{":
            name, at = JSONDecoder().raw_decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)  # behind the colon
        if name == step:
            return at
        _, at = JSONDecoder().raw_decode(text, at)
        at = _after_space(text, at)
        count = count + 1
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return None


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
