"""Pieces of text that are laid out one by one: paragraphs, code, tables; pure values, no widgets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from textual.content import Content, Span
from textual.style import Style

from localspec.safe_text import safe_text

SOURCE: Final = "source"
"""The key in a text's style for the source text that is copied instead."""
_TAB = "    "
_TAB_SOURCE = Style.from_meta({SOURCE: "\t"})
_MARKS_COPIED = str.maketrans({"•": "-", "◦": "-", "▪": "-", "▌": ">", "☐": "[ ]", "☑": "[x]"})
_BOX_OF_BULLET = re.compile(r"(?<!\. )(?=[☐☑])")


_EMOJI = "[\u2600-\u27bf\U0001f000-\U0001faff]"
_TONES = "[\U0001f3fb-\U0001f3ff]"
_JOINER = re.compile(f"\u200d(?={_EMOJI})|(?<={_EMOJI}){_TONES}")
_JOINED = re.compile(f"(?:\u200d{_EMOJI}\ufe0f?|(?<={_EMOJI}){_TONES})+")


def clean(text: str) -> str:
    """Return a text without control characters, its lines ended by line feeds and tabs spelt as spaces."""
    return cleaned_source(text).replace("\t", _TAB)


def cleaned_source(text: str) -> str:
    """Return a text without control characters but tabs, its lines ended by line feeds.

    Joined emoji are separated and lose their skin tone: terminals draw them in different widths, and a row
    has one width.
    """
    return parted(safe_text(text))


def with_tabs_spelt(content: Content) -> Content:
    """Return a text with spaces for its tabs, which are copied as tabs."""
    tab = Content.styled(_TAB, _TAB_SOURCE)
    return tab.join(content.split("\t", allow_blank=True)) if "\t" in content.plain else content


def with_tab_sources(content: Content, source: str) -> Content:
    """Return a text whose tabs are spelt as spaces already, so that they are copied as in their source."""
    spans = list(content.spans)
    for number, tab in enumerate(re.finditer("\t", source)):
        start = tab.start() + number * (len(_TAB) - 1)
        spans.append(Span(start, start + len(_TAB), _TAB_SOURCE))
    return Content(content.plain, spans)


def plain_lines(text: str) -> list[Block]:
    """Return a text as it is, a block for each line."""
    return [Block(with_tabs_spelt(Content(line))) for line in cleaned_source(text).split("\n")]


def parted(text: str) -> str:
    """Return a text without what joins emoji."""
    return _JOINER.sub("", text)


def first_emoji(text: str) -> str:
    """Return a text of the same length and width that shows of joined emoji the first alone."""
    return _JOINED.sub(lambda found: "\u200b" * len(found[0]), text)


class TextPlace(NamedTuple):
    """A place in a text: the number of a line, and of a character in it."""

    line: int
    character: int


class CopiedLine(NamedTuple):
    """A line for the clipboard: list marks and indentation, if it is copied from its start, and its text."""

    mark: str
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A text that is wrapped separately; `first` and `rest` are the prefixes of its lines.

    `style` is the component class of its whole lines, `gap` counts the empty lines above.
    """

    content: Content = Content()  # noqa: RUF009 - immutable
    first: str = ""
    rest: str = ""
    style: str = ""
    gap: int = 0

    def at(self, width: int) -> Content:
        """Return the text to be wrapped at a width."""
        return self.content

    def copied(self, width: int, start: TextPlace, end: TextPlace) -> list[CopiedLine]:
        """Return the text between two places at a width, as it was written."""
        lines = source_between(self.at(width), start, end).split("\n")
        return self._marked(lines, start)

    def _marked(self, lines: list[str], start: TextPlace) -> list[CopiedLine]:
        """Return copied lines with the marks in front of them."""
        marks = [self._copied_mark(self.rest)] * len(lines)
        if start.character:
            marks[0] = ""
        elif not start.line:
            marks[0] = self._copied_mark(self.first)
        return list(map(CopiedLine, marks, lines))

    def _copied_mark(self, mark: str) -> str:
        return _BOX_OF_BULLET.sub("- ", mark).translate(_MARKS_COPIED)


def source_of(span: Span) -> str:
    """Return the text that is copied instead of a span, empty if that is copied as it is."""
    return str(span.style.meta.get(SOURCE, "")) if isinstance(span.style, Style) else ""


def source_between(content: Content, start: TextPlace, end: TextPlace) -> str:
    """Return the text between two places as it was written: formulae as TeX, and tabs as tabs."""
    text = content.plain
    lines = text.split("\n")
    places = [0, *accumulate(len(line) + 1 for line in lines)]
    first = places[start.line] + min(start.character, len(lines[start.line]))
    last = places[end.line] + min(end.character, len(lines[end.line]))
    whole = [span for span in content.spans if first <= span.start and span.end <= last and source_of(span)]
    for span in sorted(whole, key=lambda span: span.start, reverse=True):
        text = text[: span.start] + source_of(span) + text[span.end :]
        last += len(source_of(span)) - (span.end - span.start)
    return text[first:last]


@dataclass(frozen=True, slots=True)
class CodeLines(Block):
    """Lines of code; their prefixes end with a space that is not copied."""

    def _copied_mark(self, mark: str) -> str:
        return super(CodeLines, self)._copied_mark(mark[:-1])


@dataclass(frozen=True, slots=True)
class FenceHead(Block):
    """The line above a block of code, which is no part of the text."""

    def copied(self, width: int, start: TextPlace, end: TextPlace) -> list[CopiedLine]:
        """Return nothing."""
        return []


@dataclass(frozen=True, slots=True)
class Rule(Block):
    """A line across."""

    def at(self, width: int) -> Content:
        """Return as much of a line as fits."""
        return Content.styled("─" * width, ".prose--mark")

    def copied(self, width: int, start: TextPlace, end: TextPlace) -> list[CopiedLine]:
        """Return it as in Markdown."""
        return self._marked(["---"], start)
