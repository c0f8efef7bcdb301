"""OpenAI's `/v1/responses`, as the same request to a chat, and replies of items.

Nothing is kept between two requests: whoever asks sends the whole conversation.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.figures import Json
from localspec.errors import UserError
from localspec.server.blocks import Block, Step
from localspec.server.exchange import Protocol, read, read_json, streamed, whole
from localspec.server.openai import Body, Chat, asked_in_chat, error, text_of
from localspec.server.service import Service

_NOT_KEPT = "send the conversation as `input`: nothing is kept between two requests"


def protocol(service: Service) -> Protocol:
    """Return the one path of this protocol."""
    return Protocol({"/v1/responses": partial(_answer, service)}, error)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """What the text must look like."""

    format: object = None


@dataclass(frozen=True, slots=True)
class ResponsesBody:
    """A request to `/v1/responses`."""

    input: object = None
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: tuple[object, ...] | None = None
    tool_choice: object = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    metadata: object = None
    previous_response_id: str | None = None
    conversation: object = None
    background: bool | None = None


async def _answer(service: Service, request: Request) -> Response:
    body = read(ResponsesBody, await read_json(request))
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(body, name):
            raise UserError(f"{name} asks for a response that the server keeps", _NOT_KEPT)
    reply = _Reply(body, await asked_in_chat(service, read(Body, _as_chat(body))))
    if not body.stream:
        return await whole(request, reply.whole(service))
    return await streamed(request, reply.stream(service), lambda refused: reply.failure(refused.message))


def _as_chat(body: ResponsesBody) -> Json:
    messages: list[Json] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    items = body.input if isinstance(body.input, list) else [{"role": "user", "content": body.input or ""}]
    for at, item in enumerate(items):
        _add(messages, item, f"input[{at}]")
    wanted = body.text.format if body.text is not None else None
    schema = {"json_schema": wanted} if isinstance(wanted, dict) else {}
    return {
        "model": body.model,
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tools": [_nested(tool) for tool in body.tools or ()],
        "tool_choice": _nested(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": wanted and {**wanted, **schema} if isinstance(wanted, dict) else None,
    }


def _nested(tool: object) -> object:
    """Return a function, or the choice of one, as a chat has it: around what this protocol has beside it."""
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") != "function":
        raise UserError("tools holds one that is no function", "offer functions, which you run yourself")
    return {"type": "function", "function": {name: tool[name] for name in tool if name != "type"}}


def _add(messages: list[Json], item: object, where: str) -> None:
    """Add an item of a conversation to the messages that a chat is made of."""
    if not isinstance(item, dict):
        raise UserError(f"{where} is no item")
    kind, role = item.get("type", "message"), item.get("role")
    if kind == "function_call_output":
        text = text_of(item.get("output"), where)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
    elif kind == "message" and role != "assistant":
        messages.append({"role": role, "content": text_of(item.get("content"), where)})
    elif kind in ("message", "reasoning", "function_call"):  # items of one turn come one after another
        if (
            not messages
            or messages[-1]["role"] != "assistant"
            or (kind == "message" and "content" in messages[-1])
        ):
            messages.append({"role": "assistant"})
        turn = messages[-1]
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls = turn.setdefault("tool_calls", [])
            assert isinstance(calls, list)
            calls.append({"id": item.get("call_id"), "function": function})
        else:
            name = "content" if kind == "message" else "reasoning_content"
            turn[name] = text_of(item.get("content"), where)
    else:
        raise UserError(f"{where} is of a kind that is not known here", _NOT_KEPT)


class _Reply:
    """One reply under way."""

    def __init__(self, body: ResponsesBody, asked: Chat) -> None:
        self._asked = asked
        self._blocks = asked.blocks()
        self._number = -1  # of the last event
        self._ids = dict[int, str]()
        self._head: Json = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": asked.asked.profile.name,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "tools": list(body.tools or ()),
            "tool_choice": body.tool_choice or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "metadata": body.metadata or {},
            "previous_response_id": None,
            "store": False,
            "error": None,
            "incomplete_details": None,
        }

    async def whole(self, service: Service) -> Json:
        """Return the reply to a client that waits for all of it."""
        async for event in service.answer(self._asked.asked):
            for _ in self._blocks.take(event):
                pass
        return self._response()

    async def stream(self, service: Service) -> AsyncGenerator[str]:
        """Yield the events for a client that reads along."""
        begun = False
        async for event in service.answer(self._asked.asked):
            if not begun:
                begun = True
                for name in ("created", "in_progress"):
                    yield self._event(f"response.{name}", response=self._response())
            for step in self._blocks.take(event):
                for told in self._said(step):
                    yield told
        response = self._response()
        yield self._event(f"response.{response['status']}", response=response)

    def failure(self, message: str) -> str:
        """Return the event that tells of an answer that failed on its way."""
        told = {"status": "failed", "error": {"code": "server_error", "message": message}}
        return self._event("response.failed", response=self._response() | told)

    def _response(self) -> Json:
        output = [self._item(block, "completed") for block in self._blocks.all]
        if self._blocks.finished is None:
            return {**self._head, "status": "in_progress", "output": output, "usage": None}
        summary = self._blocks.finished.summary
        usage = {
            "input_tokens": summary.prompt_tokens,
            "input_tokens_details": {"cached_tokens": summary.cached_tokens},
            "output_tokens": summary.tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": summary.prompt_tokens + summary.tokens,
        }
        cut: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        ending = cut if self._blocks.reason == "length" else {"status": "completed"}
        return {**self._head, **ending, "output": output, "usage": usage}

    def _item(self, block: Block, status: str) -> Json:
        names = {"call": "fc", "thinking": "rs", "text": "msg"}
        id_ = self._ids.setdefault(block.index, f"{names[block.kind]}_{uuid4().hex}")
        head: Json = {"id": id_, "status": status}
        if block.kind == "call":
            called = {"call_id": block.id, "name": block.name, "arguments": block.text}
            return {**head, "type": "function_call", **called}
        parts = [_part(block)] if status == "completed" else []
        if block.kind == "thinking":
            return {**head, "type": "reasoning", "summary": [], "content": parts}
        return {**head, "type": "message", "role": "assistant", "content": parts}

    def _said(self, step: Step) -> Iterator[str]:
        """Yield the events of a step."""
        block = step.block
        at: Json = {"output_index": block.index}
        id_ = self._item(block, "in_progress")["id"]
        inside = {**at, "item_id": id_} | ({} if block.kind == "call" else {"content_index": 0})
        names = {"call": "function_call_arguments", "thinking": "reasoning_text", "text": "output_text"}
        name = f"response.{names[block.kind]}"
        extra: Json = {"logprobs": []} if block.kind == "text" else {}
        if step.kind == "begins":
            yield self._event("response.output_item.added", **at, item=self._item(block, "in_progress"))
            if block.kind != "call":
                empty = {**_part(block), "text": ""}
                yield self._event("response.content_part.added", **inside, part=empty)
        elif step.kind == "grows":
            yield self._event(f"{name}.delta", **inside, delta=step.added, **extra)
        else:
            key = "arguments" if block.kind == "call" else "text"
            yield self._event(f"{name}.done", **inside, **{key: block.text}, **extra)
            if block.kind != "call":
                yield self._event("response.content_part.done", **inside, part=_part(block))
            yield self._event("response.output_item.done", **at, item=self._item(block, "completed"))

    def _event(self, kind: str, **values: object) -> str:
        self._number += 1
        value = {"type": kind, "sequence_number": self._number, **values}
        return f"event: {kind}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n"


def _part(block: Block) -> Json:
    if block.kind == "thinking":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
