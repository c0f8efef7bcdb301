"""Anthropic's protocol: `/v1/messages`, as the same request in OpenAI's words, and replies of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.server.blocks import BlockEvent, ContentBlock, ProtocolReply, warned
from localspec.server.exchange import SERVER_SENT, SILENCE_S, ApiError, frame, read_json
from localspec.server.fields import in_known_words, shared
from localspec.server.messages import an_object, call_arguments, objects
from localspec.server.openai import Chat, answered, asked_in_chat, body_of, counted_tokens
from localspec.server.parts import text_of
from localspec.server.service import ChatService, Protocol
from localspec.server.tools_here import kit_for
from localspec.tools.mcp.names import tool_name

_KINDS = {413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DEAF = "claude-cli/"  # in the name of a client that does not hear pings
_PINGS = round(120 / SILENCE_S)  # for each event that says nothing new
_HERE = "mcptoolu_"  # begins the ids of calls that run on this side
_FULL = "model_context_window_exceeded"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # others name a tool


def error(failure: ApiError) -> Json:
    """Return an error as Anthropic words it."""
    usual = "api_error" if failure.status >= 500 else "invalid_request_error"
    known = failure.kind if failure.status in (401, 403, 404) else usual
    kind = _KINDS.get(failure.status, known)
    message = failure.message
    overflow = failure.overflow
    if overflow is not None and overflow.tokens:
        message = f"prompt is too long: {overflow.tokens} tokens > {overflow.context - 1} maximum"
    return {"type": "error", "error": {"type": kind, "message": message}}


async def _asked(service: ChatService, request: Request) -> Chat:
    body = an_object(in_known_words(await read_json(request)), "the request")
    return await asked_in_chat(service, body_of(_in_openai_words(body)), kit_for(service.server.kit, request))


async def _answer(service: ChatService, request: Request) -> Response:
    chat = await _asked(service, request)
    streams = bool(chat.body.stream)
    tokens = await counted_tokens(service, chat) if streams else 0
    reply = _Reply(chat, tokens, hears_pings=_DEAF not in request.headers.get("user-agent", ""))
    events = answered(service, chat.rounds, lambda: reply.blocks, chat.asked)
    return await reply.send(request, events, streams=streams)


async def _count(service: ChatService, request: Request) -> Response:
    return JSONResponse({"input_tokens": await counted_tokens(service, await _asked(service, request))})


def _in_openai_words(body: Json) -> Json:
    """Return a request in the form of OpenAI's chat, whose reader validates it."""
    system = text_of(body.get("system"))
    messages: list[Json] = [{"role": "system", "content": system}] if system else []
    for turn in objects(body.get("messages"), "messages"):
        messages += _turn(turn)
    choice = an_object(body.get("tool_choice") or {}, "tool_choice")
    kind = _CHOICES.get(str(choice.get("type", "auto")))
    output = an_object(body.get("output_config") or {}, "output_config")
    given = shared(body)
    form = output.get("format") or body.get("output_format") or given.get("response_format")
    return {
        **given,
        "messages": messages,
        "stop": body.get("stop_sequences") or given.get("stop"),
        "tools": [_tool(tool) for tool in objects(body.get("tools"), "tools")],
        "tool_choice": kind or {"function": {"name": choice.get("name")}},
        "parallel_tool_calls": not choice.get("disable_parallel_tool_use"),
        "response_format": form,
        "thinking": body.get("thinking"),
        "reasoning_effort": output.get("effort") or given.get("reasoning_effort"),
    }


def _tool(tool: Json) -> Json:
    if (kind := tool.get("type")) in ("mcp", "mcp_toolset"):
        return tool
    if kind not in (None, "custom"):
        return {"type": kind}  # one of Anthropic's own, which is left out
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _turn(turn: Json) -> Iterator[Json]:
    """Yield the messages that a turn is made of: results of tools each have their own, before the text.

    What comes after the result of a tool that ran on this side is a message of its own.
    """
    content = turn.get("content")
    if not isinstance(content, list):
        yield {"role": turn.get("role"), "content": content}
        return
    parts = list[object]()
    calls = list[Json]()
    has_results = False
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else "text"
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "function": function})
        elif kind == "mcp_tool_use":
            name = tool_name(str(block.get("server_name")), str(block.get("name")))
            calls.append(
                {"id": _id_here(block, "id"), "function": {"name": name, "arguments": block.get("input")}}
            )
        elif kind in ("tool_result", "mcp_tool_result"):
            has_results = True
            if calls:
                yield {"role": turn.get("role"), "content": parts, "tool_calls": calls}
                parts = []
                calls = []
            yield {"role": "tool", "tool_call_id": _id_here(block, "tool_use_id"), "content": _result(block)}
        else:
            parts.append(block)
    if parts or calls or not has_results:
        yield {"role": turn.get("role"), "content": parts} | ({"tool_calls": calls} if calls else {})


def _id_here(block: Json, field: str) -> str:
    return str(block.get(field) or "").removeprefix(_HERE)


def _result(block: Json) -> str:
    text = text_of(block.get("content"))
    failed = block.get("is_error") is True and not text.lower().startswith("error")
    return f"Error: {text}" if failed else text


class _Reply(ProtocolReply):
    """One message of the assistant; `tokens` are those of the prompt, if known before."""

    def __init__(self, chat: Chat, tokens: int, *, hears_pings: bool) -> None:
        super().__init__(chat.blocks())
        self._here = chat.here
        self._content = list[Json]()
        self._place = 0  # of the block in progress
        self.form = replace(SERVER_SENT, waiting=self._waiting)
        self._pings = 0
        self._hears_pings = hears_pings
        self._tokens = tokens
        self._head: Json = {
            "id": f"msg_{uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": chat.asked.profile.name,
        }

    def first_events(self) -> Iterator[Json]:
        usage = {"input_tokens": self._tokens, "output_tokens": 0}
        message = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": message}

    def _waiting(self) -> str:
        """Return a ping for a stream that waits.

        Anthropic's packages keep pings from the programs that use them, and Claude Code gives up after five
        minutes. It also gets an event that says nothing new, which LiteLLM would take for the end.
        """
        self._pings += 1
        events = list(self.begin())
        if self._pings % _PINGS == 0 and not self._hears_pings:
            unchanged = {"stop_reason": None, "stop_sequence": None}
            events.append({"type": "message_delta", "delta": unchanged, "usage": {"output_tokens": 0}})
        if not events:
            events.append({"type": "ping"})
        return "".join(map(frame, events))

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        block = step.block
        index = self._place
        if step.kind == "ends":
            self._content.append(self._block(block))
            self._place += 1
            yield {"type": "content_block_stop", "index": index}
        elif step.kind == "begins":
            yield {"type": "content_block_start", "index": index, "content_block": self._block(block)}
        elif step.kind in ("runs", "over"):
            if block.run is not None:
                self._content.append(result := self._result(block))
                self._place += 1
                yield {"type": "content_block_start", "index": index, "content_block": result}
                yield {"type": "content_block_stop", "index": index}
        else:
            names = {"call": ("input_json_delta", "partial_json"), "thinking": ("thinking_delta", "thinking")}
            kind, name = names.get(block.kind, ("text_delta", "text"))
            delta = {"type": kind, name: step.added}
            yield {"type": "content_block_delta", "index": index, "delta": delta}

    def last_events(self) -> Iterator[Json]:
        told = {"delta": self._ending(), "usage": self._usage(), **warned(self.blocks.warnings)}
        yield {"type": "message_delta", **told}
        yield {"type": "message_stop"}

    def complete(self) -> Json:
        told = {"usage": self._usage(), **warned(self.blocks.warnings)}
        return {**self._head, "content": self._content, **self._ending(), **told}

    def error_event(self, failure: ApiError) -> Json:
        return error(failure)

    def _block(self, block: ContentBlock) -> Json:
        if block.kind == "call":
            called = {"name": block.name, "input": call_arguments(block.text)}
            if not block.is_here:
                return {"type": "tool_use", "id": block.id, **called}
            assert self._here is not None  # or no call would run here
            label = self._here.labels[block.name]
            name = self._here.offered.owners[block.name][0].own_name
            about = {"type": "mcp_tool_use", "id": f"{_HERE}{block.id}", "server_name": label}
            return {**called, **about, "name": name}
        if block.kind == "thinking":
            return {"type": "thinking", "thinking": block.text, "signature": ""}
        return {"type": "text", "text": block.text}

    def _result(self, block: ContentBlock) -> Json:
        """Return the result of a call that ran on this side."""
        return {
            "type": "mcp_tool_result",
            "tool_use_id": f"{_HERE}{block.id}",
            "is_error": block.run is None or block.run.outcome != "done",
            "content": [{"type": "text", "text": block.output}],
        }

    def _ending(self) -> Json:
        finished = self.blocks.finished
        stopped = finished.stop_string if finished is not None else None
        reason = "stop_sequence" if stopped else _REASONS[self.blocks.reason]
        if finished is not None and finished.reason == "context":
            reason = _FULL
        return {"stop_reason": reason, "stop_sequence": stopped}

    def _usage(self) -> Json:
        assert self.blocks.finished is not None
        summary = self.blocks.finished.summary
        return {
            "input_tokens": summary.new_prompt_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": summary.cached_tokens,
            "output_tokens": summary.tokens,
        }


PROTOCOL: Protocol[ChatService] = Protocol(
    {"/v1/messages": _answer, "/v1/messages/count_tokens": _count}, error
)
