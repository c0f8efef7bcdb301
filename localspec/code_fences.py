"""Fences of code blocks in Markdown, line by line, also of Markdown files that have fences of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`\r\n]*$)|~{3,})(?P<info>[^\r\n]*)", re.MULTILINE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
_QUOTED_OR_LISTED = re.compile(r"(?:[ \t]*(?:>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t])))*")
_MARKDOWN = frozenset({"markdown", "md", "mdown", "mdx", "mkd", "mkdn", "qmd", "rmarkdown", "rmd"})
_MAY_HOLD_MARKDOWN = re.compile(rf"(?:```|~~~)[ \t]*[{{.]*(?:{'|'.join(sorted(_MARKDOWN))})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence: its mark, and the text after that, which names a language where it opens a block."""

    mark: str
    info: str = ""

    @property
    def holds_markdown(self) -> bool:
        """Whether it opens a Markdown file, which may have fences of its own."""
        return language_of(self.info) in _MARKDOWN

    def is_as_long_as(self, other: Fence) -> bool:
        """Return whether its mark could end a block that the other one opens."""
        return self.mark.startswith(other.mark)


def language_of(info: str) -> str:
    """Return the language after a fence's marks."""
    return info.split(maxsplit=1)[0].strip("{}.").lower() if info.strip() else ""


def fences_after(fences: tuple[Fence, ...], line: str) -> tuple[Fence, ...]:
    """Return the fences of the blocks that continue after a line, outermost first; empty outside of code.

    `fences` are those before the line. In a Markdown file, fences with a language open further blocks.
    Fences may have any indentation, as in lists. Those behind a list's mark or in a quotation are not seen.
    """
    found = _fence_of(line)
    return fences if found is None else _fences_after(fences, found)


def _fences_after(fences: tuple[Fence, ...], found: Fence) -> tuple[Fence, ...]:
    if not fences:
        return (found,)
    if found.info:
        is_nested = fences[-1].holds_markdown and found.is_as_long_as(fences[0])
        return (*fences, found) if is_nested else fences
    return fences[:-1] if found.is_as_long_as(fences[-1]) else fences


def _fence_of(line: str) -> Fence | None:
    found = _FENCE.match(line)
    return None if found is None else Fence(found["mark"], found["info"].strip())


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a text, with its fence, which may be in a quotation or behind a list's mark."""

    text: str
    fence: Fence | None
    is_listed: bool
    is_blank: bool

    @classmethod
    def of(cls, text: str) -> _Line:
        """Read a line."""
        found = _QUOTED_OR_LISTED.match(text)
        before = found[0] if found else ""
        rest = text[len(before) :]
        return cls(text, _fence_of(rest), bool(before.strip(" \t>")), not rest.strip())


def widened(text: str) -> str:
    """Return a text whose fences around Markdown files are longer than the fences in these.

    Models write both equally long, and the first fence in the file would end it. No line moves.
    """
    if not _MAY_HOLD_MARKDOWN.search(text):
        return text
    lines = [_Line.of(line) for line in _LINE.findall(text)]
    texts = [line.text for line in lines]
    for opening, first, end in _markdown_files(lines):
        marks = [line.fence.mark for line in lines[first + 1 : end] if line.fence is not None]
        longest = max((len(mark) for mark in marks if mark.startswith(opening.mark)), default=0)
        for number in (first, end):
            if longest and number < len(lines):
                mark = opening.mark[0] * (longest + 1)
                texts[number] = re.sub(rf"{mark[0]}{{3,}}", mark, texts[number], count=1)
    return "".join(texts)


def _markdown_files(lines: Sequence[_Line]) -> Iterator[tuple[Fence, int, int]]:
    """Yield the opening fences of Markdown files with their lines and those of the ends.

    An end that is missing is that of the text.
    """
    number = 0
    while number < len(lines):
        opening = lines[number].fence
        first = number
        number += 1
        if opening is not None and opening.holds_markdown:
            number = _end_of_file(opening, lines, number) + 1
            yield opening, first, number - 1
        elif opening is not None:
            number = _end_of_code(opening, lines, number) + 1


def _end_of_code(opening: Fence, lines: Sequence[_Line], start: int) -> int:
    """Return the line of the fence that ends a block."""
    for number in range(start, len(lines)):
        line = lines[number]
        if line.fence and not line.is_listed and not _fences_after((opening,), line.fence):
            return number
    return len(lines)


def _end_of_file(opening: Fence, lines: Sequence[_Line], start: int) -> int:
    """Return the line of the fence that ends a Markdown file.

    A fence without a language may also open a block in the file. Such a block has neither empty lines at its
    ends nor fences with a language in it, and a later fence ends the file.
    """
    fences: tuple[Fence, ...] = (opening,)
    end = len(lines)  # the last fence that may have ended the file,
    is_unsure = False  # unless it opened the block that continues
    for number in range(start, len(lines)):
        fence = lines[number].fence
        if fence is None or not fence.is_as_long_as(opening):
            continue
        if is_unsure and (fence.info or lines[number - 1].is_blank):
            return end
        if len(fences) > 1 or fence.info:
            fences = _fences_after(fences, fence)
            is_unsure = is_unsure and len(fences) > 1
            continue
        is_unsure = not lines[number].is_listed
        if is_unsure:
            if number + 1 == len(lines) or lines[number + 1].is_blank:
                return number
            end = number
        fences = (opening, fence)
    return end
