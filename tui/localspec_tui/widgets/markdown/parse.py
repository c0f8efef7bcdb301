"""Markdown as blocks: a whole text, and one that is still being written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, Literal

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from textual.content import Content, Span
from textual.highlight import HighlightTheme, TokenType, highlight
from textual.style import Style

from localspec.chat.markdown import DEEPEST, full_parser
from localspec.code_fences import fences_after, language_of, widened
from localspec_tui.widgets.markdown.blocks import (
    SOURCE,
    Block,
    CodeLines,
    FenceHead,
    Rule,
    clean,
    cleaned_source,
    parted,
    plain_lines,
    with_tab_sources,
    with_tabs_spelt,
)
from localspec_tui.widgets.markdown.formulae import find_formula
from localspec_tui.widgets.markdown.table import Table

CODE_LINES: Final = 20
"""Code is cut into blocks of this many lines, to render little at once."""
LONGEST_OPEN: Final = 2_500
"""Characters of one unfinished paragraph or list item; longer ones are parsed in pieces until the end."""
_KEPT = 1_000  # of a long line of code, read again with what follows
_BEFORE_WORD = re.compile(r"\s(?=[^\W\d_])")  # what begins with a letter begins no list or heading
_BULLETS = ("• ", "◦ ", "▪ ")
_TASK = re.compile(r"\[([ xX])\]\s+")
_STYLED = {"em_open": "italic", "strong_open": "bold", "s_open": "strike"}


class _Colours(HighlightTheme):
    """Textual's own but for the line under the names of functions, which hides their underscores."""

    STYLES: dict[TokenType, str] = {  # noqa: RUF012 - as Textual declares it
        token: style.replace(" underline", "") for token, style in HighlightTheme.STYLES.items()
    }


@cache
def parser() -> MarkdownIt:
    """Return the one Markdown parser."""
    made = full_parser()
    made.inline.ruler.before("escape", "formula", find_formula)
    return made


def parsed(source: str) -> list[Token]:
    """Return the tokens of a clean text; a Markdown file in a fence may have fences of the same length."""
    return parser().parse(widened(source))


def build(source: str) -> tuple[Block, ...]:
    """Return a whole Markdown text as blocks."""
    return tuple(read(cleaned_source(source)))


def read(source: str, first_fence: int = 0) -> list[Block]:
    """Return a clean Markdown text as blocks; its fences are counted from `first_fence`."""
    tokens = parsed(source)
    if any(token.level >= DEEPEST - 1 for token in tokens):  # the parser left something out
        return plain_lines(source)
    return list(_Writer(first_fence).write(tokens))


def code(text: str, language: str, first: str = "", rest: str = "") -> Iterator[Block]:
    """Yield highlighted code in small blocks."""
    # Guessing the language costs as much as rendering a screen.
    spelt = clean(text)
    content = Content(spelt)
    if language:
        content = highlight(spelt, language=language, theme=_Colours)
        content += "\n" * (len(spelt) - len(content.plain))  # an empty line at the end, which it leaves out
    lines = with_tab_sources(content, text).split("\n", allow_blank=True)
    for start in range(0, len(lines), CODE_LINES):
        piece = Content("\n").join(lines[start : start + CODE_LINES])
        yield CodeLines(piece, f"{first if start == 0 else rest} ", f"{rest} ", "prose--fence")


@dataclass(slots=True)
class _Level:
    """A list item or a quotation: the prefix of its first line, and of the others."""

    first: str
    rest: str


@dataclass(slots=True)
class _Writer:
    """Turns tokens into blocks, keeping track of what encloses them."""

    fence: int
    levels: list[_Level] = field(default_factory=list)
    bullets: int = 0
    written: bool = False
    fresh_list: bool = False  # the next line is the first of an outermost list

    def write(self, tokens: Sequence[Token]) -> Iterator[Block]:
        """Yield the blocks of some tokens."""
        stream = iter(tokens)
        for token in stream:
            match token.type:
                case "paragraph_open":
                    yield self._paragraph(_inline(next(stream)), tight=token.hidden)
                case "heading_open":
                    style = "bold underline" if token.tag in {"h1", "h2"} else "bold"
                    text = _inline(next(stream)).stylize(style).stylize(".prose--heading")
                    yield self._block(text)
                case "fence" | "code_block":
                    yield from self._code(token)
                case "html_block":
                    yield self._block(with_tabs_spelt(Content(token.content.rstrip("\n"))))
                case "hr":
                    yield Rule(*self._place())
                case "table_open":
                    rows, aligned = _table(stream)
                    yield Table(*self._place(), rows=rows, aligned=aligned)
                case kind:
                    self._nest(kind, token)

    def _nest(self, kind: str, token: Token) -> None:
        if kind in {"bullet_list_open", "ordered_list_open"}:
            self.fresh_list = not self.levels
            self.bullets += kind == "bullet_list_open"
        elif kind == "bullet_list_close":
            self.bullets -= 1
        elif kind == "list_item_open":
            mark = f"{token.info}. " if token.info else _BULLETS[(self.bullets - 1) % len(_BULLETS)]
            self.levels.append(_Level(mark, " " * cell_len(mark)))
        elif kind == "blockquote_open":
            self.levels.append(_Level("▌ ", "▌ "))
        elif kind in {"list_item_close", "blockquote_close"}:
            self.levels.pop()

    def _place(self, tight: bool = False) -> tuple[Content, str, str, str, int]:
        gap = int(self.written and (self.fresh_list or not tight))
        self.written = True
        self.fresh_list = False
        first = "".join(level.first for level in self.levels)
        rest = "".join(level.rest for level in self.levels)
        for level in self.levels:
            level.first = level.rest
        return Content(), first, rest, "", gap

    def _block(self, content: Content, tight: bool = False) -> Block:
        return replace(Block(*self._place(tight)), content=content)

    def _paragraph(self, content: Content, *, tight: bool) -> Block:
        """Return a paragraph; at the beginning of a list item it may be a task, which has a box."""
        task = _TASK.match(content.plain)
        level = self.levels[-1] if self.levels else None
        if task is not None and level is not None and level.first != level.rest:
            box = "☐ " if task[1] == " " else "☑ "
            first = box if level.first in _BULLETS else level.first + box
            level.first = first
            level.rest = " " * cell_len(first)
            content = content[task.end() :]
        return self._block(content, tight)

    def _code(self, token: Token) -> Iterator[Block]:
        _, first, rest, _, gap = self._place()
        language = language_of(token.info)
        copy = Content.styled("copy", _click(f"copy_code({self.fence})")).stylize("underline")
        head = Content.assemble(language or "code", "  ", copy)
        yield FenceHead(head, f"{first} ", f"{rest} ", "prose--fence-head", gap)
        self.fence += 1
        yield from code(token.content.rstrip("\n"), language, rest, rest)


def _table(stream: Iterator[Token]) -> tuple[tuple[tuple[Content, ...], ...], tuple[str, ...]]:
    rows: list[list[Content]] = []
    aligned: list[str] = []
    for token in stream:
        if token.type == "table_close":
            break
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "th_open":
            side = re.search(r"right|center", str(token.attrGet("style") or ""))
            aligned.append(side[0] if side else "left")
        elif token.type == "inline":
            rows[-1].append(_inline(token))
    return tuple(tuple(row) for row in rows), tuple(aligned)


def _inline(token: Token) -> Content:
    """Return running text: emphasis, code, links; HTML stays as it is written."""
    texts: list[str] = []
    spans: list[Span] = []
    opened: list[tuple[tuple[str | Style, ...], int]] = []
    position = 0
    for child in token.children or ():
        text = child.content
        if child.type in {"softbreak", "hardbreak"}:
            text = "\n"  # models do not wrap their prose: a line end is meant, in verse or in an address
        elif child.type == "code_inline":
            spans.append(Span(position, position + len(text), ".prose--code"))
        elif child.type == "formula":
            spans.append(Span(position, position + len(text), Style.from_meta({SOURCE: child.markup})))
        elif child.type == "image":
            text = f"[{text or child.attrGet('src')}]"
            spans += [Span(position, position + len(text), style) for style in _link(child.attrGet("src"))]
        elif child.type == "link_open":
            opened.append((_link(child.attrGet("href")), position))
        elif child.type in _STYLED:
            opened.append(((_STYLED[child.type],), position))
        elif child.type.endswith("_close") and opened:
            styles, start = opened.pop()
            spans += [Span(start, position, style) for style in styles]
        texts.append(text)
        position += len(text)
    return with_tabs_spelt(Content("".join(texts), spans=spans))


def _link(address: object) -> tuple[str | Style, ...]:
    return (".prose--link", _click(f"open_link({str(address)!r})"))


def _click(action: str) -> Style:
    return Style.from_meta({"@click": action})


class GrowingMarkdown:
    """Blocks of a text that grows at its end; the work of an update does not depend on the text's length.

    Only the last outermost block is still open, or the last item of a list: it is read again with what
    follows. Of a long one the beginning is closed, too.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.closed = 0  # number of blocks that will not change
        self._tail = ""
        self._continues: Literal["", "text", "code"] = ""  # what the tail belongs to, already closed
        self._fences = 0

    def append(self, text: str) -> int:
        """Take more text; return the number of the first block that changed."""
        first = self.closed
        del self.blocks[first:]
        self._tail = parted(self._tail + cleaned_source(text))
        tokens = parsed(self._tail)
        outermost = [token for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
        if outermost:
            self._close_all_but_last(tokens, outermost[-1])
        self.blocks += self._read(self._tail)
        return first

    def _close_all_but_last(self, tokens: list[Token], last: Token) -> None:
        lines = self._tail.splitlines(keepends=True)
        start, is_item = _last_start(tokens, last)
        before = "".join(lines[:start])
        tail = "".join(lines[start:])
        if start:
            self._close(self._read(before), tail, "text" if is_item else "")
        if last.type == "fence":
            self._close_code(last)
            return
        while len(self._tail) > LONGEST_OPEN:
            words = [match.end() for match in _BEFORE_WORD.finditer(self._tail, 0, LONGEST_OPEN)]
            cut = words[-1] if words else LONGEST_OPEN
            self._close(self._read(self._tail[:cut]), self._tail[cut:], "text")

    def _close_code(self, fence: Token) -> None:
        """Close whole blocks of open code; the rest becomes code of its own."""
        assert fence.map is not None
        code_lines = fence.content.splitlines(keepends=True)
        if fence.map[1] - fence.map[0] > len(code_lines) + 1:  # its end has come
            return
        head = self._tail.partition("\n")[0].strip() + "\n"
        whole_lines = max(0, len(code_lines) - 1)
        is_long = bool(code_lines) and len(code_lines[-1]) > LONGEST_OPEN
        cut = _lines_to_close(head, code_lines[:whole_lines], 1 if is_long else CODE_LINES)
        closes_long = is_long and cut == whole_lines
        end = len(fence.content) - _KEPT if closes_long else len("".join(code_lines[:cut]))
        if end:
            closed = code(fence.content[:end].removesuffix("\n"), language_of(fence.info))
            self._close([*self._read(head)[:-1], *closed], head + fence.content[end:], "code")

    def _read(self, source: str) -> list[Block]:
        if self._continues == "code":
            _, first, *others = read(source, self._fences - 1)  # its head is above
            return [first, *others] if first.content else others
        blocks = read(source, self._fences)
        if blocks and self.closed and not self._continues:
            blocks[0] = replace(blocks[0], gap=1)
        return blocks

    def _close(self, blocks: list[Block], tail: str, continues: Literal["", "text", "code"]) -> None:
        self.blocks += blocks
        self.closed = len(self.blocks)
        self._fences += sum(block.style == "prose--fence-head" for block in blocks)
        self._tail = tail
        self._continues = continues


def _lines_to_close(head: str, lines: Sequence[str], step: int) -> int:
    """Return the number of lines, in whole steps, that may be cut off from code that continues.

    Where that is a Markdown file, what is left begins outside of the blocks in it.
    """
    first = fences_after((), head)
    if not first or not first[0].holds_markdown:
        return len(lines) // step * step
    fences = first
    found = 0
    for number, line in enumerate(lines, 1):
        fences = fences_after(fences, line)
        if number % step == 0 and fences == first:
            found = number
    return found


def _last_start(tokens: list[Token], last: Token) -> tuple[int, bool]:
    """Return the line on which the last block starts, and whether it is a further item of a list."""
    assert last.map is not None
    starts = [last.map[0]]
    if last.type in {"bullet_list_open", "ordered_list_open"}:
        items = (token for token in tokens if token.type == "list_item_open" and token.level == 1)
        starts += [item.map[0] for item in items if item.map]
    return max(starts), max(starts) > last.map[0]
