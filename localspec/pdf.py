"""The text of PDF files, page by page, read in a child process with limits of time, memory and length."""

from __future__ import annotations

import faulthandler
import pickle
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import units
from localspec.child_process import (
    Child,
    ChildEndedError,
    ChildOverLimitError,
    Limits,
    marked_text,
    take_pipes,
    write_marked_text,
)
from localspec.errors import Cancelled, UserError
from localspec.safe_text import safe_line, safe_text, whole_text
from localspec.storage.regular_file import read_regular

if TYPE_CHECKING:
    from pypdf import PdfReader

MAX_BYTES = 64 * 2**20  # of a file
SECONDS = 20.0
MEMORY = 512 * 2**20
Pages = tuple[int, int]
"""The first and the last page."""

_CODE = "from localspec.pdf import main; main()"
_GRACE_S = 1.0
_HEAD = 1024  # bytes in which a PDF file says that it is one
_FURTHER = 64 * 1024  # bytes of a reply beyond the text that may be attached
_TEXT, _PROBLEM = range(2)
_OTHER = "save it as a PDF file again, or attach its text"


def is_pdf(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is a PDF file."""
    return b"%PDF-" in head[:_HEAD]


def pdf_text(path: Path, name: str, pages: Pages | None, limit: int) -> str:
    """Return the text of some pages of a PDF file, or of all, each below its number.

    Raises OSError, and UserError with the `name` if there is no text or it has more than `limit` bytes, and
    Cancelled after `stop_reading`.
    """
    asked = _reading.stops
    status = path.stat()
    if status.st_size > MAX_BYTES:
        size = units.size(status.st_size)
        most = units.size(MAX_BYTES)
        raise UserError(f"`{name}` has {size}, more than the {most} of a PDF file that can be read", _OTHER)
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    with _reading.lock:  # what is asked for again meanwhile is read once
        try:
            found = None if _reading.stops != asked else _read(path, version, pages, limit)
        except _StoppedError:
            found = None
    if found is None:
        raise Cancelled(f"reading `{name}` was stopped", f"a few pages take less time: @{name}:1-5")
    if isinstance(found, _Problem):
        raise UserError(f"`{name}` {found.message}", found.hint.replace("{name}", name))
    return found


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why a file has no text to attach; `{name}` in the hint stands for that of the file."""

    message: str
    hint: str = _OTHER


class _ProblemFoundError(Exception):
    """Carries a problem out of the reading."""

    def __init__(self, message: str, hint: str = _OTHER) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class _StoppedError(Exception):
    """The reading was stopped."""


@dataclass(slots=True)
class _Reading:
    """The reading of one file at a time, and how often readings have been stopped."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    child: Child[tuple[int, str]] | None = None
    stops: int = 0


_reading = _Reading()


def stop_reading() -> None:
    """Stop the reading of PDF files that has begun, or waits for its turn, in any thread."""
    _reading.stops += 1
    if (child := _reading.child) is not None:
        child.kill()


@lru_cache(maxsize=100)  # as many as a pattern attaches, so that none is read at every pause in typing
def _read(path: Path, _version: tuple[int, ...], pages: Pages | None, limit: int) -> str | _Problem:
    """Return the text of this version of a file, or why there is none."""
    data = read_regular(path, path.name, MAX_BYTES)
    stops = _reading.stops
    child = Child(_CODE, "the reader of PDF files", marked_text)  # foreign data may have written its replies
    _reading.child = child
    try:
        mark, text = child.ask((data, pages, limit), Limits(SECONDS, MEMORY, limit + _FURTHER))
    except ChildOverLimitError as over:
        most = units.duration(SECONDS) if over.limit == "seconds" else f"{units.memory(MEMORY)} of memory"
        return _Problem(f"takes more than {most} to read", "attach a few pages of it, as @{name}:1-5")
    except ChildEndedError as ended:
        if _reading.stops != stops:
            raise _StoppedError from None  # the next time it is read from its beginning
        return _Problem(f"ends the process that reads it ({ended.how})")
    finally:
        _reading.child = None
        child.end()
    return text if mark == _TEXT else _Problem(*text.split("\n", 1))


def main() -> None:
    """Read the file that standard input holds."""
    import logging  # 5 ms

    requests, replies = take_pipes()
    faulthandler.dump_traceback_later(SECONDS + _GRACE_S, exit=True)  # the parent may have died
    logging.disable()
    with suppress(EOFError):
        data, pages, limit = pickle.load(requests)
        mark, text = _reply(data, pages, limit)
        write_marked_text(replies, mark, text.encode())


def _reply(data: bytes, pages: Pages | None, limit: int) -> tuple[int, str]:
    """Return the text of a file, or the problem with it in two lines."""
    from pypdf import PdfReader, filters
    from pypdf.errors import DependencyError, FileNotDecryptedError

    filters.JBIG2DEC_BINARY = None  # no other program reads a part of it
    try:
        return _TEXT, _text(PdfReader(BytesIO(data)), pages, limit)
    except _ProblemFoundError as problem:
        return _PROBLEM, f"{problem.message}\n{problem.hint}"
    except FileNotDecryptedError:
        return _PROBLEM, "is encrypted with a password\nsave a copy of it without the password"
    except DependencyError:
        hint = "install it beside LocalSpec, or save a copy without encryption"
        return _PROBLEM, f"is encrypted in a way that needs the Python package `cryptography`\n{hint}"
    except Exception as error:  # noqa: BLE001 - whatever reading a broken file raises
        return _PROBLEM, f"cannot be read as a PDF file: {_in_a_line(error)}\n{_OTHER}"


def _text(reader: PdfReader, pages: Pages | None, limit: int) -> str:
    """Return the pages with their numbers; raises _ProblemFoundError."""
    count = len(reader.pages)
    first, last = pages or (1, count)
    if not count:
        raise _ProblemFoundError("has no pages")
    if not 1 <= first <= min(last, count):
        raise _ProblemFoundError(f"has {units.counted(count, 'page')}, and no page {first}", "name others")
    found: list[str] = []
    size = 0
    has_text = False
    failed = ""
    for number in range(first, min(last, count) + 1):
        text, problem = _page(reader, number)
        has_text = has_text or bool(text)
        failed = failed or problem
        note = ": cannot be read" if problem else "" if text else ": no text"
        found.append(f"[Page {number} of {count}{note}]\n{text}".rstrip() + "\n")
        size += len(found[-1].encode()) + 1
        if size > limit:
            raise _too_long(first, number, count, limit)
    if not has_text and failed:
        raise _ProblemFoundError(f"cannot be read as a PDF file: {failed}")
    if not has_text:
        hint = "let a program recognise their text first, such as `ocrmypdf`"
        raise _ProblemFoundError("has no text: its pages are pictures", hint)
    return "\n".join(found)


def _page(reader: PdfReader, number: int) -> tuple[str, str]:
    """Return the text of a page, and the problem with it; raises what is wrong with all pages."""
    from pypdf.errors import DependencyError, FileNotDecryptedError

    try:
        text = reader.pages[number - 1].extract_text()
    except (DependencyError, FileNotDecryptedError):
        raise
    except Exception as error:  # noqa: BLE001 - the other pages may be sound
        return "", _in_a_line(error)
    lines = (line.rstrip() for line in safe_text(whole_text(text)).split("\n"))
    return "\n".join(lines).strip("\n"), ""


def _too_long(first: int, number: int, count: int, limit: int) -> _ProblemFoundError:
    """Return the problem with a file whose text is over the limit at this page."""
    most = units.size(limit)
    if number == first:
        return _ProblemFoundError(
            f"has more text on page {first} than the {most} that can be attached",
            "raise max_kib in config.toml",
        )
    full = f"of which {first} to {number - 1} fill the {most} that can be attached"
    return _ProblemFoundError(
        f"has {units.counted(count, 'page')}, {full}", f"attach some, as @{{name}}:{first}-{number - 1}"
    )


def _in_a_line(error: Exception) -> str:
    words = " ".join(safe_line(whole_text(str(error)[:200])).split())
    return words.rstrip(".") or type(error).__name__
