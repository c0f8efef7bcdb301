"""OpenAI's `/v1/responses`, as the same request to a chat, and replies of items.

Nothing is stored between two requests: each contains the whole conversation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.server.blocks import BlockEvent, ContentBlock, ProtocolReply, warned
from localspec.server.exchange import OVERFLOW, ApiError, read_json
from localspec.server.fields import in_known_words, refuse, shared
from localspec.server.messages import an_object, objects
from localspec.server.openai import Chat, asked_in_chat, body_of
from localspec.server.parts import text_of
from localspec.server.service import ChatService, Protocol

_REPEATED = ("instructions", "max_output_tokens", "temperature", "top_p")
_NOT_OFFERED: Mapping[str, tuple[object, ...]] = {"top_logprobs": (0,), "prompt": ()}
_BOOKKEEPING = ("id", "status")  # of items
_NOT_KEPT = "send the conversation as `input`: nothing is stored between requests"


async def _answer(service: ChatService, request: Request) -> Response:
    body = an_object(in_known_words(await read_json(request)), "the request")
    refuse(body, _NOT_OFFERED)
    include = body.get("include")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        raise UserError("include asks for logprobs, which are not offered here", "use /v1/chat/completions")
    for name in ("previous_response_id", "conversation", "background"):
        if body.get(name):
            raise UserError(f"{name} asks for a response stored on the server", _NOT_KEPT)
    chat = await asked_in_chat(service, body_of(_as_chat(body)))
    streams = bool(chat.body.stream)
    return await _Reply(body, chat).send(request, service.answer(chat.asked), streams=streams)


def _as_chat(body: Json) -> Json:
    """Return a request in the form of a chat, whose reader validates it."""
    instructions = body.get("instructions")
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    if not (items := body.get("input")):
        raise UserError("input is missing or empty")
    for at, item in enumerate(items if isinstance(items, list) else [{"role": "user", "content": items}]):
        _add(messages, an_object(item, f"input[{at}]"))
    wanted = an_object(body.get("text") or {}, "text").get("format")
    form = an_object(wanted, "text.format") if wanted else {}
    given = shared(body)
    effort = an_object(body.get("reasoning") or {}, "reasoning").get("effort")
    return {
        **given,
        "messages": messages,
        "max_tokens": body.get("max_output_tokens", given.get("max_tokens")),
        "tools": [_nested(tool) for tool in objects(body.get("tools"), "tools")],
        "tool_choice": _choice(body.get("tool_choice")),
        "reasoning_effort": effort or given.get("reasoning_effort"),
        "response_format": {**form, "json_schema": form} if form else given.get("response_format"),
    }


def _nested(tool: Json) -> Json:
    """Convert a function, or the choice of one, to the nested form of a chat; other tools are left out."""
    if tool.get("type") != "function":
        return {"type": tool.get("type")}
    return {"type": "function", "function": {name: tool[name] for name in tool if name != "type"}}


def _choice(choice: object) -> object:
    """Convert the choice of a function to the form of a chat."""
    if isinstance(choice, dict) and choice.get("type") == "function":
        return _nested(choice)
    return choice


def _add(messages: list[Json], item: Json) -> None:
    """Add an item of a conversation to the messages that a chat is made of."""
    kind, role = item.get("type") or "message", item.get("role")
    if str(kind).endswith("_output"):
        output = item.get("output", item)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "message" and role != "assistant":
        messages.append({"role": role, "content": item.get("content")})
    else:  # items of one turn come one after another
        turn = messages[-1] if messages else {}
        if turn.get("role") != "assistant" or (kind == "message" and "content" in turn):
            turn = {"role": "assistant"}
            messages.append(turn)
        _add_to_turn(turn, item, str(kind))


def _add_to_turn(turn: Json, item: Json, kind: str) -> None:
    """Add what the assistant thought, said or called to its message."""
    if kind == "function_call" or (kind.endswith("_call") and item.get("call_id")):
        calls = turn.setdefault("tool_calls", [])
        assert isinstance(calls, list)
        calls.append(_call(item, kind))
        return
    if kind == "reasoning":
        name, text = "reasoning_content", text_of(item.get("content")) or text_of(item.get("summary"))
    elif kind == "message":
        name, text = "content", text_of(item.get("content"))
    elif kind == "item_reference":
        name, text = "content", "[an earlier item was here, which is not stored]"
    else:
        name, text = "content", text_of({field: item[field] for field in item if field not in _BOOKKEEPING})
    before = turn.get(name)
    turn[name] = f"{before}\n\n{text}" if before else text


def _call(item: Json, kind: str) -> Json:
    """Return a call in the form of a chat; some kinds have other fields for what the tool is given."""
    arguments = item.get("arguments")
    if "input" in item:
        arguments = {"input": item["input"]}
    elif arguments is None:
        arguments = item.get("action") or item.get("operation")
    function = {"name": item.get("name") or kind.removesuffix("_call"), "arguments": arguments}
    return {"id": item.get("call_id"), "function": function}


class _Reply(ProtocolReply):
    """One response."""

    def __init__(self, body: Json, chat: Chat) -> None:
        super().__init__(chat.blocks())
        self._number = -1  # of the last event
        self._ids = dict[int, str]()
        self._head: Json = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "model": chat.asked.profile.name,
            **{name: body.get(name) for name in _REPEATED},
            "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice") or "auto",
            "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
            "metadata": body.get("metadata") or {},
            "previous_response_id": None,
            "store": False,
            "error": None,
            "incomplete_details": None,
        }

    def first_events(self) -> Iterator[Json]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self.complete())

    def last_events(self) -> Iterator[Json]:
        response = self.complete()
        yield self._event(f"response.{response['status']}", response=response)

    def error_event(self, failure: ApiError) -> Json:
        code = "server_error" if failure.overflow is None else OVERFLOW
        payload = {"status": "failed", "error": {"code": code, "message": failure.message}}
        return self._event("response.failed", response=self.complete() | payload)

    def complete(self) -> Json:
        output = [self._item(block, "completed") for block in self.blocks.all]
        if self.blocks.finished is None:
            return {**self._head, "status": "in_progress", "output": output, "usage": None}
        summary = self.blocks.finished.summary
        usage = {
            "input_tokens": summary.prompt_tokens,
            "input_tokens_details": {"cached_tokens": summary.cached_tokens},
            "output_tokens": summary.tokens,
            "output_tokens_details": {"reasoning_tokens": summary.thinking_tokens},
            "total_tokens": summary.prompt_tokens + summary.tokens,
        }
        cut: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
        ending = cut if self.blocks.reason == "length" else {"status": "completed"}
        return {**self._head, **ending, "output": output, "usage": usage, **warned(self.blocks.warnings)}

    def _item(self, block: ContentBlock, status: str) -> Json:
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

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
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

    def _event(self, kind: str, **values: object) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **values}


def _part(block: ContentBlock) -> Json:
    if block.kind == "thinking":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


PROTOCOL = Protocol({"/v1/responses": _answer})
