"""llama-server's paths around texts: tokens and back, and a chat as its template writes it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from localspec.app.answer_json import Json
from localspec.server.exchange import read, read_json
from localspec.server.openai import asked_in_chat, body_of
from localspec.server.service import ChatService, Protocol


@dataclass(frozen=True, slots=True)
class TextBody:
    """A request to `/tokenize` or `/detokenize`."""

    content: str = ""
    tokens: tuple[int, ...] = ()
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


async def _tokenize(service: ChatService, request: Request) -> Response:
    body = read(TextBody, await read_json(request))
    models = service.queue.models
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
    chat = await asked_in_chat(service, body_of(await read_json(request)))
    models = service.queue.models
    wanted = chat.asked.overrides.answer
    return JSONResponse({"prompt": await asyncio.to_thread(models.render, wanted)})


def _with_piece(token: int, data: bytes) -> Json:
    """Return a token with its text, or its bytes where they are none."""
    with suppress(UnicodeDecodeError):
        return {"id": token, "piece": data.decode("utf-8")}
    return {"id": token, "piece": list(data)}


PROTOCOL: Protocol[ChatService] = Protocol(
    {
        "/tokenize": _tokenize,
        "/detokenize": _detokenize,
        "/apply-template": _apply_template,
    }
)
