"""Chats exported by other programs, with all branches; everything that cannot be imported is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from localspec import units
from localspec.chat.foreign import chatgpt, claude
from localspec.chat.foreign.parts import LeftOut, fields
from localspec.chat.messages import WholeChat

EXPORTS = "conversations.json of ChatGPT or Claude"


def chats_of(value: object, left_out: Counter[LeftOut]) -> list[WholeChat] | None:
    """Return the chats of a decoded export, and count what they lack; None if no known program wrote it.

    Messages are numbered from 1 in each chat.
    """
    found: list[WholeChat] = []
    listed = value if isinstance(value, list) else [value]
    readers = [_reader(one) for one in listed]
    if not any(readers):
        return None
    for one, reader in zip(listed, readers, strict=True):
        chat = reader(fields(one), left_out) if reader is not None else None
        if chat is not None:
            found.append(chat)
        else:
            left_out["empty chat" if reader is not None else "unknown part"] += 1
    return found


def in_words(left_out: Counter[LeftOut]) -> str:
    """Return the skipped items as text, such as `3 pictures, 1 tool step`; empty if nothing was."""
    return ", ".join(units.counted(count, kind) for kind, count in sorted(left_out.items()) if count)


def _reader(value: object) -> Callable[[Mapping[str, object], Counter[LeftOut]], WholeChat | None] | None:
    known = fields(value)
    return chatgpt.read if "mapping" in known else claude.read if "chat_messages" in known else None
