"""One file read to be attached: a text, some lines of one, or the text of a PDF file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from localspec import units
from localspec.chat.messages import Attachment
from localspec.chat.references import path_named
from localspec.errors import UserError
from localspec.pdf import is_pdf, pdf_text
from localspec.storage.regular_file import read_regular
from localspec.storage.text_file import decode_text

USUAL_LIMIT = 256 * 1024
MAX_SEARCHED = 64 * 2**20  # bytes of a file of which some lines are attached
MAX_NEIGHBOURS = 5000  # names that are compared with a misspelt one: some milliseconds
Lines = tuple[int, int]
"""The first and the last line; of a PDF file, page."""


class UnattachableError(UserError):
    """A file is there and cannot be attached; `why` says so in a few words."""

    def __init__(self, message: str, hint: str, why: str) -> None:
        super().__init__(message, hint)
        self.why = why


def read_attachment(
    name: str, folder: Path, limit: int = USUAL_LIMIT, lines: Lines | None = None
) -> Attachment:
    """Read a file, relative to `folder`, or some lines of it; all of it where it lacks these lines.

    Raises UserError for everything that cannot be attached.
    """
    path = path_named(name, folder)
    most = max(limit, MAX_SEARCHED) if lines else limit
    try:
        data = read_regular(path, name, most + 1)
        if is_pdf(data):
            return Attachment(_numbered(name, lines), pdf_text(path, name, lines, limit))
        size = max(path.stat().st_size, len(data))
    except FileNotFoundError:
        raise _missing(name, path) from None
    except OSError as error:
        raise UnattachableError(f"cannot read `{name}`: {error.strerror}", "", "cannot be read") from None
    except ValueError:
        raise UserError(f"{name!r} is not the name of a file") from None
    if len(data) > most:
        raise _too_large(name, size, limit)
    whole = Attachment(name, _decoded(name, data))
    wanted = (excerpt(whole, lines) if lines else None) or whole
    if lines and (size := len(wanted.text.encode())) > limit:
        raise _too_large(wanted.name, size, limit)
    return wanted


def excerpt(file: Attachment, lines: Lines) -> Attachment | None:
    """Return some lines of a file, None where it lacks them."""
    first, last = lines
    wanted = lines_of(file)[first - 1 : last] if first else []
    if not wanted:
        return None
    return Attachment(_numbered(file.name, (first, first + len(wanted) - 1)), "\n".join(wanted) + "\n")


def lines_of(file: Attachment) -> list[str]:
    """Return the lines of a file."""
    return file.text.removesuffix("\n").split("\n")


def _numbered(name: str, lines: Lines | None) -> str:
    if lines is None:
        return name
    first, last = lines
    return f"{name}:{first}-{last}" if last > first else f"{name}:{first}"


def _missing(name: str, path: Path) -> UserError:
    if path.is_symlink():
        return UnattachableError(
            f"`{name}` links to a file that is gone", "name another file", "links to nothing"
        )
    there = {name.casefold(): name for name in _neighbours(path.parent)}
    close = get_close_matches(path.name.casefold(), there, n=1)
    return UserError(f"there is no file `{name}`", f"did you mean `{there[close[0]]}`?" if close else "")


def _neighbours(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in islice(entries, MAX_NEIGHBOURS) if entry.name.isprintable())
    except (OSError, ValueError):
        return


def _too_large(name: str, size: int, limit: int) -> UserError:
    return UnattachableError(
        f"`{name}` has {units.size(size)}, more than the {units.size(limit)} that can be attached",
        f"attach some lines of it, as @{name.partition(':')[0]}:1-200, or raise max_kib in config.toml",
        units.size(size),
    )


def _decoded(name: str, data: bytes) -> str:
    try:
        text = decode_text(data, f"`{name}`")
    except UserError as error:
        hint = f"{error.hint}; pictures and office files cannot be attached"
        raise UnattachableError(error.message, hint, "not text") from None
    if not text.strip():
        raise UnattachableError(f"`{name}` is empty", "", "empty")
    return text.replace("\r\n", "\n")
