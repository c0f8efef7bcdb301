"""The text of an answer: Markdown, while it is written and when it is complete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from localspec_tui.widgets.markdown.blocks import Block
from localspec_tui.widgets.markdown.growing import GrowingMarkdown
from localspec_tui.widgets.markdown.parse import build
from localspec_tui.widgets.markdown.prose import Laid, Prose, lay


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
