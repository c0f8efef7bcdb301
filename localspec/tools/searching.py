"""The tool that searches in files: with ripgrep where it is installed, else in a child process.

Both look at the same files in the same order: without what git ignores, hidden and generated files, links.
"""

from __future__ import annotations

import base64
import json
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Annotated

from localspec.child_process import Child, ChildEndedError, pickled, take_pipes
from localspec.errors import UserError
from localspec.folders.contents import generated_names, matches
from localspec.folders.ignored import rules_above
from localspec.folders.patterns import PathPattern, has_signs, path_pattern
from localspec.safe_text import safe_line, whole_text
from localspec.storage.text_file import decode_text
from localspec.tools.finding import ALL, Folder, anywhere
from localspec.tools.tool import ToolOutput
from localspec.tools.workspace import Location, Workspace
from localspec.values import shown

SECONDS = 10.0
MAX_MATCHES = 100
MAX_FILE = 16 * 2**20  # bytes; larger files are left out
LONGEST_LINE = 200
_LOOK_S = 0.05  # between two looks whether the search is to stop
_BEFORE = 60  # characters of a long line before what was found
_WORD = re.compile(r"[^\W_]{3,40}")  # whose misspellings are looked for
_CODE = "from localspec.tools.searching import main; main()"


@dataclass(frozen=True, slots=True)
class SearchArguments:
    """Arguments of `search_files`."""

    pattern: Annotated[
        str,
        "text or regular expression, spelled as the user wrote it, even if misspelled",
    ]
    path: Folder = "."
    files: Annotated[str | None, "name pattern, for some files alone; leave it out to search all"] = None


@dataclass(frozen=True, slots=True)
class FoundLine:
    """A line that was found; the file's name is relative to where the search began."""

    file: str
    number: int
    line: str
    at: int  # in characters

    @property
    def shown(self) -> str:
        """Return it in one harmless line."""
        line = self.line
        start = 0
        if len(line) > LONGEST_LINE:
            start = max(min(self.at - _BEFORE, len(line) - LONGEST_LINE), 0)
            line = f"{'...' * bool(start)}{line[start : start + LONGEST_LINE]}..."
        return f"{safe_line(whole_text(self.file))}:{self.number}: {safe_line(line)}"


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines that were found, and the line above them."""

    found: Sequence[FoundLine]
    heading: str = ""

    @property
    def shown(self) -> str:
        """Return the first of them as text."""
        lines = [line.shown for line in self.found[:MAX_MATCHES]]
        if len(self.found) > MAX_MATCHES:
            lines.append(f"[... more than {MAX_MATCHES} lines match; narrow the pattern ...]")
        return self.heading + "\n".join(lines)


@dataclass(frozen=True, slots=True)
class FileSearcher:
    """Searches in files of a workspace that are not denied; `program` is ripgrep's path, or None."""

    workspace: Workspace
    program: str | None
    is_denied: Callable[[str], bool] = lambda _: False

    def search(self, wanted: SearchArguments, stop: Event) -> ToolOutput:
        """Return the lines that a regular expression matches, with file and number; raises UserError."""
        place = self.workspace.locate(wanted.path)
        if not place.path.exists():
            raise UserError(f"`{place.shown}` is not there", "list_folder shows what is there")
        expression, note = _checked(wanted.pattern)
        parts: list[_Part] = []
        try:
            parts.extend(self._parts(place, wanted, expression, stop))
        except _SlowSearchError as slow:
            note += f"[... the search took more than {SECONDS:.0f} s; name a folder ...]\n"
            parts += [_Part(slow.found)] if slow.found else []
        data = {
            "matches": sum(len(part.found[:MAX_MATCHES]) for part in parts),
            "is_cut": any(len(part.found) > MAX_MATCHES for part in parts),
        }
        text = "\n".join(part.shown for part in parts) or _nothing(wanted.pattern)
        return ToolOutput(note + text, data=data)

    def _parts(
        self, place: Location, wanted: SearchArguments, expression: str, stop: Event
    ) -> Iterator[_Part]:
        """Yield what was found: as asked for, else nearly the same text, and what other files have.

        Models correct the spelling that they were to look for, and guess the names of files.
        """
        files = [anywhere(name) for name in _names(wanted.files)]
        for pattern in files:
            if found := self._found(place, expression, pattern, stop):
                yield _Part(found)
                return
        nearly = _nearly(wanted.pattern)
        near = (self._found(place, nearly, pattern, stop) for pattern in files) if nearly else ()
        if alike := next(filter(None, near), None):
            yield _Part(alike, f"[{_nothing(wanted.pattern)}; these lines have nearly the same:]\n")
        if wanted.files and (others := self._found(place, expression, anywhere(ALL), stop)):
            where = f"`{safe_line(wanted.pattern)}` is not in files `{safe_line(wanted.files)}`"
            yield _Part(others, f"[{where}; in others:]\n")

    def _found(self, place: Location, expression: str, files: PathPattern, stop: Event) -> list[FoundLine]:
        """Return the lines that an expression matches; raises `_SlowSearchError`, which has those so far."""
        found: list[FoundLine] = []
        try:
            with closing(self._lines(place, expression, files, stop)) as lines:
                found.extend(islice(self._allowed(place, lines), MAX_MATCHES + 1))
        except _SlowSearchError as slow:
            slow.found = found
            raise
        return found

    def _allowed(self, place: Location, lines: Iterator[FoundLine]) -> Iterator[FoundLine]:
        """Yield the lines of files that may be read."""
        base = place.path if place.path.is_dir() else place.path.parent
        folder = base.relative_to(self.workspace.root)
        for name, of_file in groupby(lines, lambda line: line.file):
            if not self.is_denied((folder / name).as_posix()):
                yield from of_file

    def _lines(
        self, place: Location, expression: str, files: PathPattern, stop: Event
    ) -> Generator[FoundLine, None, None]:
        if self.program is not None:
            try:
                yield from _by_ripgrep(self.program, place.path, expression, files, stop)
            except _UnknownExpressionError:  # what Python alone knows, such as a look behind
                pass
            else:
                return
        yield from _by_python(self.workspace, place, expression, files, stop)


class _SlowSearchError(Exception):
    """A search has taken too long; `found` is what it had by then."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[FoundLine] = []


class _UnknownExpressionError(Exception):
    """Ripgrep does not know the expression."""


def ripgrep() -> str | None:
    """Return the path of ripgrep, if it is installed."""
    return shutil.which("rg")


def _nothing(pattern: str) -> str:
    """Return that no line matches what was looked for."""
    return f"no line matches `{safe_line(pattern)}`"


def _names(files: str | None) -> tuple[str, ...]:
    """Return the patterns of names to try: a name without an ending may have one.

    Models write `all` where they mean no pattern; a file may have that name.
    """
    if not files:
        return (ALL,)
    is_bare = not has_signs(files) and "." not in files.rpartition("/")[2]
    names = (files, f"{files}.*") if is_bare else (files,)
    return (*names, ALL) if files.casefold() == "all" else names


def _nearly(pattern: str) -> str:
    """Return an expression for words that differ from one in a letter, or in the order of two; empty if none.

    The first letter has to be the same: otherwise short words would be like many others.
    """
    if not _WORD.fullmatch(pattern):
        return ""
    found = [pattern, rf"{pattern}\w"]
    for at in range(1, len(pattern)):
        before = pattern[:at]
        after = pattern[at:]
        found += [before + after[1:], f"{before}\\w{after[1:]}", f"{before}\\w{after}"]
        found += [before + after[1] + after[0] + after[2:]] if after[1:] else []
    return rf"(?i)\b(?:{'|'.join(dict.fromkeys(found))})\b"


def _checked(pattern: str) -> tuple[str, str]:
    """Return a valid expression, and a note if the pattern is taken as a plain text; raises UserError."""
    if not pattern or "\n" in pattern or "\0" in pattern:
        raise UserError("`pattern` has to be a text of one line", "lines are searched one by one")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return re.escape(pattern), f"[{shown(pattern)} is no regular expression; searched as plain text]\n"
    return pattern, ""


def _by_ripgrep(
    program: str, place: Path, expression: str, files: PathPattern, stop: Event
) -> Iterator[FoundLine]:
    base, target = (place, ".") if place.is_dir() else (place.parent, place.name)
    command = [
        program, "--no-config", "--json", "--crlf", "--sort", "path", "--no-require-git",
        "--no-ignore-global", "--no-ignore-dot", "--no-messages", "--max-filesize", str(MAX_FILE),
        *(f"--glob=!{name}/" for name in sorted(generated_names(base))),
        *(() if rules_above(base) else ("--no-ignore-parent",)), "--regexp", expression, "--", target,
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=base, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        with _ended_when(stop, process.kill):
            first = process.stdout.readline()
            if first:
                yield from _whole_files(chain([first], process.stdout), files, is_file=target != ".")
        if not first and not stop.is_set():  # else there is a summary, also after a file that cannot be read
            raise _UnknownExpressionError
    finally:
        process.kill()
        process.communicate()


def _whole_files(output: Iterable[bytes], files: PathPattern, *, is_file: bool) -> Iterator[FoundLine]:
    """Yield the lines of each text file when ripgrep has read all of it."""
    found: list[FoundLine] = []
    for line in output:
        message = json.loads(line)
        data = message["data"]
        if message["type"] == "begin":
            found.clear()
        elif message["type"] == "match":
            name = _text(data["path"]).removeprefix("./")
            if len(found) <= MAX_MATCHES and (is_file or files.matches(name.split("/"))):
                found.append(_found(name, data))
        elif message["type"] == "end" and data["binary_offset"] is None:
            yield from found


def _found(name: str, data: dict[str, object]) -> FoundLine:
    text = _bytes(data["lines"])
    matched = data["submatches"]
    start = matched[0]["start"] if isinstance(matched, list) and matched else 0
    line = text.decode("utf-8", "replace").rstrip("\r\n")
    number = data["line_number"]
    assert isinstance(number, int)
    return FoundLine(name, number, line, len(text[:start].decode("utf-8", "replace")))


def _bytes(value: object) -> bytes:
    """Return a text of ripgrep's JSON, which is in base64 where it is not UTF-8."""
    assert isinstance(value, dict)
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _text(value: object) -> str:
    return _bytes(value).decode("utf-8", "surrogateescape")


@contextmanager
def _ended_when(stop: Event, end: Callable[[], object]) -> Iterator[None]:
    """End a process after a time or when `stop` is set; raises _SlowSearchError after the time."""
    over = Event()
    slow = Event()
    ends = monotonic() + SECONDS

    def watch() -> None:
        while not over.wait(_LOOK_S):
            if stop.is_set() or monotonic() > ends:
                if not stop.is_set():
                    slow.set()
                end()
                return

    watcher = Thread(target=watch, name="localspec-search", daemon=True)
    watcher.start()
    try:
        yield
    except ChildEndedError:
        if not (slow.is_set() or stop.is_set()):
            raise
    finally:
        over.set()
        watcher.join()
    if slow.is_set():
        raise _SlowSearchError


def _by_python(
    workspace: Workspace, place: Location, expression: str, files: PathPattern, stop: Event
) -> Iterator[FoundLine]:
    child = Child(_CODE, "the search", pickled)
    try:
        with _ended_when(stop, child.end):
            lines = child.ask((workspace.root, place.name, expression, files))
            while isinstance(lines, list):
                yield from lines
                lines = child.receive()
    except ChildEndedError as ended:
        raise UserError(f"the search has failed: {ended.how}") from None
    finally:
        child.end()


def main() -> None:
    """Send the lines that are found, file by file, and None at the end."""
    requests, replies = take_pipes()
    for lines in found_lines(*pickle.load(requests)):
        pickle.dump(lines, replies)
        replies.flush()
    pickle.dump(None, replies)
    replies.flush()


def found_lines(root: Path, name: str, expression: str, files: PathPattern) -> Iterator[list[FoundLine]]:
    """Yield the lines that an expression matches in each file that has some."""
    workspace = Workspace(root)
    wanted = re.compile(expression)
    place = workspace.locate(name)
    if place.path.is_dir():
        found = (each.split("/") for each in matches(place.path, path_pattern(ALL)).paths)
        names = ["/".join(each) for each in sorted(found) if files.matches(each)]
        base = place.path
    else:
        names = [place.path.name]
        base = place.path.parent
    for each in names:
        with suppress(OSError, UserError):
            data = workspace.read(workspace.locate(str(base / each)), MAX_FILE + 1)
            if len(data) <= MAX_FILE and (
                lines := list(islice(_matching(each, _searchable(data), wanted), MAX_MATCHES + 1))
            ):
                yield lines


def _searchable(data: bytes) -> str:
    """Return the text of a file; raises UserError for a binary one."""
    try:
        return decode_text(data, "")
    except UserError:
        if b"\0" in data:
            raise
        return data.decode("utf-8", "replace")


def _matching(name: str, text: str, wanted: re.Pattern[str]) -> Iterator[FoundLine]:
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        bare = line.removesuffix("\r")
        if (found := wanted.search(bare)) is not None:
            yield FoundLine(name, number, bare, found.start())
