"""The messages of a conversation, from a request's JSON.

Whatever clients repeat of an earlier conversation is taken, so that it can go on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.lenient_json import read_object
from localspec.server.parts import instead_of, text_of, without_thoughts
from localspec.types.request import Message, ToolCall

# A line of Claude Code's that is another one in every request, so that no beginning is ever found again.
_BILLING = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\n*")

_Role = Literal["system", "user", "assistant", "tool"]
_ROLES: Mapping[str, _Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as clients send it; `content` is what `text_of` can read."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: object = None
    name: str | None = None
    refusal: str | None = None
    audio: object = None
    tool_calls: tuple[GivenCall, ...] | None = None
    function_call: Function | None = None  # instead of `tool_calls`, in OpenAI's first form
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: object = None  # vLLM's name for it


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the client offers, or one that is called."""

    name: str = ""
    description: str | None = None
    parameters: object = None
    arguments: object = None


@dataclass(frozen=True, slots=True)
class CustomCall:
    """A call of a tool that takes a text."""

    name: str = ""
    input: object = None


@dataclass(frozen=True, slots=True)
class GivenCall:
    """A call of the assistant as clients send it back."""

    function: Function | None = None
    custom: CustomCall | None = None
    id: str | None = None


def conversation(messages: Sequence[ChatMessage] | None) -> tuple[Message, ...]:
    """Return the messages of a chat; raises UserError."""
    if not messages:
        raise UserError("messages is missing or empty")
    speakers = {message.name for message in messages if message.role == "assistant"}
    named = ("system", "user", "assistant") if len(speakers) > 1 else ("system", "user")
    read = [_message(message, f"messages[{at}]", named) for at, message in enumerate(messages)]
    return tuple(_answering_calls(read, [message.name for message in messages]))


def _message(message: ChatMessage, where: str, named: Sequence[str]) -> Message:
    """Read a message; names are told for `named` roles, because what they say may be of several people."""
    calls = tuple(map(_tool_call, message.tool_calls or ()))
    if message.function_call is not None:
        calls += (_tool_call(GivenCall(message.function_call)),)
    if calls and message.role != "assistant":
        raise UserError(f"{where}.tool_calls are not the assistant's")
    role = _ROLES[message.role]
    said, thoughts = without_thoughts(message.content)
    content = text_of(said) or message.refusal or _said_aloud(message.audio)
    if role == "system" and _BILLING.match(content):
        content = _BILLING.sub("", content, 1)
    if role in named and content and message.name and message.name.lower() != role:
        content = f"{message.name}: {content}"
    thinking = message.reasoning_content or text_of(message.reasoning) or thoughts
    return Message(role, content, calls, message.tool_call_id or "", thinking)


def _said_aloud(audio: object) -> str:
    if not isinstance(audio, dict):
        return ""
    return text_of(audio.get("transcript")) or instead_of("a recording")


def _tool_call(call: GivenCall) -> ToolCall:
    function = call.function or Function()
    if call.custom is not None:
        function = Function(call.custom.name, arguments={"input": call.custom.input})
    arguments = function.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(call.id or "", function.name, text)


def _answering_calls(messages: Sequence[Message], names: Sequence[str | None]) -> Iterator[Message]:
    """Yield messages with an id for each call, and for each result that has none the id of its call."""
    number = 0
    waiting = list[ToolCall]()
    for message, name in zip(messages, names, strict=True):
        calls = tuple(
            call if call.id else replace(call, id=f"call{number + at:05}")
            for at, call in enumerate(message.tool_calls)
        )
        number += len(calls)
        waiting += calls
        answered = _answered(message, name, waiting) if message.role == "tool" else None
        if answered is not None:
            waiting.remove(answered)
        of_call = message.tool_call_id if answered is None else answered.id
        yield replace(message, tool_calls=calls, tool_call_id=of_call)


def _answered(result: Message, name: str | None, waiting: Sequence[ToolCall]) -> ToolCall | None:
    """Return the call of a result: the one of its id, or the first, if possible of the tool of its name."""
    if result.tool_call_id:
        return next((call for call in waiting if call.id == result.tool_call_id), None)
    return next((call for call in waiting if call.name == name), waiting[0] if waiting else None)


def call_arguments(arguments: str) -> object:
    """Return the arguments of a call; if they were cut or are not JSON, as text."""
    found = read_object(arguments)
    return {"arguments": arguments} if found is None else found


def an_object(value: object, where: str) -> Json:
    """Read a JSON object; raises UserError."""
    if not isinstance(value, dict):
        raise UserError(f"{where} is not an object")
    return value


def objects(value: object, where: str) -> list[Json]:
    """Read a list of JSON objects, or nothing; raises UserError."""
    if not isinstance(value, list | None):
        raise UserError(f"{where} is not a list")
    return [an_object(item, f"{where}[{at}]") for at, item in enumerate(value or ())]
