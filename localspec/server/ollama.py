"""Ollama's protocol: its chats and completions as the same requests in OpenAI's words, and lines of JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.errors import UserError
from localspec.server.about import STARTED, description
from localspec.server.blocks import BlockEvent, BlockStream, ContentBlock, ProtocolReply, warned
from localspec.server.choices import scored_tokens
from localspec.server.exchange import ApiError, StreamForm, json_line, read_json
from localspec.server.messages import an_object, call_arguments, objects
from localspec.server.openai import (
    answer_of,
    asked_in_chat,
    asked_of,
    bare_blocks,
    bare_texts,
    body_of,
    schemas_of,
)
from localspec.server.queue import QueuedRequest
from localspec.server.served import ServedModel, ServedModels
from localspec.server.service import ChatService, Protocol
from localspec.server.wordless import in_words
from localspec.types.events import Summary, TokenScore
from localspec.types.models import ModelInfo
from localspec.types.request import Infill

VERSION = "0.20.0"  # of Ollama, whose API these paths follow; clients ask for a least one
_NS = 1e9
_SAME = ("model", "tools", "stream", "keep_alive", "think", "logprobs", "top_logprobs")
_GGUF = {"parent_model": "", "format": "gguf", "quantization_level": ""}


def error(failure: ApiError) -> Json:
    """Return an error as Ollama words it."""
    return {"error": failure.message}


async def _chat(service: ChatService, request: Request) -> Response:
    body = an_object(await read_json(request), "the request")
    turns = objects(body.get("messages"), "messages")
    if not turns:
        return JSONResponse(_loaded(service, body) | {"message": {"role": "assistant", "content": ""}})
    chat = await asked_in_chat(service, body_of(_in_openai_words(body, _conversation(turns))))
    reply = _ChatReply(chat.asked, chat.blocks())
    events = in_words(service, chat.asked, lambda: reply.blocks)
    return await reply.send(request, events, streams=body.get("stream") is not False)


async def _generate(service: ChatService, request: Request) -> Response:
    body = an_object(await read_json(request), "the request")
    prompt = body.get("prompt")
    system = body.get("system")
    suffix = body.get("suffix")
    if not prompt:
        return JSONResponse(_loaded(service, body) | {"response": ""})
    if body.get("raw") or suffix:
        if body.get("images"):
            raise UserError("the request holds images", "send text alone")
        wanted = body_of(_in_openai_words(body, []) | {"prompt": prompt})
        (text,) = bare_texts(replace(wanted, prompt=str(prompt)), service.queue.models)
        answer = answer_of(wanted, service, text)
        answer = replace(answer, infill=Infill(str(suffix)) if suffix else None)
        asked = asked_of(wanted, service, answer, service.profile(wanted.model))
        blocks = bare_blocks(await schemas_of(service, answer))
    else:
        before: list[Json] = [{"role": "system", "content": system}] if system else []
        turns = [*before, {"role": "user", "content": _with_images(prompt, body)}]
        chat = await asked_in_chat(service, body_of(_in_openai_words(body, turns)))
        asked = chat.asked
        blocks = chat.blocks()
    reply = _TextReply(asked, blocks)
    return await reply.send(request, service.answer(asked), streams=body.get("stream") is not False)


def _in_openai_words(body: Json, turns: list[Json]) -> Json:
    """Return a request in the form of OpenAI's chat, whose reader validates it."""
    options = dict(an_object(body.get("options") or {}, "options"))
    limit = options.pop("num_predict", None)
    form = body.get("format")
    words: Json = {name: body.get(name) for name in _SAME} | options
    words |= {"messages": turns, "max_tokens": None if limit in (-1, -2) else limit}
    if isinstance(words["model"], str):
        words["model"] = words["model"].removesuffix(":latest")
    if form == "json":
        words["response_format"] = {"type": "json_object"}
    elif form:
        words["response_format"] = {"type": "json_schema", "json_schema": {"schema": form}}
    return words


def _conversation(turns: list[Json]) -> list[Json]:
    """Return messages in OpenAI's form."""
    return [
        {
            "role": turn.get("role"),
            "content": _with_images(turn.get("content"), turn),
            "name": turn.get("tool_name"),
            "tool_calls": objects(turn.get("tool_calls"), f"messages[{at}].tool_calls"),
            "tool_call_id": turn.get("tool_call_id"),
            "reasoning_content": turn.get("thinking"),
        }
        for at, turn in enumerate(turns)
    ]


def _with_images(text: object, holder: Json) -> object:
    """Return the content of a message whose images are beside its text."""
    images = holder.get("images")
    return [text or "", *({"type": "image"} for _ in images)] if images and isinstance(images, list) else text


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _loaded(service: ChatService, body: Json) -> Json:
    """Return the answer to a request without a prompt, which loads a model in Ollama."""
    name = service.profile(str(body.get("model")).removesuffix(":latest")).name
    return {"model": name, "created_at": _now(), "done": True, "done_reason": "load"}


class _Reply(ProtocolReply):
    """An answer in lines of JSON; calls come whole."""

    def __init__(self, asked: QueuedRequest, blocks: BlockStream) -> None:
        super().__init__(blocks)
        self._model = asked.profile.name
        self.form = StreamForm(json_line, "application/x-ndjson", lambda: json_line(self._line({})))

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        if step.block.kind == "call":
            if step.kind == "ends":
                yield self._line({"tool_calls": [_call(step.block, len(self.blocks.calls) - 1)]})
        elif step.added:
            said: Json = {"content" if step.block.kind == "text" else "thinking": step.added}
            yield self._line(said) | _scored(self.blocks.new_scores())

    def last_events(self) -> Iterator[Json]:
        yield self._line({}) | self._ending() | _scored(self.blocks.new_scores())

    def complete(self) -> Json:
        said: Json = {"content": self.blocks.text("text")}
        if thinking := self.blocks.text("thinking"):
            said["thinking"] = thinking
        if self.blocks.calls:
            said["tool_calls"] = [_call(block, at) for at, block in enumerate(self.blocks.calls)]
        return self._line(said) | self._ending() | _scored(self.blocks.scores)

    def error_event(self, failure: ApiError) -> Json:
        return error(failure)

    def _line(self, said: Json) -> Json:
        return {"model": self._model, "created_at": _now(), **self._said(said), "done": False}

    def _said(self, said: Json) -> Json:
        raise NotImplementedError

    def _ending(self) -> Json:
        assert self.blocks.finished is not None
        reason = "length" if self.blocks.reason == "length" else "stop"
        told = {**_figures(self.blocks.finished.summary), **warned(self.blocks.warnings)}
        return {"done": True, "done_reason": reason, **told}


class _ChatReply(_Reply):
    """An answer to `/api/chat`."""

    def _said(self, said: Json) -> Json:
        return {"message": {"role": "assistant", "content": "", **said}}


class _TextReply(_Reply):
    """An answer to `/api/generate`."""

    def _said(self, said: Json) -> Json:
        rest = {name: said[name] for name in said if name != "content"}
        return {"response": said.get("content", ""), **rest}


def _scored(scores: Sequence[TokenScore]) -> Json:
    return {"logprobs": scored_tokens(scores)} if scores else {}


def _figures(summary: Summary) -> Json:
    return {
        "total_duration": int(_NS * summary.seconds),
        "load_duration": 0,
        "prompt_eval_count": summary.prompt_tokens,
        "prompt_eval_duration": int(_NS * summary.prompt_s),
        "eval_count": summary.tokens,
        "eval_duration": int(_NS * summary.decode_s),
    }


def _call(block: ContentBlock, at: int) -> Json:
    """Return a call; its position is also where LiteLLM looks for it, which else makes one of several."""
    function = {"index": at, "name": block.name, "arguments": call_arguments(block.text)}
    return {"id": block.id, "index": at, "function": function}


def _opening(_words: str, path: str, model: str) -> str:
    """Return an empty line for a stream whose model is being opened: JSON has no comments."""
    said: Json = {"response": ""}
    if path.endswith("/chat"):
        said = {"message": {"role": "assistant", "content": ""}}
    return json_line({"model": model, "created_at": _now(), **said, "done": False})


async def _version(_models: ServedModels, _request: Request) -> Response:
    return JSONResponse({"version": VERSION})


async def _tags(models: ServedModels, _request: Request) -> Response:
    listed = [model for model in models.all if model.offer.is_listed]
    found = [entry for model in listed for entry in await _listed(model)]
    return JSONResponse({"models": found})


async def _running(models: ServedModels, _request: Request) -> Response:
    found = list[Json]()
    for model in models.all:
        described = None if model.opened is None else await description(model)
        if described is not None:
            taken = model.held.by_device
            rest = {
                "size": sum(taken.values()) or described.target.file_bytes,
                "size_vram": sum(size for device, size in taken.items() if device != "CPU"),
                "context_length": described.target.context,
            }
            found.append((await _listed(model))[0] | rest)
    return JSONResponse({"models": found})


async def _show(models: ServedModels, request: Request) -> Response:
    body = an_object(await read_json(request), "the request")
    name = str(body.get("model") or body.get("name"))
    model = models.named(name)
    described = None if model is None else await description(model)
    if model is None or described is None:
        raise models.unknown(name)
    target = described.target
    settings = dict[str, object]()
    profile = model.offer.profiles.get(name.removesuffix(":latest"))
    if isinstance(model.opened, ChatService) and profile is not None:
        settings = model.opened.settings(QueuedRequest(profile, model.opened.asked))
    info = {
        "general.architecture": target.architecture,
        "general.basename": target.name,
        "general.parameter_count": target.parameters,
        f"{target.architecture}.context_length": target.context,
    }
    can = ["completion", "tools", *["thinking"] * described.thinks]
    return JSONResponse(
        {
            "modelfile": "",
            "template": "",
            "parameters": "\n".join(f"{key} {json.dumps(value)}" for key, value in settings.items()),
            "details": _details(target),
            "model_info": info,
            "capabilities": can if model.offer.kind == "chat" else ["embedding"],
            "modified_at": _started(),
        }
    )


async def _listed(model: ServedModel) -> list[Json]:
    """Return a model, by each of its names, as one of Ollama's."""
    described = await description(model)
    if described is None:
        return []
    return [
        {
            "name": name,
            "model": name,
            "modified_at": _started(),
            "size": described.target.file_bytes,
            "digest": hashlib.sha256(name.encode()).hexdigest(),
            "details": _details(described.target),
        }
        for name in model.offer.ids
    ]


def _details(target: ModelInfo) -> Json:
    millions = target.parameters / 1e6
    size = f"{millions / 1000:.1f}B" if millions >= 1000 else f"{millions:.0f}M"
    return {**_GGUF, "family": target.architecture, "families": [target.architecture], "parameter_size": size}


def _started() -> str:
    return datetime.fromtimestamp(STARTED, UTC).isoformat().replace("+00:00", "Z")


PROTOCOL: Protocol[ChatService] = Protocol(
    {"/api/chat": _chat, "/api/generate": _generate},
    error,
    streams=True,
    form=StreamForm(json_line, "application/x-ndjson", lambda: ""),
    opening=_opening,
)
TOLD: Protocol[ServedModels] = Protocol(
    {"/api/show": _show}, error, told={"/api/version": _version, "/api/tags": _tags, "/api/ps": _running}
)
