"""What strangers' servers say of their tools, made harmless and cut to a size that a small model can read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.safe_text import safe_line, safe_text, whole_text

MOST_TOOLS = 256  # of one server
_LONGEST_DESCRIPTION = 1000  # characters of a tool's; of an argument's half of it
_LONGEST_SCHEMA = 8000  # characters of one tool's schema
_LONGEST_LIST = 64_000  # of all schemas of a server; beyond it each gets its share
_LEAST_SCHEMA = 400
_DEEPEST = 12
_MOST_CHOICES = 100  # of an enum
_NAMED = (
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
)  # of schemas by names
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_LEFT_OUT = {"$schema", "$id", "$comment", "title", "examples", "default", "deprecated"}
_HIDDEN = re.compile("[\u200b\u2060-\u2064\ufeff\U000e0000-\U000e0fff]")  # can carry text that no user sees
_LONGEST_NAME = 100  # of an argument
_HINTS = {"readOnlyHint": "read only", "destructiveHint": "destructive", "openWorldHint": "uses the network"}

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as its server offers it; `parameters` is a schema that is safe to show to a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    hints: tuple[str, ...] = ()  # what the server says of its effects, such as "read only": not to be trusted


def shown_text(text: str, longest: int) -> str:
    """Return a text of a server without control sequences and hidden characters, cut to a length."""
    text = _HIDDEN.sub("", safe_text(whole_text(text[: longest * 2]))).strip()
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def shown_line(text: str, longest: int = 200) -> str:
    """Return a name or a message of a server in one line, cut to a length."""
    line = _HIDDEN.sub("", safe_line(whole_text(text[: longest * 2]))).strip()
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def offered_tools(listed: Sequence[object]) -> tuple[list[OfferedTool], list[str]]:
    """Return the tools of a server's list that can be called, and a line for each one that cannot."""
    tools: dict[str, OfferedTool] = {}
    problems: list[str] = []
    for item in listed:
        tool = _offered(item)
        if isinstance(tool, str):
            problems.append(tool)
        elif tools.setdefault(tool.name, tool) != tool:  # the same page twice is no problem
            problems.append(f"two tools are called `{shown_line(tool.name)}`: the second is left out")
    if len(tools) > MOST_TOOLS:
        problems.append(f"it has {len(tools)} tools: all after the first {MOST_TOOLS} are left out")
    return _within_budget(list(tools.values())[:MOST_TOOLS]), problems


def _offered(item: object) -> OfferedTool | str:
    """Return a tool, or the reason why it cannot be called."""
    if not isinstance(item, dict) or not isinstance(name := item.get("name"), str) or not name.strip():
        return "a tool without a name is left out"
    if not isinstance(schema := item.get("inputSchema") or {}, dict):
        return f"the tool `{shown_line(name)}` is left out: its inputSchema is no object"
    kinds = schema.get("type") or "object"
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        kind = shown_line(json.dumps(kinds), 40)
        return f"the tool `{shown_line(name)}` is left out: its arguments are {kind} instead of an object"
    description = item.get("description") or item.get("title")
    text = shown_text(description, _LONGEST_DESCRIPTION) if isinstance(description, str) else ""
    return OfferedTool(
        name, text, _clean(schema, _DEEPEST) | {"type": "object"}, _hints(item.get("annotations"))
    )


def _hints(annotations: object) -> tuple[str, ...]:
    if not isinstance(annotations, dict):
        return ()
    words = {
        "readOnlyHint": "read only",
        "destructiveHint": "destructive",
        "openWorldHint": "uses the network",
    }
    return tuple(text for key, text in words.items() if annotations.get(key) is True)


def _within_budget(tools: list[OfferedTool]) -> list[OfferedTool]:
    whole = sum(min(_size(tool.parameters), _LONGEST_SCHEMA) for tool in tools)
    share = max(_LEAST_SCHEMA, _LONGEST_LIST // max(len(tools), 1))
    most = _LONGEST_SCHEMA if whole <= _LONGEST_LIST else share
    return [
        OfferedTool(tool.name, tool.description, fitted_schema(tool.parameters, most), tool.hints)
        for tool in tools
    ]


def fitted_schema(schema: Mapping[str, Any], most: int) -> Schema:
    """Return a schema of at most about `most` characters, which loses words first and details next.

    If that is not enough, the names and types of the arguments remain, the required ones first.
    """
    for longest in (_LONGEST_DESCRIPTION, 100, 0):
        fitted: Schema = _with_descriptions(schema, longest)
        if _size(fitted) <= most:
            return fitted
    return _outline(schema, most)


def _with_descriptions(schema: Any, longest: int) -> Any:  # noqa: ANN401 - whatever a schema holds
    """Return a schema whose descriptions have at most that many characters; 0 takes them away."""
    if isinstance(schema, list):
        return [_with_descriptions(item, longest) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {}
    for key, value in schema.items():
        if key != "description" or not isinstance(value, str):
            found[key] = _with_descriptions(value, longest)
        elif longest:
            found[key] = shown_text(value, longest)
    return found


def _outline(schema: Mapping[str, Any], most: int) -> Schema:
    """Return the names and types of the arguments alone, the required ones first, as far as they fit."""
    properties = schema.get("properties", {})
    required = [name for name in schema.get("required", ()) if name in properties]
    kept: Schema = {}
    left = most - 40
    for name in dict.fromkeys((*required, *properties)):
        value = properties[name]
        kind = {key: value[key] for key in ("type",) if isinstance(value, Mapping) and key in value}
        left -= _size({name: kind}) + (len(name) + 4 if name in required else 0)
        if left < 0:
            break
        kept[name] = kind
    outline: Schema = {"type": "object", "properties": kept}
    if needed := [name for name in required if name in kept]:
        outline["required"] = needed
    return outline


def _clean(schema: Any, depth: int) -> Any:  # noqa: ANN401 - whatever a server calls a schema
    """Return a schema without what only programs read, without control characters, of limited depth."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping) or depth == 0:
        return {}
    return dict(_clean_members(schema, depth - 1))


def _clean_members(schema: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _LEFT_OUT or not _is_name(key):
            continue
        if key in _NAMED:
            if isinstance(value, Mapping):
                members = {n: v for n, v in value.items() if _is_name(n) and isinstance(v, Mapping | bool)}
                yield key, {name: _clean(member, depth) for name, member in members.items()}
        elif key in _LISTED and isinstance(value, list):
            yield key, [_clean(item, depth) for item in value]
        elif key in _SCHEMAS and isinstance(value, Mapping | bool):
            yield key, _clean(value, depth)
        elif key == "required":
            if isinstance(value, list):  # some servers mark a single argument with `true`
                yield key, [name for name in value if isinstance(name, str) and _is_name(name)]
        elif key == "enum":
            if isinstance(value, list) and value:
                yield key, [_clean_value(item) for item in value[:_MOST_CHOICES]]
        elif isinstance(value, str | int | float | bool) or key in ("type", "const"):
            yield key, _clean_value(value)


def _is_name(text: str) -> bool:
    return text.isprintable() and 0 < len(text) <= _LONGEST_NAME and not _HIDDEN.search(text)


def _clean_value(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, str):
        return shown_text(value, _LONGEST_DESCRIPTION // 2)
    return value if value is None or isinstance(value, bool | int | float) or _size(value) < 1000 else None


def _size(value: object) -> int:
    return len(json.dumps(value, ensure_ascii=False))
