"""The line at the top: which chat, which profile, which models."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget


class TitleBar(Widget):
    """One row: the chat's title on the left, profile, mode and models on the right."""

    DEFAULT_CSS = """
    TitleBar {
        dock: top;
        height: 1;
        padding: 0 1;
        background: $panel;
        color: $text;
    }
    """

    chat_title = reactive("")
    profile = reactive("")
    mode = reactive("")
    models = reactive("")

    def render(self) -> Content:
        """Return what fits: the models go first, then the mode."""
        room = self.size.width - 2
        title = self.chat_title or "New chat"
        parts = [self.profile, self.mode, self.models]
        while parts and cell_len(title) + 3 + cell_len("  ".join(parts)) > room:
            parts.pop()
        right = "  ".join(part for part in parts if part)
        left = Content(title).truncate(max(1, room - cell_len(right) - 2), ellipsis=True).stylize("bold")
        gap = " " * max(1, room - left.cell_length - cell_len(right))
        return left + Content(gap) + Content(right).stylize("dim")
