"""Texts replaced by others in a file that holds each exactly once; all other bytes stay.

Models write LF where a file has CRLF, so both count as the same; what is written gets the endings of the
lines around it. Bytes that are not UTF-8 stay, too.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice, pairwise

from localspec import units
from localspec.errors import UserError
from localspec.safe_text import safe_line
from localspec.storage.text_file import decode_text, is_wide

_CRLF = "\r\n"
_LINE_NUMBER = re.compile(r"\s*\d+(?:\t|: |→)")
_PLACES_NAMED = 5
_LINES_COMPARED = 2000
_LONGEST_COMPARED = 200  # characters of a line
_LINES_SHOWN = 3
_WORD = re.compile(r"\w{3,}")
_LIKENESS = 0.6  # from which a line is worth naming
_WIDE = {codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be", codecs.BOM_UTF16_LE: "utf-16-le"}


@dataclass(frozen=True, slots=True)
class DecodedFile:
    """A file as text, and what turns it into the same bytes again."""

    mark: bytes
    codec: str
    errors: str
    text: str

    def encoded(self, text: str) -> bytes:
        """Return another text in the encoding of the file; raises UserError if it has no such characters."""
        try:
            return self.mark + text.encode(self.codec, self.errors)
        except UnicodeEncodeError:
            raise UserError("the new text has half of a character", "write it again") from None


def decoded(data: bytes, name: str) -> DecodedFile:
    """Decode a file by its byte order mark, else as UTF-8; raises UserError for a binary one."""
    if is_wide(data):
        decode_text(data, f"`{name}`")  # raises where it is damaged
        mark = next((mark for mark in _WIDE if data.startswith(mark)), codecs.BOM_UTF16_BE)
        codec = _WIDE.get(mark, "utf-16-be")
        return DecodedFile(mark, codec, "strict", data[len(mark) :].decode(codec))
    if b"\0" in data:
        raise UserError(f"`{name}` is binary", "only text can be edited")
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    return DecodedFile(mark, "utf-8", "surrogateescape", data[len(mark) :].decode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class TextEdit:
    """A text to replace, and the one in its place."""

    old_text: str
    new_text: str


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """The part of a file that an edit replaces, the text that it gets, and the number of the edit."""

    first: int
    last: int
    written: str
    number: int


def replaced(text: str, edits: Sequence[TextEdit], name: str) -> str:
    """Return the text with all edits made; raises UserError unless each old text occurs exactly once.

    All of them are found in the text as it is, so none can meet what another one has written.
    """
    places = list[_Place]()
    for number, edit in enumerate(edits, 1):
        try:
            places.append(_found(text, edit, name, number))
        except UserError as error:
            if len(edits) == 1:
                raise
            raise UserError(f"edit {number} of {len(edits)}: {error.message}", error.hint) from None
    places.sort()
    for one, other in pairwise(places):
        if other.first < one.last:
            numbers = sorted((one.number, other.number))
            what = f"the edits {numbers[0]} and {numbers[1]} overlap in `{name}`: nothing was changed"
            raise UserError(what, "make one edit of both")
    parts = list[str]()
    end = 0
    for place in places:
        parts += (text[end : place.first], place.written)
        end = place.last
    result = "".join((*parts, text[end:]))
    return result + _lost_ending(text, result)


def _found(text: str, edit: TextEdit, name: str, number: int) -> _Place:
    """Find the one place of an old text; raises UserError unless it occurs exactly once."""
    old = edit.old_text
    new = edit.new_text
    flat = text.replace(_CRLF, "\n")
    wanted = old.replace(_CRLF, "\n")
    written = new.replace(_CRLF, "\n")
    if not wanted:
        raise UserError("`old_text` is empty", "name the text to replace; write_file makes a file")
    if wanted == written:
        raise UserError("`old_text` and `new_text` are the same")
    places = list(_places(flat, wanted))
    if not places:
        if written.strip() and (there := flat.find(written)) >= 0:
            line = flat.count("\n", 0, there) + 1
            what = f"`old_text` does not occur in `{name}`, but `new_text` does, at line {line}"
            raise UserError(what, "this edit has been made already: go on with the next thing, or answer")
        raise _missing(flat, wanted, name)
    if len(places) > 1:
        raise _ambiguous(flat, places, name)
    start = places[0]
    end = places[0] + len(wanted)
    breaks = _breaks(text)
    first = start + bisect_left(breaks, start)
    last = end + bisect_left(breaks, end)
    if _ending(text, first, last) == _CRLF:
        written = written.replace("\n", _CRLF)
    return _Place(first, last, written, number)


def _places(text: str, wanted: str) -> Iterator[int]:
    """Yield where a text occurs, overlapping ones included."""
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + 1)


def _breaks(text: str) -> list[int]:
    """Return the places of the ends of lines with CRLF, counted with LF instead."""
    return [at - count for count, at in enumerate(_places(text, _CRLF))]


def _ending(text: str, first: int, last: int) -> str:
    """Return the ending of lines that new lines at a place get: that of the line there, else of one near."""
    for at in (text.find("\n", first, last), text.find("\n", last), text.rfind("\n", 0, first)):
        if at >= 0:
            return _CRLF if text[at - 1 : at] == "\r" else "\n"
    return "\n"


def _lost_ending(old: str, new: str) -> str:
    """Return the ending of the last line that a text had and has lost."""
    if not new or not old.endswith("\n") or new.endswith("\n"):
        return ""
    return _CRLF if old.endswith(_CRLF) else "\n"


def _ambiguous(text: str, places: list[int], name: str) -> UserError:
    numbers = list(dict.fromkeys(text.count("\n", 0, at) + 1 for at in places[:_PLACES_NAMED]))
    where = quoted(text.split("\n"), numbers) + (", ..." if len(places) > _PLACES_NAMED else "")
    what = f"`old_text` is not unique: it occurs {len(places)} times in `{name}`: {where}"
    return UserError(what, "take the whole line, or lines around it, so that it occurs once")


def quoted(lines: Sequence[str], numbers: Sequence[int]) -> str:
    """Return some lines with their numbers in one line, each harmless and cut."""
    return ", ".join(f"line {number} `{_short(lines[number - 1])}`" for number in numbers)


def _short(line: str) -> str:
    line = safe_line(line.removesuffix("\r"))
    return line if len(line) <= _LONGEST_COMPARED else f"{line[:_LONGEST_COMPARED]}..."


def _missing(text: str, wanted: str, name: str) -> UserError:
    what = f"`old_text` does not occur in `{name}`"
    lines = text.split("\n")
    searched = wanted.strip("\n").split("\n")
    if all(map(_LINE_NUMBER.match, searched)) and not all(map(_LINE_NUMBER.match, lines[: len(searched)])):
        return UserError(what, "leave out the line numbers of read_file")
    if (line := _alike_without_blanks(lines, searched)) is not None:
        last = line + len(searched) - 1
        where = f"line {line} differs" if last == line else f"lines {line}-{last} differ"
        return UserError(what, f"{where} from it only in blanks: copy them exactly")
    if (line := _most_alike(lines, searched)) is not None:
        return UserError(what, f"the most similar is {quoted(lines, [line])}: copy from there")
    if numbers := _with_a_word(lines, wanted):
        return UserError(what, f"perhaps {quoted(lines, numbers)} is meant: copy from there")
    return UserError(
        what, f"the file has {units.counted(len(lines), 'line')}: read it, and copy the text exactly"
    )


def _with_a_word(lines: list[str], wanted: str) -> list[int]:
    """Return the numbers of the first lines that have the longest word of a text that is in any line."""
    for word in sorted(set(_WORD.findall(wanted[:_LONGEST_COMPARED])), key=len, reverse=True):
        found = (number for number, line in enumerate(lines[:_LINES_COMPARED], 1) if word in line)
        if numbers := list(islice(found, _LINES_SHOWN)):
            return numbers
    return []


def _alike_without_blanks(lines: list[str], searched: list[str]) -> int | None:
    """Return the number of the first line from which on a text differs in blanks alone."""
    bare = ["".join(line.split()) for line in lines]
    wanted = ["".join(line.split()) for line in searched]
    if not any(wanted):
        return None
    starts = (at for at in range(len(bare) - len(wanted) + 1) if bare[at] == wanted[0])
    return next((at + 1 for at in starts if bare[at : at + len(wanted)] == wanted), None)


def _most_alike(lines: list[str], searched: list[str]) -> int | None:
    """Return the number of the line that is most like the first one of a text, if one is."""
    wanted = next((line.strip() for line in searched if line.strip()), "")[:_LONGEST_COMPARED]
    matcher = SequenceMatcher(b=wanted, autojunk=False)
    best = None
    likeness = _LIKENESS
    for number, line in enumerate(lines[:_LINES_COMPARED], 1):
        matcher.set_seq1(line.strip()[:_LONGEST_COMPARED])
        if matcher.quick_ratio() > likeness and (ratio := matcher.ratio()) > likeness:
            best = number
            likeness = ratio
    return best
