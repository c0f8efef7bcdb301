from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime

import pytest
from textual import on
from textual.app import App, ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Button

from localspec.chat.messages import ChatInfo
from localspec_tui.widgets.filtered_list import FilterLine
from localspec_tui.widgets.sidebar import (
    ChangeAsked,
    ChatList,
    ChatPicked,
    FolderChangeAsked,
    FolderRow,
    Sidebar,
    TitleInput,
    rows,
    title_shown,
    written_day,
)
from tests.tui.settled import until
from tests.tui.styled import STYLES

TODAY = date(2026, 11, 20)
NOON = datetime(2026, 11, 20, 12).astimezone().timestamp()
DAY = 86_400


def chat(
    number: int,
    title: str = "",
    *,
    days: float = 0,
    pinned: bool = False,
    messages: int = 2,
    folder: str = "",
) -> ChatInfo:
    time = NOON - days * DAY
    name = title or f"Chat {number}"
    return ChatInfo(number, name, time, time, pinned=pinned, messages=messages, shown=messages, folder=folder)


THREE = (chat(1), chat(2, days=1), chat(3, days=5, pinned=False))


class Host(App[None]):
    CSS_PATH = STYLES

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Message] = []

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Sidebar(today=lambda: TODAY)
            yield Button("elsewhere")

    def show(self, chats: Sequence[ChatInfo], current: int | None = None) -> None:
        self.query_one(Sidebar).show(chats, current)
        self.query_one(Sidebar).focus()

    @property
    def chats(self) -> ChatList:
        return self.query_one(ChatList)

    @property
    def at(self) -> int | None:
        return self.chats.chat.id if self.chats.chat else None

    @property
    def lines(self) -> list[str]:
        return [self.chats.render_line(y).text.rstrip() for y in range(self.chats.size.height)]

    @on(ChatPicked)
    @on(ChangeAsked)
    @on(FolderChangeAsked)
    def hear(self, message: Message) -> None:
        self.heard.append(message)


@pytest.mark.parametrize(
    ("days", "heading"),
    [
        (1, "Yesterday"),
        (2, "Last 7 days"),
        (7, "Last 7 days"),
        (8, "Last 30 days"),
        (30, "Last 30 days"),
        (31, "October"),
        (400, "October 2025"),
    ],
)
def test_the_heading_of_a_chat_follows_its_age_in_days(days: int, heading: str) -> None:
    assert rows([chat(1, days=days)], TODAY)[0] == heading


@pytest.mark.parametrize(
    ("draft", "shown"), [("", "New chat"), ("\n  \n an idea \nmore", "an idea"), ("a\x1b[31mb", "a[31mb")]
)
def test_a_chat_without_messages_is_called_by_its_unsent_text(draft: str, shown: str) -> None:
    assert title_shown(ChatInfo(1, "", NOON, NOON, messages=0, draft=draft)) == shown


def test_chats_are_grouped_by_local_date() -> None:
    chats = (
        chat(1, pinned=True, days=90),
        chat(2, days=-0.2),
        chat(3, days=1),
        chat(4, days=2),
        chat(5, days=7),
        chat(6, days=8),
        chat(7, days=30),
        chat(8, days=31),
        chat(9, days=330),
    )
    headings = [row for row in rows(chats, TODAY) if isinstance(row, str) and row]
    assert headings == [
        "Pinned",
        "Today",
        "Yesterday",
        "Last 7 days",
        "Last 30 days",
        "October",
        "December 2025",
    ]
    assert [row.id for row in rows(chats, TODAY) if isinstance(row, ChatInfo)] == list(range(1, 10))


@pytest.mark.parametrize(
    ("days", "written"),
    [(0, "Today"), (-1, "Today"), (1, "Yesterday"), (20, "31 October"), (400, "16 Oct 2025")],
)
def test_days_are_written_as_users_say_them(days: float, written: str) -> None:
    assert written_day(NOON - days * DAY, TODAY) == written


@pytest.mark.asyncio
async def test_rows_show_title_count_and_the_current_chat() -> None:
    app = Host()
    async with app.run_test(size=(80, 10)) as pilot:
        app.show([chat(1, "A title that is far too long for the sidebar", messages=120), chat(2)], 2)
        await pilot.pause()
        assert app.lines[0].split() == ["Today", "messages"]
        assert app.lines[1] == "  A title that is far to… 120"
        assert app.lines[2].startswith("▌ Chat 2")
        assert app.at == 2


@pytest.mark.asyncio
async def test_without_chats_it_says_so() -> None:
    app = Host()
    async with app.run_test() as pilot:
        shown = [app.chats.display]
        for chats in (THREE, ()):
            app.show(chats)
            await pilot.pause()
            shown.append(app.chats.display)
        assert shown == [False, True, False]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_keys_move_over_the_headings() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.show(THREE, 1)
        places = []
        for key in ("down", "j", "down", "up", "k", "G", "g", "end", "home", "pagedown", "pageup"):
            await pilot.press(key)
            places.append(app.at)
        assert places == [2, 3, 3, 2, 1, 3, 1, 3, 1, 3, 1]


@pytest.mark.asyncio
async def test_keys_open_pin_and_delete() -> None:
    app = Host()
    async with app.run_test() as pilot:
        one, two = chat(1, pinned=True), chat(2)
        app.show([one, two], 2)
        await pilot.press("enter", "p", "d", "delete", "up", "p")  # a letter deletes nothing
        assert app.heard == [
            ChatPicked(2),
            ChangeAsked("pin", two),
            ChangeAsked("delete", two),
            ChangeAsked("pin", one),
        ]


@pytest.mark.asyncio
async def test_keys_do_nothing_without_chats() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.show([])
        app.chats.focus()
        await pilot.press("down", "enter", "r", "p", "d", "end")
        assert app.heard == []


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_chat_is_renamed_in_place() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.show(THREE, 2)
        await pilot.press("r")
        title = app.query_one(TitleInput)
        assert title.has_focus
        assert title.value == "Chat 2"
        assert await until(pilot, lambda: title.region.right == app.chats.region.right)
        assert app.chats.cursor is not None
        assert title.region.y == app.chats.region.y + app.chats.cursor
        await pilot.press(*" New   name ", "enter")
        assert app.heard == [ChangeAsked("rename", THREE[1], "New name")]
        assert not title.display
        assert app.chats.has_focus


@pytest.mark.slow
@pytest.mark.asyncio
async def test_escape_and_an_empty_title_keep_the_old_one() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.show(THREE, 2)
        await pilot.press("r", *"other", "escape")
        assert app.chats.has_focus
        await pilot.press("r", "backspace", "enter")
        await pilot.press("r", "enter")
        assert app.heard == []
        assert not app.query_one(TitleInput).display


@pytest.mark.asyncio
async def test_going_elsewhere_keeps_the_new_title() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.show(THREE, 2)
        await pilot.press("r", *"other")
        app.query_one(Button).focus()
        await pilot.pause()
        assert app.heard == [ChangeAsked("rename", THREE[1], "other")]
        assert app.query_one(Button).has_focus


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_click_opens_and_hovering_offers_the_rest() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.show(THREE, 1)
        await pilot.pause()
        await pilot.click(ChatList, offset=(5, 4))
        assert app.heard.pop() == ChatPicked(2)
        await pilot.hover(ChatList, offset=(5, 1))
        assert app.lines[1].endswith("✎ ☆ ×")
        width = app.chats.size.width
        await pilot.click(ChatList, offset=(width - 4, 1))
        assert app.heard.pop() == ChangeAsked("pin", THREE[0])
        await pilot.click(ChatList, offset=(width - 2, 1))
        assert app.heard.pop() == ChangeAsked("delete", THREE[0])
        await pilot.click(ChatList, offset=(5, 0))
        assert app.heard == []
        await pilot.click(ChatList, offset=(width - 6, 1))
        assert app.query_one(TitleInput).has_focus
        await pilot.hover(Button)
        assert "✎" not in "".join(app.lines)


@pytest.mark.asyncio
async def test_the_cursor_stays_on_its_chat_or_at_its_place() -> None:
    app = Host()
    async with app.run_test() as pilot:
        app.show(THREE, 1)
        await pilot.press("down")
        app.show((chat(9), *THREE), 9)
        assert app.at == 2
        app.show((chat(9), THREE[0], THREE[2]), 9)
        assert app.at == 3
        app.show([])
        assert app.chats.cursor is None


@pytest.mark.asyncio
async def test_thousands_of_chats_are_walked_and_scrolled() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show([chat(number, days=number / 3) for number in range(2000)], 0)
        await pilot.press("end")
        assert app.at == 1999
        assert any("Chat 1999" in line for line in app.lines)
        await pilot.press("pageup", "home")
        assert app.at == 0
        assert app.lines[0].split() == ["Today", "messages"]


@pytest.mark.asyncio
async def test_the_cursor_is_seen_also_when_the_list_was_hidden_or_small() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show([chat(number) for number in range(100)], 60)
        await pilot.pause()
        await pilot.pause()
        assert any("▌ Chat 60" in line for line in app.lines)
        await pilot.resize_terminal(80, 6)
        await pilot.pause()
        assert any("▌ Chat 60" in line for line in app.lines)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_burst_finds_a_chat_and_opens_it() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show([chat(1, "About boats"), chat(2, "About trains"), chat(3, "Boat trips", days=3)], 1)
        await pilot.pause()
        await pilot.press("slash")
        await pilot.pause()
        await pilot.press(*"BOAT r", "backspace", "backspace", "down", "enter")
        await pilot.pause()
        assert [event.chat_id for event in app.heard if isinstance(event, ChatPicked)] == [3]
        assert any("trains" in line for line in app.lines)  # nothing is looked for any more
        await pilot.press(*"rains")
        await pilot.pause()
        assert [line.split() for line in app.lines if line.strip()] == [
            ["Today", "messages"],
            ["About", "trains", "2"],
        ]
        await pilot.press("tab")  # stays while it hides chats
        assert app.query_one(FilterLine).display
        app.query_one(FilterLine).focus()
        await pilot.press("escape", "tab")
        await pilot.pause()
        assert not app.query_one(FilterLine).display
        assert len(app.heard) == 1


@pytest.mark.asyncio
async def test_a_title_is_changed_in_its_row_also_below_the_line() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(THREE, 1)
        await pilot.press("slash", "c")
        await pilot.pause()
        app.chats.focus()
        await pilot.press("end", "r")
        await pilot.pause()
        assert app.query_one(TitleInput).region.y == app.chats.region.y + 7
        await pilot.press(*"X", "enter")
        await pilot.pause()
        assert app.heard == [ChangeAsked("rename", THREE[2], "X")]


FILED = (
    chat(1, "#work boats", folder="Work"),
    chat(2, "trains", days=40, folder="Work"),
    chat(3, "#work #home planes", folder="Art"),
    chat(4, "loose"),
    chat(5, "old", days=3),
)


def test_folders_stand_below_pinned_chats_and_above_the_dates() -> None:
    pinned = chat(6, pinned=True, folder="Work")
    unsent = chat(7, messages=0, folder="Work")
    binned = replace(chat(8, folder="Work"), deleted=NOON)
    art, work = FolderRow("Art", (FILED[2],), True), FolderRow("Work", FILED[:2])
    assert rows((unsent, pinned, *FILED, binned), TODAY, {"Art"}) == (
        *("Not sent yet", unsent, "", "Pinned", pinned, ""),
        *(art, work, *FILED[:2], ""),
        *("Today", FILED[3], "", "Last 7 days", FILED[4], "", "Bin (kept for 30 days)", binned),
    )
    assert rows(FILED[:2], TODAY) == (work, *FILED[:2])
    assert rows((pinned, FILED[2]), TODAY) == ("Pinned", pinned, "", replace(art, is_folded=False), FILED[2])


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_folder_is_folded_renamed_and_taken_away_by_keys_and_clicks() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.query_one(Sidebar).show(FILED, 1, {2: "answered"}, {"Work"})
        app.query_one(Sidebar).focus()
        await pilot.press("home", "down")
        await pilot.pause()
        assert [line.split() for line in app.lines[:3]] == [
            ["▾", "Art", "1"],
            ["#work", "#home", "planes", "2"],
            ["▌▸", "Work", "●", "answered"],
        ]
        await pilot.press("down", "m", "p", "enter")
        art, work = FolderRow("Art", FILED[2:3]), FolderRow("Work", FILED[:2], True)
        assert app.heard == [FolderChangeAsked("fold", work)]
        await pilot.press("r", *"Job", "enter")
        await pilot.press("r", "backspace", "enter")  # no name
        await pilot.press("delete")
        await pilot.click(ChatList, offset=(4, 0))
        await pilot.pause()
        assert app.heard[1:] == [
            FolderChangeAsked("rename", work, "Job"),
            FolderChangeAsked("delete", work),
            FolderChangeAsked("fold", art),
        ]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_key_moves_a_chat_to_a_folder_whose_name_is_completed() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.show(FILED, 4)
        await pilot.press("m", *"wo")
        await pilot.pause()
        await pilot.press("right", "enter")
        await pilot.press("m", "enter")  # no change
        await pilot.press("up", "m", "backspace", "enter")
        await pilot.press("m", "x", "escape")
        await pilot.pause()
        moves = [(event.chat.id, event.text) for event in app.heard if isinstance(event, ChangeAsked)]
        assert [(number, text.casefold()) for number, text in moves] == [(4, "work"), (2, "")]
        assert not [event for event in app.heard if isinstance(event, FolderChangeAsked)]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_tags_and_folders_narrow_the_list_and_unfold_it() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.query_one(Sidebar).show(FILED, 4, {}, {"Work", "Art"})
        app.query_one(Sidebar).focus()
        await pilot.press("slash", *"#wo", "tab", "space", *"in:w")
        await pilot.pause()
        line = app.query_one(FilterLine)
        assert line.has_focus  # Tab completed the tag
        await pilot.press("tab")
        assert line.value == "#work in:work"
        await pilot.pause()
        assert [text.split() for text in app.lines if text] == [["▾", "Work", "1"], ["#work", "boats", "2"]]
        await pilot.press("tab")  # nothing is left to complete
        assert not line.has_focus
