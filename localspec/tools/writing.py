"""The tools that write a file and edit one; the user sees the change first."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from threading import Event
from typing import Annotated

from localspec import units
from localspec.errors import UserError
from localspec.tools.differences import diff_block
from localspec.tools.reading import MAX_READ, read_file
from localspec.tools.replacing import TextEdit, decoded, quoted, replaced
from localspec.tools.tool import ToolOutput
from localspec.tools.workspace import Location, Workspace

_LINES_QUOTED = 20  # of a file that is to be replaced
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class WriteArguments:
    """Arguments of `write_file`."""

    path: Annotated[str, "file in the workspace, new or to be replaced"]
    text: Annotated[str, "the whole content"]


@dataclass(frozen=True, slots=True)
class EditArguments:
    """Arguments of `edit_file`."""

    path: Annotated[str, "file in the workspace"]
    old_text: Annotated[str, "text to replace, copied exactly; it must occur once in the file"]
    new_text: Annotated[str, "text in its place"]
    more_edits: Annotated[tuple[TextEdit, ...], "others in the same file, made together with this one"] = ()

    @property
    def edits(self) -> tuple[TextEdit, ...]:
        """Return all edits."""
        return (TextEdit(self.old_text, self.new_text), *self.more_edits)


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Writes files of a workspace; remembers what the user was shown, so nothing newer is overwritten.

    A whole file is replaced only if the model has seen it: models forget what else is in a file.
    """

    workspace: Workspace
    _shown: dict[str, tuple[bytes, WriteArguments]] = field(default_factory=dict)

    def preview_write(self, wanted: WriteArguments) -> str:
        """Return the change as a diff; raises UserError."""
        _check(wanted.text, "text")
        place = self._writable(wanted.path)
        data = self._present(place)
        self._check_seen(place, data)
        new = _as_before(data, wanted.text, place.shown)
        self._shown[place.name] = _digest(data), wanted
        if data == new:
            return f"`{place.shown}` already says this"
        try:
            old = None if data is None else decoded(data, place.shown).text
            return diff_block(place.shown, old, decoded(new, place.shown).text)
        except UserError:
            return f"Replaces the binary file `{place.shown}` of {units.size(len(data or b''))}"

    def write(self, wanted: WriteArguments, _stop: Event) -> ToolOutput:
        """Write the file; raises UserError also if it has changed since the user saw what would change."""
        _check(wanted.text, "text")
        place = self._writable(wanted.path)
        with self.workspace.changing:
            data = self._present(place)
            new = _as_before(data, wanted.text, place.shown)
            before, shown = self._shown.pop(place.name, (b"", None))
            if shown == wanted and before != _digest(data):
                raise UserError(f"`{place.shown}` has changed meanwhile", "read it again")
            self._check_seen(place, data)
            if data == new:
                return ToolOutput(f"`{place.shown}` says this already: go on with the next thing, or answer")
            self.workspace.write(place, new)
            self.workspace.seen.add(place.name, new)
        text = f"{'wrote' if data is None else 'replaced'} `{place.shown}`: {units.size(len(new))}"
        return ToolOutput(text, data={"path": str(place.path), "bytes": len(new)})

    def preview_edit(self, wanted: EditArguments) -> str:
        """Return the change as a diff; raises UserError."""
        place, old, new, _ = self._edit(wanted)
        return diff_block(place.shown, old, new)

    def edit(self, wanted: EditArguments, _stop: Event) -> ToolOutput:
        """Replace the texts in the file; raises UserError, and then nothing is changed."""
        with self.workspace.changing:
            place, old, new, data = self._edit(wanted)
            was_seen = self.workspace.seen.has(place.name, self._present(place) or b"")
            self.workspace.write(place, data)
            if was_seen:
                self.workspace.seen.add(place.name, data)
        line = new.count("\n", 0, _first_difference(old, new)) + 1
        there = quoted(new.split("\n"), [line])
        more = f", and {units.counted(len(wanted.more_edits), 'more edit')}" if wanted.more_edits else ""
        text = f"edited `{place.shown}`: {there} is there now{more}"
        return ToolOutput(text, data={"path": str(place.path), "edits_applied": len(wanted.edits)})

    def _edit(self, wanted: EditArguments) -> tuple[Location, str, str, bytes]:
        """Return the file, its text before and after, and its bytes after."""
        for each in wanted.edits:
            _check(each.new_text, "new_text")
        place = self._writable(wanted.path)
        file = decoded(read_file(self.workspace, place), place.shown)
        new = replaced(file.text, wanted.edits, place.shown)
        return place, file.text, new, file.encoded(new)

    def _check_seen(self, place: Location, data: bytes | None) -> None:
        """Raise UserError for a file that says something which the model has not read; now it has."""
        if not data or self.workspace.seen.has(place.name, data):
            return
        try:
            lines = decoded(data, place.shown).text.splitlines()
        except UserError:  # binary: there is nothing to read
            return
        count = units.counted(len(lines), "line")
        if len(lines) > _LINES_QUOTED:
            raise UserError(
                f"`{place.shown}` is there, with {count}, and you have not read all of it",
                "read_file shows it",
            )
        self.workspace.seen.add(place.name, data)
        what = f"`{place.shown}` is there, with {count}: {quoted(lines, range(1, len(lines) + 1))}"
        raise UserError(what, "edit_file changes a part of it; write_file needs all that it is to say")

    def _writable(self, path: str) -> Location:
        place = self.workspace.locate(path)
        self.workspace.check_writable(place)
        return place

    def _present(self, place: Location) -> bytes | None:
        """Return the bytes of a file; None if there is none."""
        return read_file(self.workspace, place) if place.path.exists() else None


def _check(text: str, name: str) -> None:
    """Raise UserError for a text that no file of text holds."""
    if "\0" in text or _HALF.search(text):
        raise UserError(f"`{name}` has a zero byte or half of a character", "only text can be written")


def _as_before(old: bytes | None, text: str, name: str) -> bytes:
    """Return the bytes of a new content, with the encoding and the endings of lines of the old one."""
    try:
        before = decoded(old or b"", name)
    except UserError:  # it is binary
        before = decoded(b"", name)
    ends = before.text.count("\n")
    if ends and before.text.count("\r\n") == ends:
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    data = before.encoded(text.removeprefix("\ufeff") if before.mark else text)
    if len(data) > MAX_READ:
        raise UserError(f"`text` has {units.size(len(data))}, more than {units.size(MAX_READ)}")
    return data


def _digest(data: bytes | None) -> bytes:
    return b"" if data is None else hashlib.sha256(data).digest()


def _first_difference(old: str, new: str) -> int:
    pairs = enumerate(zip(old, new, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
