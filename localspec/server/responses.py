"""OpenAI's `/v1/responses`, as the same request to a chat, and replies of items.

Nothing is stored between two requests: each contains the whole conversation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json, timings
from localspec.chat.tool_use.kit import ToolKit
from localspec.errors import UserError
from localspec.server.blocks import BlockEvent, ContentBlock, ProtocolReply, warned
from localspec.server.exchange import OVERFLOW, SERVER_SENT, ApiError, frame, read_json
from localspec.server.fields import in_known_words, refuse, shared
from localspec.server.messages import an_object, objects
from localspec.server.named_tools import NamedTool, custom_input, flat_call, flat_choice, flat_tools
from localspec.server.openai import Chat, answered, asked_in_chat, body_of, counted_tokens
from localspec.server.parts import text_of
from localspec.server.service import ChatService, Protocol
from localspec.server.tools_here import kit_for, listed
from localspec.tools.mcp.names import tool_name

_REPEATED = ("instructions", "max_output_tokens", "temperature", "top_p")
_NOT_OFFERED: Mapping[str, tuple[object, ...]] = {"top_logprobs": (0,), "prompt": ()}
_BOOKKEEPING = ("id", "status")  # of items
_CALLS = ("function_call", "custom_tool_call")
_HERE = "mcp_"  # begins the ids of calls that run on this side
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
    chat = await _asked(service, body, kit_for(service.server.kit, request))
    reply = _Reply(body, chat)
    events = answered(service, chat.rounds, lambda: reply.blocks, chat.asked)
    return await reply.send(request, events, streams=bool(chat.body.stream))


async def _count(service: ChatService, request: Request) -> Response:
    body = an_object(in_known_words(await read_json(request)), "the request")
    tokens = await counted_tokens(service, await _asked(service, body, kit_for(service.server.kit, request)))
    return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})


async def _asked(service: ChatService, body: Json, kit: ToolKit | None) -> Chat:
    return await asked_in_chat(service, body_of(_as_chat(body)), kit)


def _as_chat(body: Json) -> Json:
    """Return a request in the form of a chat, whose reader validates it."""
    instructions = body.get("instructions")
    messages: list[Json] = [{"role": "system", "content": instructions}] if instructions else []
    items = body.get("input")
    if items is None or items == []:  # an empty text is how some clients have a model loaded
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
        "tools": [tool for _, tool in flat_tools(objects(body.get("tools"), "tools"))],
        "tool_choice": flat_choice(body.get("tool_choice")),
        "reasoning_effort": effort or given.get("reasoning_effort"),
        "response_format": {**form, "json_schema": form} if form else given.get("response_format"),
    }


def _add(messages: list[Json], item: Json) -> None:
    """Add an item of a conversation to the messages that a chat is made of."""
    kind = item.get("type") or "message"
    role = item.get("role")
    if str(kind).endswith("_output"):
        output = item.get("output", item)
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    elif kind == "message" and role != "assistant":
        messages.append({"role": role, "content": item.get("content")})
    elif kind != "mcp_list_tools":  # each request has its own; items of a turn come one after another
        turn = messages[-1] if messages else {}
        if turn.get("role") != "assistant" or (kind == "message" and "content" in turn):
            turn = {"role": "assistant"}
            messages.append(turn)
        _add_to_turn(turn, item, str(kind))
        if kind == "mcp_call":
            messages.append(_result_here(item))


def _result_here(item: Json) -> Json:
    """Return the result of a call that ran on this side."""
    output = item.get("output")
    error = item.get("error")
    if isinstance(error, dict):
        output = error.get("content") or error.get("message")
    return {"role": "tool", "tool_call_id": _id_here(item), "content": output or error or ""}


def _id_here(item: Json) -> str:
    return str(item.get("id") or "").removeprefix(_HERE)


def _add_to_turn(turn: Json, item: Json, kind: str) -> None:
    """Add what the assistant thought, said or called to its message."""
    is_here = kind == "mcp_call"
    if is_here or kind == "function_call" or (kind.endswith("_call") and item.get("call_id")):
        calls = turn.setdefault("tool_calls", [])
        assert isinstance(calls, list)
        calls.append(_call_here(item) if is_here else _call(item, kind))
        return
    if kind == "reasoning":
        name = "reasoning_content"
        text = text_of(item.get("content")) or text_of(item.get("summary"))
    elif kind == "message":
        name = "content"
        text = text_of(item.get("content"))
    elif kind == "item_reference":
        name = "content"
        text = "[an earlier item was here, which is not stored]"
    else:
        name = "content"
        text = text_of({field: item[field] for field in item if field not in _BOOKKEEPING})
    before = turn.get(name)
    turn[name] = f"{before}\n\n{text}" if before else text


def _call_here(item: Json) -> Json:
    """Return a call that ran on this side in the form of a chat."""
    name = tool_name(str(item.get("server_label")), str(item.get("name")))
    return {"id": _id_here(item), "function": {"name": name, "arguments": item.get("arguments")}}


def _call(item: Json, kind: str) -> Json:
    """Return a call in the form of a chat; some kinds have other fields for what the tool is given."""
    if kind in _CALLS:
        return flat_call(item)
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
        super().__init__(chat.blocks(), chat.body.live)
        self.form = replace(SERVER_SENT, waiting=self._waiting)
        self._number = -1  # of the last event
        tools = (tool for tool, _ in flat_tools(objects(body.get("tools"), "tools")) if tool is not None)
        self._tools = {tool.flat: tool for tool in tools}
        self._ids = dict[int, str]()
        self._here = chat.here
        servers = () if chat.here is None else chat.here.servers
        self._lists = [listed(server, f"mcpl_{uuid4().hex}") for server in servers]
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
            yield self._event(f"response.{name}", response=self.complete() | {"output": []})
        for index, item in enumerate(self._lists):
            at: Json = {"output_index": index}
            state = "failed" if item["error"] else "completed"
            yield self._event("response.output_item.added", **at, item=item | {"tools": []})
            for name in ("in_progress", state):
                yield self._event(f"response.mcp_list_tools.{name}", **at, item_id=item["id"])
            yield self._event("response.output_item.done", **at, item=item)

    def _waiting(self) -> str:
        """Return an event for a stream that waits: Codex does not count comments, and gives up.

        `keepalive`, which OpenAI's own server sends then, ends some strict readers; this one all know.
        """
        events = list(self.begin())  # before which no reader takes another
        return "".join(map(frame, events or [self._event("response.in_progress", response=self.complete())]))

    def progress_events(self, told: Json) -> Iterator[Json]:
        yield self._event("response.in_progress", response=self.complete(), **told)

    def last_events(self) -> Iterator[Json]:
        response = self.complete()
        finished = self.blocks.finished
        assert finished is not None  # it ends the events
        told: Json = {"timings": timings(finished.summary)} if self.live() else {}
        yield self._event(f"response.{response['status']}", response=response, **told)

    def error_event(self, failure: ApiError) -> Json:
        code = "server_error" if failure.overflow is None else OVERFLOW
        payload = {"status": "failed", "error": {"code": code, "message": failure.message}}
        return self._event("response.failed", response=self.complete() | payload)

    def complete(self) -> Json:
        open_block = self.blocks.all[-1] if self.blocks.all and self.blocks.finished is None else None
        blocks = self.blocks.all
        items = (self._item(block, "in_progress" if block is open_block else "completed") for block in blocks)
        output = [*self._lists, *items]
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
        tool = self._tool(block)
        if block.is_here and self._here is not None:
            return self._here.call(block, f"{_HERE}{block.id}", is_over=self.blocks.finished is not None)
        names = {"call": "ctc" if tool.is_custom else "fc", "thinking": "rs", "text": "msg"}
        id_ = self._ids.setdefault(block.index, f"{names[block.kind]}_{uuid4().hex}")
        head: Json = {"id": id_, "status": status}
        if block.kind == "call":
            is_part = tool.is_custom and status == "in_progress"  # of the JSON around its input
            return {**head, "call_id": block.id, **tool.call("" if is_part else block.text)}
        parts = [_part(block)] if block.text else []
        if block.kind == "thinking":
            return {**head, "type": "reasoning", "summary": [], "content": parts}
        return {**head, "type": "message", "role": "assistant", "content": parts}

    def _tool(self, block: ContentBlock) -> NamedTool:
        return self._tools.get(block.name, NamedTool(block.name))

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        block = step.block
        is_custom = self._tool(step.block).is_custom
        at: Json = {"output_index": block.index + len(self._lists)}
        item = self._item(block, "in_progress")
        id_ = item["id"]
        if block.is_here:
            yield from self._events_here(step, item, {**at, "item_id": id_})
            return
        inside = {**at, "item_id": id_} | ({} if block.kind == "call" else {"content_index": 0})
        names = {"call": "function_call_arguments", "thinking": "reasoning_text", "text": "output_text"}
        name = f"response.{'custom_tool_call_input' if is_custom else names[block.kind]}"
        extra: Json = {"logprobs": []} if block.kind == "text" else {}
        if step.kind == "begins":
            yield self._event("response.output_item.added", **at, item=item)
            if block.kind != "call":
                empty = {**_part(block), "text": ""}
                yield self._event("response.content_part.added", **inside, part=empty)
        elif step.kind == "grows":
            if not is_custom:
                yield self._event(f"{name}.delta", **inside, delta=step.added, **extra, **self.live())
        elif is_custom:
            given = custom_input(block.text)
            yield self._event(f"{name}.delta", **inside, delta=given)
            yield self._event(f"{name}.done", **inside, input=given)
            yield self._event("response.output_item.done", **at, item=self._item(block, "completed"))
        else:
            key = "arguments" if block.kind == "call" else "text"
            yield self._event(f"{name}.done", **inside, **{key: block.text}, **extra)
            if block.kind != "call":
                yield self._event("response.content_part.done", **inside, part=_part(block))
            yield self._event("response.output_item.done", **at, item=self._item(block, "completed"))

    def _events_here(self, step: BlockEvent, item: Json, inside: Json) -> Iterator[Json]:
        """Yield the events of a call that runs here, in OpenAI's order."""
        at: Json = {"output_index": inside["output_index"]}
        if step.kind == "begins":
            yield self._event("response.output_item.added", **at, item=item)
            yield self._event("response.mcp_call.in_progress", **inside)
        elif step.kind == "grows":
            yield self._event("response.mcp_call_arguments.delta", **inside, delta=step.added)
        elif step.kind == "ends":
            yield self._event("response.mcp_call_arguments.done", **inside, arguments=step.block.text)
        elif step.kind == "over":
            state = "completed" if item["status"] == "completed" else "failed"
            yield self._event(f"response.mcp_call.{state}", **inside)
            yield self._event("response.output_item.done", **at, item=item)

    def _event(self, kind: str, **values: object) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **values}


def _part(block: ContentBlock) -> Json:
    if block.kind == "thinking":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


PROTOCOL: Protocol[ChatService] = Protocol({"/v1/responses": _answer, "/v1/responses/input_tokens": _count})
