"""Markdown: its parser, blocks of code in a whole text, and fences in a text that is still being written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from localspec.code_fences import Fence, fences_after, widened

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

DEEPEST = 100  # levels of quotations and lists; the parser leaves out what is deeper
_LINE_END = re.compile(r"\r\n?|\n")  # as the parser has them


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A block of code from character `start` to `end`, its fences included.

    `fence` is its opening mark, empty for indented code. A block is open if the text ends before its closing
    fence. `depth` counts the quotations and lists around it.
    """

    start: int
    end: int
    code: str
    fence: str = ""
    is_open: bool = False
    depth: int = 0


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    """Return the blocks from first to last, those in quotations and lists included.

    Fences around Markdown files are found as `widened` makes them, and the others as CommonMark says.
    """
    line_starts = [0, *(found.end() for found in _LINE_END.finditer(text))]
    blocks = []
    for token in _block_parser().parse(widened(text)):
        if token.type not in {"fence", "code_block"}:
            continue
        assert token.map is not None
        first, behind = token.map
        end = line_starts[behind] if behind < len(line_starts) else len(text)
        code_lines = token.content.count("\n") + (token.content[-1:] not in {"", "\n"})
        has_closing_fence = behind - first > code_lines + 1
        is_open = token.type == "fence" and not has_closing_fence and end == len(text)
        blocks.append(CodeBlock(line_starts[first], end, token.content, token.markup, is_open, token.level))
    return tuple(blocks)


@cache
def _block_parser() -> MarkdownIt:
    """Return the parser that the screen has, without emphasis, links and other parts of a line."""
    from markdown_it import MarkdownIt  # 30 ms

    parser = MarkdownIt("commonmark", {"maxNesting": DEEPEST}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def full_parser(**options: bool) -> MarkdownIt:
    """Return a new parser of GitHub's Markdown, for the screen and for pages.

    Bare addresses are links if they begin with a scheme or `www.`, or are of mail: `README.md` and `main.py`
    are files, though their ends are those of countries.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("gfm-like", {"maxNesting": DEEPEST, **options})
    linkify: Any = parser.linkify
    find = linkify.match

    def addresses(text: str) -> list[Any] | None:
        found = find(text) or ()
        return [each for each in found if each.schema or each.text.lower().startswith("www.")] or None

    linkify.match = addresses
    return parser


def fenced(text: str, language: str = "") -> str:
    """Return a text as a block of code, in a fence that is longer than any inside."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    line_end = "" if text.endswith("\n") or not text else "\n"
    return f"{fence}{language}\n{text}{line_end}{fence}"


def closed(text: str) -> str:
    """Return a text that reads the same before any other: no block of code swallows what follows.

    Fences around Markdown files are longer than those in the files, and a block that is left open is closed.
    """
    text = widened(text)
    last = code_blocks(text)[-1:]
    is_left_open = last and last[0].is_open and not last[0].depth  # quotations and lists end by themselves
    return f"{text}\n{last[0].fence}" if is_left_open else text


class FenceScanner:
    """Follows a text that comes line by line into blocks of code and out of them.

    Unlike `code_blocks` it needs no whole text, and it sees those fences that `fences_after` does.
    """

    def __init__(self) -> None:
        self._fences: tuple[Fence, ...] = ()  # of the blocks that continue

    @property
    def is_in_code(self) -> bool:
        """Whether the next line belongs to code."""
        return bool(self._fences)

    def add(self, line: str) -> bool:
        """Take a whole line and return whether it belongs to code; fences do."""
        was_in_code = self.is_in_code
        self._fences = fences_after(self._fences, line)
        return was_in_code or self.is_in_code
