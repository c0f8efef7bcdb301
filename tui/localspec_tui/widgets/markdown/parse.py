"""Markdown as blocks: a whole text, and one that is still being written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from textual.content import Content, Span
from textual.highlight import highlight
from textual.style import Style

from localspec_tui.widgets.markdown.blocks import Block, Rule, Table, clean

CODE_LINES: Final = 20
"""Code is cut into blocks of so many lines: what is rendered at once stays small."""
LONGEST_OPEN: Final = 2_500
"""Characters of one unfinished paragraph or list item; what is longer goes on as plain text until the end."""
_KEPT = 1_000  # of a long text, read again with what follows
_DEEPEST = 100  # the parser leaves out what is nested deeper: such a text is shown as it is written
_BULLETS = ("• ", "◦ ", "▪ ")
_STYLED = {"em_open": "italic", "strong_open": "bold", "s_open": "strike"}


@cache
def parser() -> MarkdownIt:
    """Return the one Markdown parser."""
    return MarkdownIt("gfm-like", {"maxNesting": _DEEPEST})


def build(source: str) -> tuple[Block, ...]:
    """Return a whole Markdown text as blocks."""
    return tuple(read(clean(source)))


def read(source: str, first_fence: int = 0) -> list[Block]:
    """Return a clean Markdown text as blocks; its fences are counted from `first_fence`."""
    tokens = parser().parse(source)
    if any(token.level >= _DEEPEST - 1 for token in tokens):
        return [Block(Content(line)) for line in source.split("\n")]
    return list(_Writer(first_fence).write(tokens))


def code_blocks(source: str) -> tuple[str, ...]:
    """Return the code of a text's fences, in order."""
    return tuple(token.content for token in parser().parse(source) if token.type in {"fence", "code_block"})


def code(text: str, language: str, first: str = "", rest: str = "") -> Iterator[Block]:
    """Yield highlighted code in small blocks."""
    lines = _highlighted(text, language).split("\n", allow_blank=True)
    for start in range(0, len(lines), CODE_LINES):
        piece = Content("\n").join(lines[start : start + CODE_LINES])
        yield Block(piece, f"{first if start == 0 else rest} ", f"{rest} ", "prose--fence")


def code_head(language: str, fence: int, first: str = "", rest: str = "") -> Block:
    """Return the line above code: its language, and a way to copy it."""
    copy = Content.styled("copy", Style.from_meta({"@click": f"copy_code({fence})"})).stylize("underline")
    return Block(
        Content.assemble((language or "code"), "  ", copy), f"{first} ", f"{rest} ", "prose--fence-head"
    )


def language_of(info: str) -> str:
    """Return the language that stands after a fence's marks."""
    return info.split(maxsplit=1)[0].strip("{}.").lower() if info.strip() else ""


def _highlighted(text: str, language: str) -> Content:
    if not language:  # guessing it costs as much as rendering a screen
        return Content(text)
    return highlight(text, language=language)


@dataclass(slots=True)
class _Level:
    """A list item or a quotation: what stands before its first line, and before the others."""

    first: str
    rest: str

    def take(self) -> str:
        """Return what stands before the next line."""
        mark, self.first = self.first, self.rest
        return mark


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
                    yield self._block(_inline(next(stream)), tight=token.hidden)
                case "heading_open":
                    style = "bold underline" if token.tag in {"h1", "h2"} else "bold"
                    text = _inline(next(stream)).stylize(style).stylize(".prose--heading")
                    yield self._block(text)
                case "fence" | "code_block":
                    yield from self._code(token)
                case "html_block":
                    yield self._block(Content(token.content.rstrip("\n")))
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
        self.written, self.fresh_list = True, False
        first = "".join(level.take() for level in self.levels)
        return Content(), first, "".join(level.rest for level in self.levels), "", gap

    def _block(self, content: Content, tight: bool = False) -> Block:
        return replace(Block(*self._place(tight)), content=content)

    def _code(self, token: Token) -> Iterator[Block]:
        _, first, rest, _, gap = self._place()
        language = language_of(token.info)
        yield replace(code_head(language, self.fence, first, rest), gap=gap)
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
    return Content("".join(texts), spans=spans)


def _link(address: object) -> tuple[str | Style, ...]:
    return (".prose--link", Style.from_meta({"@click": f"open_link({str(address)!r})"}))


@dataclass(slots=True)
class _Fence:
    """An open block of code."""

    mark: str
    indent: int
    language: str
    lines: list[str] = field(default_factory=list)

    def is_end(self, line: str) -> bool:
        """Tell whether a line closes the code."""
        line = line.strip()
        return len(line) >= len(self.mark) and not line.strip(self.mark[0])


class GrowingMarkdown:
    """Blocks of a text that grows at its end; the work of an update does not depend on the text's length."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.closed = 0  # so many blocks will stay
        self._tail = ""
        self._fence: _Fence | None = None
        self._plain = False
        self._in_list = False
        self._fences = 0

    def append(self, text: str) -> int:
        """Take more text; return the number of the first block that changed."""
        first = self.closed
        del self.blocks[first:]
        self._tail += clean(text)
        while self._step():
            pass
        self.blocks += self._open()
        return first

    def _step(self) -> bool:
        """Close what is finished; return whether there may be more."""
        if self._fence is not None:
            return self._step_fence(self._fence)
        if self._plain:
            return self._step_plain()
        return self._step_markdown()

    def _step_markdown(self) -> bool:
        tokens = parser().parse(self._tail)
        starts = [token for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
        if not starts:
            return False
        lines = self._tail.splitlines(keepends=True)
        start, in_list = _last_start(tokens, starts[-1])
        if start:
            before = "".join(lines[:start])
            self._close(self._spaced(read(before, self._fences)))
            self._in_list = in_list
            self._tail = "".join(lines[start:])
            return True
        return self._open_fence(starts[-1], lines) or self._go_plain()

    def _open_fence(self, token: Token, lines: list[str]) -> bool:
        head = lines[0]
        if token.type != "fence" or not head.endswith("\n"):
            return False
        fence = _Fence(token.markup, len(head) - len(head.lstrip(" ")), language_of(token.info))
        self._close(self._spaced([code_head(fence.language, self._fences)]))
        self._fence, self._tail = fence, "".join(lines[1:])
        return True

    def _step_fence(self, fence: _Fence) -> bool:
        *complete, self._tail = self._tail.split("\n")
        for number, line in enumerate(complete):
            if fence.is_end(line):
                self._close(_code(fence, fence.lines))
                self._fence = None
                self._tail = "\n".join([*complete[number + 1 :], self._tail])
                return True
            fence.lines.append(line)
            if len(fence.lines) == CODE_LINES:
                self._close(_code(fence, fence.lines))
                fence.lines.clear()
        while len(self._tail) > LONGEST_OPEN:
            self._close([*_code(fence, fence.lines), _plain_code(self._tail[:_KEPT])])
            fence.lines.clear()
            self._tail = self._tail[_KEPT:]
        return False

    def _go_plain(self) -> bool:
        self._plain = len(self._tail) > LONGEST_OPEN
        return self._plain

    def _step_plain(self) -> bool:
        paragraph, break_, after = self._tail.partition("\n\n")
        cut = len(paragraph) if break_ else len(self._tail) - _KEPT
        if not break_ and len(self._tail) <= LONGEST_OPEN:
            return False
        text, pieces = self._tail[:cut], []
        while text:
            end = (
                len(text)
                if len(text) <= LONGEST_OPEN
                else text.rfind(" ", 1, LONGEST_OPEN) + 1 or LONGEST_OPEN
            )
            pieces.append(Block(Content(text[:end].rstrip("\n"))))
            text = text[end:]
        self._close(pieces)
        self._plain = not break_
        self._tail = after if break_ else self._tail[cut:]
        return True

    def _open(self) -> list[Block]:
        if self._fence is not None:
            lines = [*self._fence.lines, *([self._tail] if self._tail else [])]
            return _code(self._fence, lines)
        if self._plain:
            return [Block(Content(self._tail))]
        return self._spaced(read(self._tail, self._fences))

    def _close(self, blocks: list[Block]) -> None:
        self._fences += (
            sum(block.style == "prose--fence-head" for block in blocks) if self._fence is None else 0
        )
        self.blocks += blocks
        self.closed = len(self.blocks)

    def _spaced(self, blocks: list[Block]) -> list[Block]:
        """Set the first block apart from what stands above it."""
        if not blocks or not self.closed or self._in_list:
            return blocks
        return [replace(blocks[0], gap=1), *blocks[1:]]


def _last_start(tokens: list[Token], last: Token) -> tuple[int, bool]:
    """Return the line on which the last block starts, and whether it is a further item of a list."""
    assert last.map is not None
    if last.type in {"bullet_list_open", "ordered_list_open"}:
        items = [
            token.map[0]
            for token in tokens
            if token.type == "list_item_open" and token.level == 1 and token.map
        ]
        start = max((line for line in items if line > last.map[0]), default=None)
        if start is not None:
            return start, True
    return last.map[0], False


def _code(fence: _Fence, lines: list[str]) -> list[Block]:
    if not lines:
        return []
    margin = " " * fence.indent
    text = "\n".join(line.removeprefix(margin) for line in lines)
    return list(code(text, fence.language))


def _plain_code(text: str) -> Block:
    return Block(Content(text), " ", " ", "prose--fence")
