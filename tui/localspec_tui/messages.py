"""What widgets tell the screen: small values; only the screen acts on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.message import Message

Deed = Literal[
    "copy", "copy-code", "edit", "regenerate", "continue", "previous", "next", "timeline", "compare"
]


@dataclass
class PromptEntered(Message):
    """A prompt or a slash command was sent from the composer, as typed."""

    text: str


@dataclass
class QueuedPromptTaken(Message):
    """A queued prompt is to go back into the composer for editing."""

    index: int


@dataclass
class QueuedPromptRemoved(Message):
    """A queued prompt is not wanted any more."""

    index: int


@dataclass
class DraftChanged(Message):
    """The unsent text of the composer changed."""

    text: str


@dataclass
class MessageAction(Message):
    """Something is to be done with a message of the transcript; `text` is the code block to copy."""

    deed: Deed
    message_id: int
    text: str = ""


@dataclass
class ChatPicked(Message):
    """A chat is to be opened, at one of its messages if given."""

    chat_id: int
    message_id: int | None = None


@dataclass
class ChatRenamed(Message):
    """A chat is to get another title."""

    chat_id: int
    title: str


@dataclass
class ChatPinned(Message):
    """A chat is to be pinned, or unpinned."""

    chat_id: int
    pinned: bool


@dataclass
class ChatDeleted(Message):
    """A chat is to be deleted."""

    chat_id: int
