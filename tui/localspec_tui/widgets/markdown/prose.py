"""Widgets that show blocks of text: one for any length, and only visible lines are rendered."""

from __future__ import annotations

import asyncio
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.content import Content
from textual.css.styles import RulesMap
from textual.geometry import Offset, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.visual import RenderOptions
from textual.widget import Widget

from localspec.chat.markdown import code_blocks
from localspec.chat.store.search import found_in
from localspec_tui.widgets.markdown.blocks import Block, CopiedLine, TextPlace
from localspec_tui.widgets.markdown.parse import GrowingMarkdown, build

_RULES: Final[RulesMap] = {"text_overflow": "fold", "text_wrap": "wrap", "text_align": "left"}
_OPENED = ("http://", "https://", "mailto:")


class BlockLayout:
    """The layout of blocks at one width: their texts, with the first row and text line of each.

    Independent of widgets, so a long text can be laid out in a thread.
    """

    def __init__(self, blocks: Iterable[Block], width: int) -> None:
        self.width = width
        self.blocks: list[Block] = []
        self.contents: list[Content] = []
        self.rows = [0]
        self.lines = [0]
        self.put(blocks)

    def put(self, blocks: Iterable[Block], start: int = 0) -> None:
        """Replace the blocks from `start` on and lay them out; without a width they are only stored."""
        del self.blocks[start:], self.contents[start:], self.rows[start + 1 :], self.lines[start + 1 :]
        if not self.width:
            self.blocks.extend(blocks)
            return
        for block in blocks:
            content = block.at(self.text_width(block))
            height = content.get_height(_RULES, self.text_width(block))
            self.blocks.append(block)
            self.contents.append(content)
            self.rows.append(self.rows[-1] + block.gap + height)
            self.lines.append(self.lines[-1] + block.gap + content.plain.count("\n") + 1)

    def text_width(self, block: Block) -> int:
        """Return the width of a block's text."""
        return max(1, self.width - cell_len(self.mark(block.rest)))

    def mark(self, text: str) -> str:
        """Return the prefix of a line; deep indentation takes at most half of the width."""
        return text[-(self.width // 2) :] if cell_len(text) > self.width // 2 else text

    @property
    def height(self) -> int:
        """Return the rows of everything."""
        return self.rows[-1]


class WordsFound(Widget):
    """A widget whose texts show the words that were searched for."""

    words_found: Sequence[re.Pattern[str]] = ()


class Prose(Widget):
    """Blocks of text that can be selected with the mouse."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "prose--code",
        "prose--fence",
        "prose--fence-head",
        "prose--found",
        "prose--heading",
        "prose--link",
        "prose--mark",
    }

    # Textual makes a second layout whenever this changes; nothing here depends on it.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0))

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self._laid = BlockLayout(blocks, 0)
        self._strips: dict[int, list[Strip]] = {}

    def set_blocks(self, blocks: Sequence[Block], start: int = 0) -> None:
        """Put blocks in place of those from `start` on; the cost is that of the new ones."""
        height = self._laid.height
        self._laid.put(blocks, start)
        self._strips = {index: strips for index, strips in self._strips.items() if index < start}
        self.refresh(layout=height != self._laid.height)

    def set_laid(self, laid: BlockLayout) -> None:
        """Show what was laid out elsewhere."""
        width = self._laid.width
        height = self._laid.height
        self._laid = laid if laid.width == width or not width else BlockLayout(laid.blocks, width)
        self._strips.clear()
        self.refresh(layout=height != self._laid.height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the rows at a width, laying the text out again when it differs from the last."""
        self._fit(width)
        return self._laid.height

    def _fit(self, width: int) -> None:
        if width and width != self._laid.width:
            self._laid = BlockLayout(self._laid.blocks, width)
            self._strips.clear()

    def notify_style_update(self) -> None:
        """Render again in the colours of another theme."""
        self._strips.clear()
        super().notify_style_update()

    def selection_updated(self, selection: Selection | None) -> None:
        """Show what is selected."""
        self._strips.clear()
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """Return the selected text as it was written: not as it is wrapped, and with its list marks."""
        laid = self._laid
        last = self._laid.lines[-1] - 1
        start = selection.start or Offset(0, 0)
        end = selection.end
        if not laid.contents or start.y > last:
            return None
        if end is None or end.y > last:
            end = Offset(len(laid.contents[-1].plain), last)
        copied: list[CopiedLine] = []
        for index, block in enumerate(laid.blocks):
            top = laid.lines[index]
            behind = laid.lines[index + 1]
            if behind <= start.y or end.y < top:
                continue
            text = top + block.gap  # its first line
            if start.y < top:
                copied += [CopiedLine("", "")] * (min(text, end.y + 1) - top)
            if end.y >= text:
                begin = TextPlace(start.y - text, start.x) if start.y >= text else TextPlace(0, 0)
                stop = (
                    TextPlace(end.y - text, end.x)
                    if end.y < behind
                    else TextPlace(behind - text - 1, sys.maxsize)
                )
                copied += block.copied(laid.text_width(block), begin, stop)
        return _joined(copied, is_cut=start.x > 0), "\n"

    def render_line(self, y: int) -> Strip:
        """Render one row."""
        width = self.content_size.width
        self._fit(width)  # Textual knows the height at a width that it has seen before, and does not ask
        laid = self._laid
        if not 0 <= y < laid.height or len(laid.contents) != len(laid.blocks):
            return Strip.blank(width, self.visual_style.rich_style)
        index = bisect_right(laid.rows, y) - 1
        if index not in self._strips:
            self._strips[index] = self._render_block(index)
        return self._strips[index][y - laid.rows[index]]

    def action_open_link(self, address: str) -> None:
        """Open an address in the browser; other kinds of links are not followed."""
        if address.startswith(_OPENED):
            self.app.open_url(address)

    def _render_block(self, index: int) -> list[Strip]:
        laid = self._laid
        block = self._laid.blocks[index]
        style = self.get_visual_style(block.style) if block.style else self.visual_style
        line = laid.lines[index] + block.gap
        content = laid.contents[index]
        for start, end in found_in(content.plain, self._words_found()):
            found = Style.from_styles(self.get_component_styles("prose--found"))
            content = content.stylize(found, start, end)
        strips = content.render_strips(laid.text_width(block), None, style, self._options(line))
        rich_style = style.rich_style
        mark = (style + self._resolve(".prose--mark")).rich_style
        blank = self.visual_style.rich_style
        gap = range(laid.lines[index], line)
        rows = [Strip([Segment(" " * laid.width, blank + _at(0, y))], laid.width) for y in gap]
        y = line - 1
        for number, strip in enumerate(strips):
            text = [_moved(segment, line) for segment in strip]
            places = list(filter(None, map(_place_of, text)))
            if not places:  # an empty line
                text = [Segment(" ", rich_style + _at(0, y + 1))]
                places = [(0, y + 1)]
            x, y = places[0]
            before = laid.mark(block.first if number == 0 else block.rest)
            marks = [Segment(character, mark + _at(x, y)) for character in before]
            rows.append(Strip([*marks, *text]).adjust_cell_length(laid.width, rich_style))
        # The text and its height are computed in two ways; were they ever to differ, nothing may be missing.
        rows += [Strip.blank(laid.width, rich_style)] * (laid.rows[index + 1] - laid.rows[index] - len(rows))
        return rows

    def _words_found(self) -> Sequence[re.Pattern[str]]:
        """Return patterns of words to be highlighted."""
        above = (each.words_found for each in self.ancestors if isinstance(each, WordsFound))
        return next(above, ())

    def _options(self, first: int) -> RenderOptions:
        """Return the strips of the lines from `first` on, with their selection."""
        selection = self.text_selection
        style = None
        if selection is not None:
            moved = (None if place is None else place - (0, first) for place in selection)
            selection = Selection(*moved)
            style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
        return RenderOptions(self._resolve, _RULES, selection, style)

    def _resolve(self, style: str | Style) -> Style:
        if isinstance(style, Style):
            return style
        if style.startswith("."):
            return self.get_visual_style(style[1:], partial=True)
        return Style.parse(style)


def _joined(lines: Sequence[CopiedLine], *, is_cut: bool) -> str:
    """Return copied lines as one text, without the indentation that all of them share.

    The first one may be cut, and has no indentation then.
    """
    marks = [line.mark for line in lines[is_cut:] if line.text]
    shared = min((len(mark) - len(mark.lstrip()) for mark in marks), default=0)
    return "\n".join(f"{line.mark[shared:]}{line.text}" if line.text else "" for line in lines)


def _at(x: int, y: int) -> RichStyle:
    """Make a style that tells the mouse a place of the text."""
    return RichStyle.from_meta({"offset": (x, y)})


def _moved(segment: Segment, lines: int) -> Segment:
    """Return a segment that the mouse finds `lines` further down in the text."""
    place = _place_of(segment)
    if segment.style is None or place is None:
        return segment
    return Segment(segment.text, segment.style + _at(place[0], place[1] + lines))


def _place_of(segment: Segment) -> tuple[int, int] | None:
    """Return the place of the text where a segment begins; None for one that is no text."""
    return None if segment.style is None else segment.style.meta.get("offset")


class GrowingProse(Prose):
    """Markdown that may still grow."""

    @dataclass
    class CodePicked(Message):
        """Some code is to be copied."""

        code: str

    def __init__(self, text: str = "", blocks: Sequence[Block] | None = None) -> None:
        super().__init__(build(text) if blocks is None else blocks)
        self.text = text  # the Markdown that is shown
        self._growing: GrowingMarkdown | None = None

    def append(self, text: str) -> None:
        """Add to the end."""
        if self._growing is None:
            self._growing = GrowingMarkdown()
            self._growing.append(self.text)
            self.set_blocks(self._growing.blocks)
        self.text += text
        first = self._growing.append(text)
        self.set_blocks(self._growing.blocks[first:], first)

    def action_copy_code(self, fence: int) -> None:
        """Ask for the code of a fence to be copied."""
        blocks = code_blocks(self.text)
        if fence < len(blocks):
            self.post_message(self.CodePicked(blocks[fence].code))

    async def finish(self, text: str) -> None:
        """Show the whole text as parsed at once; the work is done in a thread."""
        self.text = text
        self._growing = None
        width = self.content_size.width
        laid = await asyncio.to_thread(lambda: BlockLayout(build(text), width))
        if self.text == text and self._growing is None:  # nothing came in the meantime
            self.set_laid(laid)
