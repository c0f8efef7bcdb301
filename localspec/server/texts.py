"""llama-server's paths around texts: tokens and back, a chat as its template writes it, gaps in files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json, finite, timings
from localspec.server.blocks import BlockEvent, ProtocolReply
from localspec.server.exchange import read, read_json
from localspec.server.openai import Body, answer_of, asked_in_chat, asked_of, bare_blocks
from localspec.server.service import ChatService, Protocol
from localspec.types.request import Infill

_STOPS = {"stop": "eos", "length": "limit", "context": "limit"}


@dataclass(frozen=True, slots=True)
class TextBody:
    """A request to `/tokenize` or `/detokenize`."""

    content: str = ""
    tokens: tuple[int, ...] = ()
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """Another file that the model may look at."""

    text: str
    filename: str = "tmp"


@dataclass(frozen=True, slots=True)
class InfillBody:
    """The fields of `/infill`, in addition to a completion's; `prompt` continues the prefix."""

    input_prefix: str
    input_suffix: str
    input_extra: tuple[File, ...] = ()
    prompt: str = ""
    n_predict: int | None = None


async def _tokenize(service: ChatService, request: Request) -> Response:
    body, models = read(TextBody, await read_json(request)), service.queue.models
    tokenize = partial(models.tokenize, special=body.parse_special, add_special=body.add_special)

    def reply() -> Response:  # of megabytes, for which the other clients do not wait
        found = tokenize(body.content)
        return JSONResponse(
            {"tokens": [_with_piece(token, data) if body.with_pieces else token for token, data in found]}
        )

    return await asyncio.to_thread(reply)


async def _detokenize(service: ChatService, request: Request) -> Response:
    body = read(TextBody, await read_json(request))
    return JSONResponse({"content": await asyncio.to_thread(service.queue.models.detokenize, body.tokens)})


async def _apply_template(service: ChatService, request: Request) -> Response:
    chat = await asked_in_chat(service, read(Body, await read_json(request)))
    models, wanted = service.queue.models, chat.asked.overrides.answer
    return JSONResponse({"prompt": await asyncio.to_thread(models.render, wanted)})


async def _infill(service: ChatService, request: Request) -> Response:
    value = await read_json(request)
    gap, body = read(InfillBody, value), read(Body, value)
    if gap.n_predict is not None and body.max_tokens is None:
        body = replace(body, max_tokens=gap.n_predict)
    files = tuple((file.filename, file.text) for file in gap.input_extra)
    answer = answer_of(body, service, gap.input_prefix + gap.prompt)
    answer = replace(answer, infill=Infill(gap.input_suffix, files))
    asked = asked_of(body, service, answer, service.profile(body.model))
    return await _Filling(bare_blocks()).send(request, service.answer(asked), streams=bool(body.stream))


class _Filling(ProtocolReply):
    """The text of a gap."""

    def events_of(self, step: BlockEvent) -> Iterator[Json]:
        if step.added:
            yield {"content": step.added, "stop": False}

    def last_events(self) -> Iterator[Json]:
        yield self.complete() | {"content": ""}

    def complete(self) -> Json:
        assert self.blocks.finished is not None
        finished, summary = self.blocks.finished, self.blocks.finished.summary
        return {
            "content": self.blocks.text("text"),
            "stop": True,
            "stop_type": "word" if finished.stop_string else _STOPS.get(finished.reason, "none"),
            "stopping_word": finished.stop_string or "",
            "tokens_predicted": summary.tokens,
            "tokens_evaluated": summary.prompt_tokens,
            "tokens_cached": summary.cached_tokens,
            "timings": finite(timings(summary)),
        }


def _with_piece(token: int, data: bytes) -> Json:
    """Return a token with its text, or its bytes where they are none."""
    with suppress(UnicodeDecodeError):
        return {"id": token, "piece": data.decode("utf-8")}
    return {"id": token, "piece": list(data)}


PROTOCOL = Protocol(
    {
        "/tokenize": _tokenize,
        "/detokenize": _detokenize,
        "/apply-template": _apply_template,
        "/infill": _infill,
    }
)
