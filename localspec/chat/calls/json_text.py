"""JSON as models write it, made into JSON as its standard has it, while it comes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator
from typing import Literal

from localspec.chat.calls.source import IncomingText, Waiting

_WORDS = {
    "True": "true",
    "False": "false",
    "None": "null",
    "undefined": "null",
    "NaN": "null",
    "Infinity": "null",
    "-Infinity": "null",
}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_NUMERIC = re.compile(r"[-+]?(\d{1,400}\.?|\d{0,400}\.\d+)([eE][-+]?\d{1,4})?")  # as some models write them
_KEY = re.compile(r"[^\s:,{}\[\]<\"'][^\s:,{}\[\]<\"']*|<")
_VALUE = re.compile(r"[^,{}\[\]<\n\"'][^,{}\[\]<\n]*|<")
_CLOSERS = {"{": "}", "[": "]"}
_COMMA_AND_KEY = re.compile(r"\s*(?:,\s*(?:[\w.-]+\s*:?)?)?\Z")  # as far as it is there
_LONGEST_KEY = 100
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_NUMBERED = re.compile(
    r"\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_RUNS = {  # characters and escapes that stay as they are
    quote: re.compile(rf'[^"\\{quote}\x00-\x1f]*(?:\\["\\/bfnrt][^"\\{quote}\x00-\x1f]*)*') for quote in "\"'"
}

_Place = Literal["key", "colon", "value", "comma"]
Chunks = Generator[str | None, None, None]
"""Pieces of standard JSON; None: more text has to come."""


class JsonText:
    """One value inside an object, read from where it begins.

    Control characters, quotation marks and unknown escapes inside texts are escaped, other spellings of
    constants and numbers changed, missing commas and brackets added. Texts may also stand between `marks`,
    where nothing is escaped, and keys without quotation marks: Gemma's notation. Outside of texts, one of the
    tags `ends` ends the value.
    """

    def __init__(self, source: IncomingText, ends: tuple[str, ...] = (), marks: tuple[str, ...] = ()) -> None:
        """Read nothing yet."""
        self._source = source
        self._ends = ends
        self._marks = marks
        self._open = list[str]()
        self._pending = ""  # white space and a comma, which come out before the next part
        self._was_cut = False  # within the latest text or word
        self.is_complete = False
        self.is_mended = False  # it ended before its brackets were closed

    def value(self) -> Chunks:
        """Yield the value."""
        source = self._source
        place: _Place = "value"
        while not self.is_complete:
            self._pending += yield from source.blank()
            head = yield from source.ahead(1)
            if head == "<":
                place = yield from self._tag(place)
            elif not head:
                return
            elif head in "{[":
                if place in ("colon", "comma"):  # which was left out
                    self._pending += ":" if place == "colon" else ","
                yield self._flushed() + source.take(1)
                self._open.append(head)
                place = self._first_place()
            elif head in "}]":
                yield from self._closing(head, place)
                place = "comma"
            elif head in ",:":
                place = yield from self._separator(head, place)
            else:
                place = yield from self._token(place)

    def key(self) -> Waiting[str]:
        """Read the key of a member, with its quotation marks or without; return it as JSON."""
        parts = list[str]()
        for chunk in self._written(is_key=True):
            if chunk is None:
                yield
            else:
                parts.append(chunk)
        return "".join(parts)

    def closed(self) -> Chunks:
        """Yield the brackets that are missing at the end of an answer that has ended by itself."""
        self.is_complete = self.is_mended = True
        yield "".join(_CLOSERS[each] for each in reversed(self._open))
        self._open.clear()

    def _tag(self, place: _Place) -> Generator[str | None, None, _Place]:
        """Yield a text between marks, or end the value at the end of the call; return the place after it."""
        if (yield from self._source.first_of(self._ends)):
            yield from self.closed()
        elif (yield from self._source.first_of(self._marks)) or not self._source.take_cut(
            (*self._ends, *self._marks)
        ):
            return (yield from self._token(place))
        return place

    def _first_place(self) -> _Place:
        return "key" if self._open and self._open[-1] == "{" else "value"

    def _flushed(self) -> str:
        pending = self._pending
        self._pending = ""
        return pending

    def _closing(self, head: str, place: _Place) -> Chunks:
        self._source.take(1)
        if not self._open:  # of what is around the value, which is missing
            self.is_complete = True
            yield "null"
            return
        if self._open[-1] == "{" and place in ("colon", "value"):
            yield self._flushed() + (":null" if place == "colon" else "null")
        opening = "{" if head == "}" else "["
        if opening not in self._open:
            return  # a stray one
        closers = list[str]()
        while (last := self._open.pop()) != opening:
            closers.append(_CLOSERS[last])
        yield self._flushed().replace(",", "") + "".join(closers) + head
        self.is_complete = not self._open

    def _separator(self, head: str, place: _Place) -> Generator[str | None, None, _Place]:
        self._source.take(1)
        if head == ":":
            if place == "colon":
                yield self._flushed() + ":"
                return "value"
            return place
        if place == "comma":
            self._pending += ","
            return self._first_place()
        if self._open and self._open[-1] == "{" and place in ("colon", "value"):
            yield self._flushed() + (":null" if place == "colon" else "null")
            self._pending = ","
            return "key"
        return place

    def _token(self, place: _Place) -> Generator[str | None, None, _Place]:
        """Yield a text, a number or a word; return the place after it."""
        if place == "comma":
            self._pending += ","
            place = self._first_place()
        elif place == "colon":
            self._pending += ":"
        is_key = place == "key"
        yield self._flushed()
        yield from self._written(is_key=is_key)
        if not self._open:
            self.is_complete = not self._was_cut
        return "colon" if is_key else "comma"

    def _written(self, *, is_key: bool) -> Chunks:
        source = self._source
        self._was_cut = False
        head = yield from source.ahead(1)
        if head in ('"', "'"):
            source.take(1)
            yield '"'
            yield from self._quoted(head, is_key=is_key)
        elif mark := (yield from source.first_of(self._marks)):
            source.take(len(mark))
            yield '"'
            yield from self._marked(mark, is_key=is_key)
        else:
            pattern = _KEY if is_key else _VALUE
            word = yield from source.match(pattern)
            source.take(max(len(word), 1))
            self._was_cut = source.was_cut
            if not self._was_cut:
                yield _as_json(word.rstrip() or head, is_key=is_key)

    def _quoted(self, quote: str, *, is_key: bool) -> Chunks:
        """Yield a text after its opening quotation mark."""
        source = self._source
        run = _RUNS[quote]
        while True:
            text = source.take_run(run)
            if text:
                yield text
            stop = source.first()
            if not stop:
                if not source.more:
                    break
                yield None
            elif stop == quote:
                is_end = yield from self._ends_text(1, is_key=is_key)
                source.take(1)
                yield '"' if is_end else '\\"' if quote == '"' else quote
                if is_end:
                    return
            elif stop == "\\":
                yield (yield from self._escape())
            else:
                source.take(1)
                yield '\\"' if stop == '"' else _ESCAPED.get(stop, f"\\u{ord(stop):04x}")
        yield from self._unfinished()

    def _marked(self, mark: str, *, is_key: bool) -> Chunks:
        """Yield a text after its opening mark, where nothing is escaped."""
        source = self._source
        while True:
            text, found = source.take_safely((mark,))
            if text:
                yield json.dumps(text, ensure_ascii=False)[1:-1]
            if found:
                is_end = yield from self._ends_text(len(mark), is_key=is_key)
                is_end = is_end and (yield from self._is_between_members(len(mark)))
                source.take(len(mark))
                yield '"' if is_end else json.dumps(mark, ensure_ascii=False)[1:-1]
                if is_end:
                    return
            elif source.more:
                yield None
            else:
                break
        yield from self._unfinished()

    def _unfinished(self) -> Chunks:
        """End a text at the end of the answer: it stays open if the answer was cut."""
        self._was_cut = self._source.is_cut
        if not self._was_cut:
            yield '"'

    def _escape(self) -> Waiting[str]:
        """Read a backslash and what it escapes; return a valid escape."""
        source = self._source
        after = (yield from source.ahead(2))[1:]
        if after == "u":
            return (yield from self._numbered())
        if after and after in '"\\/bfnrt':
            return source.take(2)
        if after == "'":
            source.take(2)
            return "'"
        if not after and source.is_cut:
            source.take(1)
            return ""
        return "\\" + source.take(1)

    def _numbered(self) -> Waiting[str]:
        """Read an escape with the number of a character, or of its two halves."""
        source = self._source
        found = _NUMBERED.match((yield from source.ahead(12)))
        if found is not None:
            return source.take(len(found[0]))
        if _HEX.match((yield from source.ahead(6)), 2):
            source.take(6)
            return "\\ufffd"  # half a character
        return "\\" + source.take(1)

    def _ends_text(self, length: int, *, is_key: bool) -> Waiting[bool]:
        """Return whether a quotation mark of this `length` ends a text, by what follows it."""
        after = yield from self._source.after_blank(length, 1)
        if is_key:
            return after in ("", ":")
        if after == "<" and self._ends:
            after = yield from self._source.after_blank(length, max(map(len, self._ends)))
            return after.startswith(self._ends)
        is_in_list = bool(self._open) and self._open[-1] == "["
        return after in ("", ",", "]" if is_in_list else "}")

    def _is_between_members(self, length: int) -> Waiting[bool]:
        """Return whether a key follows a mark of this `length` in an object, or what may end the object."""
        source = self._source
        if not self._open or self._open[-1] == "[":
            return True
        if len(self._open) == 1 and self._ends and (yield from source.after_blank(length, 1)) == "}":
            after = yield from source.after_blank(length, max(map(len, self._ends)) + 1)
            return not after[1:] or after[1:].startswith(self._ends)
        for count in range(1, _LONGEST_KEY):
            text = yield from source.ahead(length + count)
            if len(text) < length + count or text.endswith(":"):
                return True
            if not _COMMA_AND_KEY.match(text, length):
                return not text[length:].lstrip().startswith(",")
        return False


def _as_json(word: str, *, is_key: bool) -> str:
    """Return a word without quotation marks as JSON."""
    if not is_key:
        if word in ("true", "false", "null"):
            return word
        if word in _WORDS:
            return _WORDS[word]
        if _NUMERIC.fullmatch(word) and math.isfinite(float(word)):
            return word if _NUMBER.fullmatch(word) else f"{float(word):g}"
    return json.dumps(word, ensure_ascii=False)
