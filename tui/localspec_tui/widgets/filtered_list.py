"""A line to type into and the rows that it leaves: every list that the user chooses from can be one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.dom import DOMNode
from textual.suggester import Suggester
from textual.widgets import Input
from textual.widgets.option_list import Option

from localspec.chat.chat_filter import is_found
from localspec_tui.keys import bindings_of, take_key
from localspec_tui.widgets.option_rows import OptionRows


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row: `key` identifies it, `words` are searched; a heading has no key."""

    key: str
    look: Content | str
    words: str = ""


def marked(title: str, is_current: bool) -> str:
    """Return the title of a row, after the mark of what is in use, or the space of that."""
    return f"{'●' if is_current else ' '} {title}"


def narrowed(rows: Iterable[ListRow], words: str) -> list[ListRow]:
    """Return the rows that are found by these words, and the headings that still head some."""
    left: list[ListRow] = []
    heading: ListRow | None = None
    for row in rows:
        if not row.key:
            heading = row
        elif is_found(words, row.words):
            left += [row] if heading is None else [heading, row]
            heading = None
    return left


_OWN = {"escape", "tab"}  # keys that the filter has before the screen
EDITING = {"backspace", "delete", "left", "right"}  # keys that change what is typed


class _Suggested(Suggester):
    """Shows ahead of the cursor what Tab would add."""

    def __init__(self, complete: Callable[[str], str | None]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._complete = complete

    async def get_suggestion(self, value: str) -> str | None:
        """Return the completed text."""
        return self._complete(value)


class FilterLine(Input):
    """The filter of some rows; `narrow` is called before a key acts on the rows.

    Keys that are not for typing go first to `rows`, then to the parent. `complete` returns a text with the
    name at its end written out, None if there is nothing to complete.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "Show all again", id="list.clear"),
        Binding("tab", "complete", "Complete the name", id="list.complete"),
    ]

    def __init__(
        self,
        placeholder: str,
        narrow: Callable[[], object],
        *rows: DOMNode,
        complete: Callable[[str], str | None] = lambda _text: None,
    ) -> None:
        super().__init__(placeholder=placeholder, compact=True, suggester=_Suggested(complete))
        self._complete = complete
        self._narrow = narrow
        self._takers = rows
        self._narrowed_by = ""

    def on_mount(self) -> None:
        """Leave to the list and the screen which keys they bind, also where keys are listed."""
        own = self._bindings.key_to_bindings
        for node in self.ancestors:
            for key in {binding.key for binding in bindings_of(node)} - _OWN:
                own.pop(key, None)

    async def on_key(self, event: events.Key) -> None:
        """Leave bindings that are not typed characters to the rows and the screen."""
        if not event.is_printable:
            self.on_input_changed()
            rows = self._takers if event.key not in EDITING else ()
            above = [node for node in self.ancestors if node not in {self.screen, self.app}]
            first = (self,) if event.key in _OWN else ()  # before the screen is left
            await take_key(event, *rows, *above, *first, self.screen, self)

    def on_input_changed(self, event: Input.Changed | None = None) -> None:
        """Filter the rows if that has not been done yet."""
        if event is not None:
            event.stop()
        if self.value != self._narrowed_by:
            self._narrowed_by = self.value
            self._narrow()
            self.refresh_bindings()  # Escape clears what is typed

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave Escape to the screen where nothing is typed, and Tab where there is nothing to complete."""
        if action == "complete":
            return self._complete(self.value) is not None
        return bool(self.value) if action == "clear" else super().check_action(action, parameters)

    def action_complete(self) -> None:
        """Complete the name at the end."""
        self.value = self._complete(self.value) or self.value
        self.cursor_position = len(self.value)

    def action_clear(self) -> None:
        """Clear the filter."""
        self.value = ""


class FilteredList(Vertical):
    """Rows filtered by typing; the line keeps the focus, the arrow keys move the cursor below.

    Messages of the options below come from here: the id of an option is the key of its row.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "Choose the row", id="list.choose"),
    ]

    def __init__(self, placeholder: str) -> None:
        super().__init__()
        self._list = OptionRows(markup=False)
        self._line = FilterLine(placeholder, lambda: self.show(self._rows), self._list)
        self._list.can_focus = False  # the line keeps the focus
        self._rows: tuple[ListRow, ...] = ()

    def compose(self) -> ComposeResult:
        """Stack the line and the rows."""
        yield self._line
        yield self._list

    def on_mount(self) -> None:
        """Give the input the focus."""
        self._line.focus()

    @property
    def highlighted(self) -> str | None:
        """The key of the row under the cursor."""
        option = self._list.highlighted_option
        return None if option is None else option.id

    def show(self, rows: Iterable[ListRow], highlighted: str | None = None) -> None:
        """Show these rows; the cursor stays on its row, or goes to the one that is named."""
        wanted = highlighted or self.highlighted
        self._rows = tuple(rows)
        shown = narrowed(self._rows, self._line.value)
        self._list.set_options(Option(row.look, row.key or None, disabled=not row.key) for row in shown)
        keys = [row.key for row in shown]
        first = next((at for at, key in enumerate(keys) if key), None)
        self._list.highlighted = keys.index(wanted) if wanted and wanted in keys else first

    def action_choose(self) -> None:
        """Choose the row under the cursor."""
        self._list.action_select()
