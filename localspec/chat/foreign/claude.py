"""Claude's conversations.json: each conversation is a list of `chat_messages`, which may name their parents.

Anthropic does not document it; this goes by exports of 2024 to 2026, and passes over what it does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from localspec.chat.answer_settings import AUTO
from localspec.chat.foreign import parts
from localspec.chat.messages import Attachment, ChatInfo, Role, WholeChat

_ROLES: dict[str, Role] = {"human": "user", "user": "user", "assistant": "assistant"}
_BLOCKS: dict[str, parts.LeftOut] = {
    "thinking": "thought",
    "redacted_thinking": "thought",
    "tool_use": "tool step",
    "tool_result": "tool step",
    "image": "picture",
    "voice_note": "recording",
}
_OF_NO_USE = {"token_budget", "flag"}  # blocks that say nothing to the user


def read(conversation: Mapping[str, object], left_out: Counter[parts.LeftOut]) -> WholeChat | None:
    """Return a conversation as a chat, None if nothing was said in it."""
    created = parts.moment(conversation.get("created_at"), 0.0)
    messages = [parts.fields(message) for message in parts.listed(conversation.get("chat_messages"))]
    is_tree = any(message.get("parent_message_uuid") for message in messages)
    nodes: list[parts.Node] = []
    for place, message in enumerate(messages):
        key = parts.text(message.get("uuid")) or f"number {place}"
        before = nodes[-1].key if nodes else None
        parent = parts.text(message.get("parent_message_uuid")) if is_tree else before
        nodes.append(parts.Node(key, parent, _said(message, created, left_out)))
    shown = parts.text(conversation.get("current_leaf_message_uuid")) or (nodes[-1].key if nodes else None)
    info = ChatInfo(
        0,
        parts.text(conversation.get("name")),
        created,
        parts.moment(conversation.get("updated_at"), 0.0),
        pinned=conversation.get("is_starred") is True,
        profile=AUTO,
    )
    return parts.whole_chat(info, nodes, shown)


def _said(
    message: Mapping[str, object], began: float, left_out: Counter[parts.LeftOut]
) -> parts.ForeignMessage | None:
    """Return the text of a message, from the user or to the user; None without one."""
    role = _ROLES.get(parts.text(message.get("sender")))
    if role is None:
        left_out["tool step"] += 1
        return None
    blocks = [parts.fields(block) for block in parts.listed(message.get("content"))]
    files = _files(message, left_out)
    texts = [parts.text(block.get("text")) for block in blocks if block.get("type") == "text"]
    written = "\n\n".join(part.strip("\n") for part in texts if part.strip())
    for kind in (parts.text(block.get("type")) for block in blocks):
        if kind != "text" and kind not in _OF_NO_USE:
            left_out[_BLOCKS.get(kind, "unknown part")] += 1
    if not blocks:
        written = parts.text(message.get("text"))
    if not written.strip() and not files:
        return None
    return parts.ForeignMessage(role, written, parts.moment(message.get("created_at"), began), files=files)


def _files(message: Mapping[str, object], left_out: Counter[parts.LeftOut]) -> tuple[Attachment, ...]:
    """Return the files of a message whose text is there, and count the others."""
    attached = [parts.fields(file) for file in parts.listed(message.get("attachments"))]
    names = {parts.text(file.get("file_name")) for file in attached}
    others = {
        parts.text(file.get("file_uuid")) or parts.text(file.get("file_name"))
        for one in ("files", "files_v2")
        for file in map(parts.fields, parts.listed(message.get(one)))
        if parts.text(file.get("file_name")) not in names
    }
    read_ones = [
        (parts.text(file.get("file_name")), parts.text(file.get("extracted_content"))) for file in attached
    ]
    kept = tuple(Attachment(name or "pasted.txt", content) for name, content in read_ones if content)
    left_out["file"] += len(attached) - len(kept) + len(others)
    return kept
