"""The rows of the sidebar: only visible ones are drawn, so thousands of chats cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from types import MappingProxyType
from typing import ClassVar, Literal, Self, TypeAlias

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget
from textual.widgets import Input, Static

from localspec.chat.commands.effects import ChatChange
from localspec.chat.messages import ChatInfo
from localspec.safe_text import safe_line
from localspec_tui.widgets.filtered_list import FilterLine, is_found

Row: TypeAlias = ChatInfo | str
"""A chat, or the heading of a group; an empty heading is a gap."""
Mark = Literal["writing", "answered", "failed"]
"""The state of a chat's answer: being written, or ended while another chat was open."""
MARKS: dict[Mark, str] = {"writing": "…", "answered": "●", "failed": "!"}
_ACTIONS: tuple[tuple[ChatChange, str], ...] = (("rename", "✎"), ("pin", "☆"), ("delete", "×"))
_ACTIONS_WIDTH = 2 * len(_ACTIONS) + 1


def rows(chats: Sequence[ChatInfo], today: date) -> tuple[Row, ...]:
    """Return chats under headings by local date, in the order given."""
    found: list[Row] = []
    for heading, group in groupby(chats, lambda chat: _group(chat, today)):
        found += ["", heading, *group]
    return tuple(found[1:])


def _group(chat: ChatInfo, today: date) -> str:
    if chat.deleted is not None:
        return "Bin (kept for 30 days)"
    if chat.pinned or not chat.messages:
        return "Pinned" if chat.messages else "Not sent yet"
    day = local_date(chat.updated)
    age = (today - day).days
    if age <= 1:
        return "Yesterday" if age == 1 else "Today"
    if age <= 7:
        return "Last 7 days"
    if age <= 30:
        return "Last 30 days"
    return f"{day:%B}" if day.year == today.year else f"{day:%B %Y}"


def title_shown(chat: ChatInfo) -> str:
    """Return the title of a chat; for one without messages, its unsent text."""
    begun = next((line.strip() for line in chat.draft.splitlines() if line.strip()), "")
    return chat.title or safe_line(begun) or "New chat"


def _counted(chat: ChatInfo) -> str:
    """Return the number of messages, of all with those of hidden branches: 4, or 4 of 6."""
    return str(chat.messages) if chat.shown >= chat.messages else f"{chat.shown} of {chat.messages}"


def local_date(time_s: float) -> date:
    """Return the day of a Unix time where the user is."""
    return datetime.fromtimestamp(time_s).astimezone().date()


def written_day(time_s: float, today: date) -> str:
    """Return the day of a Unix time in words."""
    day = local_date(time_s)
    if day >= today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return f"{day.day} {day:%B}" if day.year == today.year else f"{day.day} {day:%b %Y}"


def written_moment(time_s: float) -> str:
    """Return when something was written: the time alone if that was today."""
    moment, today = datetime.fromtimestamp(time_s).astimezone(), datetime.now().astimezone().date()
    return f"{moment:%H:%M}" if moment.date() == today else f"{written_day(time_s, today)} {moment:%H:%M}"


@dataclass
class ChatPicked(Message):
    """A chat is to be opened, at one of its messages if given."""

    chat_id: int
    message_id: int | None = None
    words: str = ""  # that were searched for


@dataclass
class ChangeAsked(Message):
    """A chat is to be renamed, pinned or unpinned, deleted, or restored."""

    change: ChatChange
    chat: ChatInfo
    title: str = ""


class ChatList(ScrollView, can_focus=True):
    """Chats under headings, one line each; the cursor skips the headings."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"heading", "chat", "current", "hover", "cursor", "muted"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "Chat above", id="sidebar.up"),
        Binding("down,j", "step(1)", "Chat below", id="sidebar.down"),
        Binding("pageup", "page(-1)", "A page up", id="sidebar.page_up"),
        Binding("pagedown", "page(1)", "A page down", id="sidebar.page_down"),
        Binding("home,g", "go(0)", "First chat", id="sidebar.first"),
        Binding("end,G", "go(-1)", "Last chat", id="sidebar.last"),
        Binding("enter", "act('open')", "Open the chat", id="sidebar.open"),
        Binding("r", "act('rename')", "Rename the chat", id="sidebar.rename"),
        Binding("p", "act('pin')", "Pin or unpin the chat", id="sidebar.pin"),
        Binding("delete", "act('delete')", "Delete the chat", id="sidebar.delete"),
        Binding("slash", "find", "Find a chat by its title", id="sidebar.find"),
    ]
    FOCUS_ON_CLICK = False  # typing after a click goes to the prompt

    cursor: reactive[int | None] = reactive(None)
    hovered: reactive[int | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[Row, ...] = ()
        self._chats: dict[int, ChatInfo] = {}  # by row
        self._current: int | None = None
        self._marks: Mapping[int, Mark] = {}

    def show(self, rows: Sequence[Row], current: int | None, marks: Mapping[int, Mark]) -> None:
        """Show these rows, and marks by chat.

        The cursor stays on its chat, else at its place, at first on the current chat.
        """
        wanted = (current, False) if self.chat is None else _identity(self.chat)
        was_at = self.cursor or 0
        self._rows = tuple(rows)
        self._chats = chats = {row: item for row, item in enumerate(rows) if not isinstance(item, str)}
        self._current, self._marks = current, marks
        self.virtual_size = Size(0, len(rows))
        self.cursor = min(
            chats, key=lambda row: (_identity(chats[row]) != wanted, abs(row - was_at), -row), default=None
        )
        self.hovered = None
        self.refresh()

    @property
    def chat(self) -> ChatInfo | None:
        """The chat under the cursor."""
        return None if self.cursor is None else self._chats.get(self.cursor)

    # -- drawing

    def render_line(self, y: int) -> Strip:
        """Draw one row."""
        row = y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        item = self._rows[row] if row < len(self._rows) else ""
        if isinstance(item, str):
            counts = "" if row or not item else "messages "
            title = Content(f" {item}").truncate(max(0, width - len(counts)), ellipsis=True, pad=True)
            line, style = title + Content.styled(counts, "not bold"), self.get_visual_style("heading")
        else:
            line, style = self._chat_line(row, item, width)
        shown = line.truncate(width, ellipsis=True, pad=True)
        return Strip(shown.render_segments(self.visual_style + style), width)

    def _chat_line(self, row: int, chat: ChatInfo, width: int) -> tuple[Content, Style]:
        is_current = chat.id == self._current
        applies = {"current": is_current, "hover": row == self.hovered, "cursor": row == self.cursor}
        style = self.get_visual_style("chat", *(name for name, does in applies.items() if does))
        if row == self.hovered and chat.deleted is not None:
            right = " ↺ "
        elif row == self.hovered:
            signs = " ".join(sign for _, sign in _ACTIONS)
            right = f" {signs.replace('☆', '★') if chat.pinned else signs} "
        elif (mark := self._marks.get(chat.id)) is not None:
            right = f" {MARKS[mark]} {mark} "
        else:
            right = f" {_counted(chat)} " if chat.messages else " "
        room = max(1, width - 2 - len(right))
        title = Content(title_shown(chat)).truncate(room, ellipsis=True, pad=True)
        title = title.stylize("dim") if chat.deleted is not None else title
        marker = "▌ " if is_current else "  "
        muted = "" if row in {self.hovered, self.cursor} else self.get_visual_style("chat", "muted")
        return Content.assemble(marker, title, (right, muted)), style

    def watch_cursor(self, cursor: int | None) -> None:
        """Keep the cursor visible."""
        if cursor is not None and self.size.height:
            above = 1 if cursor and isinstance(self._rows[cursor - 1], str) else 0  # its heading
            region = Region(0, cursor - above, 1, 1 + above)
            self.scroll_to_region(region, animate=False, force=True, immediate=True)

    def on_resize(self) -> None:
        """Keep the cursor visible in another size."""
        self.watch_cursor(self.cursor)

    # -- keys

    def action_step(self, step: int) -> None:
        """Go to the next chat in a direction."""
        if self.cursor is not None:
            chat_rows = list(self._chats)
            place = chat_rows.index(self.cursor) + step
            self.cursor = chat_rows[max(0, min(place, len(chat_rows) - 1))]

    def action_page(self, step: int) -> None:
        """Go a page in a direction."""
        self.action_step(step * max(1, self.scrollable_content_region.height - 1))

    def action_go(self, place: int) -> None:
        """Go to the first chat, or the last."""
        if self._chats:
            self.cursor = list(self._chats)[place]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """For a chat in the bin, only allow restoring it."""
        in_bin = self.chat is not None and self.chat.deleted is not None
        return not (in_bin and action == "act" and parameters != ("open",))

    def action_act(self, action: ChatChange | Literal["open"]) -> None:
        """Open the chat under the cursor, or change something about it."""
        if (chat := self.chat) is None or self.cursor is None:
            return
        if chat.deleted is not None:
            self.post_message(ChangeAsked("restore", chat))
        elif action == "open":
            self.post_message(ChatPicked(chat.id))
        elif action == "rename":
            sidebar = self.screen.query_one(Sidebar)
            row = self.cursor - self.scroll_offset.y + self.region.y - sidebar.region.y
            self.screen.query_one(TitleInput).edit(chat, row, sidebar.size.width)
        else:
            self.post_message(ChangeAsked(action, chat))

    def action_find(self) -> None:
        """Open the filter of the list."""
        self.screen.query_one(Sidebar).find()

    # -- mouse

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show what can be done with the chat under the mouse."""
        row = self._row_at(event)
        self.hovered = row if row in self._chats else None
        action = self._action_at(event) if self.hovered is not None else None
        if self.hovered is not None and self._chats[row].deleted is not None:
            self.tooltip = "Restore"
        else:
            self.tooltip = action.capitalize() if action else None

    def on_leave(self) -> None:
        """Hide it again."""
        self.hovered = None

    def on_click(self, event: events.Click) -> None:
        """Open the chat, or do what was clicked."""
        row = self._row_at(event)
        if row in self._chats:
            self.cursor = row
            self.action_act(self._action_at(event) or "open")

    def _row_at(self, event: events.MouseEvent) -> int:
        return event.y + self.scroll_offset.y

    def _action_at(self, event: events.MouseEvent) -> ChatChange | None:
        place = event.x - (self.scrollable_content_region.width - _ACTIONS_WIDTH)
        return _ACTIONS[min(place // 2, len(_ACTIONS) - 1)][0] if place >= 0 else None


def _identity(chat: ChatInfo) -> tuple[int, bool]:
    return chat.id, chat.deleted is not None


class Sidebar(Widget):
    """All chats, or those that a line above them finds; `today` is asked whenever they are shown."""

    def __init__(self, *, today: Callable[[], date] = date.today) -> None:
        super().__init__()
        self._today = today
        self._list = ChatList()
        self._line = FilterLine("Find a chat", self._find, self._list)
        self._line.display = False
        self._title = TitleInput()
        self._chats: tuple[ChatInfo, ...] = ()
        self._current: int | None = None
        self._marks: Mapping[int, Mark] = {}
        self.add_class("-empty")

    def compose(self) -> ComposeResult:
        """Stack the list and, over it, the title under change."""
        yield Static("Your chats will be listed here.", id="no-chats")
        yield self._line
        yield self._list
        yield self._title

    def show(
        self, chats: Sequence[ChatInfo], current: int | None, marks: Mapping[int, Mark] = MappingProxyType({})
    ) -> None:
        """Show these chats, in the order given, with their marks; the cursor stays where it was."""
        self.set_class(not chats, "-empty")
        self._chats, self._current, self._marks = tuple(chats), current, marks
        found = [chat for chat in chats if is_found(self._line.value, title_shown(chat))]
        self._list.show(rows(found, self._today()), current, marks)

    def _find(self) -> None:
        self.show(self._chats, self._current, self._marks)

    def find(self) -> None:
        """Open the filter of the list; it closes when it is left empty."""
        self._line.display = True
        self.screen.set_focus(self._line)  # before the next key is looked at

    def on_chat_picked(self) -> None:
        """Look for nothing any more."""
        self._line.value = ""

    def on_descendant_blur(self, event: events.DescendantBlur) -> None:
        """Take the line away that is left empty."""
        if event.widget is self._line:
            self._line.display = bool(self._line.value)

    def focus(self, scroll_visible: bool = True) -> Self:
        """Put the cursor into the list, before the next key is looked at."""
        self.screen.set_focus(self._list, scroll_visible)
        return self


class TitleInput(Input):
    """The title of one chat over its row; leaving it saves the change, Escape does not."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Leave the title unchanged", id="sidebar.cancel_rename"),
    ]

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=True)
        self._chat: ChatInfo | None = None
        self._focused_before: Widget | None = None

    def edit(self, chat: ChatInfo, row: int, width: int) -> None:
        """Edit the title of this chat at a row of the sidebar, `width` columns wide."""
        self._chat, self._focused_before = chat, self.screen.focused
        self.value = chat.title
        self.styles.offset = (2, row)
        self.styles.width = max(1, width - 2)
        self.add_class("-editing")
        self.screen.set_focus(self)  # before the next key is looked at

    def on_blur(self, event: events.Blur) -> None:
        """Save the title, unless the whole terminal lost the focus."""
        if not self.app.app_focus:
            return
        chat, self._chat = self._chat, None
        title = " ".join(self.value.split())
        self.remove_class("-editing")
        if chat and title and title != chat.title:
            self.post_message(ChangeAsked("rename", chat, title))

    async def action_cancel(self) -> None:
        """Leave the title unchanged."""
        self._chat = None
        await self.action_submit()

    async def action_submit(self) -> None:
        """Save the new title."""
        self.screen.set_focus(self._focused_before)
