r"""File references in a text: `@name`, `@"name with spaces"`, `@~/name`; or lines: `@name:3-5`, `@name#L3`.

`@folder` and `@folder/` name a folder, `@folder/*.py` and `@folder/**` the files that match a pattern.
The existing files decide where a name ends, so punctuation may follow it directly.
`@server:uri` names a resource, if there is an MCP server of that name.
A word that names nothing stays text: `@dataclass`, `me@example.org`. `\@name` always stays text.
"""

from __future__ import annotations

import os
import re
import string
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.chat.markdown import code_blocks
from localspec.chat.spelled_paths import address_at, shell_word_at
from localspec.folders.patterns import has_signs, split_base

Kind = Literal["file", "folder", "pattern", "resource"]
Obstacle = Literal["address", "backslash", "code", "longer"]
"""Why a file that is there is not read: the `@` is in an address or a path, behind a backslash or in a
block of code, or the word continues where the name of the file ends."""
LONGEST_NAME = 512  # characters that are compared with the files
_FILE_ENDINGS = frozenset(  # with these, a name that does not exist is a slip and no mere word
    ".c .cfg .conf .cpp .css .csv .go .h .html .ini .ipynb .java .js .json .jsonl .log .md .pdf .py .rs .rst "
    ".sh .sql .tex .toml .ts .tsv .txt .xml .yaml .yml".split()
)
_PATH_STARTS = ("./", "../", "~/", "/", ".\\", "..\\")
_FOLDERS_ALONE = ("./", "../", "~/")
_OF_FOLDERS = "/\\~-"  # signs that may end a name
_CLOSING = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "‘": "’", "«": "»", "「": "」", "『": "』"}
_OF_ADDRESSES = f"{string.ascii_letters}{string.digits}._%+~/\\-"
_GOES_ON = re.compile(r"(?!\.[A-Z])[._/\\]*[A-Za-z0-9]")  # a capital letter begins a sentence
_LINES = re.compile(r"(?::|#[Ll])([0-9]{1,9})(?:[-–][Ll]?([0-9]{1,9}))?(?::[0-9]+)?(?![.,]?[A-Za-z0-9])")
_ENDING = re.compile(r"(?<=.)\.[A-Za-z]+")
_SERVER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
ENDS_WORD = ".,;:!?)}>'`\u201d\u2019\u00bb"
_WORD = re.compile(r'[^\s"]*')
_PATTERN = re.compile(r"(.*[*?\]])([\w./-]*)", re.ASCII)  # after its last sign, no text in another script


@dataclass(frozen=True, slots=True)
class FileReference:
    """An `@` at character `start`, and the file, folder or pattern named by the text up to `end`.

    `lines` are the first and the last line, None for all. With an `obstacle` the file exists but is not read;
    without one it is read, and may be missing.
    """

    start: int
    end: int
    name: str
    lines: tuple[int, int] | None = None
    obstacle: Obstacle | None = None
    kind: Kind = "file"


def references(text: str, folder: Path, servers: Collection[str] | None = ()) -> Iterator[FileReference]:
    """Yield where a text names files, relative to `folder`, or resources of servers, from first to last.

    Where the servers are not known (None), each word may be the name of one.
    """
    if "@" not in text:
        return
    blocks = [block for block in code_blocks(text) if block.fence]  # indented text is hardly meant as code
    done = 0  # end of the last name
    for found in re.finditer("@", text):
        at = found.start()
        if at < done:
            continue
        escaped = at > done and text[at - 1] == "\\"
        before = text[max(done, at - LONGEST_NAME) : at - escaped]
        obstacle: Obstacle | None = "backslash" if escaped else None
        if any(block.start <= at < block.end for block in blocks):
            obstacle = "code"
        elif not begins_name(before):
            obstacle = "address"
        known = servers if servers is not None or _is_certain(before) else ()
        named = _resource(text, at + 1, folder, known) or _named(text, at + 1, folder)
        if named is None and obstacle in (None, "backslash") and _is_certain(before):
            named = _pattern(text, at + 1, folder) or _misspelt(text, at + 1, folder)
        if named is None and obstacle is None:
            named = _beginning(text, at + 1, folder)
            obstacle = "longer"
        if named is None or (named.kind != "file" and obstacle not in (None, "backslash")):
            continue
        lines = _LINES.match(text, named.end) if named.kind == "file" else None
        if obstacle in (None, "backslash"):
            done = lines.end() if lines else named.end
        yield FileReference(at, named.end, named.name, _range(lines), obstacle, named.kind)


def begins_name(before: str) -> bool:
    """Return whether an `@` after a text begins a name, and is not part of an address or a path."""
    return not any(map(str.isalnum, before[len(before.rstrip(_OF_ADDRESSES)) :]))


def path_named(name: str, folder: Path) -> Path:
    """Return the path of a file name, relative to `folder`, or to the home folder after a `~`."""
    try:
        return folder / Path(name).expanduser()
    except RuntimeError:  # `~name`
        return folder / name


def _is_certain(before: str) -> bool:
    """Return whether an `@` after a text is outside of code, so a missing file may be a typing error."""
    last = before[-1:]
    return not last.isascii() or last.isspace() or last in "([{"


@dataclass(frozen=True, slots=True)
class _Named:
    """What a text names, where the name ends in the text, and its kind."""

    name: str
    end: int
    kind: Kind = "file"


def _resource(text: str, start: int, folder: Path, servers: Collection[str] | None) -> _Named | None:
    """Return the resource that a text names at `start`; the name of a file with its lines is none."""
    line = _line(text, start)
    close = line.find('"', 1) if line.startswith('"') else -1
    word = line[1:close] if close > 1 else _word(line).rstrip(ENDS_WORD)
    server, colon, rest = word.partition(":")
    if not (colon and rest):
        return None
    if servers is None:
        is_one = _SERVER.fullmatch(server) is not None and _existing(word, folder) is None
    else:
        is_one = server.casefold() in map(str.casefold, servers)
    if not is_one:
        return None
    if _LINES.fullmatch(f":{rest}") and _existing(server, folder):
        return None
    return _Named(word, start + (close + 1 if close > 1 else len(word)), "resource")


def _named(text: str, start: int, folder: Path) -> _Named | None:
    """Return the file, folder or pattern that a text names at `start` and that is there."""
    line = _line(text, start)
    close = line.find(_CLOSING.get(line[:1], "\n"), 1)
    if close > 1 and (found := _existing(line[1:close], folder)):
        return _Named(found[0], start + close + 1, found[1])
    if line.startswith('"') and close < 0 and (found := _existing(line[1:].rstrip(), folder)):
        return _Named(found[0], start + len(line), found[1])
    if line[:1].isspace():
        return None
    for length in range(len(line), 0, -1):
        if not _GOES_ON.match(text, start + length) and (found := _existing(line[:length], folder)):
            if found[1] == "folder" and (pattern := _pattern(text, start, folder)):
                return pattern
            return _Named(found[0], start + length, found[1])
    return _spelled(text, start, folder)


def _spelled(text: str, start: int, folder: Path) -> _Named | None:
    """Return the file or folder that an address names, or a name with a backslash before each blank."""
    line = _line(text, start)
    for spelled in (address_at(line, 0), shell_word_at(line, 0)):
        if spelled is not None and (found := _existing(spelled[0], folder)):
            return _Named(found[0], start + spelled[1], found[1])
    return None


def _pattern(text: str, start: int, folder: Path) -> _Named | None:
    """Return the pattern that a text has at `start`, if it can only be one of files that are there."""
    line = _line(text, start)
    close = line.find('"', 1) if line.startswith('"') else -1
    if close > 1:
        word = line[1:close]
        end = start + close + 1
    else:
        bare = _word(line).partition("@")[0].rstrip(ENDS_WORD)
        if text[start - 2 : start - 1] == "*":  # emphasis in Markdown
            bare = bare.rstrip("*")
        found = _PATTERN.match(bare)
        word = found[0].rstrip(".") if found else ""
        end = start + len(word)
    if not has_signs(word):
        return None
    base = split_base(word)[0]
    begins = word.startswith("**/") or (base and _existing(base, folder))
    ending = _ENDING.search(word.rpartition("/")[2])
    is_meant = begins or (ending is not None and ending[0].lower() in _FILE_ENDINGS)
    return _Named(word, end, "pattern") if is_meant else None


def _misspelt(text: str, start: int, folder: Path) -> _Named | None:
    """Return the text at `start` if it can only be the name of a missing file."""
    line = _line(text, start)
    close = line.find('"', 1) if line.startswith('"') else -1
    if close > 1:
        return _Named(line[1:close], start + close + 1)
    word = _word(line).partition("@")[0]
    for ending in _ENDING.finditer(word):
        if ending[0].lower() in _FILE_ENDINGS and not _GOES_ON.match(text, start + ending.end()):
            return _Named(word[: ending.end()], start + ending.end())
    while word and unicodedata.category(word[-1]).startswith(("P", "S")) and word[-1] not in _OF_FOLDERS:
        word = word[:-1]
    is_path = word.startswith(_PATH_STARTS) or _begins_with_folder(word, folder)
    return _Named(word, start + len(word)) if is_path and _has_letter(word) else None


def _beginning(text: str, start: int, folder: Path) -> _Named | None:
    """Return the file whose name begins the word at `start`."""
    word = _word(_line(text, start))
    for length in range(len(word), 0, -1):
        if (found := _existing(word[:length], folder)) and found[1] == "file":
            return _Named(found[0], start + length)
    return None


def _line(text: str, start: int) -> str:
    return text[start : start + LONGEST_NAME].partition("\n")[0]


def _word(line: str) -> str:
    found = _WORD.match(line)
    return found[0] if found else ""


def _existing(name: str, folder: Path) -> tuple[str, Kind] | None:
    """Return the spelling of a name on the disk, with its accents composed or not, and its kind.

    A link that leads nowhere is a file: whether it can be read is another question.
    """
    composed = unicodedata.normalize("NFC", name)
    apart = unicodedata.normalize("NFD", name)
    for spelling in dict.fromkeys((name, composed, apart)):
        path = path_named(spelling, folder)
        with suppress(OSError, ValueError):
            path.lstat()
            is_folder = os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises where a folder above is closed
            if is_folder and spelling.endswith(_FOLDERS_ALONE):
                return spelling, "folder"
            if is_folder and _has_letter(spelling) and spelling.rstrip("/").endswith(path.name):
                return spelling, "folder"
            if not is_folder and spelling.endswith(path.name):  # no slash after it
                return spelling, "file"
    return None


def _has_letter(name: str) -> bool:
    return any(map(str.isalnum, name))


def _begins_with_folder(word: str, folder: Path) -> bool:
    """Return whether a word with a slash begins with the name of a folder."""
    first, slash, _ = word.partition("/")
    with suppress(OSError, ValueError):
        return bool(first and slash) and path_named(first, folder).is_dir()
    return False


def _range(lines: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(lines[1]), int(lines[2] or lines[1])) if lines else None
