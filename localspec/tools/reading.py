"""The tool that reads a file: text with line numbers, or the text of a PDF file."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import accumulate, islice
from threading import Event
from typing import Annotated

from localspec import units
from localspec.errors import UserError, os_errors_as
from localspec.pdf import is_pdf, pdf_text
from localspec.storage.text_file import decode_text
from localspec.tools.tool import ToolOutput
from localspec.tools.workspace import Location, Workspace
from localspec.values import Range

MAX_READ = 16 * 2**20  # bytes of a file
MAX_SHOWN = 400  # lines of one result
MAX_CHARACTERS = 24_000  # of one result: some 6,000 tokens
LONGEST_LINE = 1000
_NEIGHBOURS = 5000  # names that are compared with a misspelt one: some milliseconds
LineNumber = Annotated[int, Range(1, 10**9)]


@dataclass(frozen=True, slots=True)
class ReadArguments:
    """Arguments of `read_file`."""

    path: Annotated[str, "file in the workspace"]
    from_line: Annotated[LineNumber | None, "first line to show (of a PDF file, page)"] = None
    to_line: Annotated[LineNumber | None, "last line to show"] = None


@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files of a workspace, and remembers which."""

    workspace: Workspace

    def read(self, wanted: ReadArguments, _stop: Event) -> ToolOutput:
        """Return some lines of a file with their numbers; raises UserError."""
        first = wanted.from_line or 1
        last = wanted.to_line
        if last is not None and last < first:
            raise UserError(f"`to_line` {last} is before `from_line` {first}")
        place = self.workspace.locate(wanted.path)
        data = read_file(self.workspace, place)
        pages = (first, last or first) if wanted.from_line or last else None
        if is_pdf(data):
            with os_errors_as(f"cannot read `{place.shown}`"):
                return ToolOutput(pdf_text(place.path, place.shown, pages, MAX_CHARACTERS))
        text, note = _decoded(data, place.shown)
        if not text:
            return ToolOutput(f"`{place.shown}` is empty", data={"content": ""})
        lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
        shown = numbered(lines, place.shown, first, last)
        reached = _last_shown(lines, first, last)
        self.workspace.seen.add_lines(place.name, data, first, reached, len(lines))
        content = text if pages is None else "".join(f"{line}\n" for line in lines[first - 1 : last])
        return ToolOutput(shown + note, data={"content": content})


def read_file(workspace: Workspace, place: Location) -> bytes:
    """Return the bytes of a file; raises UserError also for one that is too large."""
    try:
        data = workspace.read(place, MAX_READ + 1)
    except FileNotFoundError:
        raise _missing(place) from None
    except OSError as error:
        raise UserError(f"cannot read `{place.shown}`: {error.strerror}") from None
    if len(data) > MAX_READ:
        most = units.size(MAX_READ)
        raise UserError(f"`{place.shown}` has more than {most}", "search_files finds lines in it")
    return data


def _missing(place: Location) -> UserError:
    """Return the error about a missing file, with the most similar name beside it."""
    names: list[str] = []
    with suppress(OSError), os.scandir(place.path.parent) as entries:
        names = [entry.name for entry in islice(entries, _NEIGHBOURS)]
    close = get_close_matches(place.path.name, names, n=1)
    other = Location(place.path, posixpath.join(posixpath.dirname(place.name), close[0])) if close else None
    hint = f"did you mean `{other.shown}`?" if other else "list_folder and find_files show what is there"
    return UserError(f"there is no file `{place.shown}`", hint)


def numbered(lines: Sequence[str], name: str, first: int, last: int | None) -> str:
    """Return lines from `first` to `last`, each after its number, and what is left out; raises UserError."""
    count = len(lines)
    if first > count:
        raise UserError(f"`{name}` has {units.counted(count, 'line')}, and no line {first}")
    end = min(last or count, count)
    reached = _last_shown(lines, first, last)
    shown = [f"{number}\t{_line(lines[number - 1])}" for number in range(first, reached + 1)]
    if reached < end:
        shown.append(f"[... lines {reached + 1}-{end} left out; go on with from_line={reached + 1} ...]")
    if end < count:
        shown.append(f"[... the file has {count:,} lines ...]")
    return "\n".join(shown)


def _last_shown(lines: Sequence[str], first: int, last: int | None) -> int:
    """Return the number of the last line that is shown from `first` on."""
    end = min(last or len(lines), len(lines), first + MAX_SHOWN - 1)
    sizes = accumulate(len(_line(line)) + 1 for line in lines[first - 1 : end])
    return max(first, first - 1 + sum(size <= MAX_CHARACTERS for size in sizes))


def _decoded(data: bytes, name: str) -> tuple[str, str]:
    """Return a text, and a note if some of it is lost; raises UserError for a binary file."""
    try:
        return decode_text(data, f"`{name}`"), ""
    except UserError:
        if b"\0" in data:
            raise
        return data.decode("utf-8", "replace"), "\n[... bytes that are not UTF-8 are shown as \ufffd ...]"


def _line(line: str) -> str:
    """Return a line, cut if it is very long."""
    if len(line) <= LONGEST_LINE:
        return line
    return f"{line[:LONGEST_LINE]} [... {len(line) - LONGEST_LINE:,} more characters]"
