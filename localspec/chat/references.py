r"""File references in a text: `@name`, `@"name with spaces"`, `@~/name`; or lines: `@name:3-5`, `@name#L3`.

The existing files decide where a name ends, so punctuation may follow it directly.
A word that names no file stays text: `@dataclass`, `me@example.org`. `\@name` always stays text.
"""

from __future__ import annotations

import re
import stat
import string
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.chat.markdown import code_blocks

Obstacle = Literal["address", "backslash", "code", "longer"]
"""Why a file that is there is not read: the `@` is in an address or a path, behind a backslash or in a
block of code, or the word continues where the name of the file ends."""
LONGEST_NAME = 512  # characters that are compared with the files
_FILE_ENDINGS = frozenset(  # with these, a name that does not exist is a slip and no mere word
    ".c .cfg .conf .cpp .css .csv .go .h .html .ini .ipynb .java .js .json .jsonl .log .md .pdf .py .rs .rst "
    ".sh .sql .tex .toml .ts .tsv .txt .xml .yaml .yml".split()
)
_PATH_STARTS = ("./", "../", "~/", "/", ".\\", "..\\")
_OF_FOLDERS = "/\\~-"  # signs that may end a name
_CLOSING = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "‘": "’", "«": "»", "「": "」", "『": "』"}
_OF_ADDRESSES = f"{string.ascii_letters}{string.digits}._%+~/\\-"
_GOES_ON = re.compile(r"(?!\.[A-Z])[._/\\]*[A-Za-z0-9]")  # a capital letter begins a sentence
_LINES = re.compile(r"(?::|#[Ll])([0-9]{1,9})(?:[-–][Ll]?([0-9]{1,9}))?(?::[0-9]+)?(?![.,]?[A-Za-z0-9])")
_ENDING = re.compile(r"(?<=.)\.[A-Za-z]+")
_WORD = re.compile(r'[^\s"]*')


@dataclass(frozen=True, slots=True)
class FileReference:
    """An `@` at character `start`, and the file named by the text up to `end`.

    `lines` are the first and the last line, None for all. With an `obstacle` the file exists but is not read;
    without one it is read, and may be missing.
    """

    start: int
    end: int
    name: str
    lines: tuple[int, int] | None = None
    obstacle: Obstacle | None = None


def references(text: str, folder: Path) -> Iterator[FileReference]:
    """Yield where a text names files, relative to `folder`, from first to last."""
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
        name, end = _named(text, at + 1, folder)
        if not name and obstacle in (None, "backslash") and _is_certain(before):
            name, end = _misspelt(text, at + 1, folder)
        if not name and obstacle is None:
            name, end = _beginning(text, at + 1, folder)
            obstacle = "longer"
        if not name:
            continue
        lines = _LINES.match(text, end)
        if obstacle in (None, "backslash"):
            done = lines.end() if lines else end
        yield FileReference(at, end, name, _range(lines), obstacle)


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


def _named(text: str, start: int, folder: Path) -> tuple[str, int]:
    """Return the file that is there and that a text names at `start`, and where its name ends; or nothing."""
    line = _line(text, start)
    close = line.find(_CLOSING.get(line[:1], "\n"), 1)
    if close > 1 and (name := _existing(line[1:close], folder)):
        return name, start + close + 1
    if not line[:1].isspace():
        for length in range(len(line), 0, -1):
            if not _GOES_ON.match(text, start + length) and (name := _existing(line[:length], folder)):
                return name, start + length
    return "", 0


def _misspelt(text: str, start: int, folder: Path) -> tuple[str, int]:
    """Return the text at `start` if it can only be the name of a missing file; else nothing."""
    line = _line(text, start)
    close = line.find('"', 1) if line.startswith('"') else -1
    if close > 1:
        return line[1:close], start + close + 1
    word = _word(line).partition("@")[0]
    for ending in _ENDING.finditer(word):
        if ending[0].lower() in _FILE_ENDINGS and not _GOES_ON.match(text, start + ending.end()):
            return word[: ending.end()], start + ending.end()
    while word and unicodedata.category(word[-1]).startswith(("P", "S")) and word[-1] not in _OF_FOLDERS:
        word = word[:-1]
    is_path = word.startswith(_PATH_STARTS) or _is_folder(word, folder)
    return (word, start + len(word)) if is_path and word not in _PATH_STARTS else ("", 0)


def _beginning(text: str, start: int, folder: Path) -> tuple[str, int]:
    """Return the file whose name begins the word at `start`; or nothing."""
    word = _word(_line(text, start))
    for length in range(len(word), 0, -1):
        if name := _existing(word[:length], folder):
            return name, start + length
    return "", 0


def _line(text: str, start: int) -> str:
    return text[start : start + LONGEST_NAME].partition("\n")[0]


def _word(line: str) -> str:
    found = _WORD.match(line)
    return found[0] if found else ""


def _existing(name: str, folder: Path) -> str:
    """Return the spelling of a file name on the disk, with its accents composed or not; or nothing."""
    composed, apart = unicodedata.normalize("NFC", name), unicodedata.normalize("NFD", name)
    for spelling in dict.fromkeys((name, composed, apart)):
        path = path_named(spelling, folder)
        with suppress(OSError, ValueError):
            if spelling.endswith(path.name) and not stat.S_ISDIR(path.stat().st_mode):  # no slash after it
                return spelling
    return ""


def _is_folder(name: str, folder: Path) -> bool:
    with suppress(OSError, ValueError):
        return "/" in name and path_named(name, folder).is_dir()
    return False


def _range(lines: re.Match[str] | None) -> tuple[int, int] | None:
    return (int(lines[1]), int(lines[2] or lines[1])) if lines else None
