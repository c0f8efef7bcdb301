"""Dropped and pasted paths: a text of absolute paths becomes references, so that the files are attached."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from localspec.chat.references import LONGEST_NAME, path_named
from localspec.chat.spelled_paths import Spelled, address_at, shell_word_at, without_backslashes

_LONGEST = 16 * 1024  # characters of a text that may be paths
_PLAIN = re.compile(r"[\w./~+-]*[\w/]")  # needs no quotes
_QUOTES = ('""', "''", "``", "“”", "«»")


def as_references(text: str, folder: Path) -> str | None:
    """Return references to the paths of a text that is nothing else, None for any other text."""
    found, rest = _leading(text, folder)
    return None if rest or not found else " ".join(found)


def with_references(line: str, folder: Path) -> str:
    """Return a line with references in place of the paths that it begins with; a space keeps them as text."""
    found, rest = ([], "") if line[:1].isspace() else _leading(line, folder)
    return " ".join((*found, rest)).rstrip() if found else line


def _leading(text: str, folder: Path) -> tuple[list[str], str]:
    """Return references to the absolute paths that a text begins with, and what follows."""
    rest = text.strip()
    found: list[str] = []
    while rest and len(text) <= _LONGEST:
        hit = next(((path, end) for path, end in _spellings(rest) if _is_there(path, folder)), None)
        if hit is None:
            break
        found.append(_reference(hit[0], folder))
        rest = rest[hit[1] :].lstrip()
    return found, rest


def _spellings(text: str) -> Iterator[Spelled]:
    """Yield the paths with which a text may begin, as it spells them; the bare ones may hold blanks."""
    for spelled in (address_at(text, 0), shell_word_at(text, 0)):
        if spelled is not None:
            yield spelled
            yield without_backslashes(spelled[0]), spelled[1]  # VS Code quotes and escapes
    line = text[:LONGEST_NAME].partition("\n")[0]
    for end in [blank.start() for blank in re.finditer(r"\s+|\Z", line)][::-1]:
        yield line[:end], end


def _is_there(path: str, folder: Path) -> bool:
    """Return whether a text is an absolute path to something below the root."""
    is_absolute = path.startswith("~/") or Path(path).is_absolute()
    try:
        return is_absolute and bool(Path(path).name) and os.path.lexists(path_named(path, folder))
    except ValueError:
        return False


def _bases(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders from which paths can be named, with the start of such names."""
    with suppress(OSError):  # a working folder that is gone
        yield Path(os.path.abspath(folder)), ""  # noqa: PTH100 - links stay
    with suppress(RuntimeError):  # a user without a home
        yield Path.home(), "~/"


def _reference(path: str, folder: Path) -> str:
    """Return a reference to a path, relative to the folder or to the home folder if it is there."""
    absolute = path_named(path, folder)
    shown = absolute.as_posix()
    for base, start in _bases(folder):
        if absolute.is_relative_to(base) and absolute != base:
            shown = start + absolute.relative_to(base).as_posix()
            break
    shown += "/" * absolute.is_dir()
    if _PLAIN.fullmatch(shown):
        return f"@{shown}"
    quotes = next((pair for pair in _QUOTES if not {*pair} & {*shown}), ("", ""))
    return f"@{quotes[0]}{shown}{quotes[1]}"
