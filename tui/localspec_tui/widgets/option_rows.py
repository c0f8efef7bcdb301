"""The list that the user chooses from: the selected row has one colour for all of its text."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widgets import OptionList


class OptionRows(OptionList):
    """Options whose selected row can be read in every theme, whatever colours its parts have elsewhere."""

    def render_line(self, y: int) -> Strip:
        """Render a row; the selected one without colours that were chosen for another background."""
        strip = super().render_line(y)
        line = self.scroll_offset.y + y
        if line >= len(self._lines) or self._lines[line][0] != self.highlighted:
            return strip
        names = ("option-list--option", "option-list--option-highlighted")
        colour = self.get_visual_style(*names).rich_style.color
        segments = Segment.apply_style(strip, post_style=Style(color=colour, dim=False))
        return Strip(segments, strip.cell_length)
