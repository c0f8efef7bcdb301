"""Text files that travel with a prompt which names them, as `references` finds it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from localspec import units
from localspec.chat.markdown import code_blocks
from localspec.chat.messages import Attachment
from localspec.chat.references import FileReference, Obstacle, begins_name, path_named, references
from localspec.errors import UserError
from localspec.storage.text_file import decode_text

USUAL_LIMIT = 256 * 1024
MAX_SEARCHED = 64 * 2**20  # bytes of a file of which some lines are attached
MAX_COMPLETIONS = 50
MAX_ENTRIES = 5000  # of a folder are looked at: some milliseconds
_UNFINISHED = re.compile(r'(?<!\\)@("[^"\n]*|[^\s"@]*)\Z')
_AS_TEXT = "a \\ before the @ makes it plain text"
_WHY_NOT: dict[Obstacle | None, str] = {
    "address": "the @ is part of an address or a path; put a space before it to attach the file",
    "code": "it is in a code block; name the file outside of it to attach it",
    "longer": "the word continues after that name; put a space there to attach the file",
}


@dataclass(frozen=True, slots=True)
class Completion:
    """One way to continue: `insert` takes the place of the text from `start` to the cursor."""

    insert: str
    label: str
    description: str = ""
    start: int = 0


def attach(text: str, folder: Path, limit: int = USUAL_LIMIT) -> tuple[str, tuple[Attachment, ...]]:
    """Return a prompt and the files that it names, relative to `folder`, each once.

    Raises UserError for a file that cannot be read, has more than `limit` bytes, is not text, or is missing
    although the word can only mean a file.
    """
    found: dict[tuple[Path, tuple[int, int] | None], Attachment] = {}
    pieces, at = [], 0
    for reference in references(text, folder):
        if reference.obstacle == "backslash":
            pieces.append(text[at : reference.start - 1])
            at = reference.start
        key = (_real_path(reference.name, folder), reference.lines)
        if reference.obstacle is None and key not in found:
            try:
                found[key] = _read(reference, folder, limit)
            except UserError as error:
                hint = f"{error.hint}; {_AS_TEXT}" if error.hint else _AS_TEXT
                raise UserError(error.message, hint) from None
    return "".join((*pieces, text[at:])), tuple(dict.fromkeys(found.values()))


def unread(text: str, folder: Path, files: Sequence[Attachment]) -> tuple[str, ...]:
    """Return a line for each file that a prompt seems to name and that `files`, read for it, lack.

    Another one says where all of a file was read, because it lacks the lines that are named.
    """
    lines: dict[str, None] = {}
    for reference in references(text, folder):
        name = reference.name
        if reference.obstacle in _WHY_NOT and all(file.source != name for file in files):
            lines[f"@{name} is not attached: {_WHY_NOT[reference.obstacle]}"] = None
        whole = next((file for file in files if file.name == name and not reference.obstacle), None)
        if whole and reference.lines and not _excerpt(whole, reference.lines):
            count = units.counted(len(_lines_of(whole)), "line")
            lines[f"all of {name} is attached: it has {count}, and no line {reference.lines[0]}"] = None
    return tuple(lines)


def read_attachment(name: str, folder: Path, limit: int = USUAL_LIMIT) -> Attachment:
    """Read one text file; raises UserError for everything that cannot be attached."""
    path = path_named(name, folder)
    try:
        _check(name, path.stat(), limit)
        with path.open("rb") as file:
            data = file.read(limit)
    except FileNotFoundError:
        if path.is_symlink():
            raise UserError(f"`{name}` links to a file that is gone", "name another file") from None
        there = {entry.name.casefold(): entry.name for entry in _matching(path.parent, "")}
        close = get_close_matches(path.name.casefold(), there, n=1)
        hint = f"did you mean `{there[close[0]]}`?" if close else ""
        raise UserError(f"there is no file `{name}`", hint) from None
    except OSError as error:
        raise UserError(f"cannot read `{name}`: {error.strerror}") from None
    except ValueError:
        raise UserError(f"{name!r} is not the name of a file") from None
    return Attachment(name, _decoded(name, data))


def describe(attachment: Attachment, tokens: int | None = None) -> str:
    """Return an attachment in words, such as `notes.txt, 12.3 kB, 3,104 tokens`."""
    words = [attachment.name, units.size(len(attachment.text.encode()))]
    if tokens is not None:
        words.append(f"{tokens:,} token{'' if tokens == 1 else 's'}")
    return ", ".join(words)


def complete_path(prefix: str, folder: Path) -> tuple[Completion, ...]:
    """Return completions of a file name, which may begin with a quote.

    Folders end with a slash; hidden names need a dot. In a very large folder, only the first
    `MAX_ENTRIES` files are looked at.
    """
    typed = prefix.removeprefix('"')
    parent, slash, name = typed.rpartition("/")
    if typed == "~":
        parent, slash, name = "~", "/", ""
    entries = sorted(
        _matching(path_named(parent + slash, folder), name), key=lambda entry: entry.name.casefold()
    )
    return tuple(_completion(entry, f"{parent}{slash}") for entry in entries[:MAX_COMPLETIONS])


def reference_at_end(text: str) -> int | None:
    """Return the start of the file name after an @ at the end of a text, None without one."""
    found = _UNFINISHED.search(text)
    if found is None or not begins_name(text[: found.start()]):
        return None
    return None if any(block.is_open for block in code_blocks(text)) else found.start(1)


def _read(reference: FileReference, folder: Path, limit: int) -> Attachment:
    """Read the lines that are wanted of a file, or all of it where it lacks them; raises UserError."""
    if reference.lines is None:
        return read_attachment(reference.name, folder, limit)
    whole = read_attachment(reference.name, folder, max(limit, MAX_SEARCHED))
    wanted = _excerpt(whole, reference.lines) or whole
    if (size := len(wanted.text.encode())) > limit:
        raise _too_large(wanted.name, size, limit)
    return wanted


def _excerpt(file: Attachment, lines: tuple[int, int] | None) -> Attachment | None:
    """Return some lines of a file, None where it lacks them or all are wanted."""
    if lines is None:
        return None
    first, last, all_lines = *lines, _lines_of(file)
    wanted = all_lines[first - 1 : last] if first else []
    if not wanted:
        return None
    numbers = f"{first}-{first + len(wanted) - 1}" if len(wanted) > 1 else f"{first}"
    return Attachment(f"{file.name}:{numbers}", "\n".join(wanted) + "\n")


def _lines_of(file: Attachment) -> list[str]:
    return file.text.removesuffix("\n").split("\n")


def _real_path(name: str, folder: Path) -> Path:
    path = path_named(name, folder)
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path


def _check(name: str, status: os.stat_result, limit: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"`{name}` is a folder", "name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"`{name}` is not a regular file", "only text files can be attached")
    if status.st_size > limit:
        raise _too_large(name, status.st_size, limit)


def _too_large(name: str, size: int, limit: int) -> UserError:
    return UserError(
        f"`{name}` has {units.size(size)}, more than the {units.size(limit)} that can be attached",
        f"attach some lines of it, as @{name.partition(':')[0]}:1-200, or raise max_kib in config.toml",
    )


def _decoded(name: str, data: bytes) -> str:
    try:
        text = decode_text(data, f"`{name}`")
    except UserError as error:
        raise UserError(
            error.message, f"{error.hint}; pictures, PDF and office files cannot be attached"
        ) from None
    if not text.strip():
        raise UserError(f"`{name}` is empty")
    return text.replace("\r\n", "\n")


def _matching(folder: Path, beginning: str) -> list[os.DirEntry[str]]:
    wanted = beginning.casefold()
    try:
        with os.scandir(folder) as entries:
            return [
                entry
                for entry in islice(entries, MAX_ENTRIES)
                if entry.name.casefold().startswith(wanted)
                and (beginning.startswith(".") or not entry.name.startswith("."))
                and entry.name.isprintable()
                and '"' not in entry.name
            ]
    except (OSError, ValueError):
        return []


def _completion(entry: os.DirEntry[str], parent: str) -> Completion:
    try:
        is_folder = entry.is_dir()
        size = "" if is_folder else units.size(entry.stat().st_size)
    except OSError:  # gone meanwhile, or a link to nothing
        is_folder, size = False, ""
    path = f"{parent}{entry.name}{'/' if is_folder else ''}"
    if " " in path:
        path = f'"{path}' if is_folder else f'"{path}"'  # in a folder the name continues
    return Completion(path, f"{entry.name}{'/' if is_folder else ''}", size)
