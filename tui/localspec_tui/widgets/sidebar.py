"""The rows of the sidebar: only visible ones are drawn, so thousands of chats cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input, Static

from localspec.chat.chat_filter import completed, folders, is_found, narrow
from localspec.chat.commands.effects import ChatChange
from localspec.chat.messages import ChatInfo
from localspec.safe_text import safe_line
from localspec_tui.widgets.filtered_list import FilterLine


@dataclass(frozen=True, slots=True)
class FolderRow:
    """The heading of a folder, which the cursor reaches; folded, it stands for its chats."""

    name: str
    chats: tuple[ChatInfo, ...]
    is_folded: bool = False


Row: TypeAlias = ChatInfo | FolderRow | str
"""A chat, a folder, or the heading of another group; an empty heading is a gap."""
Mark = Literal["writing", "answered", "failed"]
"""The state of a chat's answer: being written, or ended while another chat was open."""
MARKS: dict[Mark, str] = {"writing": "…", "answered": "●", "failed": "!"}
CURRENT_BAR, BESIDE_BAR, NO_BAR = BARS = ("▌", "▏", " ")  # before the open chat, one open beside, others
_BIN = "Bin (kept for 30 days)"
_PINNED = "Pinned"
_UNSENT = "Not sent yet"
_ABOVE_FOLDERS = (_UNSENT, _PINNED)
_ACTIONS: tuple[tuple[ChatChange, str], ...] = (("rename", "✎"), ("pin", "☆"), ("delete", "×"))
_ACTIONS_WIDTH = 2 * len(_ACTIONS) + 1


def rows(chats: Sequence[ChatInfo], today: date, folded: Collection[str] = frozenset()) -> tuple[Row, ...]:
    """Return chats under headings in the order given: those in folders, and the others by local date.

    Folders stand after the pinned chats, by name.
    """
    filed: dict[str, list[ChatInfo]] = {}
    others: list[ChatInfo] = []
    for chat in chats:
        (filed.setdefault(chat.folder, []) if _is_in_folder(chat) else others).append(chat)
    folders: list[Row] = []
    for name in sorted(filed, key=str.casefold):
        folders += [FolderRow(name, tuple(filed[name]), name in folded)]
        folders += () if name in folded else filed[name]
    found: list[Row] = []
    for heading, group in groupby(others, lambda chat: _group(chat, today)):
        if folders and heading not in _ABOVE_FOLDERS:
            found = [*found, "", *folders]
            folders = []
        found += ["", heading, *group]
    return tuple([*found, *([""] if folders else []), *folders][1:])


def _is_in_folder(chat: ChatInfo) -> bool:
    """Return whether a chat is listed in its folder: not when it is pinned, unsent or in the bin."""
    return bool(chat.folder and chat.messages) and not chat.pinned and chat.deleted is None


def _group(chat: ChatInfo, today: date) -> str:
    if chat.deleted is not None:
        return _BIN
    if chat.pinned or not chat.messages:
        return _PINNED if chat.messages else _UNSENT
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
    moment = datetime.fromtimestamp(time_s).astimezone()
    today = datetime.now().astimezone().date()
    return f"{moment:%H:%M}" if moment.date() == today else f"{written_day(time_s, today)} {moment:%H:%M}"


@dataclass
class ChatPicked(Message):
    """A chat is to be opened, at one of its messages if given."""

    chat_id: int
    message_id: int | None = None
    words: str = ""  # that were searched for
    beside: bool = False  # beside the one that is open


@dataclass
class ChangeAsked(Message):
    """A chat is to be renamed, moved to a folder, pinned or unpinned, deleted, or restored.

    `text` is its new title, or its folder.
    """

    change: ChatChange
    chat: ChatInfo
    text: str = ""


@dataclass
class FolderChangeAsked(Message):
    """A folder is to be folded or unfolded, to get another name, or to be removed."""

    change: Literal["fold", "rename", "delete"]
    folder: FolderRow
    text: str = ""


class ChatList(ScrollView, can_focus=True):
    """Chats and folders, one line each; the cursor skips the other headings."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"heading", "chat", "current", "hover", "cursor", "muted"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "Chat above", id="sidebar.up"),
        Binding("down,j", "step(1)", "Chat below", id="sidebar.down"),
        Binding("pageup", "page(-1)", "A page up", id="sidebar.page_up"),
        Binding("pagedown", "page(1)", "A page down", id="sidebar.page_down"),
        Binding("home,g", "go(0)", "First chat", id="sidebar.first"),
        Binding("end,G", "go(-1)", "Last chat", id="sidebar.last"),
        Binding("enter", "act('open')", "Open the chat, or fold the folder", id="sidebar.open"),
        Binding("b", "act('beside')", "Open the chat beside the other one", id="sidebar.beside"),
        Binding("r", "act('rename')", "Rename the chat or the folder", id="sidebar.rename"),
        Binding("m", "act('move')", "Move the chat to a folder", id="sidebar.move"),
        Binding("p", "act('pin')", "Pin or unpin the chat", id="sidebar.pin"),
        Binding("delete", "act('delete')", "Delete the chat, or take the folder away", id="sidebar.delete"),
        Binding("slash", "find", "Find chats by title, #tag or in:folder", id="sidebar.find"),
    ]
    FOCUS_ON_CLICK = False  # typing after a click goes to the prompt

    cursor: reactive[int | None] = reactive(None)
    hovered: reactive[int | None] = reactive(None)

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[Row, ...] = ()
        self._stops: dict[int, ChatInfo | FolderRow] = {}  # of the cursor, by row
        self._current: int | None = None
        self._beside: Collection[int] = ()
        self._marks: Mapping[int, Mark] = {}

    def show(
        self,
        rows: Sequence[Row],
        current: int | None,
        marks: Mapping[int, Mark],
        beside: Collection[int] = (),
    ) -> None:
        """Show these rows, and marks by chat; chats `beside` the current one are open, too.

        The cursor stays on its chat, else at its place, at first on the current chat.
        """
        wanted = (current, False) if self.at is None else _identity(self.at)
        was_at = self.cursor or 0
        self._rows = tuple(rows)
        self._stops = stops = {row: item for row, item in enumerate(rows) if not isinstance(item, str)}
        self._current = current
        self._marks = marks
        self._beside = beside
        self.virtual_size = Size(0, len(rows))
        self.cursor = min(
            stops, key=lambda row: (_identity(stops[row]) != wanted, abs(row - was_at), -row), default=None
        )
        self.hovered = None
        self.refresh()

    @property
    def at(self) -> ChatInfo | FolderRow | None:
        """The chat or folder under the cursor."""
        return None if self.cursor is None else self._stops.get(self.cursor)

    @property
    def chat(self) -> ChatInfo | None:
        """The chat under the cursor."""
        return self.at if isinstance(self.at, ChatInfo) else None

    # -- drawing

    def render_line(self, y: int) -> Strip:
        """Draw one row."""
        row = y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        item = self._rows[row] if row < len(self._rows) else ""
        if isinstance(item, str):
            counts = "" if row or not item else "messages "
            title = Content(f" {item}").truncate(max(0, width - len(counts)), ellipsis=True, pad=True)
            line = title + Content.styled(counts, "not bold")
            style = self.get_visual_style("heading")
        elif isinstance(item, FolderRow):
            line, style = self._folder_line(row, item, width)
        else:
            line, style = self._chat_line(row, item, width)
        shown = line.truncate(width, ellipsis=True, pad=True)
        return Strip(shown.render_segments(self.visual_style + style), width)

    def _folder_line(self, row: int, folder: FolderRow, width: int) -> tuple[Content, Style]:
        marks = [mark for chat in folder.chats if (mark := self._marks.get(chat.id)) is not None]
        right = f" {MARKS[marks[0]]} {marks[0]} " if folder.is_folded and marks else f" {len(folder.chats)} "
        shown = folder.chats if folder.is_folded else ()
        bars = [bar for chat in shown if (bar := self._bar(chat)) != NO_BAR]
        start = f"{min(bars, key=BARS.index, default=NO_BAR)}{'▸' if folder.is_folded else '▾'} "
        title = Content(folder.name).truncate(max(1, width - 3 - len(right)), ellipsis=True, pad=True)
        return Content.assemble(start, title, (right, "not bold")), self._style_of(row, "heading")

    def _bar(self, chat: ChatInfo) -> str:
        """Return the bar before a chat: one for the current chat, another for one that is open beside."""
        if chat.id == self._current:
            return CURRENT_BAR
        return BESIDE_BAR if chat.id in self._beside else NO_BAR

    def _style_of(self, row: int, *names: str) -> Style:
        applies = {"hover": row == self.hovered, "cursor": row == self.cursor}
        return self.get_visual_style(*names, *(name for name, does in applies.items() if does))

    def _chat_line(self, row: int, chat: ChatInfo, width: int) -> tuple[Content, Style]:
        bar = self._bar(chat)
        style = self._style_of(row, "chat", *["current"] * (bar == CURRENT_BAR))
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
        muted = "" if row in {self.hovered, self.cursor} else self.get_visual_style("chat", "muted")
        return Content.assemble(f"{bar} ", title, (right, muted)), style

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
            stops = list(self._stops)
            place = stops.index(self.cursor) + step
            self.cursor = stops[max(0, min(place, len(stops) - 1))]

    def action_page(self, step: int) -> None:
        """Go a page in a direction."""
        self.action_step(step * max(1, self.scrollable_content_region.height - 1))

    def action_go(self, place: int) -> None:
        """Go to the first chat, or the last."""
        if self._stops:
            self.cursor = list(self._stops)[place]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """For a chat in the bin, only allow restoring it; a folder is neither pinned nor moved."""
        if action != "act" or parameters == ("open",):
            return True
        if isinstance(self.at, FolderRow):
            return parameters not in {("pin",), ("move",), ("beside",)}
        return self.at is None or self.at.deleted is None

    def action_act(self, action: ChatChange | Literal["open", "beside"]) -> None:
        """Open the chat under the cursor, or change something about it or about the folder there."""
        chat = self.at
        if isinstance(chat, FolderRow):
            self._act_on_folder(chat, action)
        elif chat is None:
            return
        elif chat.deleted is not None:
            self.post_message(ChangeAsked("restore", chat))
        elif action == "open":
            self.post_message(ChatPicked(chat.id))
        elif action == "beside":
            self.post_message(ChatPicked(chat.id, beside=True))
        elif action == "rename":
            self._edit(chat.title, lambda title: ChangeAsked("rename", chat, title) if title else None)
        elif action == "move":
            self._edit(chat.folder, lambda name: ChangeAsked("move", chat, name), names_folder=True)
        else:
            self.post_message(ChangeAsked(action, chat))

    def _act_on_folder(self, folder: FolderRow, action: ChatChange | Literal["open", "beside"]) -> None:
        if action == "rename":
            self._edit(folder.name, lambda name: FolderChangeAsked("rename", folder, name) if name else None)
        elif action == "delete":
            self.post_message(FolderChangeAsked("delete", folder))
        elif action == "open":
            self.post_message(FolderChangeAsked("fold", folder))

    def _edit(self, text: str, take: Callable[[str], Message | None], *, names_folder: bool = False) -> None:
        """Edit a text in the row under the cursor; `take` makes a message of what it was changed to."""
        sidebar = self.screen.query_one(Sidebar)
        row = (self.cursor or 0) - self.scroll_offset.y + self.region.y - sidebar.region.y
        line = self.screen.query_one(TitleInput)
        line.placeholder = "folder; empty for none" if names_folder else ""
        line.suggester = SuggestFromList(sidebar.folders(), case_sensitive=False) if names_folder else None
        line.edit(text, row, sidebar.size.width, take)

    def action_find(self) -> None:
        """Open the filter of the list."""
        self.screen.query_one(Sidebar).find()

    # -- mouse

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show what can be done with the chat under the mouse."""
        row = self._row_at(event)
        item = self._stops.get(row)
        self.hovered = row if item is not None else None
        action = self._action_at(event) if isinstance(item, ChatInfo) else None
        if isinstance(item, ChatInfo) and item.deleted is not None:
            self.tooltip = "Restore"
        else:
            self.tooltip = action.capitalize() if action else None

    def on_leave(self) -> None:
        """Hide it again."""
        self.hovered = None

    def on_click(self, event: events.Click) -> None:
        """Open the chat, or do what was clicked."""
        row = self._row_at(event)
        if row in self._stops:
            self.cursor = row
            action = self._action_at(event) if isinstance(self.at, ChatInfo) else None
            self.action_act(action or "open")

    def _row_at(self, event: events.MouseEvent) -> int:
        return event.y + self.scroll_offset.y

    def _action_at(self, event: events.MouseEvent) -> ChatChange | None:
        place = event.x - (self.scrollable_content_region.width - _ACTIONS_WIDTH)
        return _ACTIONS[min(place // 2, len(_ACTIONS) - 1)][0] if place >= 0 else None


def _identity(item: ChatInfo | FolderRow) -> tuple[int | str, bool]:
    return (item.name, False) if isinstance(item, FolderRow) else (item.id, item.deleted is not None)


class Sidebar(Widget):
    """All chats, or those that a line above them finds; `today` is asked whenever they are shown."""

    def __init__(self, *, today: Callable[[], date] = date.today) -> None:
        super().__init__()
        self._today = today
        self._list = ChatList()
        self._line = FilterLine(
            "words, #tag, in:folder",
            self._find,
            self._list,
            complete=lambda text: completed(self._chats, text),
        )
        self._line.display = False
        self._title = TitleInput()
        self._chats: tuple[ChatInfo, ...] = ()
        self._current: int | None = None
        self._marks: Mapping[int, Mark] = {}
        self._folded: Collection[str] = frozenset()
        self._beside: Collection[int] = ()
        self.add_class("-empty")

    def compose(self) -> ComposeResult:
        """Stack the list and, over it, the title under change."""
        yield Static("Your chats will be listed here.", id="no-chats")
        yield self._line
        yield self._list
        yield self._title

    def show(
        self,
        chats: Sequence[ChatInfo],
        current: int | None,
        marks: Mapping[int, Mark] = MappingProxyType({}),
        folded: Collection[str] = frozenset(),
        beside: Collection[int] = (),
    ) -> None:
        """Show these chats, in the order given, with their marks; the cursor stays where it was.

        Chats `beside` the current one are open, too. While something is looked for, no folder is folded.
        """
        self.set_class(not chats, "-empty")
        self._chats = tuple(chats)
        self._current = current
        self._marks = marks
        self._folded = folded
        self._beside = beside
        left, words = narrow(self._chats, self._line.value)
        found = [chat for chat in left if is_found(words, title_shown(chat))]
        closed = frozenset() if self._line.value.strip() else folded
        self._list.show(rows(found, self._today(), closed), current, marks, beside)

    def folders(self) -> tuple[str, ...]:
        """Return the folders that chats are in."""
        return folders(self._chats)

    def _find(self) -> None:
        self.show(self._chats, self._current, self._marks, self._folded, self._beside)

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
    """The name of a chat or folder over its row; leaving it saves the change, Escape does not."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "Leave the name unchanged", id="sidebar.cancel_rename"),
    ]

    def __init__(self) -> None:
        super().__init__(compact=True, select_on_focus=True)
        self._before = ""
        self._take: Callable[[str], Message | None] | None = None
        self._focused_before: Widget | None = None

    def edit(self, text: str, row: int, width: int, take: Callable[[str], Message | None]) -> None:
        """Edit a text at a row of the sidebar, `width` columns wide; `take` makes a message of the change."""
        self._before = text
        self._take = take
        self._focused_before = self.screen.focused
        self.value = text
        self.styles.offset = (2, row)
        self.styles.width = max(1, width - 2)
        self.add_class("-editing")
        self.screen.set_focus(self)  # before the next key is looked at

    def on_blur(self, event: events.Blur) -> None:
        """Save the name, unless the whole terminal lost the focus."""
        if not self.app.app_focus:
            return
        take = self._take
        self._take = None
        text = " ".join(self.value.split())
        self.remove_class("-editing")
        if take is not None and text != self._before and (message := take(text)) is not None:
            self.post_message(message)

    async def action_cancel(self) -> None:
        """Leave the name unchanged."""
        self._take = None
        await self.action_submit()

    async def action_submit(self) -> None:
        """Save the new name."""
        self.screen.set_focus(self._focused_before)
