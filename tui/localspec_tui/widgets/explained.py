"""Figures whose words explain themselves under the pointer."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.glossary import explained


class Explained(Widget):
    """A widget that tells under the pointer what a word of its text means, if the glossary has it."""

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explain what is under the pointer."""
        meaning = self.meaning_at(event)
        tooltip = Content(meaning) if meaning else None
        if tooltip != self.tooltip:
            self.tooltip = tooltip

    def meaning_at(self, event: events.MouseMove) -> str:
        """Return what the word under the pointer means, nothing where there is nothing to explain."""
        offset = event.get_content_offset(self)
        if offset is None:
            return ""
        row = self.render_line(offset.y).text
        return next((meaning for place, meaning in explained(row) if offset.x in place), "")


class ExplainedText(Static, Explained):
    """A text with figures; the first base gives its style."""
