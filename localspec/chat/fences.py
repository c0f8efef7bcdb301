"""Find the fenced code blocks of a Markdown text, finished or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPENING = re.compile(r"[ \t]*(?P<mark>`{3,}(?=[^`\n]*$)|~{3,})(?P<info>[^\n]*)\n?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block from character `start` to `end`, its fences included; `closed` unless the text ends in it."""

    start: int
    end: int
    code: str
    language: str = ""
    closed: bool = True


def code_block_at(text: str, start: int) -> CodeBlock | None:
    """Return the block that begins with the line at `start`, None if that opens none."""
    opening = _OPENING.match(text, start)
    if opening is None:
        return None
    mark, language = opening["mark"], opening["info"].strip().partition(" ")[0]
    closing = re.compile(rf"^[ \t]*{mark[0]}{{{len(mark)},}}[ \t]*(?:\n|\Z)", re.MULTILINE)
    found = closing.search(text, opening.end())
    if found is None:
        return CodeBlock(start, len(text), text[opening.end() :], language, closed=False)
    return CodeBlock(start, found.end(), text[opening.end() : found.start()], language)


def code_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the blocks from first to last."""
    start = 0
    while start < len(text):
        block = code_block_at(text, start)
        if block is not None:
            yield block
            start = block.end
        else:
            start = line_end(text, start)


def line_end(text: str, start: int) -> int:
    """Return where the next line begins."""
    return text.find("\n", start) + 1 or len(text)
