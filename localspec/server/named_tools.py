"""Tools of `/v1/responses` that a chat has no words for: in namespaces, or with a text as their input.

The models know them as functions. A call is given back under the names that the client knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.server.messages import call_arguments, objects

_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool by the names that its client gave it; a custom one takes a text instead of JSON."""

    name: str
    namespace: str = ""
    is_custom: bool = False

    @property
    def flat(self) -> str:
        """Return the name of the function, which is unique among all namespaces."""
        return f"{self.namespace}__{self.name}" if self.namespace else self.name

    def call(self, arguments: str) -> Json:
        """Return a call with these arguments in the client's words, without its ids."""
        if self.is_custom:
            return {"type": "custom_tool_call", "name": self.name, "input": custom_input(arguments)}
        named = {"name": self.name} | ({"namespace": self.namespace} if self.namespace else {})
        return {"type": "function_call", **named, "arguments": arguments}


def named(tool: Json, namespace: object = None) -> NamedTool:
    """Return the tool that a description, a choice, or a call of it names; raises UserError."""
    name = tool.get("name")
    space = namespace or tool.get("namespace") or ""
    if not isinstance(name, str) or not isinstance(space, str):
        raise UserError("a tool, a call or a choice of one has no name")
    return NamedTool(name, space, tool.get("type") in ("custom", "custom_tool_call"))


def flat_tools(tools: Iterable[Json], namespace: object = None) -> Iterator[tuple[NamedTool | None, Json]]:
    """Yield each tool, also of namespaces, and its form in a chat; None is one that models cannot call."""
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from flat_tools(objects(tool.get("tools"), "tools[].tools"), tool.get("name"))
        elif tool.get("type") in ("function", "custom"):
            found = named(tool, namespace)
            yield found, _function(tool, found)
        else:
            yield None, dict(tool)


def _function(tool: Json, found: NamedTool) -> Json:
    """Return a tool in the nested form of a chat."""
    about = tool.get("description")
    parameters = tool.get("parameters")
    if found.is_custom:
        about = _with_format(tool)
        parameters = _INPUT
    function = {"name": found.flat, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


def _with_format(tool: Json) -> str:
    """Return the description of a custom tool, with the grammar of its input: nothing else says it."""
    form = tool.get("format")
    about = str(tool.get("description") or "")
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return about
    return f"{about}\nThe input meets this {form.get('syntax')} grammar:\n{form.get('definition')}".strip()


def flat_choice(choice: object) -> object:
    """Convert the choice of a tool, or of some, to the form of a chat."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = objects(choice.get("tools"), "tool_choice.tools")
        return {**choice, "tools": [flat_choice(tool) for tool in tools]}
    if choice.get("type") in ("function", "custom"):
        return {"type": "function", "function": {"name": named(choice).flat}}
    return choice


def flat_call(item: Json) -> Json:
    """Convert a call in a conversation to the form of a chat."""
    tool = named(item)
    arguments = json.dumps({"input": item.get("input")}, ensure_ascii=False)
    function = {"name": tool.flat, "arguments": arguments if tool.is_custom else item.get("arguments")}
    return {"id": item.get("call_id"), "function": function}


def custom_input(arguments: str) -> str:
    """Return the text that a call of a custom tool passes; if it was cut or has another form, all of it."""
    found = call_arguments(arguments)
    given = found.get("input") if isinstance(found, dict) else None
    return given if isinstance(given, str) else arguments
