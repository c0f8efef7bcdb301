"""The list of completions above the prompt: it floats over the conversation and never takes the focus."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.chat.commands import Completion

MOST_ROWS = 8


class Completions(OptionList, can_focus=False):
    """A short list to choose from while typing; hidden while it is empty."""

    DEFAULT_CSS = """
    Completions {
        overlay: screen;
        display: none;
        width: auto;
        min-width: 24;
        max-width: 100%;
        height: auto;
        padding: 0 1;
        border: round $primary;
        background: $surface;
        scrollbar-size-vertical: 1;
        scrollbar-color: $foreground 30%;
        scrollbar-background: $foreground 5%;
        text-wrap: nowrap;
        text-overflow: ellipsis;
        &.-open { display: block; }
        & > .option-list--option-highlighted {
            color: $block-cursor-foreground;
            background: $block-cursor-background;
            text-style: bold;
        }
    }
    """

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id, markup=False)
        self._items: tuple[Completion, ...] = ()
        self._moved = False

    @property
    def is_open(self) -> bool:
        """Whether there is something to choose from."""
        return bool(self._items)

    @property
    def chosen(self) -> Completion | None:
        """The completion under the cursor."""
        return self._items[self.highlighted] if self._items and self.highlighted is not None else None

    @property
    def moved(self) -> bool:
        """Whether somebody has moved the cursor since the list was shown."""
        return self._moved

    def show(self, items: Sequence[Completion]) -> None:
        """Offer these; none closes the list."""
        self._items = tuple(items)
        self._moved = False
        self.set_class(bool(items), "-open")
        width = max((len(item.label) for item in items), default=0)
        self.set_options(Option(_line(item, width)) for item in items)
        if items:
            rows = min(len(items), MOST_ROWS, max(1, self.screen.size.height // 3))
            self.styles.max_height = rows + 2
            self.styles.offset = (0, -(rows + 2))
            self.highlighted = 0

    def move(self, step: int) -> None:
        """Move the cursor, around the ends."""
        if self.highlighted is not None:
            self._moved = True
            self.highlighted = (self.highlighted + step) % len(self._items)


def _line(item: Completion, width: int) -> Content:
    label = Content(item.label.ljust(width) if item.description else item.label)
    return label.append(Content.styled(f"  {item.description}", "dim")) if item.description else label
