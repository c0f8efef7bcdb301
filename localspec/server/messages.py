"""The messages of a conversation, from a request's JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.types.request import Message, ToolCall

_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")  # kinds of parts


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as clients send it; its content is a text, or parts, of which the texts are used."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: object = None
    tool_calls: tuple[GivenCall, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the client offers, or one that is called."""

    name: str
    description: str | None = None
    parameters: object = None
    arguments: object = None


@dataclass(frozen=True, slots=True)
class GivenCall:
    """A call of the assistant as clients send it back."""

    function: Function
    id: str | None = None


def conversation(messages: Sequence[ChatMessage] | None) -> tuple[Message, ...]:
    """Return the messages of a chat; raises UserError for what is not text."""
    if not messages:
        raise UserError("messages is missing or empty")
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(messages))


def _message(message: ChatMessage, where: str) -> Message:
    calls = tuple(
        ToolCall(call.id or "", call.function.name, _json_text(call.function.arguments))
        for call in message.tool_calls or ()
    )
    if calls and message.role != "assistant":
        raise UserError(f"{where}.tool_calls are not the assistant's")
    role = "system" if message.role == "developer" else message.role
    content = text_of(message.content, where)
    return Message(role, content, calls, message.tool_call_id or "", message.reasoning_content or "")


def _json_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def call_arguments(arguments: str) -> object:
    """Return the arguments of a call; if they were cut or are not JSON, as text."""
    with suppress(ValueError):
        value = json.loads(arguments or "{}")
        if isinstance(value, dict):
            return value
    return {"arguments": arguments}


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


def text_of(content: object, where: str) -> str:
    """Return the text of a message: a text, nothing, or parts that are all texts; raises UserError."""
    texts = []
    for part in content if isinstance(content, list) else [content or ""]:
        kind = part.get("type") if isinstance(part, dict) else "text"
        text = part.get("text") if isinstance(part, dict) else part
        if kind not in _TEXTS or not isinstance(text, str):
            what = kind[:40] if isinstance(kind, str) and kind != "text" else "something"
            raise UserError(f"{where}.content holds {what} that is not text", "send text alone")
        texts.append(text)
    return "\n".join(texts)
