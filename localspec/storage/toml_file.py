"""TOML files that users write: every field is checked, every error has file and line.

Independent of the meaning of the fields.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from localspec.errors import UserError, os_errors_as
from localspec.storage.paths import read_plain
from localspec.values import ONE_LINE, TEXT, InvalidValueError, Line, read, read_fields, shown

T = TypeVar("T")
MAX_FILE = 2**18  # bytes; users write these by hand
Changes = Mapping[str, str | int | float | bool | list[str] | None]
"""New values by dotted keys, of the file or of one of its tables; None takes a key away."""
_MARK = "\ufeff"
_Path = tuple[str | int, ...]  # of a value: the names of its tables, its own, and its place in a list

_SYNTAX = re.compile(r"(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)


_NEWER = "; if a newer LocalSpec wrote it, update this one, or remove the line"
_BACKSLASH = "in \"...\" a backslash is special: write the path in '...', or with /"
_ESCAPED = re.compile(r"[\t\n\r\b\f]")  # what `\t` and its like in a path become
_NAME = r"^\s*[\w.\"'-]+\s*"
_MISTAKES = (  # of a line that is not valid TOML, the most certain first
    (re.compile("[“”„‘’]"), 'write straight quotes: "..."'),
    (re.compile(r"^\s*(//|;|--)"), "a comment begins with #"),
    (re.compile(r"\"[^\"]*\\"), _BACKSLASH),
    (re.compile(rf"{_NAME}:"), "write `name = value`, with = instead of :"),
    (
        re.compile(rf"{_NAME}=\s*(true|false|yes|no|on|off|none|null)\s*(#|$)", re.IGNORECASE),
        "write true or false",
    ),
    (re.compile(rf"{_NAME}=\s*-?\d+,\d"), "write the number with a point: 0.5"),
    (re.compile(rf"{_NAME}=\s*[^\s\"'\[{{\d+-]"), 'put a text in quotes: "..."'),
)


class TomlTable:
    """One table of a TOML file; returns checked values and knows their lines."""

    def __init__(self, file: Path, text: str, path: _Path, values: Mapping[str, object]) -> None:
        self._file = file
        self._text = text
        self._path = path
        self._values = values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def allow(self, keys: Collection[str]) -> None:
        """Raise UserError if there is any other key."""
        for key in self:
            self.expect(key, key, keys, "key")

    def expect(self, key: str, name: str, known: Collection[str], what: str) -> None:
        """Raise UserError unless the name under a key is known."""
        if name not in known:
            close = get_close_matches(name, known, n=1)
            meant = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
            if what == "key":
                meant += _NEWER
            self.complain(key, f"there is no {what} `{name}`", meant)

    def leaves(self) -> Iterator[tuple[str, TomlTable, str]]:
        """Yield every value that is not a table, at any depth: its dotted name, its table, its key."""
        for key, value in self._values.items():
            if isinstance(value, dict):
                for name, table, own in self.table(key).leaves():
                    yield f"{key}.{name}", table, own
            else:
                yield key, self, key

    def complain(self, key: str, what: str, hint: str = "", item: int | None = None) -> NoReturn:
        """Raise the UserError that says what is wrong with a key, or one item of its list, and where."""
        path: _Path = (*self._path, key) if item is None else (*self._path, key, item)
        lines = (line_of(self._text, path[:length]) for length in range(len(path), 0, -1))
        line = next(filter(None, lines), 0)  # of its surroundings if it has none
        raise UserError(f"{self._file}, line {line}: {what}" if line else f"{self._file}: {what}", hint)

    def require(self, key: str, hint: str = "") -> None:
        """Raise UserError unless the key is there."""
        if key not in self:
            table = f"table {self._heading()}" if self._path else "file"
            self.complain(key, f"`{key}` is missing from the {table}", hint)

    def table(self, key: str) -> TomlTable:
        """Return the table under a key; an empty one if it is absent."""
        value = self._values.get(key, {})
        if not isinstance(value, dict):
            self.complain(key, f"`{key}` has to be a table: {self._heading(key)}")
        return TomlTable(self._file, self._text, (*self._path, key), cast("dict[str, object]", value))

    def tables(self, key: str) -> tuple[TomlTable, ...]:
        """Return the tables of a list in order; none if it is absent."""
        values = self._values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self.complain(key, f"`{key}` has to be a list of tables: {self._heading(key, 0)}")
        paths = ((*self._path, key, place) for place in range(len(values)))
        return tuple(
            TomlTable(self._file, self._text, path, value) for path, value in zip(paths, values, strict=True)
        )

    def _heading(self, *below: str | int) -> str:
        """Return the heading of this table or one below it: [name], or [[name]] for one of a list."""
        path = (*self._path, *below)
        name = ".".join(step for step in path if isinstance(step, str))
        return f"[[{name}]]" if isinstance(path[-1], int) else f"[{name}]"

    def value(self, key: str, kind: object, default: T) -> T:
        """Return the value of a key, checked by the type's annotations; `default` if it is missing."""
        if key not in self:
            return default
        with self._complaining(key):
            return cast(T, read(cast("type[object]", kind), self._values[key]))

    def line(self, key: str, default: str = "") -> str:
        """Return a text of one line without control characters."""
        return self.value(key, Line, default)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts of any number of lines."""
        return self.value(key, tuple[str, ...], ())

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, which may be written as one text with commas."""
        found: str | tuple[str, ...] = self.value(key, str | tuple[str, ...], ())
        return tuple(item.strip() for item in (found.split(",") if isinstance(found, str) else found))

    def fields_of(self, kind: type, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the values of a dataclass's fields, or of `names`.

        Fields without a default are required.
        """
        known = {field.name: field for field in fields(kind) if names is None or field.name in names}
        self.allow(known)
        for name, field in known.items():
            if field.default is field.default_factory is MISSING:
                self.require(name)
        with self._complaining():
            return read_fields(kind, self._values)

    @contextmanager
    def _complaining(self, *path: str) -> Iterator[None]:
        """Complain about an invalid value at its line; `path` leads to what is read."""
        try:
            yield
        except InvalidValueError as error:
            steps: tuple[str | int, ...] = (*path, *error.path)
            key = steps[0]
            item = next((step for step in steps if isinstance(step, int)), None)
            name = f"`{key}`" if item is None else f"an item of `{key}`"
            demand = f"cannot be {shown(error.value)}" if error.choices else error.demand
            self.complain(str(key), f"{name} {demand}", _hint(error), item)


def read_table(path: Path) -> TomlTable:
    """Read a TOML file; raises UserError with the line that is wrong."""
    return parse_table(path, read_written(path))


def read_written(path: Path) -> bytes:
    """Parse the text of a file; raises UserError."""
    with os_errors_as(f"cannot read {path}"):
        return read_plain(path, MAX_FILE)


def parse_table(path: Path, data: bytes) -> TomlTable:
    """Parse a TOML file, or a text that would become one; raises UserError with the line."""
    import tomllib  # 3 ms

    text = _decoded(path, data)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers and nestings beyond all measure
        raise _syntax_error(path, text, str(error)) from None
    return TomlTable(path, text, (), values)


def edited(text: str, changes: Changes) -> str:
    """Return the text of a TOML file with other values; everything else stays, comments too."""
    import tomlkit  # 30 ms
    from tomlkit.exceptions import TOMLKitError

    mark, body = (_MARK, text[1:]) if text.startswith(_MARK) else ("", text)
    items = {
        key: tomlkit.string(value, multiline="\n" in value) if isinstance(value, str) else value
        for key, value in changes.items()
    }
    try:
        document = tomlkit.parse(body)
        new = {key: item for key, item in items.items() if "." not in key and key not in document}
        if head := {key: item for key, item in new.items() if item is not None}:
            document = tomlkit.parse(tomlkit.dumps(head) + "\n" + body)  # before a comment on what follows
        for key, item in items.items():
            table, _, name = key.rpartition(".")
            if table in document and not document[table] and item is not None:
                line = tomlkit.dumps({name: item})
                document = tomlkit.parse(_below_heading(tomlkit.dumps(document), table, line))
            if table and table not in document:
                if item is None:
                    continue
                if body.strip():
                    document.add(tomlkit.nl())
                document.add(table, tomlkit.table())
            holder = cast("dict[str, object]", document[table] if table else document)
            if item is None:
                holder.pop(name, None)
            elif holder.get(name) != item:
                holder[name] = item
        result = tomlkit.dumps(document)
    except TOMLKitError as error:
        raise UserError(f"the file cannot be edited: {error}", "change it by hand") from None
    if "\r\n" in body:
        result = result.replace("\r\n", "\n").replace("\n", "\r\n")
    _check_edit(body, result, changes)
    return mark + result


def _below_heading(text: str, table: str, line: str) -> str:
    """Return the text with a line added below the heading of a commented-out table, if it has one.

    At the table's end it would be below the comment of the next table.
    """
    return re.sub(
        rf"^\[{re.escape(table)}\][^\n]*\n", lambda found: found[0] + line, text, count=1, flags=re.MULTILINE
    )


def _check_edit(old: str, new: str, changes: Changes) -> None:
    """Make sure that the new text says what was wanted, and of everything else what the old one said."""
    import tomllib  # 3 ms

    before, after = (tomllib.loads(text.replace("\r\n", "\n")) for text in (old, new))
    for key, value in changes.items():
        table, _, name = key.rpartition(".")
        for values in (before, after):  # a table that is empty says nothing
            if table and not values.get(table):
                values[table] = {}
        holder = before[table] if table else before
        if value is None:
            holder.pop(name, None)
        else:
            holder[name] = value
    if after != before:
        raise UserError("the file is written in a way that cannot be edited safely", "change it by hand")


def line_of(text: str, path: _Path) -> int:
    """Return the line number at which a table, a value or an item of a list begins.

    Lines count from 1; 0 if it does not exist.
    """
    lines = text.split("\n")
    counts = range(len(lines) + 1)
    line = bisect_left(counts, True, key=lambda count: _holds(_values(lines, count), path))
    return line if line in counts else 0


def _values(lines: Sequence[str], count: int) -> object:
    """Parse the first lines, with as many more as complete them; a list may be cut short."""
    import tomllib  # 3 ms

    for end in range(count, len(lines) + 1):
        for closing in ("", "\n]", '"""', "'''", '"""\n]', "'''\n]"):
            with suppress(tomllib.TOMLDecodeError):
                return tomllib.loads("\n".join(lines[:end]) + closing)
    return {}


def _holds(values: Any, path: _Path) -> bool:  # noqa: ANN401 - whatever is in the file
    try:
        for step in path:
            values = values[step]
    except (LookupError, TypeError):
        return False
    return True


def _decoded(path: Path, data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        bad = f"byte {data[error.start]:#04x} is not UTF-8 text"
        raise UserError(f"{path}, line {line}: {bad}", "save the file as UTF-8") from None
    return text.replace("\r\n", "\n")


def _hint(error: InvalidValueError) -> str:
    if error.choices:
        return f"choose from: {', '.join(error.choices)}"
    if error.wanted == TEXT:
        return 'put it in quotes: "..."'
    return _BACKSLASH if error.wanted == ONE_LINE and _ESCAPED.search(str(error.value)) else ""


def _syntax_error(path: Path, text: str, complaint: str) -> UserError:
    found = _SYNTAX.fullmatch(complaint)
    if found is None:
        return UserError(f"{path}: {complaint}")
    line = int(found["line"] or text.rstrip().count("\n") + 1)
    what = found["what"]
    written = dict(enumerate(text.split("\n"), 1)).get(line, "")
    hint = next(
        (hint for mistake, hint in _MISTAKES if mistake.search(written)), "the file has to be valid TOML"
    )
    if "overwrite" in what or "twice" in what:
        hint = "it is in the file before, which is not valid TOML: remove one of them"
    return UserError(f"{path}, line {line}: {what[:1].lower()}{what[1:]}", hint)
