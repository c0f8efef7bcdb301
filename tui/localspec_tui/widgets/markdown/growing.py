"""Markdown that is still being written: what is finished stays, and only the end is read again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from markdown_it.token import Token
from textual.content import Content

from localspec_tui.widgets.markdown.blocks import Block, clean
from localspec_tui.widgets.markdown.parse import CODE_LINES, build, code, code_head, language_of, parser, read
from localspec_tui.widgets.markdown.prose import Laid, Prose, lay

LONGEST_OPEN: Final = 2_500
"""Characters of one unfinished paragraph or list item; what is longer goes on as plain text until the end."""
_KEPT = 1_000  # of a long text, read again with what follows


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


class AnswerText(Prose):
    """Markdown that may still grow."""

    def __init__(self, text: str = "", blocks: Sequence[Block] | None = None) -> None:
        super().__init__(build(text) if blocks is None else blocks)
        self._text = text
        self._growing: GrowingMarkdown | None = None

    @property
    def text(self) -> str:
        """Return the Markdown that is shown."""
        return self._text

    def append(self, text: str) -> None:
        """Add to the end."""
        if self._growing is None:
            self._growing = GrowingMarkdown()
            self._growing.append(self._text)
            self.set_blocks(self._growing.blocks)
        self._text += text
        first = self._growing.append(text)
        self.set_blocks(self._growing.blocks[first:], first)

    async def finish(self, text: str) -> None:
        """Show the whole text as it is when read in one go; the work is done beside the event loop."""
        self._text, self._growing = text, None
        width = self.content_size.width
        laid = await asyncio.to_thread(_laid, text, width)
        if self._text == text and self._growing is None:  # nothing came in the meantime
            self.set_laid(laid)


def _laid(text: str, width: int) -> Laid:
    return lay(build(text), width) if width else Laid(0, list(build(text)))
