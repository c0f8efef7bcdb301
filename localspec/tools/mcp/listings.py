"""What a server lists, and how each entry is read: its tools as they come, its prompts, its resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from localspec.tools.mcp.descriptions import shown_line

T = TypeVar("T")
Offer = Literal["tools", "prompts", "resources"]
_MOST_LISTED = 500  # prompts, resources, arguments


@dataclass(frozen=True, slots=True)
class PromptArgument:
    """An argument of a prompt; its value is a text."""

    name: str
    description: str
    required: bool


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt that a server offers."""

    server: str
    name: str
    description: str
    arguments: tuple[PromptArgument, ...] = ()


@dataclass(frozen=True, slots=True)
class McpResource:
    """A resource that a server offers, such as a file or a page."""

    server: str
    uri: str
    name: str
    description: str
    mime_type: str = ""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list of a server: its name in the protocol, the type of request that asks for it, and its entries."""

    name: Offer
    request: str  # of the SDK's types
    read: Callable[[str, Sequence[object]], Sequence[T]]  # with the name of the server


def _prompts(server: str, listed: Sequence[object]) -> Sequence[McpPrompt]:
    return tuple(
        McpPrompt(server, item["name"], _line(item, "description", "title"), _arguments(item))
        for item in _with_text(listed, "name")
    )


def _arguments(prompt: dict[str, Any]) -> tuple[PromptArgument, ...]:
    given = prompt.get("arguments")
    return tuple(
        PromptArgument(each["name"], _line(each, "description"), required=each.get("required") is True)
        for each in _with_text(given if isinstance(given, list) else [], "name")
    )


def _resources(server: str, listed: Sequence[object]) -> Sequence[McpResource]:
    return tuple(
        McpResource(
            server,
            item["uri"],
            _line(item, "title", "name"),
            _line(item, "description"),
            _line(item, "mimeType"),
        )
        for item in _with_text(listed, "uri")
    )


def _with_text(listed: Sequence[object], key: str) -> list[dict[str, Any]]:
    found = [
        item for item in listed if isinstance(item, dict) and isinstance(item.get(key), str) and item[key]
    ]
    return found[:_MOST_LISTED]


def _line(item: dict[str, Any], *keys: str) -> str:
    """Return the first of some texts of a server, in one line."""
    texts = (item[key] for key in keys if isinstance(item.get(key), str))
    return shown_line(next(texts, ""))


TOOLS: Listing[object] = Listing("tools", "ListToolsRequest", lambda _server, listed: listed)
PROMPTS = Listing("prompts", "ListPromptsRequest", _prompts)
RESOURCES = Listing("resources", "ListResourcesRequest", _resources)
