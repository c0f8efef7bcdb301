"""TOML files that people write: every field checked, every complaint with file and line.

Knows nothing of what the fields mean.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn, cast

from localspec.errors import UserError

Range = tuple[float, float]
_Path = tuple[str, ...]  # of a key: the names of its tables, then its own

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEADER = re.compile(rf"[ \t]*\[\[?[ \t]*({_DOTTED})[ \t]*\]")
_ENTRY = re.compile(rf"[ \t]*({_DOTTED})[ \t]*=")
_TOKEN = re.compile(
    r'"{3}(?:[^\\]|\\.)*?"{3,5}' r"|'{3}.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'" r"|\#[^\n]*|.",
    re.DOTALL,
)
_SYNTAX = re.compile(r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)


class TomlTable:
    """One table of a TOML file; it hands out checked values and knows where they stand."""

    def __init__(self, source: _Source, path: _Path, values: Mapping[str, object]) -> None:
        self._source, self._path, self._values = source, path, values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def allow(self, keys: Collection[str]) -> None:
        """Raise UserError if there is any other key."""
        for key in self:
            self.expect(key, key, keys, "key")

    def expect(self, key: str, name: str, known: Collection[str], what: str) -> None:
        """Raise UserError unless the name that stands under a key is a known one."""
        if name not in known:
            close = get_close_matches(name, known, n=1)
            meant = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
            self.complain(key, f"there is no {what} `{name}`", meant)

    def leaves(self) -> Iterator[tuple[str, TomlTable, str]]:
        """Yield every value that is no table, however deep: its dotted name, the table it is in, its key."""
        for key, value in self._values.items():
            if isinstance(value, dict):
                for name, table, own in self.table(key).leaves():
                    yield f"{key}.{name}", table, own
            else:
                yield key, self, key

    def complain(self, key: str, what: str, hint: str = "", item: int | None = None) -> NoReturn:
        """Raise the UserError that says what is wrong with a key, or one item of its list, and where."""
        raise UserError(f"{self._source.place((*self._path, key), item)}: {what}", hint)

    def require(self, key: str) -> None:
        """Raise UserError unless the key is there."""
        if key not in self:
            table = f"table [{'.'.join(self._path)}]" if self._path else "file"
            self.complain(key, f"`{key}` is missing from the {table}")

    def table(self, key: str) -> TomlTable:
        """Return the table under a key; an empty one if it is absent."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            self.complain(key, f"`{key}` has to be a table: [{'.'.join((*self._path, key))}]")
        return TomlTable(self._source, (*self._path, key), cast("dict[str, object]", value))

    def text(self, key: str, default: str = "") -> str:
        """Return a text of any number of lines."""
        value = self._values.get(key, default)
        if not isinstance(value, str):
            self.complain(key, f"`{key}` has to be a text, not {_shown(value)}", 'put it in quotes: "..."')
        return value

    def line(self, key: str, default: str = "") -> str:
        """Return a text of one line without control characters."""
        value = self.text(key, default)
        if not value.isprintable():
            self.complain(key, f"`{key}` has to be one line of plain text")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """Return one of some words."""
        value = self.text(key, default)
        if value not in choices:
            self.complain(key, f"`{key}` cannot be `{value}`", f"choose from: {', '.join(choices)}")
        return value

    def switch(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            self.complain(key, f"`{key}` has to be true or false, not {_shown(value)}")
        return value

    def number(self, key: str, limits: Range, default: float) -> float:
        """Return a number within limits."""
        value = self._values.get(key, default)
        low, high = limits
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.complain(key, f"`{key}` has to be a number from {low:g} to {high:g}, not {_shown(value)}")
        return float(value)

    def whole(self, key: str, limits: Range, default: int) -> int:
        """Return a whole number within limits."""
        value = self._values.get(key, default)
        low, high = limits
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            wanted = f"a whole number from {low:.0f} to {high:.0f}"
            self.complain(key, f"`{key}` has to be {wanted}, not {_shown(value)}")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, which may be written as one text with commas."""
        value = self._values.get(key, [])
        listed: object = value.split(",") if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
            self.complain(key, f"`{key}` has to be a text or a list of texts, not {_shown(value)}")
        return tuple(item.strip() for item in listed)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts of any number of lines."""
        value = self._values.get(key, [])
        if not isinstance(value, list):
            self.complain(key, f"`{key}` has to be a list of texts, not {_shown(value)}")
        for at, item in enumerate(value):
            if not isinstance(item, str):
                self.complain(key, f"`{key}` has to hold nothing but texts, not {_shown(item)}", item=at)
        return tuple(value)


@dataclass(frozen=True, slots=True)
class _Source:
    """A file and its text; lines are counted only when there is something to complain of."""

    path: Path
    text: str

    def place(self, key: _Path, item: int | None = None) -> str:
        """Return the file and the line of a key or an item of it; of the table around it if it has none."""
        if item is not None and item < len(lines := item_lines(self.text, key)):
            return f"{self.path}, line {lines[item]}"
        known = key_lines(self.text)
        for length in range(len(key), 0, -1):
            if key[:length] in known:
                return f"{self.path}, line {known[key[:length]]}"
        return str(self.path)


def read_table(path: Path) -> TomlTable:
    """Read a TOML file; raises UserError with the line that is wrong."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return parse_table(path, data)


def parse_table(path: Path, data: bytes) -> TomlTable:
    """Return what is in a TOML file, or would be; raises UserError with the line that is wrong."""
    import tomllib  # 3 ms

    text = _decoded(path, data)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers and nestings beyond all measure
        raise _syntax_error(path, text, str(error)) from None
    return TomlTable(_Source(path, text), (), values)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return where each key and table of a valid TOML text first stands: line numbers count from 1.

    What is inside an inline table or an array counts as part of the key in front.
    """
    lines: dict[_Path, int] = {}
    line, counted = 1, 0
    for key, start, _ in _statements(text):
        line, counted = line + text.count("\n", counted, start), start
        for length in range(1, len(key) + 1):
            lines.setdefault(key[:length], line)
    return lines


def item_lines(text: str, key: tuple[str, ...]) -> tuple[int, ...]:
    """Return on which line each item of an array begins; nothing if the key does not stand before one."""
    for found, _, at in _statements(text):
        if found == key:
            return tuple(text.count("\n", 0, item) + 1 for item in _items(text, at))
    return ()


def _statements(text: str) -> Iterator[tuple[_Path, int, int]]:
    """Yield of each statement the full key, where it begins, and where the key ends."""
    table: _Path = ()
    at = 0
    while at < len(text):
        start = at
        key: _Path = ()
        if header := _HEADER.match(text, at):
            key = table = _parts(header[1])
            at = header.end()
        elif entry := _ENTRY.match(text, at):
            key = (*table, *_parts(entry[1]))
            at = entry.end()
        if key:
            yield key, start, at
        for token, depth, end in _tokens(text, at):
            at = end
            if token == "\n" and depth <= 0:
                break


def _tokens(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield strings, comments and single characters, how many brackets are open after each, its end."""
    depth = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None  # its last branch matches anything
        at = token.end()
        depth += (token[0] in "[{") - (token[0] in "]}")
        yield token[0], depth, at


def _items(text: str, at: int) -> Iterator[int]:
    """Yield where each item of the array begins that is the value after a key."""
    outer, awaited = 0, False
    for token, depth, end in _tokens(text, at):
        if depth == 0 and (outer == 1 or token == "\n"):
            return
        if outer == 1 and awaited and not (token.isspace() or token[0] == "#"):
            yield end - len(token)
            awaited = False
        if depth == 1 and (outer == 0 or token == ","):
            awaited = True
        outer = depth


def _parts(dotted: str) -> _Path:
    import tomllib  # 3 ms

    parts = []
    value: object = tomllib.loads(f"{dotted} = 0")
    while isinstance(value, dict):
        [(key, value)] = value.items()
        parts.append(key)
    return tuple(parts)


def _decoded(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        bad = f"byte {data[error.start]:#04x} is not UTF-8 text"
        raise UserError(f"{path}, line {line}: {bad}", "save the file as UTF-8") from None
    return text.replace("\r\n", "\n")


def _syntax_error(path: Path, text: str, complaint: str) -> UserError:
    found = _SYNTAX.fullmatch(complaint)
    if found is None:
        return UserError(f"{path}: {complaint}")
    line = int(found["line"] or text.rstrip().count("\n") + 1)
    what = found["what"]
    return UserError(f"{path}, line {line}: {what[:1].lower()}{what[1:]}", "the file has to be valid TOML")


def _shown(value: object) -> str:
    text = (
        f"`{value}`"
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
    return text if len(text) <= 40 else f"{text[:37]}..."
