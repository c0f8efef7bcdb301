"""ChatGPT's conversations.json: each conversation is a `mapping` of nodes with parents and children.

OpenAI does not document it; this goes by exports of 2023 to 2026, and passes over what it does not know.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from localspec.chat.answer_settings import AUTO
from localspec.chat.foreign import parts
from localspec.chat.messages import ChatInfo, Role, State, WholeChat

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant"}
_UNSEEN = {"user_editable_context", "model_editable_context", "system_error", "reasoning_recap"}
"""Kinds of content that ChatGPT itself does not show as messages."""
_STATES: dict[str, State] = {"interrupted": "stopped", "max_tokens": "length"}
_MARKS = re.compile("\ue200[^\ue201]*\ue201|[\ue200-\ue206]")  # of sources and cards, in private characters


def read(conversation: Mapping[str, object], left_out: Counter[parts.LeftOut]) -> WholeChat | None:
    """Return a conversation as a chat, None if nothing was said in it."""
    mapping = {key: parts.fields(node) for key, node in parts.fields(conversation.get("mapping")).items()}
    created = parts.moment(conversation.get("create_time"), 0.0)
    place = {
        child: place
        for node in mapping.values()
        for place, child in enumerate(parts.listed(node.get("children")))
        if isinstance(child, str)
    }
    nodes = [
        parts.Node(
            key, parts.text(node.get("parent")), _said(parts.fields(node.get("message")), created, left_out)
        )
        for key, node in sorted(mapping.items(), key=lambda item: place.get(item[0], 0))
    ]
    info = ChatInfo(
        0,
        parts.text(conversation.get("title")),
        created,
        parts.moment(conversation.get("update_time"), 0.0),
        pinned=conversation.get("is_starred") is True,
        profile=AUTO,
    )
    return parts.whole_chat(info, nodes, parts.text(conversation.get("current_node")))


def _said(
    message: Mapping[str, object], began: float, left_out: Counter[parts.LeftOut]
) -> parts.ForeignMessage | None:
    """Return the message of a node, from the user or to the user; None without one."""
    metadata = parts.fields(message.get("metadata"))
    content = parts.fields(message.get("content"))
    author = parts.text(parts.fields(message.get("author")).get("role"))
    kind = parts.text(content.get("content_type"))
    if not message or metadata.get("is_visually_hidden_from_conversation") is True or kind in _UNSEEN:
        return None
    role = _ROLES.get(author)
    if kind == "thoughts":
        left_out["thought"] += 1
        return None
    pieces = parts.listed(content.get("parts")) or [content.get("text")]
    pictures = sum("image" in parts.text(parts.fields(part).get("content_type")) for part in pieces)
    left_out["picture"] += pictures
    if role is None or message.get("recipient", "all") not in ("all", None):
        left_out["tool step"] += author != "system"
        return None
    left_out["file"] += max(0, len(parts.listed(metadata.get("attachments"))) - pictures)
    written = "\n".join(filter(None, (_part(part, left_out) for part in pieces)))
    written = _MARKS.sub("", written).strip("\n")
    if not written.strip():
        return None
    if kind == "code":
        written = f"```\n{written}\n```"
    state = _STATES.get(parts.text(parts.fields(metadata.get("finish_details")).get("type")), "complete")
    return parts.ForeignMessage(role, written, parts.moment(message.get("create_time"), began), state)


def _part(part: object, left_out: Counter[parts.LeftOut]) -> str:
    """Return the text of a part of a message; count pictures and anything else."""
    if part is None or isinstance(part, str):
        return part or ""
    kind = parts.text(parts.fields(part).get("content_type"))
    if kind == "audio_transcription":
        return parts.text(parts.fields(part).get("text"))
    if "image" not in kind:
        left_out["recording" if "audio" in kind or "video" in kind else "unknown part"] += 1
    return ""
