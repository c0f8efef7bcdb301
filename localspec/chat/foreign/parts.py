"""Parts of other programs' chats, and how to build a tree of messages from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from localspec.chat.messages import Attachment, ChatInfo, Role, State, StoredMessage, WholeChat

LeftOut = Literal["picture", "recording", "file", "tool step", "thought", "unknown part", "empty chat"]
"""Kinds of content that LocalSpec cannot import."""
_YEAR_9999 = 253_370_764_800.0  # later times overflow


@dataclass(frozen=True, slots=True)
class ForeignMessage:
    """A message of another program, before it has a number."""

    role: Role
    text: str
    created: float
    state: State = "complete"
    files: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the tree of another program; nothing may have been said there."""

    key: str
    parent: str | None
    message: ForeignMessage | None


def whole_chat(info: ChatInfo, nodes: Sequence[Node], shown: str | None) -> WholeChat | None:
    """Return a chat that shows the branch to the node `shown`; None if it has no message.

    Children of a node without a message move below its parent. Siblings keep their order.
    A missing title and missing times (0) are taken from the messages.
    """
    from localspec.chat.store import title_of  # SQLite: 10 ms that a mistake in the arguments spares

    below: dict[str | None, list[Node]] = defaultdict(list)
    for node in nodes:
        below[node.parent].append(node)
    keys = {node.key for node in nodes}
    roots = [node for node in nodes if node.parent not in keys]
    messages: list[StoredMessage] = []
    number: dict[str | None, int | None] = {}  # of the message that a node is, or hangs below
    for root in (*roots, *nodes):  # of nodes that are each other's ancestors the first becomes a root
        waiting = [root]
        while waiting:
            node = waiting.pop()
            if node.key in number:
                continue
            parent = number.get(node.parent)
            if node.message is not None:
                messages.append(_numbered(node.message, len(messages) + 1, parent))
            number[node.key] = parent if node.message is None else len(messages)
            waiting += below[node.key][::-1]
    if not messages:
        return None
    first = next((message for message in messages if message.role == "user"), messages[0])
    info = replace(
        info,
        title=info.title.strip() or title_of(first),
        created=info.created or messages[0].created,
        updated=info.updated or max(message.created for message in messages),
        leaf=number.get(shown) or messages[-1].id,
        messages=len(messages),
    )
    return info, tuple(messages), {}


def _numbered(message: ForeignMessage, number: int, parent: int | None) -> StoredMessage:
    return StoredMessage(
        number, 0, parent, message.role, message.text, message.created, message.state, message.files
    )


def moment(value: object, otherwise: float) -> float:
    """Return a moment as Unix time, of a number or of ISO 8601; `otherwise` where it is none."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError, OSError):
            return otherwise
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return otherwise
    return float(value) if 0 <= value < _YEAR_9999 else otherwise


def text(value: object) -> str:
    """Return a text, an empty one for anything else."""
    return value if isinstance(value, str) else ""


def listed(value: object) -> Sequence[object]:
    """Return a list, an empty one for anything else."""
    return value if isinstance(value, list) else ()


def fields(value: object) -> Mapping[str, object]:
    """Return an object, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}
