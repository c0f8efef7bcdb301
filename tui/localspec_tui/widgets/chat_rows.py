"""How chats are grouped by date, and how dates are written; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import TypeAlias

from localspec.chat.messages import ChatInfo

Row: TypeAlias = ChatInfo | str
"""A chat, or the heading of a group; an empty heading is a gap."""


def rows(chats: Sequence[ChatInfo], today: date) -> tuple[Row, ...]:
    """Return chats under headings by local date, in the order given."""
    return tuple(_rows(chats, today))


def _rows(chats: Sequence[ChatInfo], today: date) -> Iterator[Row]:
    for number, (heading, group) in enumerate(groupby(chats, lambda chat: _group(chat, today))):
        if number:
            yield ""
        yield heading
        yield from group


def _group(chat: ChatInfo, today: date) -> str:
    if chat.pinned:
        return "Pinned"
    day = local_date(chat.updated)
    age = (today - day).days
    if age <= 1:
        return "Yesterday" if age == 1 else "Today"
    if age <= 7:
        return "Last 7 days"
    if age <= 30:
        return "Last 30 days"
    return f"{day:%B}" if day.year == today.year else f"{day:%B %Y}"


def local_date(time_s: float) -> date:
    """Return the day of a Unix time where the user is."""
    return datetime.fromtimestamp(time_s).astimezone().date()


def written_day(time_s: float, today: date) -> str:
    """Return the day of a Unix time as people say it."""
    day = local_date(time_s)
    if day >= today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return f"{day.day} {day:%B}" if day.year == today.year else f"{day.day} {day:%b %Y}"
