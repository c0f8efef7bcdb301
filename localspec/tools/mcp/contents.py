"""What a server returns, as one text for a model: results of calls, prompts and resources.

Reads JSON as it came, since servers omit what the protocol requires and add kinds that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from localspec import units
from localspec.safe_text import safe_text, whole_text
from localspec.tools.mcp.descriptions import shown_line

LONGEST_TEXT = 100_000  # characters


def call_text(result: dict[str, Any]) -> tuple[str, bool]:
    """Return the text of a tool's result, and whether it is an error."""
    parts = list(_parts(result.get("content")))
    if not parts and result.get("structuredContent") is not None:
        parts = [_shown(json.dumps(result["structuredContent"], ensure_ascii=False))]
    return _joined(parts), bool(result.get("isError"))


def prompt_text(result: dict[str, Any]) -> str:
    """Return the messages of a prompt as a text; roles are named if not all messages are the user's."""
    messages = result.get("messages")
    messages = [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    names_roles = any(each.get("role") != "user" for each in messages)
    parts = []
    for each in messages:
        text = _joined(list(_parts(each.get("content"))))
        parts.append(f"{shown_line(str(each.get('role')), 20)}:\n{text}" if names_roles else text)
    return _joined(parts)


@dataclass(frozen=True, slots=True)
class ResourceContent:
    """The content of a resource: the text of all its parts that have one, and what the others are."""

    text: str
    blobs: tuple[str, ...] = ()


def resource_content(result: dict[str, Any]) -> ResourceContent:
    """Return the content of a resource; its text is as long as the server sent it."""
    contents = result.get("contents")
    items = [item for item in contents if isinstance(item, dict)] if isinstance(contents, list) else []
    texts = [item["text"] for item in items if isinstance(item.get("text"), str)]
    blobs = (item for item in items if not isinstance(item.get("text"), str))
    return ResourceContent(
        safe_text(whole_text("\n".join(texts))),
        tuple(_data(item.get("mimeType"), item.get("blob")) for item in blobs),
    )


def _parts(content: object) -> Iterator[str]:
    for block in content if isinstance(content, list) else [content]:
        if isinstance(block, str):
            yield _shown(block)
        elif isinstance(block, dict):
            yield _block(block)


def _block(block: dict[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return _shown(block["text"])
    if kind in ("image", "audio"):
        return f"[{kind}: {_data(block.get('mimeType'), block.get('data'))}]"
    if kind == "resource" and isinstance(resource := block.get("resource"), dict):
        named = f"[resource {shown_line(str(resource.get('uri', '')))}]"
        return (
            f"{named}\n{_embedded(resource)}"
            if isinstance(resource.get("text"), str)
            else _embedded(resource)
        )
    if kind == "resource_link":
        name = shown_line(str(block.get("title") or block.get("name") or ""))
        return f"[resource {shown_line(str(block.get('uri', '')))}: {name}]"
    return f"[content of the unknown kind {shown_line(str(kind), 40)}]"


def _embedded(resource: dict[str, Any]) -> str:
    if isinstance(text := resource.get("text"), str):
        return _shown(text)
    uri = shown_line(str(resource.get("uri", "")))
    return f"[resource {uri}: {_data(resource.get('mimeType'), resource.get('blob'))}]"


def _data(mime_type: object, base64: object) -> str:
    length = len(base64) * 3 // 4 if isinstance(base64, str) else 0
    return f"{shown_line(str(mime_type or 'data'), 60)}, {units.size(length)}"


def _shown(text: str) -> str:
    return safe_text(whole_text(text[: LONGEST_TEXT + 1]))


def _joined(parts: list[str]) -> str:
    text = "\n".join(parts)
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]}\n[the text is longer; the rest is left out]"
