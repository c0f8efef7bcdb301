"""The list of chats at the side: by date, opened, renamed, pinned and deleted where they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import ClassVar, Self

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input, Static

from localspec.chat.messages import ChatInfo
from localspec_tui.messages import ChatRenamed
from localspec_tui.widgets.chat_rows import rows
from localspec_tui.widgets.sidebar import ChatList, RenameAsked

Today = Callable[[], date]


class Sidebar(Widget):
    """All chats; `today` is asked whenever they are shown."""

    DEFAULT_CSS = """
    Sidebar {
        width: 30;
        height: 1fr;
        layers: rows title;
        background: $panel;
        & > #no-chats { display: none; padding: 1 2; color: $text-muted; }
        &.-empty > #no-chats { display: block; }
        &.-empty > ChatList { display: none; }
    }
    """

    def __init__(self, *, today: Today = date.today, id: str | None = None) -> None:  # noqa: A002 - as in Textual
        super().__init__(id=id)
        self._today = today
        self._list = ChatList(id="chats")
        self._title = TitleInput(id="title")
        self.add_class("-empty")

    def compose(self) -> ComposeResult:
        """Stack the list and, over it, the title under change."""
        yield Static("Your chats will be listed here.", id="no-chats")
        yield self._list
        yield self._title

    def show(self, chats: Sequence[ChatInfo], current: int | None) -> None:
        """Show these chats, in the order given; the cursor stays where it was."""
        self.set_class(not chats, "-empty")
        self._list.show(rows(chats, self._today()), current)

    def focus(self, scroll_visible: bool = True) -> Self:
        """Put the cursor into the list."""
        self._list.focus(scroll_visible)
        return self

    @on(RenameAsked)
    def _edit_title(self, event: RenameAsked) -> None:
        event.stop()
        self._title.edit(event.chat, event.row - self._list.scroll_offset.y, self.size.width)

    @on(Input.Submitted)
    def _title_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._list.focus()  # which ends the change

    @on(Input.Changed)
    def _title_changed(self, event: Input.Changed) -> None:
        event.stop()


class TitleInput(Input):
    """The title of one chat over its row; leaving it keeps the change, Escape does not."""

    DEFAULT_CSS = """
    TitleInput {
        layer: title;
        position: absolute;
        display: none;
        height: 1;
        border: none;
        background: $surface;
        &:focus { border: none; }
        &.-editing { display: block; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Keep the old title", id="sidebar.cancel_rename"),
    ]

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's own name
        super().__init__(id=id, compact=True, select_on_focus=True)
        self._chat: ChatInfo | None = None

    def edit(self, chat: ChatInfo, row: int, width: int) -> None:
        """Let the title of this chat be edited at a row of the sidebar, which is so wide."""
        self._chat = chat
        self.value = chat.title
        self.styles.offset = (2, row)
        self.styles.width = max(1, width - 2)
        self.add_class("-editing")
        self.focus()

    def on_blur(self, event: events.Blur) -> None:
        """Keep the title, unless it is the whole terminal that lost the focus."""
        if self.app.app_focus:
            self._finish()

    def _finish(self) -> None:
        chat, self._chat = self._chat, None
        title = " ".join(self.value.split())
        self.remove_class("-editing")
        if chat and title and title != chat.title:
            self.post_message(ChatRenamed(chat.id, title))

    def action_cancel(self) -> None:
        """Keep the old title."""
        self._chat = None
        self.screen.query_one(ChatList).focus()
