"""Find a chat or a message by its words, while typing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.messages import SearchHit
from localspec_tui.keys import KeyFooter, take_key
from localspec_tui.screens.dialog import Dialog
from localspec_tui.widgets.lookup import Lookup
from localspec_tui.widgets.option_rows import OptionRows
from localspec_tui.widgets.sidebar import ChatPicked, written_day

Search = Callable[[str], tuple[SearchHit, ...]]
PAUSE_S = 0.06
BEFORE_MARK = 24  # characters of an excerpt before the first hit, so it is visible on narrow screens


class SearchInput(Input):
    """An input that handles keys in the order in which they were typed."""

    async def on_key(self, event: events.Key) -> None:
        """Leave the screen's bindings to it, in the order of typing."""
        await take_key(event, self.screen, self)


class SearchScreen(Dialog[ChatPicked | None]):
    """Search, and return the chosen chat.

    `search` is called in a thread; for an empty text it may return recent chats.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "walk('cursor_up')", "Hit above", id="search.up"),
        Binding("down", "walk('cursor_down')", "Hit below", id="search.down"),
        Binding("pageup", "walk('page_up')", "A page up", id="search.page_up"),
        Binding("pagedown", "walk('page_down')", "A page down", id="search.page_down"),
        Binding("enter", "open", "Open the hit", id="search.open"),
        Binding("escape,ctrl+k", "dismiss(None)", "Close the search", id="search.leave"),
    ]

    def __init__(self, search: Search, words: str = "", *, today: Callable[[], date] = date.today) -> None:
        super().__init__()
        self._lookup = Lookup(self, search, self._show, self._show_failure, PAUSE_S)
        self._today = today
        self._words = SearchInput(words, placeholder="Search all chats", id="words", compact=True)
        self._list = OptionRows(id="hits", markup=False)
        self._list.can_focus = False  # the input keeps the focus
        self._note = Static(id="note", classes="note", markup=False)
        self._found: tuple[SearchHit, ...] = ()
        self._found_for: str | None = None
        self._open_for: str | None = None  # the words after which Enter was pressed

    def compose(self) -> ComposeResult:
        """Stack the words and the hits."""
        with Vertical(classes="frame") as frame:
            frame.border_title = "Search"
            yield self._words
            yield self._list
            yield self._note
        yield KeyFooter()

    def on_mount(self) -> None:
        """Start with what is found for the words given, or for nothing."""
        self._words.focus()
        self._lookup.ask(self._words.value.strip())

    @on(Input.Changed)
    def _words_changed(self) -> None:
        if self._words.value.strip() != self._open_for:
            self._open_for = None
        self._lookup.ask(self._words.value.strip())

    def _show(self, words: str, hits: tuple[SearchHit, ...]) -> None:
        self._found = hits = _by_chat(hits)
        self._found_for = words
        width = self._list.container_size.width or self._words.size.width
        chats = [None, *(hit.chat.id for hit in hits)]
        self._list.set_options(
            Option(_described(hit, self._today(), width - 4, is_first=hit.chat.id != before))
            for hit, before in zip(hits, chats, strict=False)
        )
        self._list.highlighted = 0 if hits else None
        self.set_class(bool(hits), "-found")
        self._note.update(f"Nothing found for “{words}”." if words else "Type to search titles and messages.")
        if self._open_for == words and hits and self.is_current:
            self.action_open()

    def _show_failure(self, words: str, error: Exception) -> None:
        self._show(words, ())
        self._note.update(str(error))

    @on(OptionList.OptionSelected)
    def _hit_clicked(self, event: OptionList.OptionSelected) -> None:
        self._open(self._found[event.option_index])

    def _open(self, hit: SearchHit) -> None:
        self.dismiss(ChatPicked(hit.chat.id, hit.message, self._found_for or ""))

    def action_open(self) -> None:
        """Open the hit under the cursor, as soon as the words typed last are looked up."""
        words = self._words.value.strip()
        if words != self._found_for:
            self._open_for = words
        elif self._list.highlighted is not None:
            self._open(self._found[self._list.highlighted])

    async def action_walk(self, way: str) -> None:
        """Go to another hit, as the list itself would."""
        await self.app.run_action(way, self._list)


def _by_chat(hits: Sequence[SearchHit]) -> tuple[SearchHit, ...]:
    """Return hits grouped by chat, in the order of each chat's best."""
    chats = dict.fromkeys(hit.chat.id for hit in hits)
    return tuple(hit for chat in chats for hit in hits if hit.chat.id == chat)


def _described(hit: SearchHit, today: date, width: int, *, is_first: bool) -> Content:
    """Return a hit in two lines; the head is that of its chat, above the first of its hits."""
    if not is_first:
        return _marked(hit, BEFORE_MARK)
    day = written_day(hit.chat.updated, today)
    title = hit.chat.title or "New chat"
    room = max(1, width - len(day) - 2)
    head = _marked(hit, 0) if hit.message is None and hit.excerpt == title else Content(title)
    head = head.truncate(room, ellipsis=True, pad=True).stylize("bold")
    head = head.append(Content.styled(f"  {day}", "dim"))
    if hit.message is None and hit.excerpt in {title, ""}:
        return head
    return head.append("\n").append(_marked(hit, BEFORE_MARK))


def _marked(hit: SearchHit, before: int) -> Content:
    excerpt = Content("".join(" " if sign.isspace() else sign for sign in hit.excerpt))
    excerpt = excerpt.stylize("$foreground 65%") if before else excerpt
    for start, end in hit.marks:
        excerpt = excerpt.stylize("bold underline $text-accent", start, end)
    cut = max(0, hit.marks[0][0] - before) if hit.marks and before else 0
    return Content("…").append(excerpt[cut:]) if cut else excerpt
