"""Files, folders, patterns and resources that travel with a prompt, as `references` finds them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from localspec import units
from localspec.chat.attached_file import USUAL_LIMIT, Lines, excerpt, lines_of, read_attachment
from localspec.chat.attached_pattern import literal_base, read_matching
from localspec.chat.markdown import code_blocks
from localspec.chat.messages import Attachment
from localspec.chat.references import FileReference, Obstacle, begins_name, path_named, references
from localspec.chat.resources import NO_RESOURCES, Resources
from localspec.errors import UserError
from localspec.folders.contents import listing, matches
from localspec.folders.patterns import has_signs, path_pattern

MAX_COMPLETIONS = 50
MAX_ENTRIES = 5000  # of a folder are looked at: some milliseconds
MAX_DESCRIBED = 4  # files that are described one by one
_UNFINISHED = re.compile(r'(?<!\\)@("[^"\n]*|[^\s"@]*)\Z')
_AS_TEXT = "a \\ before the @ makes it plain text"
_WHY_NOT: dict[Obstacle | None, str] = {
    "address": "the @ is part of an address or a path; put a space before it to attach the file",
    "code": "it is in a code block; name the file outside of it to attach it",
    "longer": "the word continues after that name; put a space there to attach the file",
}
READ = ", read"
_Key = tuple[Path | str, Lines | None]


@dataclass(frozen=True, slots=True)
class Completion:
    """One way to continue: `insert` takes the place of the text from `start` to the cursor.

    One that `is_notice` says in its label why there are none, and cannot be taken.
    """

    insert: str
    label: str
    description: str = ""
    start: int = 0
    is_notice: bool = False


@dataclass(frozen=True, slots=True)
class Attached:
    """A prompt, the files that it names, each once, and notes on what is not attached.

    The text lacks the backslash before an @ that is to stay text.
    """

    text: str
    files: tuple[Attachment, ...] = ()
    notes: tuple[str, ...] = ()


def attach(
    text: str, folder: Path, limit: int = USUAL_LIMIT, resources: Resources = NO_RESOURCES
) -> Attached:
    """Return a prompt with the files, folders and patterns that it names, relative to `folder`.

    Also with the resources. Raises UserError for what cannot be read, has more than `limit` bytes, is not
    text, or is missing although the word can only mean a file; Cancelled once resources are not awaited.
    """
    named = tuple(references(text, folder, resources.names))
    found: dict[_Key, Attachment] = {}
    notes: dict[str, None] = {}
    pieces = []
    at = 0
    for reference in named:
        if reference.obstacle == "backslash":
            pieces.append(text[at : reference.start - 1])
            at = reference.start
        elif reference.obstacle is None:
            try:
                notes[_add(reference, folder, limit, found, resources)] = None
            except UserError as error:
                hint = f"{error.hint}; {_AS_TEXT}" if error.hint else _AS_TEXT
                raise UserError(error.message, hint) from None
    files = tuple(dict.fromkeys(found.values()))
    notes |= dict.fromkeys(_remark(reference, files) for reference in named)
    return Attached("".join((*pieces, text[at:])), files, tuple(filter(None, notes)))


def as_text(text: str, folder: Path, servers: Collection[str] = ()) -> str:
    """Return a text that attaches nothing, with a backslash before each @ that would."""
    pieces = []
    at = 0
    for reference in references(text, folder, servers):
        if reference.obstacle is None:
            pieces.append(f"{text[at : reference.start]}\\")
            at = reference.start
    return "".join((*pieces, text[at:]))


def describe(attachment: Attachment, tokens: int | None = None) -> str:
    """Return an attachment in words, such as `notes.txt, 12.3 KiB, 3,104 tokens`."""
    about = f" (a list; @{attachment.name}** attaches the files)" if attachment.is_folder else ""
    name = f"{attachment.name}{about}"
    words = [name, units.size(len(attachment.text.encode()))]
    if tokens is not None:
        words.append(units.counted(tokens, "token"))
    return ", ".join(words)


def describe_all(
    files: Sequence[Attachment], tokens: Sequence[int | None] = (), read: int = 0
) -> tuple[str, ...]:
    """Return attachments in words, many of them as one sum; models have `read` the first ones ahead."""
    counts = tokens or [None] * len(files)
    if len(files) <= MAX_DESCRIBED:
        words = [describe(file, count) for file, count in zip(files, counts, strict=True)]
        return tuple(line + READ * (place < read) for place, line in enumerate(words))
    known = [count for count in counts if count is not None]
    size = units.size(sum(len(file.text.encode()) for file in files))
    total = f", {units.counted(sum(known), 'token')}" if len(known) == len(files) else ""
    return (f"{len(files)} files, {size}{total}" + READ * (read >= len(files)),)


def complete_reference(prefix: str, folder: Path) -> tuple[Completion, ...]:
    """Return completions of the name behind an @: files, folders, and patterns with what they match."""
    typed = prefix.removeprefix('"')
    if has_signs(typed) and not complete_path(prefix, folder):
        return _pattern_completion(typed, folder)
    return (*complete_path(prefix, folder), *_folder_completions(typed, folder))


def _folder_completions(typed: str, folder: Path) -> tuple[Completion, ...]:
    """Return the ways to attach a folder as a whole whose name ends a text."""
    if not typed.endswith("/") or typed == "/" or not path_named(typed, folder).is_dir():
        return ()
    return (
        Completion(_quoted(typed), typed, "list its files"),
        Completion(_quoted(f"{typed}**"), f"{typed}**", "attach its text files"),
    )


def _pattern_completion(typed: str, folder: Path) -> tuple[Completion, ...]:
    """Return a pattern with the number of files that it matches, nothing if it matches none."""
    base, rest = literal_base(typed, folder)
    count = len(matches(path_named(base, folder), path_pattern(rest)).paths) if rest else 0
    return (Completion(_quoted(typed), typed, units.counted(count, "file")),) if count else ()


def complete_path(prefix: str, folder: Path) -> tuple[Completion, ...]:
    """Return completions of a file name, which may begin with a quote.

    Folders end with a slash; hidden names need a dot. In a very large folder, only the first
    `MAX_ENTRIES` files are looked at.
    """
    typed = prefix.removeprefix('"')
    parent, slash, name = typed.rpartition("/")
    if typed == "~":
        parent = "~"
        slash = "/"
        name = ""
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


def _add(
    reference: FileReference, folder: Path, limit: int, found: dict[_Key, Attachment], resources: Resources
) -> str:
    """Read what a reference names and is not found yet; return a note on what is left out, or nothing."""
    name = reference.name
    if reference.kind == "pattern":
        matching = read_matching(name, folder, limit)
        for file in matching.files:
            found.setdefault((_real_path(file.name, folder), None), file)
        return matching.note
    if reference.kind == "resource":
        resource = resources.read(name, limit)
        if resource.file is not None:
            found[(resource.file.name, None)] = resource.file
        return resource.note
    key = (_real_path(name, folder), reference.lines)
    if key not in found and reference.kind == "folder":
        found[key] = _listed(name, folder)
    elif key not in found:
        found[key] = read_attachment(name, folder, limit, reference.lines)
    return ""


def _listed(name: str, folder: Path) -> Attachment:
    """Return the names of what is in a folder; raises UserError."""
    try:
        return Attachment(name.rstrip("/") + "/", listing(path_named(name, folder)))
    except OSError as error:
        raise UserError(f"cannot read the folder `{name}`: {error.strerror}") from None


def _remark(reference: FileReference, files: Sequence[Attachment]) -> str:
    """Return why a file is not attached that a reference seems to name, or that the lines are missing."""
    name = reference.name
    if reference.obstacle in _WHY_NOT and all(file.source != name for file in files):
        return f"@{name} is not attached: {_WHY_NOT[reference.obstacle]}"
    whole = next((file for file in files if file.name == name and not reference.obstacle), None)
    if whole and reference.lines and not excerpt(whole, reference.lines):
        count = units.counted(len(lines_of(whole)), "line")
        return f"all of {name} is attached: it has {count}, and no line {reference.lines[0]}"
    return ""


def _real_path(name: str, folder: Path) -> Path:
    path = path_named(name, folder)
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path


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


def _quoted(path: str) -> str:
    return f'"{path}"' if " " in path else path


def _completion(entry: os.DirEntry[str], parent: str) -> Completion:
    try:
        is_folder = entry.is_dir()
        size = "" if is_folder else units.size(entry.stat().st_size)
    except OSError:  # gone meanwhile, or a link to nothing
        is_folder = False
        size = ""
    path = f"{parent}{entry.name}{'/' if is_folder else ''}"
    path = f'"{path}' if is_folder and " " in path else _quoted(path)  # in a folder the name continues
    return Completion(path, f"{entry.name}{'/' if is_folder else ''}", size)
