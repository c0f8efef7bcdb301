"""The text of a prompt: grows with its lines, folds long pastes, and knows the keys that break a line."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from rich.text import Text
from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.document._document import Location
from textual.dom import DOMNode
from textual.geometry import Size

from localspec.safe_text import safe_text
from localspec_tui.keys import take_key
from localspec_tui.widgets.composer.vim import VimArea
from localspec_tui.widgets.markdown.blocks import first_emoji

MAX_LINES = 10
FOLD_FROM = 10_000  # characters; every key press costs time in proportion to the longest line


class PastedTexts:
    """The long texts of one prompt, each represented by a mark in the edited text."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return the text in plain lines, or a mark for it if it is long."""
        text = safe_text(text.replace("\r\n", "\n").replace("\r", "\n"))
        if len(text) < FOLD_FROM:
            return text
        if known := next((mark for mark, kept in self._texts.items() if kept == text), None):
            return known
        lines = text.count("\n") + 1
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        mark = f"[pasted text {len(self._texts) + 1}: {size}]"
        self._texts[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """Put the long texts back in place of their marks."""
        if not self._texts:
            return text
        marks = "|".join(map(re.escape, self._texts))
        return re.sub(marks, lambda found: self._texts[found[0]], text)

    def mark_before(self, text: str) -> str:
        """Return the mark that ends the text, or nothing."""
        return next((mark for mark in self._texts if text.endswith(mark)), "")

    def clear(self) -> None:
        """Forget all texts."""
        self._texts.clear()


class _LineBreakKey(Enum):
    """Keys that Textual's table of escape sequences lacks."""

    ALT_ENTER = "alt+enter"


def _teach_alt_enter() -> None:
    # Without the kitty protocol a terminal sends Alt+Enter as escape, return; Textual 8.2 drops the Alt and
    # would send the prompt.
    ANSI_SEQUENCES_KEYS["\x1b\r"] = (_LineBreakKey.ALT_ENTER,)  # type: ignore[index]


class PromptArea(VimArea):
    """A text area as tall as its text, up to ten lines and a third of the screen.

    The keys that `bindings_of` binds come before its own. `named` gets the text before the cursor and a
    pasted one, and returns what names the files whose paths were pasted, if that is what they are.
    """

    def __init__(
        self,
        bindings_of: DOMNode,
        named: Callable[[str, str], str | None] = lambda _before, _pasted: None,
        *,
        id: str,  # noqa: A002 - Textual's own name
    ) -> None:
        super().__init__(id=id, highlight_cursor_line=False)
        self.match_cursor_bracket = False
        self._bindings_of = bindings_of
        self._named = named
        self._pasted = PastedTexts()
        _teach_alt_enter()

    @property
    def whole_text(self) -> str:
        """The text with everything that is folded."""
        return self._pasted.unfold(self.text)

    @property
    def before_cursor(self) -> str:
        """The text up to the cursor."""
        return self.get_text_range((0, 0), self.cursor_location)

    @property
    def on_first_row(self) -> bool:
        """Whether the cursor is on the top row as shown, with nothing selected."""
        return self.selection.is_empty and self.navigator.is_first_wrapped_line(self.cursor_location)

    @property
    def on_last_row(self) -> bool:
        """Whether the cursor is on the bottom row as shown, with nothing selected."""
        return self.selection.is_empty and self.navigator.is_last_wrapped_line(self.cursor_location)

    def start_with(self, text: str) -> None:
        """Begin again with this text, and nothing to undo."""
        self._pasted.clear()
        self.load_text(self._pasted.fold(text))
        self.move_cursor(self.document.end)

    def replace_all(self, text: str, *, cursor_at_top: bool = False) -> None:
        """Replace the whole text; undo restores it."""
        self.replace(self._pasted.fold(text), (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self._end_of_top_row() if cursor_at_top else self.document.end)

    def replace_before_cursor(self, start: int, text: str) -> None:
        """Put a text in place of that from character `start` up to the cursor."""
        row = self.before_cursor.count("\n", 0, start)
        column = start - (self.before_cursor.rfind("\n", 0, start) + 1)
        self.replace(text, (row, column), self.cursor_location, maintain_selection_offset=False)

    def break_line(self) -> None:
        """Start a new line in place of what is selected."""
        self._insert("\n")

    def get_line(self, line_index: int) -> Text:
        """Return a line as it is shown."""
        return Text(first_emoji(self.document.get_line(line_index)), end="", no_wrap=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height of the text, at most a third of the screen with the frame."""
        most = max(1, min(MAX_LINES, viewport.height // 3 - 2))
        return min(most, super().get_content_height(container, viewport, width))

    async def on_key(self, event: events.Key) -> None:
        """Take all keys in order; break the line also on what terminals with xterm's modifyOtherKeys send."""
        if (keys := self.take_vim(event)) is not None:
            event.stop()
            event.prevent_default()
            for key in keys:
                await take_key(events.Key(key, None), self._bindings_of, self)
        elif event.key in {"shift+\r", "alt+\r"}:
            event.stop()
            event.prevent_default()
            self.break_line()
        else:
            await take_key(event, self._bindings_of, self)

    def on_paste(self, event: events.Paste) -> None:
        """Take a pasted text as one piece, folded if it is long."""
        event.stop()
        event.prevent_default()
        line, *more = event.text.replace("\r", "\n").rstrip("\n").split("\n")
        is_line = line and not more and self.cursor_location == self.document.end
        self._paste(line if is_line else event.text)  # a copied line needs no break behind it

    def action_paste(self) -> None:
        """Insert the clipboard."""
        self._paste(self.app.clipboard)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the page keys to the conversation while all of the text is seen."""
        return self.max_scroll_y > 0 or action not in {"cursor_page_up", "cursor_page_down"}

    def action_delete_left(self) -> None:
        """Delete what is selected, a folded text, or a character."""
        mark = self._pasted.mark_before(self.before_cursor) if self.selection.is_empty else ""
        if mark:
            self.replace_before_cursor(len(self.before_cursor) - len(mark), "")
        else:
            super().action_delete_left()

    def _paste(self, text: str) -> None:
        """Insert a text; pasted paths become references, which undo turns back into the paths."""
        start = min(self.selection)
        named = self._named(self.get_text_range((0, 0), start), text)
        self._insert(text)
        if named is not None:
            self.history.checkpoint()
            self.replace(named, start, self.cursor_location, maintain_selection_offset=False)

    def _insert(self, text: str) -> None:
        self.replace(self._pasted.fold(text), *self.selection, maintain_selection_offset=False)
        self.scroll_cursor_visible()

    def _end_of_top_row(self) -> Location:
        wraps = len(self.wrapped_document.get_sections(0)) > 1
        return (0, 0) if wraps else (0, len(self.document.get_line(0)))
