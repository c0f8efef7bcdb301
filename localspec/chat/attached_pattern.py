"""The files that a pattern matches, read to be attached, and a note about those that are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec import units
from localspec.chat.attached_file import UnattachableError, read_attachment
from localspec.chat.messages import Attachment
from localspec.chat.references import path_named
from localspec.errors import UserError
from localspec.folders.contents import MAX_LOOKED_AT, Matches, matches
from localspec.folders.patterns import has_signs, path_pattern, split_base

MAX_FILES = 100
_NAMED = 3  # files left out that a note names
_PDF = ".pdf"


@dataclass(frozen=True, slots=True)
class AttachedPattern:
    """The files of a pattern, those nearest to its base first, and a note on what is left out, or none."""

    files: tuple[Attachment, ...]
    note: str = ""


def read_matching(pattern: str, folder: Path, limit: int) -> AttachedPattern:
    """Read the text files that a pattern matches, up to `limit` bytes in all.

    PDF files are only read if the pattern ends in .pdf. Raises UserError if no file can be attached.
    """
    base, rest = literal_base(pattern, folder)
    found = matches(path_named(base, folder), path_pattern(rest))
    files: list[Attachment] = []
    left_out = dict.fromkeys(found.links, "a link")
    size = 0
    full = ""
    for path in found.paths:
        try:
            file = _read(base + path, pattern, folder, limit)
        except UserError as error:
            left_out[path] = error.why if isinstance(error, UnattachableError) else "cannot be read"
            continue
        size += len(file.text.encode())
        if size > limit or len(files) == MAX_FILES:
            full = units.size(limit) if size > limit else units.counted(MAX_FILES, "file")
            break
        files.append(file)
    if not files:
        raise _nothing(pattern, found, left_out)
    return AttachedPattern(tuple(files), _note(pattern, found, len(files), left_out, full))


def literal_base(pattern: str, folder: Path) -> tuple[str, str]:
    """Split a pattern after the folders that are there as it spells them, even with signs in their names."""
    base, rest = split_base(pattern)
    while has_signs(rest):
        name, slash, others = rest.partition("/")
        if not slash or not path_named(base + name, folder).is_dir():
            break
        base = f"{base}{name}/"
        rest = others
    return base, rest


def _read(name: str, pattern: str, folder: Path, limit: int) -> Attachment:
    if name.lower().endswith(_PDF) and not pattern.lower().endswith(_PDF):
        raise UnattachableError(f"`{name}` is a PDF file", f"name it, or use *{_PDF}", "a PDF file")
    return read_attachment(name, folder, limit)


def _nothing(pattern: str, found: Matches, left_out: Mapping[str, str]) -> UserError:
    if left_out:
        return UserError(f"no file that `{pattern}` matches can be attached: {_reasons(left_out)}")
    if found.is_cut:
        hint = "begin the pattern with a folder"
        return UserError(f"`{pattern}` matches none of the first {MAX_LOOKED_AT:,} files", hint)
    hint = "hidden files and those that git ignores are attached by their names" if found.ignored else ""
    return UserError(f"no file matches `{pattern}`", hint)


def _note(pattern: str, found: Matches, attached: int, left_out: Mapping[str, str], full: str) -> str:
    """Return a note on the matching files that are not attached; nothing if all are."""
    count = len(found.paths) + len(found.links)
    parts = [f"not {_reasons(left_out)}"] if left_out else []
    if full:
        parts.append(f"{count - attached - len(left_out):,} more would be over the limit of {full}")
    if found.is_cut:
        parts.append(f"only {MAX_LOOKED_AT:,} files were looked at")
    return f"{pattern}: {attached} of {count:,} files attached; {', '.join(parts)}" if parts else ""


def _reasons(left_out: Mapping[str, str]) -> str:
    named = [f"{path} ({why})" for path, why in [*left_out.items()][:_NAMED]]
    more = len(left_out) - len(named)
    return ", ".join(named) + f" and {more} others" * (more > 0)
