"""Anthropic's protocol: `/v1/messages`, as the same request in OpenAI's words, and replies of blocks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.figures import Json
from localspec.errors import UserError
from localspec.server.blocks import Block, Step
from localspec.server.exchange import Protocol, Refusal, read, read_json, streamed, whole
from localspec.server.openai import Body, Chat, asked_in_chat, text_of
from localspec.server.service import Service

_KINDS = {413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def protocol(service: Service) -> Protocol:
    """Return the paths of Anthropic's protocol."""
    return Protocol(
        {
            "/v1/messages": partial(_answer, service),
            "/v1/messages/count_tokens": partial(_count, service),
        },
        error,
    )


def error(refusal: Refusal) -> Json:
    """Return an error as Anthropic words it."""
    usual = "api_error" if refusal.status >= 500 else "invalid_request_error"
    known = refusal.kind if refusal.status in (401, 403, 404) else usual
    kind = _KINDS.get(refusal.status, known)
    return {"type": "error", "error": {"type": kind, "message": refusal.message}}


@dataclass(frozen=True, slots=True)
class Turn:
    """One message as clients send it: a text, or blocks."""

    role: Literal["system", "user", "assistant"]
    content: object = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the client would run."""

    name: str
    description: str | None = None
    input_schema: object = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether the model may, must or must not call tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether the model may think first, where its template asks."""

    type: Literal["enabled", "disabled", "adaptive"]


@dataclass(frozen=True, slots=True)
class MessagesBody:
    """A request to `/v1/messages`."""

    messages: tuple[Turn, ...]
    model: str | None = None
    system: object = None
    max_tokens: int | None = None
    stop_sequences: tuple[str, ...] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None


async def _asked(service: Service, request: Request) -> tuple[MessagesBody, Chat]:
    body = read(MessagesBody, await read_json(request))
    return body, await asked_in_chat(service, read(Body, _in_openai_words(body)))


async def _answer(service: Service, request: Request) -> Response:
    body, asked = await _asked(service, request)
    reply = _Reply(asked)
    if not body.stream:
        return await whole(request, reply.whole(service))
    return await streamed(request, reply.stream(service), lambda refused: _event(error(refused)))


async def _count(service: Service, request: Request) -> Response:
    _, asked = await _asked(service, request)
    models, wanted = service.queue.models, asked.asked

    async def counted() -> Json:
        count = await asyncio.to_thread(models.count_tokens, asked.messages, wanted.tools)
        return {"input_tokens": count}

    return await whole(request, counted())


def _in_openai_words(body: MessagesBody) -> Json:
    system = text_of(body.system, "system")
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for at, turn in enumerate(body.messages):
        messages += _turn(turn, f"messages[{at}]")
    choice = body.tool_choice
    thinking = None if body.thinking is None else {"enable_thinking": body.thinking.type != "disabled"}
    return {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_tokens,
        "stop": None if body.stop_sequences is None else list(body.stop_sequences),
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
        "tools": [_tool(tool) for tool in body.tools or ()],
        "tool_choice": choice and (_CHOICES.get(choice.type) or {"function": {"name": choice.name}}),
        "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
        "chat_template_kwargs": thinking,
    }


def _tool(tool: Tool) -> Json:
    if tool.type not in (None, "custom"):
        raise UserError(f"the tool {tool.name} is one of Anthropic's own servers", "offer tools that you run")
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _turn(turn: Turn, where: str) -> Iterator[Json]:
    """Yield the messages that a turn is made of: results of tools each have their own, before the text."""
    blocks = turn.content if isinstance(turn.content, list) else [{"type": "text", "text": turn.content}]
    texts, calls, thoughts = [], list[Json](), list[str]()
    for block in blocks:
        if not isinstance(block, dict):
            raise UserError(f"{where}.content holds something that is no block")
        kind = block.get("type")
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "function": function})
        elif kind == "tool_result":
            text = text_of(block.get("content"), where)
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text}
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind != "redacted_thinking":
            texts.append(block)
    if texts or calls:
        said: Json = {"role": turn.role, "content": text_of(texts, where)}
        yield said | ({"tool_calls": calls, "reasoning_content": "".join(thoughts)} if calls else {})


class _Reply:
    """One reply under way."""

    def __init__(self, asked: Chat) -> None:
        self._asked = asked
        self._blocks = asked.blocks()
        self._head: Json = {
            "id": f"msg_{uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": asked.asked.profile.name,
        }

    async def whole(self, service: Service) -> Json:
        """Return the reply to a client that waits for all of it."""
        async for event in service.answer(self._asked.asked):
            for _ in self._blocks.take(event):
                pass
        content = [_block(block) for block in self._blocks.all]
        return {**self._head, "content": content, **self._ending(), "usage": self._usage()}

    async def stream(self, service: Service) -> AsyncGenerator[str]:
        """Yield the events for a client that reads along."""
        begun = False
        async for event in service.answer(self._asked.asked):
            if not begun:
                begun = True
                message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
                usage = {"input_tokens": 0, "output_tokens": 0}  # known at the end
                yield _event({"type": "message_start", "message": message | {"usage": usage}})
            for step in self._blocks.take(event):
                yield _event(_said(step))
        yield _event({"type": "message_delta", "delta": self._ending(), "usage": self._usage()})
        yield _event({"type": "message_stop"})

    def _ending(self) -> Json:
        finished = self._blocks.finished
        stopped = finished.stop_string if finished is not None else None
        reason = "stop_sequence" if stopped else _REASONS[self._blocks.reason]
        return {"stop_reason": reason, "stop_sequence": stopped}

    def _usage(self) -> Json:
        assert self._blocks.finished is not None
        summary = self._blocks.finished.summary
        return {
            "input_tokens": summary.prompt_tokens - summary.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": summary.cached_tokens,
            "output_tokens": summary.tokens,
        }


def _event(value: Json) -> str:
    return f"event: {value['type']}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n"


def _block(block: Block) -> Json:
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": _object(block.text)}
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _object(arguments: str) -> object:
    """Return the arguments of a call; those of one that was cut or is no JSON are the text that there is."""
    with suppress(ValueError):
        value = json.loads(arguments or "{}")
        if isinstance(value, dict):
            return value
    return {"arguments": arguments}


def _said(step: Step) -> Json:
    """Return the event of a step."""
    block, index = step.block, step.block.index
    if step.kind == "ends":
        return {"type": "content_block_stop", "index": index}
    if step.kind == "begins":
        return {"type": "content_block_start", "index": index, "content_block": _block(block)}
    names = {"call": ("input_json_delta", "partial_json"), "thinking": ("thinking_delta", "thinking")}
    kind, name = names.get(block.kind, ("text_delta", "text"))
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: step.added}}
