"""The titles of chats: one line, not too long."""

from __future__ import annotations

import re

from localspec.chat.messages import StoredMessage

MAX_TITLE = 200
_MAX_GIVEN = 60  # a title that nobody chose fits the sidebar
_UNSEEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_OF_MARKDOWN = re.compile(r"\s*(#+|[>*-])\s+(?=\S)")


def title_line(text: str) -> str:
    """Return a text as a title: one line without control characters."""
    return _UNSEEN.sub(" ", text).strip()[:MAX_TITLE].rstrip()


def title_of(message: StoredMessage) -> str:
    """Return the title that a chat takes from its first prompt."""
    lines = [*message.content.splitlines(), *(attachment.name for attachment in message.attachments)]
    first = next((line for line in lines if line.strip()), "")
    opening = _OF_MARKDOWN.match(first)
    return _shortened(title_line(first[opening.end() :] if opening else first))


def _shortened(title: str) -> str:
    if len(title) <= _MAX_GIVEN:
        return title
    cut = title[: _MAX_GIVEN - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > _MAX_GIVEN // 2 else cut).rstrip(" ,.;:") + "…"
