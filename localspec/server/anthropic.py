"""Anthropic's protocol: `/v1/messages`, as the same request in OpenAI's words, and replies of blocks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from functools import partial
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.figures import Json
from localspec.errors import UserError
from localspec.server.blocks import Block, Step
from localspec.server.exchange import Protocol, Refusal, read, read_json, streamed, whole
from localspec.server.openai import Body, Chat, an_object, asked_in_chat, objects, text_of
from localspec.server.service import Service

_KINDS = {413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ALIKE = ("model", "max_tokens", "temperature", "top_k", "top_p", "stream")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # others name a tool


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


async def _asked(service: Service, request: Request) -> tuple[bool, Chat]:
    body = an_object(await read_json(request), "the request")
    wanted = read(Body, _in_openai_words(body))
    return bool(wanted.stream), await asked_in_chat(service, wanted)


async def _answer(service: Service, request: Request) -> Response:
    streams, asked = await _asked(service, request)
    reply = _Reply(asked)
    if not streams:
        return await whole(request, reply.whole(service))
    return await streamed(request, reply.stream(service), lambda refused: _event(error(refused)))


async def _count(service: Service, request: Request) -> Response:
    _, asked = await _asked(service, request)
    count = partial(service.queue.models.count_tokens, asked.messages, asked.asked.tools)
    return JSONResponse({"input_tokens": await asyncio.to_thread(count)})


def _in_openai_words(body: Json) -> Json:
    """Return a request as one to a chat of OpenAI's, whose reader judges it."""
    system = text_of(body.get("system"), "system")
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for at, turn in enumerate(objects(body.get("messages"), "messages")):
        messages += _turn(turn, f"messages[{at}]")
    choice = an_object(body.get("tool_choice") or {}, "tool_choice")
    thinking = an_object(body.get("thinking") or {}, "thinking").get("type")
    kind = _CHOICES.get(str(choice.get("type", "auto")))
    return {
        **{name: body.get(name) for name in _ALIKE},
        "messages": messages,
        "stop": body.get("stop_sequences"),
        "tools": [_tool(tool) for tool in objects(body.get("tools"), "tools")],
        "tool_choice": kind or {"function": {"name": choice.get("name")}},
        "parallel_tool_calls": not choice.get("disable_parallel_tool_use"),
        "chat_template_kwargs": thinking and {"enable_thinking": thinking != "disabled"},
    }


def _tool(tool: Json) -> Json:
    if tool.get("type") not in (None, "custom"):
        raise UserError(f"the tool {tool.get('name')} is one of Anthropic's own", "offer tools that you run")
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _turn(turn: Json, where: str) -> Iterator[Json]:
    """Yield the messages that a turn is made of: results of tools each have their own, before the text."""
    content = turn.get("content")
    texts, calls, thoughts = list[Json](), list[Json](), list[str]()
    for block in objects(content, f"{where}.content") if isinstance(content, list) else ():
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
    if texts or calls or not isinstance(content, list):
        text = text_of(texts if isinstance(content, list) else content, f"{where}.content")
        said: Json = {"role": turn.get("role"), "content": text}
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
