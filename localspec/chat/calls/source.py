"""Text that comes in pieces, and parsers of it that wait for more."""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import lru_cache
from typing import TypeVar

from localspec.thinking_tags import begun

_T = TypeVar("_T")
Waiting = Generator[None, None, _T]
"""A look at text that yields whenever it has to wait for more."""

_TAG = re.compile(r"<[^<>\n]{1,300}>")
_TAG_BEGUN = re.compile(r"<[^<>\n]{0,300}\Z")
_BLANK = re.compile(r"\s*")
_LONGEST_BLANK = 1000


class IncomingText:
    """The text that was not read yet. What was read since a mark can be given back.

    Every part of the text is looked at a limited number of times, however it is cut into pieces.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.more = True
        self.is_cut = False  # the answer ended because its length was used up
        self._text = ""
        self._at = 0
        self._taken = list[str]()  # since the first mark
        self._marks = 0

    def add(self, text: str, *, more: bool, is_cut: bool = False) -> None:
        """Add text; without `more`, it is the last."""
        self._text = self._text[self._at :] + text
        self._at = 0
        self.more = more
        self.is_cut = is_cut

    @property
    def is_over(self) -> bool:
        """Whether all of a complete answer was read."""
        return not self.more and self._at == len(self._text)

    @property
    def was_cut(self) -> bool:
        """Whether all of an answer was read that ended because its length was used up."""
        return self.is_over and self.is_cut

    def take_cut(self, beginnings: tuple[str, ...]) -> bool:
        """Read the end of a cut answer if it may begin one of some texts; return whether it did."""
        rest = self._text[self._at :]
        may_begin = self.is_cut and bool(rest) and any(each.startswith(rest) for each in beginnings)
        self.take(len(rest) if may_begin else 0)
        return may_begin

    def mark(self) -> int:
        """Remember this position; `back` or `keep` has to follow."""
        self._marks += 1
        return len(self._taken)

    def since(self, mark: int) -> int:
        """Return the number of characters that were read since a mark."""
        return sum(map(len, self._taken[mark:]))

    def rest(self, mark: int) -> str:
        """Return the text since a mark, with what was not read."""
        return "".join(self._taken[mark:]) + self._text[self._at :]

    def keep(self, mark: int) -> str:
        """Forget a mark; return the text since then."""
        self._marks -= 1
        since = "".join(self._taken[mark:])
        if not self._marks:
            self._taken.clear()
        return since

    def back(self, mark: int) -> None:
        """Return to a mark, and forget it."""
        self._marks -= 1
        self._text = "".join(self._taken[mark:]) + self._text[self._at :]
        self._at = 0
        del self._taken[mark:]

    def take(self, count: int) -> str:
        """Read some characters, at most those that are there."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        if self._marks:
            self._taken.append(text)
        return text

    def take_up_to(self, pattern: re.Pattern[str]) -> tuple[str, str]:
        """Read up to a match, or all that is there; return that, and the match, which is not read."""
        found = pattern.search(self._text, self._at)
        end = len(self._text) if found is None else found.start()
        return self.take(end - self._at), found[0] if found else ""

    def take_run(self, pattern: re.Pattern[str]) -> str:
        """Read what a pattern matches here, as far as it is there."""
        found = pattern.match(self._text, self._at)
        return self.take(found.end() - self._at) if found else ""

    def first(self) -> str:
        """Return the next character, if one is there."""
        return self._text[self._at : self._at + 1]

    def take_safely(self, needles: tuple[str, ...]) -> tuple[str, str]:
        """Read up to one of some texts; return that, and the needle, which is not read.

        The end of what is there stays unread if it may begin one; at the end of a cut answer it is dropped.
        """
        if found := _any_of(needles).search(self._text, self._at):
            return self.take(found.start() - self._at), found[0]
        held = begun(self._text, needles, self._at) if self.more or self.is_cut else 0
        text = self.take(len(self._text) - self._at - held)
        if not self.more:
            self._at = len(self._text)
        return text, ""

    def until(self, *needles: str) -> Waiting[tuple[str, str]]:
        """Read up to one of some texts, or the end; return that, and the needle, which is not read."""
        parts = list[str]()
        while True:
            text, needle = self.take_safely(needles)
            parts.append(text)
            if needle or not self.more:
                return "".join(parts), needle
            yield

    def ahead(self, count: int) -> Waiting[str]:
        """Return the next characters without reading them: fewer only at the end."""
        while len(self._text) - self._at < count and self.more:
            yield
        return self._text[self._at : self._at + count]

    def starts(self, text: str) -> Waiting[bool]:
        """Return whether a text comes next."""
        while not self._text.startswith(text, self._at):
            rest = len(self._text) - self._at
            if not self.more or rest >= len(text) or not text.startswith(self._text[self._at :]):
                return False
            yield
        return True

    def first_of(self, texts: tuple[str, ...]) -> Waiting[str]:
        """Return the longest of some texts that comes next; empty: none."""
        for text in sorted(texts, key=len, reverse=True):
            if (yield from self.starts(text)):
                return text
        return ""

    def blank(self) -> Waiting[str]:
        """Read white space."""
        parts = list[str]()
        while True:
            found = _BLANK.match(self._text, self._at)
            assert found is not None
            parts.append(self.take(len(found[0])))
            if self._at < len(self._text) or not self.more:
                return "".join(parts)
            yield

    def tag(self) -> Waiting[str]:
        """Return the tag in angle brackets that comes next, without reading it; empty: none."""
        while True:
            if found := _TAG.match(self._text, self._at):
                return found[0]
            if not self.more or (self._at < len(self._text) and not _TAG_BEGUN.match(self._text, self._at)):
                return ""
            yield

    def match(self, pattern: re.Pattern[str]) -> Waiting[str]:
        """Return the match of a pattern here, without reading it, once its end is certain."""
        while True:
            found = pattern.match(self._text, self._at)
            if found is None and (self._at < len(self._text) or not self.more):
                return ""
            if found is not None and (found.end() < len(self._text) or not self.more):
                return found[0]
            yield

    def after_blank(self, at: int, count: int) -> Waiting[str]:
        """Return the next characters after `at` of them and white space; fewer only at the end.

        Too much white space counts as the end.
        """
        while True:
            found = _BLANK.match(self._text, self._at + at)
            assert found is not None
            if len(self._text) - found.end() >= count or not self.more or len(found[0]) > _LONGEST_BLANK:
                return self._text[found.end() : found.end() + count]
            yield


@lru_cache(maxsize=64)
def _any_of(needles: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, needles)))
